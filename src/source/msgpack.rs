//! `MessagePack`, read in place, with the two maps that `msgpack_numpy` wraps arrays and scalars in.
//!
//! Format: <https://github.com/msgpack/msgpack/blob/master/spec.md>; the maps: `msgpack_numpy.py`, `encode`.
//!
//! ```text
//! np.array([[1, 2]], "<f4")   {b"nd": true,  b"type": "<f4", b"kind": b"", b"shape": [1, 2], b"data": bin}
//! np.int32(7)                 {b"nd": false, b"type": "<i4", b"data": bin}
//! np.float64(0.5)             a plain float: np.float64 *is* a Python float to the packer
//! ```
//!
//! The keys are `bin`; packers set to `use_bin_type=False` write them as `str`, which is read as well. Such a map
//! is told from a dict observation by its first key: `bin`, or the text `nd` before a boolean.
//!
//! A [`Cursor`] borrows everything and allocates nothing. A claimed length is believed only as far as bytes are
//! there to carry it.

use std::ops::Deref;

use rmp::Marker;

use super::elements;
use crate::error::{Error, Result};
use crate::tensor::DType;

/// The most dimensions an array may have. Twice what any observation needs, half of what NumPy allows.
pub const MAX_DIMS: usize = 16;

/// The shape of an array, in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    dims: [usize; MAX_DIMS],
    len: usize,
}

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Self = Self { dims: [0; MAX_DIMS], len: 0 };

    fn push(&mut self, dim: usize) -> Result<()> {
        let slot = self
            .dims
            .get_mut(self.len)
            .ok_or_else(|| Error::data(format!("an array of more than {MAX_DIMS} dimensions")))?;
        *slot = dim;
        self.len += 1;
        Ok(())
    }
}

impl TryFrom<&[usize]> for Shape {
    type Error = Error;

    fn try_from(dims: &[usize]) -> Result<Self> {
        let mut shape = Self::SCALAR;
        for &dim in dims {
            shape.push(dim)?;
        }
        Ok(shape)
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.dims[..self.len]
    }
}

/// One value that is no list and no dict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Leaf<'a> {
    /// A NumPy array. `data` has exactly the length that dtype and shape ask for.
    Array {
        /// Element type.
        dtype: DType,
        /// Shape, checked to have a size.
        shape: Shape,
        /// C order, as recorded.
        data: &'a [u8],
        /// Whether elements are most significant byte first.
        big_endian: bool,
    },
    /// A NumPy scalar of a dtype other than float64.
    Scalar {
        /// Element type.
        dtype: DType,
        /// One element.
        data: &'a [u8],
        /// Whether it is most significant byte first.
        big_endian: bool,
    },
    /// A Python float, or `np.float64`.
    Float(f64),
    /// A Python int.
    Int(i64),
    /// A Python int beyond `i64`.
    UInt(u64),
    /// A Python bool.
    Bool(bool),
    /// Text.
    Str(&'a str),
    /// Raw bytes.
    Bin(&'a [u8]),
    /// `None`.
    Nil,
}

impl Leaf<'_> {
    /// What it is, for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Array { dtype, shape, .. } => crate::tensor::TensorType::new(*dtype, shape.to_vec()).to_string(),
            Self::Scalar { dtype, .. } => dtype.to_string(),
            Self::Float(_) => "a float".to_owned(),
            Self::Int(_) | Self::UInt(_) => "an int".to_owned(),
            Self::Bool(_) => "a bool".to_owned(),
            Self::Str(_) => "text".to_owned(),
            Self::Bin(_) => "raw bytes".to_owned(),
            Self::Nil => "None".to_owned(),
        }
    }
}

/// What stands at the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shaped {
    /// A list (or what was a tuple before it was packed).
    List,
    /// A dict.
    Dict,
    /// Anything else, arrays included.
    Leaf,
}

/// A place in a packed value.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes not yet read.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `n` bytes, whatever they are.
    #[inline]
    pub fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let Some((head, tail)) = self.rest.split_at_checked(n) else {
            return Err(Error::data(format!("a value claims {n} bytes, {} bytes are left", self.rest.len())));
        };
        self.rest = tail;
        Ok(head)
    }

    #[inline]
    fn word<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((head, tail)) = self.rest.split_first_chunk::<N>() else {
            return Err(Error::data(format!("a value needs {N} bytes, {} bytes are left", self.rest.len())));
        };
        self.rest = tail;
        Ok(*head)
    }

    #[inline]
    fn marker(&mut self) -> Result<Marker> {
        let [byte] = self.word().map_err(|_| Error::data("a value is missing, 0 bytes are left"))?;
        Ok(Marker::from_u8(byte))
    }

    fn peek_marker(&self) -> Result<Marker> {
        self.clone().marker()
    }

    #[inline]
    fn length(&mut self, bytes: usize) -> Result<usize> {
        Ok(match bytes {
            1 => usize::from(u8::from_be_bytes(self.word()?)),
            2 => usize::from(u16::from_be_bytes(self.word()?)),
            _ => u32::from_be_bytes(self.word()?) as usize,
        })
    }

    /// Elements take a byte at least, so a count beyond the bytes left is a lie.
    #[inline]
    fn counted(&self, n: usize, per_element: usize) -> Result<usize> {
        match n.checked_mul(per_element) {
            Some(bytes) if bytes <= self.rest.len() => Ok(n),
            _ => Err(Error::data(format!("a value claims {n} elements, {} bytes are left", self.rest.len()))),
        }
    }

    /// Number of entries of the dict at the cursor, which moves to its first key.
    pub fn map_header(&mut self) -> Result<usize> {
        let n = match self.marker()? {
            Marker::FixMap(n) => usize::from(n),
            Marker::Map16 => self.length(2)?,
            Marker::Map32 => self.length(4)?,
            other => return Err(unexpected("a dict", other)),
        };
        self.counted(n, 2)
    }

    /// Number of elements of the list at the cursor, which moves to the first.
    pub fn array_header(&mut self) -> Result<usize> {
        let n = match self.marker()? {
            Marker::FixArray(n) => usize::from(n),
            Marker::Array16 => self.length(2)?,
            Marker::Array32 => self.length(4)?,
            other => return Err(unexpected("a list", other)),
        };
        self.counted(n, 1)
    }

    /// A text, or the bytes of a `bin` (keys of `msgpack_numpy`).
    fn text_or_bin(&mut self) -> Result<&'a [u8]> {
        let n = match self.marker()? {
            Marker::FixStr(n) => usize::from(n),
            Marker::Str8 | Marker::Bin8 => self.length(1)?,
            Marker::Str16 | Marker::Bin16 => self.length(2)?,
            Marker::Str32 | Marker::Bin32 => self.length(4)?,
            other => return Err(unexpected("text or bytes", other)),
        };
        self.take(n)
    }

    /// A text.
    pub fn str(&mut self) -> Result<&'a str> {
        match self.peek_marker()? {
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                std::str::from_utf8(self.text_or_bin()?).map_err(|_| Error::data("a text is not UTF-8"))
            }
            other => Err(unexpected("text", other)),
        }
    }

    /// Raw bytes.
    pub fn bin(&mut self) -> Result<&'a [u8]> {
        match self.peek_marker()? {
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => self.text_or_bin(),
            other => Err(unexpected("raw bytes", other)),
        }
    }

    /// Whether a list, a dict or a leaf stands here.
    #[inline]
    pub fn peek(&self) -> Result<Shaped> {
        Ok(match self.peek_marker()? {
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => Shaped::List,
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                if self.at_numpy_map()? {
                    Shaped::Leaf
                } else {
                    Shaped::Dict
                }
            }
            _ => Shaped::Leaf,
        })
    }

    /// Whether the dict at the cursor is one of `msgpack_numpy`'s.
    fn at_numpy_map(&self) -> Result<bool> {
        let mut ahead = self.clone();
        if ahead.map_header()? == 0 {
            return Ok(false);
        }
        Ok(match ahead.peek_marker()? {
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => true,
            Marker::FixStr(2) => {
                ahead.text_or_bin()? == b"nd" && matches!(ahead.peek_marker()?, Marker::True | Marker::False)
            }
            _ => false,
        })
    }

    /// The leaf at the cursor.
    pub fn leaf(&mut self) -> Result<Leaf<'a>> {
        Ok(match self.peek_marker()? {
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 if self.at_numpy_map()? => return self.numpy_map(),
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => Leaf::Str(self.str()?),
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Leaf::Bin(self.bin()?),
            _ => match self.marker()? {
                Marker::FixPos(v) => Leaf::Int(i64::from(v)),
                Marker::FixNeg(v) => Leaf::Int(i64::from(v)),
                Marker::U8 => Leaf::Int(i64::from(u8::from_be_bytes(self.word()?))),
                Marker::U16 => Leaf::Int(i64::from(u16::from_be_bytes(self.word()?))),
                Marker::U32 => Leaf::Int(i64::from(u32::from_be_bytes(self.word()?))),
                Marker::U64 => {
                    let v = u64::from_be_bytes(self.word()?);
                    i64::try_from(v).map_or(Leaf::UInt(v), Leaf::Int)
                }
                Marker::I8 => Leaf::Int(i64::from(i8::from_be_bytes(self.word()?))),
                Marker::I16 => Leaf::Int(i64::from(i16::from_be_bytes(self.word()?))),
                Marker::I32 => Leaf::Int(i64::from(i32::from_be_bytes(self.word()?))),
                Marker::I64 => Leaf::Int(i64::from_be_bytes(self.word()?)),
                Marker::F32 => Leaf::Float(f64::from(f32::from_be_bytes(self.word()?))),
                Marker::F64 => Leaf::Float(f64::from_be_bytes(self.word()?)),
                Marker::True => Leaf::Bool(true),
                Marker::False => Leaf::Bool(false),
                Marker::Null => Leaf::Nil,
                other => return Err(unexpected("a number, text or array", other)),
            },
        })
    }

    /// One of `msgpack_numpy`'s maps.
    fn numpy_map(&mut self) -> Result<Leaf<'a>> {
        let entries = self.map_header()?;
        let mut is_record = false;
        let (mut is_array, mut descr, mut kind, mut shape, mut data) = (None, None, None, None, None);
        for _ in 0..entries {
            match self.text_or_bin()? {
                b"nd" => match self.leaf()? {
                    Leaf::Bool(v) => is_array = Some(v),
                    other => return Err(Error::data(format!("`nd` of an array is {}", other.describe()))),
                },
                b"type" if self.peek()? == Shaped::Leaf => descr = Some(self.text_or_bin()?),
                // Objects and records carry a list of fields here; `kind` says which.
                b"type" => {
                    self.skip()?;
                    is_record = true;
                }
                b"kind" => kind = Some(self.text_or_bin()?),
                b"shape" => {
                    let mut dims = Shape::SCALAR;
                    for _ in 0..self.array_header()? {
                        let Leaf::Int(dim) = self.leaf()? else {
                            return Err(Error::data("the shape of an array is no list of ints"));
                        };
                        dims.push(
                            usize::try_from(dim)
                                .map_err(|_| Error::data(format!("an array with a dimension {dim}")))?,
                        )?;
                    }
                    shape = Some(dims);
                }
                b"data" => match self.peek_marker()? {
                    // Packed without `use_bin_type`, array bytes are a "str" that need not be UTF-8.
                    Marker::FixStr(_)
                    | Marker::Str8
                    | Marker::Str16
                    | Marker::Str32
                    | Marker::Bin8
                    | Marker::Bin16
                    | Marker::Bin32 => data = Some(self.text_or_bin()?),
                    other => return Err(unexpected("the data of an array", other)),
                },
                b"complex" => return Err(Error::data("a complex number has no place in a tensor")),
                other => {
                    let name = String::from_utf8_lossy(&other[..other.len().min(40)]).into_owned();
                    return Err(Error::data(format!(
                        "an array with an entry `{name}`, expected nd, type, kind, shape, data"
                    )));
                }
            }
        }
        match kind {
            Some(b"O") => return Err(Error::data("an array of Python objects (refused, never unpickled)")),
            _ if is_record => return Err(Error::data("an array of records has no place in a tensor")),
            _ => {}
        }
        let missing = |what: &str| Error::data(format!("an array without `{what}`"));
        let descr = descr.ok_or_else(|| missing("type"))?;
        let data = data.ok_or_else(|| missing("data"))?;
        let (dtype, big_endian) = std::str::from_utf8(descr).ok().and_then(elements::parse_descr).ok_or_else(|| {
            let name = String::from_utf8_lossy(&descr[..descr.len().min(40)]).into_owned();
            Error::data(format!("an array of dtype `{name}`, expected numbers or booleans"))
        })?;
        let shape = match is_array {
            Some(true) => shape.ok_or_else(|| missing("shape"))?,
            Some(false) => Shape::SCALAR,
            None => return Err(missing("nd")),
        };
        if elements::array_bytes(&shape, dtype) != Some(data.len()) {
            let ty = crate::tensor::TensorType::new(dtype, shape.to_vec());
            return Err(Error::data(format!("an array claims to be {ty}, but has {} bytes of data", data.len())));
        }
        Ok(match is_array {
            Some(true) => Leaf::Array { dtype, shape, data, big_endian },
            _ => Leaf::Scalar { dtype, data, big_endian },
        })
    }

    /// Steps over one value of any kind, however deeply nested, without recursion.
    pub fn skip(&mut self) -> Result<()> {
        let mut left = 1usize;
        while left > 0 {
            left -= 1;
            let inside = match self.marker()? {
                Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => continue,
                Marker::FixStr(n) => {
                    self.take(usize::from(n))?;
                    continue;
                }
                Marker::U8 | Marker::I8 => {
                    self.take(1)?;
                    continue;
                }
                Marker::U16 | Marker::I16 | Marker::FixExt1 => {
                    self.take(2)?;
                    continue;
                }
                Marker::U32 | Marker::I32 | Marker::F32 => {
                    self.take(4)?;
                    continue;
                }
                Marker::U64 | Marker::I64 | Marker::F64 => {
                    self.take(8)?;
                    continue;
                }
                Marker::Str8 | Marker::Bin8 => {
                    let n = self.length(1)?;
                    self.take(n)?;
                    continue;
                }
                Marker::Str16 | Marker::Bin16 => {
                    let n = self.length(2)?;
                    self.take(n)?;
                    continue;
                }
                Marker::Str32 | Marker::Bin32 => {
                    let n = self.length(4)?;
                    self.take(n)?;
                    continue;
                }
                Marker::FixArray(n) => usize::from(n),
                Marker::Array16 => self.length(2)?,
                Marker::Array32 => self.length(4)?,
                Marker::FixMap(n) => 2 * usize::from(n),
                Marker::Map16 => 2 * self.length(2)?,
                Marker::Map32 => self.length(4)?.saturating_mul(2),
                // Extension types: a type byte, then data.
                Marker::FixExt2 => {
                    self.take(3)?;
                    continue;
                }
                Marker::FixExt4 => {
                    self.take(5)?;
                    continue;
                }
                Marker::FixExt8 => {
                    self.take(9)?;
                    continue;
                }
                Marker::FixExt16 => {
                    self.take(17)?;
                    continue;
                }
                ext @ (Marker::Ext8 | Marker::Ext16 | Marker::Ext32) => {
                    let n = self.length(match ext {
                        Marker::Ext8 => 1,
                        Marker::Ext16 => 2,
                        _ => 4,
                    })?;
                    self.take(n.saturating_add(1))?;
                    continue;
                }
                Marker::Reserved => return Err(unexpected("a value", Marker::Reserved)),
            };
            left = left.saturating_add(self.counted(inside, 1)?);
        }
        Ok(())
    }

    /// Steps over one value and returns its bytes.
    pub fn skipped(&mut self) -> Result<&'a [u8]> {
        let before = self.rest;
        self.skip()?;
        Ok(&before[..before.len() - self.rest.len()])
    }
}

fn unexpected(wanted: &str, found: Marker) -> Error {
    let found = match found {
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => "a dict",
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => "a list",
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => "text",
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => "raw bytes",
        Marker::Null => "None",
        Marker::True | Marker::False => "a bool",
        Marker::F32 | Marker::F64 => "a float",
        Marker::Reserved => "the reserved byte 0xc1",
        Marker::FixExt1
        | Marker::FixExt2
        | Marker::FixExt4
        | Marker::FixExt8
        | Marker::FixExt16
        | Marker::Ext8
        | Marker::Ext16
        | Marker::Ext32 => "a msgpack extension",
        _ => "an int",
    };
    Error::data(format!("found {found}, expected {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `msgpack.packb(np.array([[1.5, -2]], "<f4"), default=msgpack_numpy.encode)`
    const ARRAY: &[u8] = b"\x85\xc4\x02nd\xc3\xc4\x04type\xa3<f4\xc4\x04kind\xc4\x00\xc4\x05shape\x92\x01\x02\
        \xc4\x04data\xc4\x08\x00\x00\xc0\x3f\x00\x00\x00\xc0";
    /// `np.int32(7)`
    const SCALAR: &[u8] = b"\x83\xc4\x02nd\xc2\xc4\x04type\xa3<i4\xc4\x04data\xc4\x04\x07\x00\x00\x00";
    /// `np.array([1, 2], ">u2")` with `use_bin_type=False`.
    const TEXT_KEYS: &[u8] = b"\x85\xa2nd\xc3\xa4type\xa3>u2\xa4kind\xa0\xa5shape\x91\x02\xa4data\xa4\x00\x01\x00\x02";

    fn error(bytes: &[u8]) -> String {
        Cursor::new(bytes).leaf().unwrap_err().what().to_owned()
    }

    #[test]
    fn arrays_and_scalars_of_numpy() {
        let mut c = Cursor::new(ARRAY);
        assert_eq!(c.peek().unwrap(), Shaped::Leaf);
        let Leaf::Array { dtype, shape, data, big_endian } = c.leaf().unwrap() else { panic!() };
        assert_eq!((dtype, &*shape, big_endian), (DType::Float32, &[1, 2][..], false));
        assert_eq!(data, [1.5f32.to_le_bytes(), (-2f32).to_le_bytes()].concat());
        assert!(c.rest().is_empty());

        let Leaf::Scalar { dtype, data, big_endian } = Cursor::new(SCALAR).leaf().unwrap() else { panic!() };
        assert_eq!((dtype, data, big_endian), (DType::Int32, &[7, 0, 0, 0][..], false));

        let mut c = Cursor::new(TEXT_KEYS);
        assert_eq!(c.peek().unwrap(), Shaped::Leaf);
        let Leaf::Array { dtype, shape, data, big_endian } = c.leaf().unwrap() else { panic!() };
        assert_eq!((dtype, &*shape, data, big_endian), (DType::UInt16, &[2][..], &[0, 1, 0, 2][..], true));
    }

    #[test]
    fn dicts_are_told_from_arrays() {
        assert_eq!(Cursor::new(b"\x80").peek().unwrap(), Shaped::Dict);
        assert_eq!(Cursor::new(b"\x81\xa3pos\x01").peek().unwrap(), Shaped::Dict);
        // A dict observation may well have a key `nd`.
        assert_eq!(Cursor::new(b"\x81\xa2nd\x01").peek().unwrap(), Shaped::Dict);
        assert_eq!(Cursor::new(b"\x92\x01\x02").peek().unwrap(), Shaped::List);
    }

    #[test]
    fn plain_values() {
        for (bytes, leaf) in [
            (&b"\x07"[..], Leaf::Int(7)),
            (b"\xff", Leaf::Int(-1)),
            (b"\xcc\xff", Leaf::Int(255)),
            (b"\xcd\x01\x00", Leaf::Int(256)),
            (b"\xce\xff\xff\xff\xff", Leaf::Int(4_294_967_295)),
            (b"\xcf\x80\x00\x00\x00\x00\x00\x00\x00", Leaf::UInt(1 << 63)),
            (b"\xd0\x80", Leaf::Int(-128)),
            (b"\xd1\x80\x00", Leaf::Int(-32_768)),
            (b"\xd2\x80\x00\x00\x00", Leaf::Int(-2_147_483_648)),
            (b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", Leaf::Int(i64::MIN)),
            (b"\xca\x3f\xc0\x00\x00", Leaf::Float(1.5)),
            (b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", Leaf::Float(1.5)),
            (b"\xc2", Leaf::Bool(false)),
            (b"\xc0", Leaf::Nil),
            (b"\xa2ab", Leaf::Str("ab")),
            (b"\xd9\x02ab", Leaf::Str("ab")),
            (b"\xc4\x01a", Leaf::Bin(b"a")),
        ] {
            let mut c = Cursor::new(bytes);
            assert_eq!(c.leaf().unwrap(), leaf);
            assert!(c.rest().is_empty());
            let mut c = Cursor::new(bytes);
            c.skip().unwrap();
            assert!(c.rest().is_empty());
        }
    }

    #[test]
    fn skips_anything() {
        let nested = [&b"\x93"[..], ARRAY, b"\x82\xa1a\x91\x01\xa1b\xc7\x02\x05xy", SCALAR].concat();
        let mut c = Cursor::new(&nested);
        assert_eq!(c.skipped().unwrap(), nested);
        assert!(c.rest().is_empty());
        // Ten million lists inside one another are ten megabytes, and no recursion.
        let deep = [vec![0x91; 10_000_000], vec![0xc0]].concat();
        Cursor::new(&deep).skip().unwrap();
    }

    #[test]
    fn claims_are_checked_against_what_is_there() {
        assert_eq!(
            Cursor::new(b"\xdd\xff\xff\xff\xff\x01").array_header().unwrap_err().what(),
            "a value claims 4294967295 elements, 1 bytes are left"
        );
        assert_eq!(
            Cursor::new(b"\xdf\xff\xff\xff\xff\x01").skip().unwrap_err().what(),
            "a value claims 8589934590 elements, 1 bytes are left"
        );
        assert_eq!(error(b"\xc6\xff\xff\xff\xff\x01"), "a value claims 4294967295 bytes, 1 bytes are left");
        assert_eq!(error(b"\xcb\x00"), "a value needs 8 bytes, 1 bytes are left");
        assert_eq!(error(b""), "a value is missing, 0 bytes are left");
        let mut wrong = ARRAY.to_vec();
        wrong[ARRAY.windows(2).position(|w| w == [1, 2]).unwrap() + 1] = 3;
        assert_eq!(error(&wrong), "an array claims to be float32[1, 3], but has 8 bytes of data");
        for n in 0..ARRAY.len() {
            assert!(Cursor::new(&ARRAY[..n]).leaf().is_err() && Cursor::new(&ARRAY[..n]).skip().is_err());
        }
    }

    #[test]
    fn what_has_no_place_in_a_tensor() {
        assert_eq!(error(b"\x82\xc4\x07complex\xc3\xc4\x04data\xa21j"), "a complex number has no place in a tensor");
        let objects = b"\x85\xc4\x02nd\xc3\xc4\x04type\x91\x92\xa0\xa2|O\xc4\x04kind\xc4\x01O\xc4\x05shape\x91\x01\
            \xc4\x04data\xc4\x01.";
        assert_eq!(error(objects), "an array of Python objects (refused, never unpickled)");
        let text =
            b"\x85\xc4\x02nd\xc3\xc4\x04type\xa3<U1\xc4\x04kind\xc4\x00\xc4\x05shape\x91\x01\xc4\x04data\xc4\x04aaaa";
        assert_eq!(error(text), "an array of dtype `<U1`, expected numbers or booleans");
        let dims = [
            &b"\x85\xc4\x02nd\xc3\xc4\x04type\xa3<f4\xc4\x04kind\xc4\x00\xc4\x05shape\xdc\x00\x11"[..],
            &[1; 17],
            b"\xc4\x04data\xc4\x04aaaa",
        ]
        .concat();
        assert_eq!(error(&dims), "an array of more than 16 dimensions");
        let negative =
            b"\x85\xc4\x02nd\xc3\xc4\x04type\xa3<f4\xc4\x04kind\xc4\x00\xc4\x05shape\x91\xff\xc4\x04data\xc4\x04aaaa";
        assert_eq!(error(negative), "an array with a dimension -1");
        assert_eq!(error(b"\xc7\x01\x05x"), "found a msgpack extension, expected a number, text or array");
    }
}
