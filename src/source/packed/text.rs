//! Packed texts that differ in their arrays' elements alone.
//!
//! LZ4 finds nothing to shorten in a few numbers, so they stand in the frame as they are, in one run of literals that no
//! match copies from. Whatever else is in the frame is then the same for all arrays of one type:
//!
//! ```text
//! text    BCJNGGhAjwAA..DxBQDN axUtK4gRPVbK/jxTbMO8 lIwFQfEWlIwF..AAAA
//!         └── the same ──────┘ └── some of these ─┘ └── the same ────┘
//! ```
//!
//! A text of that length, with those same parts, unfolds to the same pickle with other elements, and they are the bytes
//! between: unfolding is a function of the text. Letters stand for three bytes by four, so the bytes beside the elements
//! are compared once they are decoded.

use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Arrays of more bytes than this have something to shorten, as a rule, and are unfolded one by one.
const LARGEST: usize = 1024;

/// A text, but for its array's elements.
#[derive(Debug)]
pub(super) struct TextPattern {
    head: Vec<u8>,
    tail: Vec<u8>,
    /// Letters between both, and the bytes that they stand for.
    letters: usize,
    bytes: usize,
    /// What they stand for, beside the elements.
    before: Vec<u8>,
    after: Vec<u8>,
}

impl TextPattern {
    /// The pattern of `text`, which is base64 of `frame`, whose header takes `header` bytes and says the size of the content;
    /// the frame has no checksums. The elements are the bytes `elements` of the content. `None` if they are not what alone
    /// may differ.
    pub fn of(text: &str, frame: &[u8], header: usize, elements: Range<usize>) -> Option<Self> {
        if elements.is_empty() || elements.len() > LARGEST {
            return None;
        }
        let (size, block) = frame.get(header..)?.split_first_chunk::<4>()?;
        let size = u32::from_le_bytes(*size);
        let first = header + 4;
        // One block and the end mark: a further block could copy from this one's elements.
        if block.get((size & 0x7fff_ffff) as usize..)? != [0; 4] {
            return None;
        }
        let place = if size & 0x8000_0000 != 0 {
            // A block that is stored as it is.
            first + elements.start
        } else {
            first + literals(block.get(..size as usize)?, &elements)?
        };
        let bytes = place..place + elements.len();
        let letters = bytes.start / 3 * 4..bytes.end.div_ceil(3) * 4;
        let around = letters.start / 4 * 3..(letters.end / 4 * 3).min(frame.len());
        let text = text.as_bytes();
        Some(Self {
            head: text.get(..letters.start)?.to_vec(),
            tail: text.get(letters.end..)?.to_vec(),
            letters: letters.len(),
            bytes: around.len(),
            before: frame.get(around.start..bytes.start)?.to_vec(),
            after: frame.get(bytes.end..around.end)?.to_vec(),
        })
    }

    /// Where in `bytes` the elements of another text lie, once they are decoded to there. `None` if it differs elsewhere.
    pub fn elements(&self, text: &str, bytes: &mut Vec<u8>) -> Option<Range<usize>> {
        let letters = text.as_bytes().strip_prefix(self.head.as_slice())?.strip_suffix(self.tail.as_slice())?;
        if letters.len() != self.letters {
            return None;
        }
        bytes.clear();
        STANDARD.decode_vec(letters, bytes).ok()?;
        // Letters that end in padding, which a whole text may do at its end only, are fewer bytes.
        if bytes.len() != self.bytes {
            return None;
        }
        let elements = self.before.len()..bytes.len() - self.after.len();
        // Two bytes at most, each. `memcmp` would load more of them at once than was stored at once just now, and wait.
        let same = |found: &[u8], expected: &[u8]| found.iter().zip(expected).all(|(f, e)| f == e);
        (same(bytes, &self.before) && same(&bytes[elements.end..], &self.after)).then_some(elements)
    }
}

/// Where in an LZ4 block the bytes `wanted` of its content stand as literals, if they all do, and no match copies any of
/// them.
fn literals(block: &[u8], wanted: &Range<usize>) -> Option<usize> {
    let (mut at, mut content, mut found) = (0, 0, None);
    loop {
        let token = *block.get(at)?;
        at += 1;
        let run = length(block, &mut at, token >> 4)?;
        let own = content..content + run;
        if own.start <= wanted.start && wanted.end <= own.end {
            found = Some(at + wanted.start - own.start);
        }
        at += run;
        content += run;
        // The last sequence has no match.
        if at == block.len() {
            return found;
        }
        let offset = usize::from(u16::from_le_bytes(*block.get(at..)?.first_chunk::<2>()?));
        at += 2;
        let copied = length(block, &mut at, token & 15)? + 4;
        // A match may run into what it has just written, which is a copy of its own source.
        let source = content.checked_sub(offset)?..content.min(content - offset + copied);
        if source.start < wanted.end && wanted.start < source.end {
            return None;
        }
        content += copied;
    }
}

/// A length whose first four bits are `bits`.
fn length(block: &[u8], at: &mut usize, bits: u8) -> Option<usize> {
    let mut length = usize::from(bits);
    if bits == 15 {
        loop {
            let more = *block.get(*at)?;
            *at += 1;
            length = length.checked_add(usize::from(more))?;
            if more < 255 {
                break;
            }
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Unpacker, tests::packed};
    use super::*;

    #[test]
    fn literals_that_nothing_copies() {
        // Five literals, a match of four bytes from three before, six literals.
        let block = [0x50, b'a', b'b', b'c', b'd', b'e', 3, 0, 0x60, b'u', b'v', b'w', b'x', b'y', b'z'];
        assert_eq!(lz4_flex::block::decompress(&block, 15).unwrap(), b"abcdecdecuvwxyz");
        assert_eq!(literals(&block, &(0..2)), Some(1));
        assert_eq!(literals(&block, &(0..3)), None, "the match copies `c`");
        assert_eq!(literals(&block, &(2..5)), None);
        assert_eq!(literals(&block, &(4..6)), None, "not all literals");
        assert_eq!(literals(&block, &(9..15)), Some(9));
        for n in 0..block.len() {
            let _ = literals(&block[..n], &(0..2));
        }
    }

    /// A block that follows may copy from the elements: then the texts of other elements unfold to something else.
    #[test]
    fn frames_of_several_blocks_have_no_pattern() {
        let header = [4, 0x22, 0x4d, 0x18, 0x48, 0x40, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        let stored =
            |data: &[u8]| [&(0x8000_0000_u32 | u32::try_from(data.len()).unwrap()).to_le_bytes(), data].concat();
        let of = |blocks: &[&[u8]]| {
            let blocks: Vec<u8> = blocks.iter().flat_map(|data| stored(data)).collect();
            let frame = [&header[..], &blocks, &[0; 4]].concat();
            TextPattern::of(&STANDARD.encode(&frame), &frame, header.len(), 2..4).is_some()
        };
        assert!(of(&[b"abcdefgh"]));
        assert!(!of(&[b"abcd", b"efgh"]));
        // Two literals and two more, and four bytes from the first block.
        let copies = [0x20, b'x', b'y', 4, 0, 0x20, b'x', b'y'];
        let second = [&8_u32.to_le_bytes()[..], &copies].concat();
        let frame = [&header[..], &stored(b"abcd"), &second, &[0; 4]].concat();
        assert!(TextPattern::of(&STANDARD.encode(&frame), &frame, header.len(), 0..4).is_none());
    }

    /// A text with padding anywhere is no base64 but where its end has it, whatever was unpacked before.
    #[test]
    fn padding_in_the_middle_of_a_text_is_an_error() {
        for len in 1..8_u8 {
            let data: Vec<u8> = (200..200 + len).collect();
            let text = packed(&data);
            for at in 0..text.len() - 4 {
                for padding in ["=", "=="] {
                    let mut damaged = text.clone();
                    damaged.replace_range(at..at + padding.len(), padding);
                    let mut known = Unpacker::default();
                    known.unpack(&text).unwrap();
                    assert!(known.unpack(&damaged).is_err(), "{len} bytes, {padding} at {at}");
                    assert_eq!(known.unpack(&text).unwrap().1, data);
                }
            }
        }
    }

    proptest! {
        /// One unpacker after many texts gives what a fresh one gives of each.
        #[test]
        fn as_if_each_text_was_the_first(
            arrays in prop::collection::vec(
                prop::sample::select(vec![0_usize, 1, 4, 16, 33])
                    .prop_flat_map(|n| prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], n)),
                1..12,
            ),
            flip in prop::option::of((0..12_usize, any::<prop::sample::Index>(), 0..8_u8)),
        ) {
            let mut texts: Vec<String> = arrays.iter().map(|array| packed(array)).collect();
            if let Some((which, at, bit)) = flip {
                let which = which % texts.len();
                let mut bytes = STANDARD.decode(&texts[which]).unwrap();
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
                texts[which] = STANDARD.encode(bytes);
            }
            let mut one = Unpacker::with_limit(1 << 20);
            for text in &texts {
                let fresh = Unpacker::with_limit(1 << 20).ndarray(text);
                match (one.ndarray(text), fresh) {
                    (Ok(found), Ok(expected)) => prop_assert_eq!(found, expected),
                    (found, expected) => prop_assert_eq!(found.is_err(), expected.is_err()),
                }
            }
        }
    }
}
