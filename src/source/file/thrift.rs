//! Parquet's Thrift structs, looked through before the parquet crate reads them.
//!
//! The crate skips fields that it does not know, and gives an element of a list of booleans no bytes. So a list that claims
//! 2^31 of them stands in seven bytes and takes seconds to skip, and a small file may have thousands of them, in its footer
//! and in every page header. No field of Parquet's is such a list, nor could the crate skip one as Thrift writes it.

/// Nests inside nests; the crate goes as deep.
const DEEPEST: usize = 72;

/// How a look ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    /// The struct may be read.
    Whole,
    /// The bytes end inside it.
    Cut,
    /// It holds a list, set or map whose elements have no bytes.
    Empty,
}

/// Looks through the struct (in Thrift's compact protocol) that the bytes start with. Whatever is wrong with it otherwise is
/// for the crate to say.
pub(super) fn look(bytes: &[u8]) -> Looked {
    let mut walk = Walk { bytes, at: 0 };
    match walk.value(STRUCT, 0) {
        Ok(()) | Err(End::Strange) => Looked::Whole,
        Err(End::Cut) => Looked::Cut,
        Err(End::Empty) => Looked::Empty,
    }
}

const STRUCT: u8 = 12;

enum End {
    Cut,
    Empty,
    Strange,
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Walk<'_> {
    fn byte(&mut self) -> Result<u8, End> {
        let byte = self.bytes.get(self.at).copied().ok_or(End::Cut)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, End> {
        let mut out = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            out |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(out);
            }
        }
        Err(End::Strange)
    }

    fn skip(&mut self, n: u64) -> Result<(), End> {
        let n = usize::try_from(n).map_err(|_| End::Cut)?;
        self.at = self.at.checked_add(n).filter(|&at| at <= self.bytes.len()).ok_or(End::Cut)?;
        Ok(())
    }

    fn value(&mut self, ty: u8, depth: usize) -> Result<(), End> {
        if depth > DEEPEST {
            return Err(End::Strange);
        }
        match ty {
            // A field's boolean is its type.
            1 | 2 => Ok(()),
            3 => self.skip(1),
            4..=6 => self.varint().map(drop),
            7 => self.skip(8),
            8 => {
                let len = self.varint()?;
                self.skip(len)
            }
            9 | 10 => {
                let head = self.byte()?;
                let size = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                self.elements(&[head & 15], size, depth)
            }
            11 => {
                let size = self.varint()?;
                let kinds = if size > 0 { self.byte()? } else { 0 };
                self.elements(&[kinds >> 4, kinds & 15], size, depth)
            }
            STRUCT => loop {
                let head = self.byte()?;
                let (number, ty) = (head >> 4, head & 15);
                if ty == 0 {
                    return Ok(());
                }
                if number == 0 {
                    self.varint()?; // it follows
                }
                self.value(ty, depth + 1)?;
            },
            13 => self.skip(16),
            _ => Err(End::Strange),
        }
    }

    /// Elements of these types in turns. Each round takes a byte at least.
    fn elements(&mut self, types: &[u8], size: u64, depth: usize) -> Result<(), End> {
        if size > 0 && types.iter().all(|ty| matches!(ty, 1 | 2)) {
            return Err(End::Empty);
        }
        for _ in 0..size {
            for &ty in types {
                self.value(ty, depth + 1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_whole_cut_and_empty() {
        // {1: i32 5, 2: "ab", 3: [i64 1, 2], 4: {1: true}}
        let plain = [0x15, 10, 0x18, 2, b'a', b'b', 0x19, 0x26, 2, 4, 0x1c, 0x11, 0, 0];
        assert_eq!(look(&plain), Looked::Whole);
        for cut in 0..plain.len() {
            assert_eq!(look(&plain[..cut]), Looked::Cut, "{cut}");
        }
        // A list of 2^31 - 1 booleans, one of three, a set, a map; inside a struct in a list.
        for inner in [
            &[0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 7][..],
            &[0x19, 0x32],
            &[0x1a, 0xf2, 0xff, 0x7f],
            &[0x1b, 0xff, 0x7f, 0x21],
        ] {
            assert_eq!(look(&[inner, &[0]].concat()), Looked::Empty);
            assert_eq!(look(&[&[0x19, 0x1c], inner, &[0, 0]].concat()), Looked::Empty);
        }
        // An empty one, and a map of booleans to numbers, have nothing of the kind.
        assert_eq!(look(&[0x19, 0x01, 0x1b, 0, 0x1b, 1, 0x15, 2, 0]), Looked::Whole);
        // Many elements that are not there end with the bytes.
        assert_eq!(look(&[0x19, 0xf3, 0xff, 0xff, 0xff, 0xff, 7]), Looked::Cut);
        assert_eq!(look(&[0x1c; 1000]), Looked::Whole, "too deep for the crate as well");
        assert_eq!(look(&[0x1e]), Looked::Whole, "no type");
    }
}
