//! Parquet's Thrift structs, looked through before the parquet crate reads them.
//!
//! The crate skips fields that it does not know, and gives an element of a list of booleans no bytes. So a list that claims
//! 2^31 of them stands in seven bytes and takes seconds to skip, and a small file may have thousands of them, in its footer
//! and in every page header. No field of Parquet's is such a list, nor could the crate skip one as Thrift writes it.
//!
//! And it makes room for as many values as a dictionary's page header claims, before it looks for them.

/// Nests inside nests; the crate goes as deep.
const DEEPEST: usize = 72;

/// How a look ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    /// The struct may be read.
    Whole,
    /// The bytes end inside it.
    Cut,
    /// It holds a list, set or map whose elements have no bytes, a field of another type than Parquet's or too large for
    /// it, or a dictionary of more values than bytes.
    Refused,
}

/// Structs whose fields are looked at by number, too: the crate reads a field that it knows as what it should be, whatever the
/// file says that it is, and would go on in the middle of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Any,
    PageHeader,
    DataPageHeader,
    DictionaryPageHeader,
    DataPageHeaderV2,
    Statistics,
}

impl Kind {
    /// The type of a field that Parquet has.
    const fn field(self, number: i64) -> Option<(u8, Self)> {
        let (ty, kind) = match (self, number) {
            (Self::PageHeader | Self::DataPageHeader, 1..=4)
            | (Self::DictionaryPageHeader, 1..=2)
            | (Self::DataPageHeaderV2, 1..=6) => (I32, Self::Any),
            (Self::PageHeader, 5) => (STRUCT, Self::DataPageHeader),
            (Self::PageHeader, 6) => (STRUCT, Self::Any),
            (Self::PageHeader, 7) => (STRUCT, Self::DictionaryPageHeader),
            (Self::PageHeader, 8) => (STRUCT, Self::DataPageHeaderV2),
            (Self::DataPageHeader, 5) | (Self::DataPageHeaderV2, 8) => (STRUCT, Self::Statistics),
            (Self::DictionaryPageHeader, 3) | (Self::DataPageHeaderV2, 7) | (Self::Statistics, 7 | 8) => {
                (BOOL, Self::Any)
            }
            (Self::Statistics, 1 | 2 | 5 | 6) => (BINARY, Self::Any),
            (Self::Statistics, 3 | 4) => (I64, Self::Any),
            _ => return None,
        };
        Some((ty, kind))
    }
}

/// Looks through the struct (in Thrift's compact protocol) that the bytes start with. Whatever is wrong with it otherwise is
/// for the crate to say.
pub(super) fn look(bytes: &[u8], kind: Kind) -> Looked {
    Walk { bytes, at: 0, claims: Claims::default() }.look(kind)
}

/// The same for a page header; in a chunk that is not compressed (`plain`) a page has as many bytes as it has in the file,
/// whatever else it claims.
pub(super) fn look_at_page(bytes: &[u8], plain: bool) -> Looked {
    let mut walk = Walk { bytes, at: 0, claims: Claims::default() };
    let looked = walk.look(Kind::PageHeader);
    let Claims { unpacked, packed, dictionary } = walk.claims;
    let bytes = if plain { packed } else { unpacked };
    // A value that has no bytes at all may stand in a dictionary once.
    if looked == Looked::Whole && dictionary > bytes.max(1) { Looked::Refused } else { looked }
}

/// What a page header says of its page.
#[derive(Debug, Clone, Copy, Default)]
struct Claims {
    unpacked: i64,
    packed: i64,
    /// Values of a dictionary.
    dictionary: i64,
}

const BOOL: u8 = 1;
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const STRUCT: u8 = 12;

enum End {
    Cut,
    Refused,
    Strange,
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    claims: Claims,
}

impl Walk<'_> {
    fn look(&mut self, kind: Kind) -> Looked {
        match self.fields(kind, 0) {
            // A footer that is strange is the crate's to refuse. A page header says what room the crate makes.
            Err(End::Strange) if kind == Kind::Any => Looked::Whole,
            Ok(()) => Looked::Whole,
            Err(End::Cut) => Looked::Cut,
            Err(End::Refused | End::Strange) => Looked::Refused,
        }
    }

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
        // The crate reads on, and takes what is left of it.
        Err(End::Refused)
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
            STRUCT => self.fields(Kind::Any, depth),
            13 => self.skip(16),
            _ => Err(End::Strange),
        }
    }

    fn fields(&mut self, kind: Kind, depth: usize) -> Result<(), End> {
        let mut number = 0;
        loop {
            let head = self.byte()?;
            let (step, ty) = (head >> 4, head & 15);
            if ty == 0 {
                return Ok(());
            }
            if step == 0 {
                number = number_of(self.varint()?);
            } else {
                number += i64::from(step);
            }
            if kind != Kind::Any && i16::try_from(number).is_err() {
                return Err(End::Refused);
            }
            match kind.field(number) {
                Some((wanted, _)) if wanted != ty && !(wanted == BOOL && ty == 2) => return Err(End::Refused),
                Some((STRUCT, inner)) => self.fields(inner, depth + 1)?,
                Some((I32, _)) => {
                    // The crate takes the last 32 bits of a larger one.
                    let claimed = i32::try_from(number_of(self.varint()?)).map_err(|_| End::Refused)?;
                    match (kind, number) {
                        (Kind::PageHeader, 2) => self.claims.unpacked = claimed.into(),
                        (Kind::PageHeader, 3) => self.claims.packed = claimed.into(),
                        (Kind::DictionaryPageHeader, 1) => self.claims.dictionary = claimed.into(),
                        _ => {}
                    }
                }
                _ => self.value(ty, depth + 1)?,
            }
        }
    }

    /// Elements of these types in turns. Each round takes a byte at least.
    fn elements(&mut self, types: &[u8], size: u64, depth: usize) -> Result<(), End> {
        if size > 0 && types.iter().all(|ty| matches!(ty, 1 | 2)) {
            return Err(End::Refused);
        }
        for _ in 0..size {
            for &ty in types {
                self.value(ty, depth + 1)?;
            }
        }
        Ok(())
    }
}

/// A signed number as Thrift writes it: 0, -1, 1, -2 ... are 0, 1, 2, 3.
const fn number_of(coded: u64) -> i64 {
    (coded >> 1).cast_signed() ^ -(coded & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_whole_cut_and_refused() {
        // {1: i32 5, 2: "ab", 3: [i64 1, 2], 4: {1: true}}
        let plain = [0x15, 10, 0x18, 2, b'a', b'b', 0x19, 0x26, 2, 4, 0x1c, 0x11, 0, 0];
        assert_eq!(look(&plain, Kind::Any), Looked::Whole);
        for cut in 0..plain.len() {
            assert_eq!(look(&plain[..cut], Kind::Any), Looked::Cut, "{cut}");
        }
        // A list of 2^31 - 1 booleans, one of three, a set, a map; inside a struct in a list.
        for inner in [
            &[0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 7][..],
            &[0x19, 0x32],
            &[0x1a, 0xf2, 0xff, 0x7f],
            &[0x1b, 0xff, 0x7f, 0x21],
        ] {
            assert_eq!(look(&[inner, &[0]].concat(), Kind::Any), Looked::Refused);
            assert_eq!(look(&[&[0x19, 0x1c], inner, &[0, 0]].concat(), Kind::Any), Looked::Refused);
        }
        // An empty one, and a map of booleans to numbers, have nothing of the kind.
        assert_eq!(look(&[0x19, 0x01, 0x1b, 0, 0x1b, 1, 0x15, 2, 0], Kind::Any), Looked::Whole);
        // Many elements that are not there end with the bytes.
        assert_eq!(look(&[0x19, 0xf3, 0xff, 0xff, 0xff, 0xff, 7], Kind::Any), Looked::Cut);
        assert_eq!(look(&[0x1c; 1000], Kind::Any), Looked::Whole, "too deep for the crate as well");
        assert_eq!(look(&[0x1e], Kind::Any), Looked::Whole, "no type");
    }

    #[test]
    fn fields_of_page_headers_are_what_parquet_has() {
        // {1: 0, 2: 10, 3: 10, 5: {1: 3, 2: 0, 3: 3, 4: 3, 5: {3: 0, 5: "a", 7: true}}, 20: [1]}
        let statistics = [0x36, 0, 0x28, 1, b'a', 0x21, 0];
        let data = [&[0x15, 6, 0x15, 0, 0x15, 6, 0x15, 6, 0x1c][..], &statistics, &[0]].concat();
        let header = [&[0x15, 0, 0x15, 20, 0x15, 20, 0x2c][..], &data, &[0x09, 40, 0x15, 2, 0]].concat();
        assert_eq!(look(&header, Kind::PageHeader), Looked::Whole);
        // As binary, field 2 would hide what the crate goes on with.
        let mut other = header.clone();
        other[2] = 0x18;
        assert_eq!(look(&other, Kind::PageHeader), Looked::Refused);
        assert_ne!(look(&other, Kind::Any), Looked::Refused);
        // The same inside, and by a number that is written out.
        let mut inner = header;
        inner[7] = 0x18;
        assert_eq!(look(&inner, Kind::PageHeader), Looked::Refused);
        assert_eq!(look(&[0x08, 4, 0, 0], Kind::PageHeader), Looked::Refused);
        assert_eq!(look(&[0x05, 0x80, 0x80, 8, 0, 0], Kind::PageHeader), Looked::Refused, "a number beyond 16 bits");
    }

    #[test]
    fn a_dictionary_of_more_values_than_bytes_is_told() {
        // {1: 2, 2: unpacked, 3: packed, 7: {1: values, 2: 0}}, each number below 64.
        let header = |unpacked: u8, packed: u8, values: u8| {
            [0x15, 4, 0x15, unpacked * 2, 0x15, packed * 2, 0x4c, 0x15, values * 2, 0x15, 0, 0, 0]
        };
        for (unpacked, packed, values, plain, expected) in [
            (40, 10, 10, false, Looked::Whole),
            (40, 10, 40, false, Looked::Whole),
            (40, 10, 41, false, Looked::Refused),
            (40, 10, 11, true, Looked::Refused),
            (40, 40, 40, true, Looked::Whole),
            (0, 0, 1, true, Looked::Whole),
            (0, 0, 2, false, Looked::Refused),
        ] {
            let found = look_at_page(&header(unpacked, packed, values), plain);
            assert_eq!(found, expected, "{unpacked} {packed} {values} {plain}");
        }
        // Numbers of more bits than there are, of which the crate takes some.
        let many = |coded: &[u8]| [&[0x15, 4, 0x15, 0, 0x15, 2, 0x4c, 0x15][..], coded, &[0x15, 0, 0, 0]].concat();
        assert_eq!(look_at_page(&many(&[&[0x82; 17][..], &[0]].concat()), false), Looked::Refused);
        assert_eq!(look_at_page(&many(&[0xff, 0xff, 0xff, 0xff, 0x7f]), false), Looked::Refused);
        assert_eq!(look_at_page(&[0x1e], false), Looked::Refused, "no type");
        assert_eq!([0, 1, 2, 3, u64::MAX].map(number_of), [0, -1, 1, -2, i64::MIN]);
    }
}
