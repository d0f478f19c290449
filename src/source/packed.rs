//! RLlib's packed arrays: text that is base64 of an LZ4 frame of a pickle.
//!
//! `ray/rllib/utils/compression.py`, `pack`: `b64encode(lz4.frame.compress(cloudpickle.dumps(array)))`. It is what
//! columns named in `output_compress_columns` hold (by default `obs` and `new_obs`). LZ4 frames:
//! <https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md>; pickles: [`super::pickle`].
//!
//! ```text
//! "BCJNGGhA..."  ─base64─▶  04 22 4d 18 | FLG BD [content size] HC | block ...  ─LZ4─▶  80 05 95 ... 2e  ─▶ NdArray
//! ```

mod text;

use std::io::Read;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use self::text::TextPattern;
use super::ndarray::NdArray;
use super::pickle;
use crate::error::{Error, Result};
use crate::tensor::TensorType;

/// The most bytes that one packed array may unfold to: 1 GiB.
pub const DEFAULT_LIMIT: u64 = 1 << 30;

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

/// LZ4 spends at least one byte on 255 bytes of content.
const MAX_RATIO: u64 = 255;

/// Whether a text is base64 of an LZ4 frame: the frame's magic number and the version in the byte after it.
#[must_use]
pub fn looks_packed(text: &str) -> bool {
    // 04 22 4d | 18, 01xxxxxx: the sixth letter carries the two low bits of 18 and the version 01.
    matches!(text.as_bytes(), [b'B', b'C', b'J', b'N', b'G', b'E'..=b'H', ..])
}

/// The array in one packed text. [`Unpacker`] does the same for many.
pub fn ndarray(text: &str) -> Result<NdArray> {
    Unpacker::default().ndarray(text)
}

/// Unpacks one text after the other with the same two scratch buffers.
///
/// The pickles of a column differ in their arrays' elements alone, as a rule. So the first one is read by the machine,
/// and those after it are compared with it; running the machine for each would take most of the time. Small arrays differ
/// so in their texts already, which saves the unfolding, too: see [`TextPattern`].
#[derive(Debug)]
pub struct Unpacker {
    frame: Vec<u8>,
    content: Vec<u8>,
    limit: u64,
    pattern: Option<Pattern>,
    /// The last text of that pattern, if texts can be told by it.
    text: Option<TextPattern>,
    /// The last array that did not lie in its pickle as it is.
    other: Option<NdArray>,
}

/// A pickle, but for its array's elements.
#[derive(Debug)]
struct Pattern {
    ty: TensorType,
    head: Vec<u8>,
    tail: Vec<u8>,
    /// Length of the elements between both.
    len: usize,
}

impl Pattern {
    /// The elements of another pickle, if all else is the same.
    fn elements<'a>(&self, pickle: &'a [u8]) -> Option<&'a [u8]> {
        let elements = pickle.strip_prefix(self.head.as_slice())?.strip_suffix(self.tail.as_slice())?;
        (elements.len() == self.len).then_some(elements)
    }
}

impl Default for Unpacker {
    fn default() -> Self {
        Self::with_limit(DEFAULT_LIMIT)
    }
}

impl Unpacker {
    /// An unpacker that refuses texts unfolding to more than `limit` bytes.
    #[must_use]
    pub const fn with_limit(limit: u64) -> Self {
        Self { frame: Vec::new(), content: Vec::new(), limit, pattern: None, text: None, other: None }
    }

    /// The array in one packed text.
    pub fn ndarray(&mut self, text: &str) -> Result<NdArray> {
        let (ty, data) = self.unpack(text)?;
        Ok(NdArray { ty: ty.clone(), data: data.to_vec() })
    }

    /// The type and the elements of the array in one packed text.
    pub fn unpack(&mut self, text: &str) -> Result<(&TensorType, &[u8])> {
        let told = self.text.as_ref().and_then(|known| known.elements(text, &mut self.frame));
        if let Some(place) = told {
            let pattern = self.pattern.as_ref().ok_or_else(|| Error::internal("a text of no pickle"))?;
            return Ok((&pattern.ty, &self.frame[place]));
        }
        self.unpack_text(text)?;
        let known = self.pattern.as_ref().is_some_and(|p| p.elements(&self.content).is_some());
        if !known {
            let (array, place) = pickle::located(&self.content)?;
            let pattern = place.map(|place| Pattern {
                ty: array.ty.clone(),
                head: self.content[..place.start].to_vec(),
                tail: self.content[place.end..].to_vec(),
                len: place.len(),
            });
            if pattern.is_none() {
                let array = self.other.insert(array);
                return Ok((&array.ty, &array.data));
            }
            self.pattern = pattern;
        }
        let pattern = self.pattern.as_ref().ok_or_else(|| Error::internal("no pickle to compare with"))?;
        self.text = self.text_pattern(text, pattern.head.len()..pattern.head.len() + pattern.len);
        let elements = pattern.elements(&self.content).ok_or_else(|| Error::internal("a pickle unlike itself"))?;
        Ok((&pattern.ty, elements))
    }

    /// What tells texts like this one, whose elements lie at `place` of its pickle.
    fn text_pattern(&self, text: &str, place: Range<usize>) -> Option<TextPattern> {
        let header = Header::read(&self.frame).ok()?;
        header.content.filter(|_| header.plain)?;
        TextPattern::of(text, &self.frame, header.len, place)
    }

    /// Unfolds a text to its pickle, in [`Self::content`].
    fn unpack_text(&mut self, text: &str) -> Result<()> {
        self.frame.clear();
        STANDARD
            .decode_vec(text, &mut self.frame)
            .map_err(|e| Error::data(format!("a packed array that is no base64: {e}")))?;
        self.unfold()
    }

    fn unfold(&mut self) -> Result<()> {
        let header = Header::read(&self.frame)?;
        if let Some(claimed) = header.content {
            if claimed > self.limit {
                return Err(self.too_large(&format!("claims {claimed} bytes")));
            }
            let blocks = self.frame.len() as u64;
            if claimed > blocks * MAX_RATIO {
                let what =
                    format!("an LZ4 frame of {blocks} bytes claims {claimed} bytes of content, which none can hold");
                return Err(Error::data(what));
            }
        }
        match header.content.and_then(|claimed| usize::try_from(claimed).ok()) {
            Some(claimed) if header.plain && self.unfold_single_block(header.len, claimed) => Ok(()),
            _ => self.unfold_any(),
        }
    }

    /// The usual frame: one block, no checksums, content size known. Saves the frame decoder's three buffers.
    /// False if the frame is not of this kind; the general decoder then says what is wrong, if anything is.
    fn unfold_single_block(&mut self, header: usize, claimed: usize) -> bool {
        let Some((size, rest)) = self.frame[header..].split_first_chunk::<4>() else {
            return false;
        };
        let size = u32::from_le_bytes(*size);
        let (stored, size) = (size & 0x8000_0000 != 0, (size & 0x7fff_ffff) as usize);
        // One block, then the end mark.
        if rest.len() != size + 4 || rest[size..] != [0; 4] {
            return false;
        }
        self.content.clear();
        if stored {
            self.content.extend_from_slice(&rest[..size]);
            return size == claimed;
        }
        self.content.resize(claimed, 0);
        lz4_flex::block::decompress_into(&rest[..size], &mut self.content).is_ok_and(|n| n == claimed)
    }

    fn unfold_any(&mut self) -> Result<()> {
        self.content.clear();
        let decoder = lz4_flex::frame::FrameDecoder::new(&self.frame[..]);
        decoder
            .take(self.limit.saturating_add(1))
            .read_to_end(&mut self.content)
            .map_err(|e| Error::data(format!("a packed array with a broken LZ4 frame: {e}")))?;
        if self.content.len() as u64 > self.limit {
            return Err(self.too_large("unfolds to more than that"));
        }
        Ok(())
    }

    fn too_large(&self, found: &str) -> Error {
        Error::data(format!("a packed array {found}, the limit is {} bytes", self.limit))
    }
}

/// What the start of a frame says.
struct Header {
    /// Bytes up to the first block.
    len: usize,
    /// Claimed size of the content.
    content: Option<u64>,
    /// Neither checksums nor a dictionary.
    plain: bool,
}

impl Header {
    fn read(frame: &[u8]) -> Result<Self> {
        let short = || Error::data("a packed array whose LZ4 frame ends inside its header");
        let rest = frame.strip_prefix(&MAGIC).ok_or_else(|| {
            Error::data("a packed array that holds no LZ4 frame (other magic number)")
                .hint("RLlib packs with lz4; a text column that is not packed must not be read as an observation")
        })?;
        let [flags, _block, rest @ ..] = rest else {
            return Err(short());
        };
        let has_size = flags & 0b1000 != 0;
        let content = if has_size { Some(*rest.first_chunk::<8>().ok_or_else(short)?) } else { None };
        let len = MAGIC.len() + 2 + if has_size { 8 } else { 0 } + 1;
        if frame.len() < len {
            return Err(short());
        }
        // Version 01, no block checksum (bit 4), content checksum (2) or dictionary (0); bit 5 is independence.
        Ok(Self { len, content: content.map(u64::from_le_bytes), plain: flags & 0b1101_0101 == 0b0100_0000 })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use lz4_flex::frame::{BlockSize, FrameEncoder, FrameInfo};

    use super::*;
    use crate::tensor::DType;

    /// `pack(np.array([..], "float32"))` out of a recording of CartPole (Ray 2.60, NumPy 2.4, lz4 4.4).
    const CART_POLE: &str = "BCJNGGhAjwAAAAAAAAAdigAAAFKABZWEAAEA8hqME251bXB5Ll9jb3JlLm51bWVyaWOUjAtfZnJvbWJ1ZmZl\
        cpSTlCiWEC8A8QUAzWsVPSuIET1Wyv48U2zDvJSMBUEA8RaUjAVkdHlwZZSTlIwCZjSUiYiHlFKUKEsDjAE8lE5OTkr/////BQDwA0sA\
        dJRiSwSFlIwBQ5R0lFKULgAAAAA=";

    fn cart_pole() -> NdArray {
        let data = [0xcd, 0x6b, 0x15, 0x3d, 0x2b, 0x88, 0x11, 0x3d, 0x56, 0xca, 0xfe, 0x3c, 0x53, 0x6c, 0xc3, 0xbc];
        NdArray { ty: TensorType::new(DType::Float32, [4]), data: data.to_vec() }
    }

    fn frame(info: FrameInfo, content: &[u8]) -> String {
        let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(content).unwrap();
        STANDARD.encode(encoder.finish().unwrap())
    }

    /// A protocol 5 pickle of `np.zeros(n, "u1")`.
    fn zeros(n: u32) -> Vec<u8> {
        let mut p = b"\x80\x05\x8c\x13numpy._core.numeric\x8c\x0b_frombuffer\x93(\x96".to_vec();
        p.extend(u64::from(n).to_le_bytes());
        p.resize(p.len() + n as usize, 0);
        p.extend(b"\x8c\x05numpy\x8c\x05dtype\x93\x8c\x02u1\x89\x88\x87R(K\x03\x8c\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbJ");
        p.extend(n.to_le_bytes());
        p.extend(b"\x85\x8c\x01CtR.");
        p
    }

    /// What RLlib packs of an array of bytes, more or less.
    pub(super) fn packed(data: &[u8]) -> String {
        let mut pickle = zeros(u32::try_from(data.len()).unwrap());
        let at = pickle.windows(8).position(|w| w == (data.len() as u64).to_le_bytes()).unwrap() + 8;
        pickle[at..at + data.len()].copy_from_slice(data);
        frame(FrameInfo::new().content_size(Some(pickle.len() as u64)), &pickle)
    }

    #[test]
    fn small_arrays_are_told_by_their_text() {
        let mut unpacker = Unpacker::default();
        assert_eq!(unpacker.ndarray(CART_POLE).unwrap(), cart_pole());
        assert!(unpacker.text.is_some());
        let known = unpacker.text.as_ref().unwrap();
        assert!(known.elements(CART_POLE, &mut Vec::new()).is_some());
    }

    #[test]
    fn unpacks_what_rllib_packs() {
        assert!(looks_packed(CART_POLE));
        assert_eq!(ndarray(CART_POLE).unwrap(), cart_pole());
    }

    #[test]
    fn every_kind_of_frame() {
        let mut unpacker = Unpacker::default();
        let pickle = zeros(300_000);
        for info in [
            FrameInfo::new(),
            FrameInfo::new().content_size(Some(pickle.len() as u64)),
            FrameInfo::new().content_size(Some(pickle.len() as u64)).block_size(BlockSize::Max4MB),
            FrameInfo::new().content_checksum(true).block_checksums(true).block_size(BlockSize::Max64KB),
            FrameInfo::new().block_mode(lz4_flex::frame::BlockMode::Linked).block_size(BlockSize::Max64KB),
        ] {
            let text = frame(info, &pickle);
            assert!(looks_packed(&text));
            assert_eq!(unpacker.ndarray(&text).unwrap().data, vec![0; 300_000]);
            assert_eq!(unpacker.ndarray(CART_POLE).unwrap(), cart_pole());
        }
    }

    #[test]
    fn pickles_that_differ_elsewhere_are_read_by_the_machine() {
        let pack = |pickle: &[u8]| frame(FrameInfo::new().content_size(Some(pickle.len() as u64)), pickle);
        let ones = |n: u32| {
            let mut p = zeros(n);
            let at = p.windows(8).position(|w| w == u64::from(n).to_le_bytes()).unwrap() + 8;
            p[at..at + n as usize].fill(1);
            p
        };
        // The same length, another dtype: `i1` for `u1`.
        let code = |p: &[u8]| p.windows(2).position(|w| w == b"u1").unwrap();
        let mut signed = ones(5);
        let at = code(&signed);
        signed[at] = b'i';
        // Booleans, of which NumPy takes any byte but 0 for true.
        let bools = |data: [u8; 2]| {
            let mut p = zeros(2);
            let at = code(&p);
            p[at] = b'b';
            let at = p.windows(8).position(|w| w == 2u64.to_le_bytes()).unwrap() + 8;
            p[at..at + 2].copy_from_slice(&data);
            p
        };
        let mut unpacker = Unpacker::default();
        let mut read = |pickle: &[u8]| unpacker.ndarray(&pack(pickle)).unwrap();
        let u1 = |data: &[u8]| NdArray { ty: TensorType::new(DType::UInt8, [data.len()]), data: data.to_vec() };
        assert_eq!(read(&zeros(5)), u1(&[0; 5]));
        assert_eq!(read(&ones(5)), u1(&[1; 5]));
        assert_eq!(read(&ones(6)), u1(&[1; 6]));
        assert_eq!(read(&signed), NdArray { ty: TensorType::new(DType::Int8, [5]), data: vec![1; 5] });
        assert_eq!(read(&zeros(0)), u1(&[]));
        assert_eq!(read(&ones(5)), u1(&[1; 5]));
        let flags = |data: &[u8]| NdArray { ty: TensorType::new(DType::Bool, [2]), data: data.to_vec() };
        assert_eq!(read(&bools([0, 1])), flags(&[0, 1]));
        assert_eq!(read(&bools([2, 0])), flags(&[1, 0]));
        assert_eq!(read(&bools([0, 255])), flags(&[0, 1]));
    }

    #[test]
    fn other_text_does_not_look_packed() {
        for text in ["", "BCJNG", "BCJNGA==", "hello", "é", "BCJNg"] {
            assert!(!looks_packed(text), "{text}");
        }
    }

    #[test]
    fn frames_beyond_the_limit_are_refused() {
        let mut bytes = STANDARD.decode(CART_POLE).unwrap();
        bytes[6..14].copy_from_slice(&(5u64 << 40).to_le_bytes());
        assert_eq!(
            ndarray(&STANDARD.encode(&bytes)).unwrap_err().what(),
            "a packed array claims 5497558138880 bytes, the limit is 1073741824 bytes"
        );
        bytes[6..14].copy_from_slice(&(1u64 << 29).to_le_bytes());
        assert!(ndarray(&STANDARD.encode(&bytes)).unwrap_err().what().contains("which none can hold"));
        // A frame that claims nothing, and unfolds to 30 MB.
        let bomb = frame(FrameInfo::new(), &vec![0; 30_000_000]);
        assert!(bomb.len() < 300_000);
        assert_eq!(
            Unpacker::with_limit(1000).ndarray(&bomb).unwrap_err().what(),
            "a packed array unfolds to more than that, the limit is 1000 bytes"
        );
    }

    #[test]
    fn junk_is_an_error_and_no_panic() {
        assert!(ndarray("no base64!").unwrap_err().what().contains("no base64"));
        assert!(ndarray("").unwrap_err().what().contains("no LZ4 frame"));
        assert!(ndarray("AAAAAAAAAAAA").unwrap_err().what().contains("no LZ4 frame"));
        let bytes = STANDARD.decode(CART_POLE).unwrap();
        let mut unpacker = Unpacker::with_limit(1 << 20);
        // All but the end mark, which lz4_flex does not insist on.
        for n in 0..bytes.len() - 4 {
            assert!(unpacker.ndarray(&STANDARD.encode(&bytes[..n])).is_err(), "cut at {n}");
        }
        for i in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[i] ^= 1 << bit;
                let _ = unpacker.ndarray(&STANDARD.encode(&flipped));
            }
        }
        assert!(unpacker.content.capacity() < 4 << 20);
        assert_eq!(unpacker.ndarray(CART_POLE).unwrap(), cart_pole());
    }
}
