//! The pickle of one NumPy array, read by a machine that can build nothing else.
//!
//! A pickle is a program for a small stack machine (CPython's `Lib/pickletools.py` describes every opcode). Python
//! runs it, and a program that names `os.system` is then a shell. The machine here has no way to name a thing but
//! the closed list `Global`: what `ndarray.__reduce__`, `ndarray.__reduce_ex__(5)` and `numpy.generic.__reduce__`
//! write, under the names of NumPy 1 (`numpy.core`) and 2 (`numpy._core`). Anything else is refused by its name.
//!
//! ```text
//! protocol 2..4, and 5 when not contiguous        protocol 5, contiguous
//!   _reconstruct(ndarray, (0,), b"b")               _frombuffer(data, dtype, shape, "C" | "F")
//!   BUILD (1, shape, dtype, fortran, data)        a scalar
//! dtype("f4", False, True) BUILD (3, "<", ..)       scalar(dtype, data)
//! protocol 2 spells bytes _codecs.encode("..", "latin1"), and no bytes __builtin__.bytes()
//! ```
//!
//! Bounds: the stack and the memo hold `MAX_VALUES` values (an array needs two dozen), tuples nest
//! `MAX_NESTING` deep, and array bytes are copied once, at the end.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::elements;
use super::ndarray::NdArray;
use crate::error::{Error, Result};
use crate::tensor::{DType, TensorType};

/// Values on the stack, and values in the memo.
const MAX_VALUES: usize = 1024;
/// Tuples inside tuples.
const MAX_NESTING: usize = 8;

/// Everything a pickle may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Global {
    Reconstruct,
    FromBuffer,
    Scalar,
    NdArray,
    DType,
    Encode,
    Bytes,
}

impl Global {
    fn named(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Self::Reconstruct,
            ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Self::Scalar,
            ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Self::FromBuffer,
            ("numpy", "ndarray") => Self::NdArray,
            ("numpy", "dtype") => Self::DType,
            ("_codecs", "encode") => Self::Encode,
            ("__builtin__" | "builtins", "bytes") => Self::Bytes,
            _ => return None,
        })
    }
}

/// Everything that may lie on the stack.
#[derive(Debug, Clone)]
enum Value<'a> {
    Mark,
    None,
    Bool(bool),
    Int(i64),
    Text(&'a str),
    /// Bytes of the pickle itself.
    Bytes(&'a [u8]),
    /// Bytes that protocol 2 spelled as Latin-1 text.
    Decoded(Rc<Vec<u8>>),
    Tuple {
        items: Rc<[Value<'a>]>,
        depth: usize,
    },
    Global(Global),
    /// A dtype before its byte order is known.
    BareDType(DType),
    DType {
        dtype: DType,
        big_endian: bool,
    },
    /// An array before its contents are known.
    BareArray,
    Array(Rc<Array<'a>>),
}

/// An array whose bytes are still where they came from.
#[derive(Debug, Clone)]
struct Array<'a> {
    dtype: DType,
    big_endian: bool,
    shape: Vec<usize>,
    fortran: bool,
    data: Value<'a>,
}

impl Value<'_> {
    fn describe(&self) -> &'static str {
        match self {
            Self::Mark => "a mark",
            Self::None => "None",
            Self::Bool(_) => "a bool",
            Self::Int(_) => "an int",
            Self::Text(_) => "text",
            Self::Bytes(_) | Self::Decoded(_) => "bytes",
            Self::Tuple { .. } => "a tuple",
            Self::Global(_) => "a function or class",
            Self::BareDType(_) | Self::DType { .. } => "a dtype",
            Self::BareArray => "an array without contents",
            Self::Array(_) => "an array",
        }
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(b) => Some(b),
            Self::Decoded(b) => Some(b),
            _ => None,
        }
    }
}

/// The array (or NumPy scalar, as an array without dimensions) that `bytes` pickle.
///
/// Reads what `pickle.dumps` with protocol 2 to 5 and `cloudpickle.dumps` make of numeric and boolean arrays.
/// Fortran order is turned into C order, foreign byte order into native.
pub fn ndarray(bytes: &[u8]) -> Result<NdArray> {
    Ok(located(bytes)?.0)
}

/// [`ndarray`], and where in `bytes` the array's own bytes lie, if they lie there as they are.
///
/// The machine never looks at those, but for their number. So a pickle of the same length that differs only there
/// holds an array of the same type, and its bytes are in the same place.
pub fn located(bytes: &[u8]) -> Result<(NdArray, Option<Range<usize>>)> {
    let array = Machine { rest: bytes, stack: Vec::new(), memo: HashMap::new(), decodable: bytes.len() }
        .run()
        .map_err(|e| e.hint("only NumPy arrays of numbers or booleans are read from pickles"))?;
    let place = array.place(bytes);
    Ok((array.finish()?, place))
}

struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Value<'a>>,
    memo: HashMap<u32, Value<'a>>,
    /// Latin-1 bytes that may still be decoded: each byte of the pickle once, however often it is remembered.
    decodable: usize,
}

impl<'a> Machine<'a> {
    fn run(mut self) -> Result<Array<'a>> {
        loop {
            match self.byte()? {
                // PROTO, FRAME, STOP
                0x80 => match self.byte()? {
                    2..=5 => {}
                    n => return Err(Error::data(format!("a pickle of protocol {n}, expected 2 to 5"))),
                },
                0x95 => drop(self.take(8)?),
                b'.' => return self.stop(),
                // MARK, EMPTY_TUPLE, TUPLE1..3, TUPLE
                b'(' => self.push(Value::Mark)?,
                b')' => self.push(Value::Tuple { items: Rc::new([]), depth: 1 })?,
                n @ 0x85..=0x87 => self.tuple(self.stack.len().checked_sub(usize::from(n - 0x84)))?,
                b't' => {
                    let mark = self.stack.iter().rposition(|v| matches!(v, Value::Mark));
                    let mark = mark.ok_or_else(|| Error::data("the pickle closes a tuple that it never opened"))?;
                    self.tuple(Some(mark + 1))?;
                    // The tuple lies on its mark.
                    self.stack.swap_remove(mark);
                }
                // NONE, NEWTRUE, NEWFALSE, BININT, BININT1, BININT2, LONG1
                b'N' => self.push(Value::None)?,
                0x88 => self.push(Value::Bool(true))?,
                0x89 => self.push(Value::Bool(false))?,
                b'J' => {
                    let v = i32::from_le_bytes(self.word()?);
                    self.push(Value::Int(i64::from(v)))?;
                }
                b'K' => {
                    let v = self.byte()?;
                    self.push(Value::Int(i64::from(v)))?;
                }
                b'M' => {
                    let v = u16::from_le_bytes(self.word()?);
                    self.push(Value::Int(i64::from(v)))?;
                }
                0x8a => {
                    let n = usize::from(self.byte()?);
                    let v = long(self.take(n)?)?;
                    self.push(Value::Int(v))?;
                }
                // SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
                op @ (0x8c | b'X' | 0x8d) => {
                    let n = self.length(match op {
                        0x8c => 1,
                        b'X' => 4,
                        _ => 8,
                    })?;
                    let text =
                        std::str::from_utf8(self.take(n)?).map_err(|_| Error::data("a text that is not UTF-8"))?;
                    self.push(Value::Text(text))?;
                }
                // SHORT_BINBYTES, BINBYTES, BINBYTES8, BYTEARRAY8
                op @ (b'C' | b'B' | 0x8e | 0x96) => {
                    let n = self.length(match op {
                        b'C' => 1,
                        b'B' => 4,
                        _ => 8,
                    })?;
                    let data = self.take(n)?;
                    self.push(Value::Bytes(data))?;
                }
                // GLOBAL, STACK_GLOBAL
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.global(module, name)?;
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let (Value::Text(module), Value::Text(name)) = (module, name) else {
                        return Err(Error::data("the pickle names something by what is no text"));
                    };
                    self.global(module, name)?;
                }
                // BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET
                b'q' => {
                    let i = u32::from(self.byte()?);
                    self.remember(i)?;
                }
                b'r' => {
                    let i = u32::from_le_bytes(self.word()?);
                    self.remember(i)?;
                }
                0x94 => self.remember(u32::try_from(self.memo.len()).unwrap_or(u32::MAX))?,
                b'h' => {
                    let i = u32::from(self.byte()?);
                    self.recall(i)?;
                }
                b'j' => {
                    let i = u32::from_le_bytes(self.word()?);
                    self.recall(i)?;
                }
                // REDUCE, BUILD
                b'R' => {
                    let (arguments, function) = (self.pop()?, self.pop()?);
                    let made = self.call(&function, &arguments)?;
                    self.push(made)?;
                }
                b'b' => {
                    let (state, object) = (self.pop()?, self.pop()?);
                    let built = build(&object, &state)?;
                    self.push(built)?;
                }
                0x97 | 0x98 => return Err(Error::data("the pickle's data was kept elsewhere (out-of-band buffer)")),
                op => {
                    return Err(Error::data(format!(
                        "the pickle holds something else than an array (opcode 0x{op:02x}; refused, never run)"
                    )));
                }
            }
        }
    }

    fn stop(mut self) -> Result<Array<'a>> {
        let top = self.pop()?;
        if !self.stack.is_empty() {
            return Err(Error::data("the pickle leaves values behind"));
        }
        // The memo may share the array's bytes; without it they are moved out, not copied.
        self.memo.clear();
        match top {
            Value::Array(array) => Ok(Rc::unwrap_or_clone(array)),
            other => Err(Error::data(format!("the pickle holds {}, expected an array", other.describe()))),
        }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let Some((head, tail)) = self.rest.split_at_checked(n) else {
            return Err(Error::data(format!("the pickle claims {n} bytes, {} bytes are left", self.rest.len())));
        };
        self.rest = tail;
        Ok(head)
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn byte(&mut self) -> Result<u8> {
        let [byte] = self.word()?;
        Ok(byte)
    }

    fn length(&mut self, bytes: usize) -> Result<usize> {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(self.take(bytes)?);
        // A length that no usize holds is more than is left in any case.
        Ok(usize::try_from(u64::from_le_bytes(word)).unwrap_or(usize::MAX))
    }

    fn line(&mut self) -> Result<&'a str> {
        let end = self.rest.iter().position(|&b| b == b'\n');
        let end = end.ok_or_else(|| Error::data("the pickle ends inside a name"))?;
        let line = self.take(end + 1)?;
        std::str::from_utf8(&line[..end]).map_err(|_| Error::data("a name that is not UTF-8"))
    }

    fn push(&mut self, value: Value<'a>) -> Result<()> {
        if self.stack.len() >= MAX_VALUES {
            return Err(Error::data(format!("the pickle stacks more than {MAX_VALUES} values; an array needs few")));
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value<'a>> {
        match self.stack.pop() {
            Some(Value::Mark) | None => Err(Error::data("the pickle takes a value that is not there")),
            Some(value) => Ok(value),
        }
    }

    /// Turns everything from `start` on into a tuple.
    fn tuple(&mut self, start: Option<usize>) -> Result<()> {
        let start = start.ok_or_else(|| Error::data("the pickle takes a value that is not there"))?;
        let items = self.stack.split_off(start);
        let mut depth = 1;
        for item in &items {
            match item {
                Value::Mark => return Err(Error::data("the pickle takes a value that is not there")),
                Value::Tuple { depth: inner, .. } => depth = depth.max(inner + 1),
                _ => {}
            }
        }
        if depth > MAX_NESTING {
            return Err(Error::data(format!("the pickle nests more than {MAX_NESTING} tuples; an array needs three")));
        }
        self.push(Value::Tuple { items: items.into(), depth })
    }

    fn global(&mut self, module: &str, name: &str) -> Result<()> {
        let global = Global::named(module, name).ok_or_else(|| {
            let short = |s: &str| s.chars().take(60).collect::<String>();
            Error::data(format!(
                "the pickle names `{}.{}`, which is no part of a NumPy array (refused, never run)",
                short(module),
                short(name)
            ))
        })?;
        self.push(Value::Global(global))
    }

    fn remember(&mut self, i: u32) -> Result<()> {
        let top = self.stack.last().ok_or_else(|| Error::data("the pickle remembers a value that is not there"))?;
        if self.memo.len() >= MAX_VALUES {
            return Err(Error::data(format!("the pickle remembers more than {MAX_VALUES} values; an array needs few")));
        }
        self.memo.insert(i, top.clone());
        Ok(())
    }

    fn recall(&mut self, i: u32) -> Result<()> {
        let value = self.memo.get(&i).cloned();
        self.push(value.ok_or_else(|| Error::data(format!("the pickle recalls value {i}, which it never kept")))?)
    }

    /// REDUCE: the seven calls that there are.
    fn call(&mut self, function: &Value<'a>, arguments: &Value<'a>) -> Result<Value<'a>> {
        let (Value::Global(function), Value::Tuple { items, .. }) = (function, arguments) else {
            return Err(Error::data(format!("the pickle calls {}", function.describe())));
        };
        match (function, &**items) {
            // The shape given here is a placeholder, and the third argument a dtype that BUILD replaces.
            (Global::Reconstruct, [Value::Global(Global::NdArray), Value::Tuple { .. }, _]) => Ok(Value::BareArray),
            (Global::FromBuffer, [data, dtype, shape, Value::Text(order)]) => {
                let fortran = match *order {
                    "C" => false,
                    "F" => true,
                    _ => return Err(Error::data("an array whose order is neither C nor F")),
                };
                array(dtype, dims(shape)?, fortran, data)
            }
            (Global::Scalar, [dtype, data]) => array(dtype, Vec::new(), false, data),
            // dtype(code, align=False, copy=True)
            (Global::DType, [Value::Text(code), ..]) => {
                if code.starts_with(['O', 'V']) {
                    let what = if code.starts_with('O') { "Python objects" } else { "records" };
                    return Err(Error::data(format!("an array of {what} (refused, never unpickled)")));
                }
                let parsed = elements::parse_descr(code).filter(|_| !code.starts_with(['<', '>', '|', '=', '!']));
                let (dtype, _) = parsed.ok_or_else(|| {
                    let code: String = code.chars().take(20).collect();
                    Error::data(format!("an array of dtype `{code}`, expected numbers or booleans"))
                })?;
                Ok(Value::BareDType(dtype))
            }
            (Global::Encode, [Value::Text(text), Value::Text("latin1")]) => {
                let decoded: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
                let decoded = decoded.ok_or_else(|| Error::data("bytes spelled with a character beyond Latin-1"))?;
                self.decodable = self
                    .decodable
                    .checked_sub(decoded.len())
                    .ok_or_else(|| Error::data("the pickle decodes the same bytes over and over"))?;
                Ok(Value::Decoded(Rc::new(decoded)))
            }
            (Global::Bytes, []) => Ok(Value::Bytes(&[])),
            (function, _) => Err(Error::data(format!("the pickle calls {function:?} with arguments unheard of"))),
        }
    }
}

/// BUILD: the states of a dtype and of an array.
fn build<'a>(object: &Value<'a>, state: &Value<'a>) -> Result<Value<'a>> {
    let Value::Tuple { items: state, .. } = state else {
        return Err(Error::data(format!("the pickle builds {} from {}", object.describe(), state.describe())));
    };
    match (object, &**state) {
        // (version, byte order, subarray, names, fields, itemsize, alignment, flags)
        (
            Value::BareDType(dtype),
            [
                Value::Int(_),
                Value::Text(order),
                Value::None,
                Value::None,
                Value::None,
                Value::Int(_),
                Value::Int(_),
                Value::Int(0),
            ],
        ) => {
            let big_endian = match *order {
                "<" | "|" => false,
                ">" => true,
                "=" => cfg!(target_endian = "big"),
                _ => return Err(Error::data("a dtype whose byte order is none of < > | =")),
            };
            Ok(Value::DType { dtype: *dtype, big_endian })
        }
        (Value::BareArray, [Value::Int(1), shape, dtype, Value::Bool(fortran), data]) => {
            array(dtype, dims(shape)?, *fortran, data)
        }
        _ => Err(Error::data(format!("the pickle builds {} from a state unheard of", object.describe()))),
    }
}

fn array<'a>(dtype: &Value<'a>, shape: Vec<usize>, fortran: bool, data: &Value<'a>) -> Result<Value<'a>> {
    let Value::DType { dtype, big_endian } = *dtype else {
        return Err(Error::data(format!("an array whose dtype is {}", dtype.describe())));
    };
    let found = data.as_bytes().ok_or_else(|| Error::data(format!("an array made of {}", data.describe())))?.len();
    if elements::array_bytes(&shape, dtype) != Some(found) {
        let ty = TensorType::new(dtype, shape);
        return Err(Error::data(format!("an array claims to be {ty}, but has {found} bytes of data")));
    }
    Ok(Value::Array(Rc::new(Array { dtype, big_endian, shape, fortran, data: data.clone() })))
}

fn dims(shape: &Value<'_>) -> Result<Vec<usize>> {
    let bad = || Error::data("the shape of an array is no tuple of ints");
    let Value::Tuple { items, .. } = shape else {
        return Err(bad());
    };
    if items.len() > super::msgpack::MAX_DIMS {
        return Err(Error::data(format!("an array of {} dimensions", items.len())));
    }
    items
        .iter()
        .map(|v| match v {
            Value::Int(v) => usize::try_from(*v).map_err(|_| Error::data(format!("an array with a dimension {v}"))),
            _ => Err(bad()),
        })
        .collect()
}

/// A little-endian two's complement integer of any length.
fn long(bytes: &[u8]) -> Result<i64> {
    if bytes.len() > 8 {
        return Err(Error::data("an integer beyond 64 bits"));
    }
    let fill = if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
    let mut word = [fill; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    Ok(i64::from_le_bytes(word))
}

impl Array<'_> {
    /// Where in the pickle the elements lie, if they are those of the finished array byte for byte.
    fn place(&self, pickle: &[u8]) -> Option<Range<usize>> {
        let Value::Bytes(data) = self.data else { return None };
        let native = self.dtype.size() == 1 || self.big_endian == cfg!(target_endian = "big");
        let in_order = !self.fortran || self.shape.len() <= 1;
        // Booleans may be recorded as any byte, and become 0 and 1. An empty slice may be one of no pickle at all.
        if self.dtype == DType::Bool || !native || !in_order || data.is_empty() {
            return None;
        }
        let start = (data.as_ptr() as usize).checked_sub(pickle.as_ptr() as usize)?;
        let end = start.checked_add(data.len())?;
        (pickle.get(start..end) == Some(data)).then_some(start..end)
    }

    fn finish(self) -> Result<NdArray> {
        let mut data = match self.data {
            Value::Decoded(data) => Rc::unwrap_or_clone(data),
            Value::Bytes(data) => data.to_vec(),
            _ => return Err(Error::internal("an array of no bytes")),
        };
        if self.fortran && self.shape.len() > 1 {
            data = to_c_order(&data, &self.shape, self.dtype.size());
        }
        elements::make_native(&mut data, self.dtype, self.big_endian);
        Ok(NdArray { ty: TensorType::new(self.dtype, self.shape), data })
    }
}

/// The elements of a Fortran-ordered array (first index fastest) in C order (last index fastest).
fn to_c_order(data: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    // Step of each index in the source, in elements. The product of all is the length of `data`, so none overflows.
    let mut strides = Vec::with_capacity(shape.len());
    let mut step = 1usize;
    for &dim in shape {
        strides.push(step);
        step = step.saturating_mul(dim.max(1));
    }
    let mut index = vec![0usize; shape.len()];
    let mut at = 0usize;
    while out.len() < data.len() {
        out.extend_from_slice(&data[at * size..(at + 1) * size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    // Made by NumPy 1.26 and 2.4: testdata/make_pickles.py. Lines of what, dtype, shape, elements in C order and
    // little-endian as hex, base64 of the pickle; and of what, a part of the error, base64.
    const ARRAYS: &str = include_str!("testdata/pickles.tsv");
    const REFUSED: &str = include_str!("testdata/pickles_refused.tsv");

    fn lines<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
        table.lines().map(|line| line.split('\t').collect::<Vec<_>>().try_into().unwrap())
    }

    fn decode(base64: &str) -> Vec<u8> {
        STANDARD.decode(base64).unwrap()
    }

    fn error(bytes: &[u8]) -> String {
        ndarray(bytes).unwrap_err().what().to_owned()
    }

    #[test]
    fn arrays_of_both_numpys() {
        for [what, dtype, shape, hex, pickle] in lines(ARRAYS) {
            let dtype = DType::from_name(dtype).unwrap();
            let shape: Vec<usize> = shape.split(',').filter(|d| !d.is_empty()).map(|d| d.parse().unwrap()).collect();
            let found = ndarray(&decode(pickle)).unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut expected: Vec<u8> =
                (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
            elements::make_native(&mut expected, dtype, false);
            assert_eq!(found, NdArray { ty: TensorType::new(dtype, shape), data: expected }, "{what}");
        }
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for [what, message, pickle] in lines(REFUSED) {
            let e = error(&decode(pickle));
            assert!(e.contains(message), "{what}: {e}");
        }
        assert_eq!(
            error(&decode(lines::<3>(REFUSED).next().unwrap()[2])),
            "the pickle names `posix.system`, which is no part of a NumPy array (refused, never run)"
        );
    }

    #[test]
    fn broken_pickles_are_errors_and_no_panics() {
        for [what, .., pickle] in lines::<5>(ARRAYS) {
            let bytes = decode(pickle);
            for n in 0..bytes.len() {
                assert!(ndarray(&bytes[..n]).is_err(), "{what} cut at {n}");
            }
            for i in 0..bytes.len() {
                for bit in 0..8 {
                    let mut flipped = bytes.clone();
                    flipped[i] ^= 1 << bit;
                    if let Ok(array) = ndarray(&flipped) {
                        assert!(array.data.len() <= bytes.len(), "{what}, bit {bit} of byte {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn bombs() {
        // A million tuples around one another.
        let deep = [&b"\x80\x04N"[..], &vec![0x85; 1_000_000], b"."].concat();
        assert!(error(&deep).contains("nests more than"));
        // A tuple of the tuple before, twice each: 2^40 leaves if anyone walked them.
        let wide = [&b"\x80\x04N"[..], &b"q\x00h\x00\x86".repeat(40), b"."].concat();
        assert!(error(&wide).contains("nests more than"));
        assert!(error(&vec![b'N'; 1_000_000]).contains("stacks more than"));
        assert!(error(&[&b"N"[..], &b"\x94".repeat(1_000_000)].concat()).contains("remembers more than"));
        // The same text decoded again and again.
        let text = [&b"X\x10\x00\x00\x00"[..], &[b'a'; 16]].concat();
        let again = [&b"\x80\x02c_codecs\nencode\nq\x00"[..], &text, b"X\x06\x00\x00\x00latin1\x86q\x01R"].concat();
        let bomb = [&again[..], &b"h\x00h\x01R".repeat(500)].concat();
        assert!(error(&bomb).contains("over and over"), "{}", error(&bomb));
        // A memo that holds itself, values that were never there, lengths beyond the end.
        assert!(error(b"\x80\x04h\x00.").contains("never kept"));
        assert!(error(b"\x80\x04)q\x00h\x00\x85q\x00.").contains("leaves values behind"));
        assert!(error(b"\x80\x04R").contains("not there"));
        assert!(error(b"\x80\x04(R").contains("not there"));
        assert!(error(b"\x80\x04(\x85").contains("not there"));
        assert!(error(b"\x80\x04t").contains("never opened"));
        assert!(error(b"\x80\x04\x94").contains("not there"));
        assert!(error(b"\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\xff").contains("bytes are left"));
        assert!(error(b"\x80\x00").contains("protocol 0"));
        assert!(error(b"\x80\x05\x97.").contains("out-of-band"));
        assert!(error(b"\x80\x04NN\x86.").contains("holds a tuple"));
        assert!(error(b"").contains("claims 1 bytes"));
    }

    #[test]
    fn fortran_order_of_three_dimensions() {
        // np.arange(24).reshape(2, 3, 4), first index fastest.
        let (shape, mut fortran) = ([2usize, 3, 4], [0u8; 24]);
        for i in 0..2 {
            for j in 0..3 {
                for k in 0..4 {
                    fortran[i + 2 * (j + 3 * k)] = u8::try_from(k + 4 * (j + 3 * i)).unwrap();
                }
            }
        }
        assert_eq!(to_c_order(&fortran, &shape, 1), (0..24).collect::<Vec<u8>>());
        assert_eq!(to_c_order(&[], &[3, 0, 2], 4), Vec::<u8>::new());
    }
}
