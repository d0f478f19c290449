//! Columns of equally shaped tensors: the one representation of data inside the pipeline.
//!
//! ```text
//! Tensor { ty: float32[2, 3], rows: 4 }          data: rows * 2 * 3 values, C order, native byte order
//!
//!   row 0            row 1            row 2            row 3
//!   [a b c, d e f]   [g h i, j k l]   [m n o, p q r]   [s t u, v w x]
//!   └─ row_bytes ──┘
//! ```
//!
//! A row has no nulls and no offsets, so cutting, joining and padding are copies of whole byte ranges, whatever the
//! dtype: most connectors never look at a value. Booleans take one byte each here (as in NumPy) and one bit in Arrow.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, FixedSizeListArray, PrimitiveArray};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, ScalarBuffer};
use arrow::datatypes as adt;
use arrow::datatypes::{DataType, Field};
use half::f16;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Element types, under NumPy's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum DType {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    Float32,
    Float64,
}

impl DType {
    /// All of them, in the order of declaration.
    pub const ALL: [Self; 12] = [
        Self::Bool,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::UInt8,
        Self::UInt16,
        Self::UInt32,
        Self::UInt64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
    ];

    /// Bytes per element (a boolean takes one).
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 | Self::Float16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 => 4,
            Self::Int64 | Self::UInt64 | Self::Float64 => 8,
        }
    }

    /// The type of a column of scalars.
    #[must_use]
    pub const fn scalar(self) -> TensorType {
        TensorType { dtype: self, shape: Vec::new() }
    }

    /// NumPy's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }

    /// Whether this is a floating-point type.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64)
    }

    /// The Arrow type of one element.
    #[must_use]
    pub const fn arrow(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int8 => DataType::Int8,
            Self::Int16 => DataType::Int16,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::UInt8 => DataType::UInt8,
            Self::UInt16 => DataType::UInt16,
            Self::UInt32 => DataType::UInt32,
            Self::UInt64 => DataType::UInt64,
            Self::Float16 => DataType::Float16,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
        }
    }

    /// The element type of an Arrow type, if it has one here.
    #[must_use]
    pub fn from_arrow(ty: &DataType) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.arrow() == *ty)
    }

    /// The element type under NumPy's name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The smallest type that holds every value of both without loss, if there is one.
    ///
    /// `int64` with a float and `uint64` with a signed integer have none, and a boolean is no number.
    #[must_use]
    pub fn lossless_union(self, other: Self) -> Option<Self> {
        use DType as D;
        if self == other {
            return Some(self);
        }
        let mut candidates = [D::Int8, D::UInt8, D::Int16, D::UInt16, D::Int32, D::UInt32, D::Int64, D::UInt64]
            .into_iter()
            .chain([D::Float16, D::Float32, D::Float64]);
        candidates.find(|&c| self.embeds_in(c) && other.embeds_in(c))
    }

    /// NumPy's `result_type` of two arrays: like [`Self::lossless_union`], but 64-bit integers join floats as float64
    /// and booleans join anything.
    #[must_use]
    pub fn numpy_result_type(self, other: Self) -> Self {
        match (self, other) {
            (Self::Bool, d) | (d, Self::Bool) => d,
            _ => self.lossless_union(other).unwrap_or(Self::Float64),
        }
    }

    /// Whether every value of `self` is a value of `other`.
    #[must_use]
    pub fn embeds_in(self, other: Self) -> bool {
        // (bits of integer magnitude, signed, float mantissa bits)
        const fn int_bits(d: DType) -> Option<(u32, bool)> {
            Some(match d {
                DType::Int8 => (7, true),
                DType::Int16 => (15, true),
                DType::Int32 => (31, true),
                DType::Int64 => (63, true),
                DType::UInt8 => (8, false),
                DType::UInt16 => (16, false),
                DType::UInt32 => (32, false),
                DType::UInt64 => (64, false),
                _ => return None,
            })
        }
        const fn mantissa(d: DType) -> Option<u32> {
            Some(match d {
                DType::Float16 => 11,
                DType::Float32 => 24,
                DType::Float64 => 53,
                _ => return None,
            })
        }
        if self == other {
            return true;
        }
        match (int_bits(self), int_bits(other), mantissa(self), mantissa(other)) {
            (Some((a, a_signed)), Some((b, b_signed)), ..) => a <= b && (!a_signed || b_signed),
            (Some((a, _)), None, None, Some(b)) | (None, None, Some(a), Some(b)) => a <= b,
            _ => false,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Element types with a fixed layout in memory.
pub trait Element: bytemuck::Pod + PartialEq + fmt::Debug {
    /// The dtype whose rows are slices of `Self`.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),* $(,)?) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
elements! { i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64, u8 => UInt8, u16 => UInt16, u32 => UInt32,
u64 => UInt64, f16 => Float16, f32 => Float32, f64 => Float64 }

/// Dtype and shape of one row of a tensor column. Written `float32[4, 84]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Shape of one row; empty for scalars.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// A type from its parts.
    #[must_use]
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    /// Elements per row. Shapes come from files and jobs: one that no memory holds gives the largest number, which
    /// every limit refuses.
    #[must_use]
    pub fn row_elements(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        self.shape.iter().fold(1, |n: usize, d| n.saturating_mul(*d))
    }

    /// Bytes per row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_elements().saturating_mul(self.dtype.size())
    }

    /// The same row with another dtype.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, shape: self.shape.clone() }
    }

    /// The row that holds `n` of these rows: `[n, ...shape]`.
    #[must_use]
    pub fn stacked(&self, n: usize) -> Self {
        let shape = std::iter::once(n).chain(self.shape.iter().copied()).collect::<Vec<_>>();
        Self { dtype: self.dtype, shape }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dtype.fmt(f)?;
        if !self.shape.is_empty() {
            let dims: Vec<String> = self.shape.iter().map(ToString::to_string).collect();
            write!(f, "[{}]", dims.join(", "))?;
        }
        Ok(())
    }
}

/// A column of equally shaped tensors. Cloning and slicing are free.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    ty: TensorType,
    rows: usize,
    data: Buffer,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} x {})", self.rows, self.ty)
    }
}

impl Tensor {
    /// A column over raw bytes.
    ///
    /// # Panics
    /// If the length of `data` is not that of `rows` rows.
    #[must_use]
    pub fn new(ty: TensorType, rows: usize, data: Buffer) -> Self {
        assert_eq!(data.len(), rows * ty.row_bytes(), "buffer length against {rows} rows of {ty}");
        // Typed views need alignment. Buffers from files are aligned; a slice of an odd one is copied once, here.
        let data = if data.as_ptr().align_offset(ty.dtype.size()) == 0 { data } else { aligned(data.as_slice()) };
        Self { ty, rows, data }
    }

    /// `rows` rows of zeros (`False`, 0, 0.0).
    #[must_use]
    pub fn zeros(ty: TensorType, rows: usize) -> Self {
        let data = MutableBuffer::from_len_zeroed(rows * ty.row_bytes()).into();
        Self { ty, rows, data }
    }

    /// A column of scalars or tensors from typed values.
    ///
    /// # Panics
    /// If the number of values is no multiple of the shape's size.
    #[must_use]
    pub fn from_values<T: Element>(shape: impl Into<Vec<usize>>, values: &[T]) -> Self {
        let ty = TensorType::new(T::DTYPE, shape);
        let n = ty.row_elements();
        let rows = values.len().checked_div(n).unwrap_or(0);
        Self::new(ty, rows, aligned(bytemuck::cast_slice(values)))
    }

    /// A column of booleans.
    #[must_use]
    pub fn from_bools(values: impl IntoIterator<Item = bool>) -> Self {
        let bytes: Vec<u8> = values.into_iter().map(u8::from).collect();
        Self { ty: TensorType::new(DType::Bool, []), rows: bytes.len(), data: aligned(&bytes) }
    }

    /// Dtype and shape of a row.
    #[must_use]
    pub const fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// The bytes of all rows.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// The bytes of all rows as an Arrow buffer, without a copy.
    #[must_use]
    pub fn buffer(&self) -> Buffer {
        self.data.clone()
    }

    /// The bytes of one row.
    #[must_use]
    pub fn row(&self, i: usize) -> &[u8] {
        let n = self.ty.row_bytes();
        &self.bytes()[i * n..(i + 1) * n]
    }

    /// The values, if `T` is the column's element type.
    ///
    /// # Panics
    /// If it is not: callers choose `T` by [`Tensor::ty`].
    #[must_use]
    pub fn values<T: Element>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.ty.dtype, "typed view of another dtype");
        bytemuck::cast_slice(self.bytes())
    }

    /// Rows `start..start + len`, without a copy.
    #[must_use]
    pub fn slice(&self, start: usize, len: usize) -> Self {
        let n = self.ty.row_bytes();
        Self { ty: self.ty.clone(), rows: len, data: self.data.slice_with_length(start * n, len * n) }
    }

    /// The rows at `places`, in that order.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn take(&self, places: &[usize]) -> Self {
        let mut out = MutableBuffer::with_capacity(places.len() * self.ty.row_bytes());
        copy_rows(&mut out, self.bytes(), self.ty.row_bytes(), places.iter().copied());
        Self { ty: self.ty.clone(), rows: places.len(), data: out.into() }
    }

    /// The same bytes seen as rows of another shape.
    ///
    /// # Panics
    /// If the sizes do not agree.
    #[must_use]
    pub fn reshaped(&self, ty: TensorType, rows: usize) -> Self {
        Self::new(ty, rows, self.data.clone())
    }

    /// All rows of `parts`, one after the other. One part is returned as it is.
    ///
    /// # Panics
    /// If a part has another type than `ty`.
    #[must_use]
    pub fn concat(ty: &TensorType, parts: &[Self]) -> Self {
        if let [only] = parts {
            assert_eq!(only.ty, *ty, "parts of one column");
            return only.clone();
        }
        let rows = parts.iter().map(|p| p.rows).sum();
        let mut out = TensorBuilder::with_capacity(ty.clone(), rows);
        for part in parts {
            out.extend(part, 0, part.rows);
        }
        out.finish()
    }

    /// The same column with rows added to some of its rows: `(row, bytes of what is added)`, in the column's own dtype.
    /// Booleans are or-ed; integers wrap, as in `NumPy`.
    ///
    /// # Panics
    /// If a row does not exist or has another size.
    #[must_use]
    pub fn with_added_rows(&self, adds: &[(usize, &[u8])]) -> Self {
        fn add<T: Element>(bytes: &mut [u8], own: &[u8], sum: impl Fn(T, T) -> T) {
            for (slot, other) in bytes.chunks_exact_mut(size_of::<T>()).zip(own.chunks_exact(size_of::<T>())) {
                let value = sum(bytemuck::pod_read_unaligned(slot), bytemuck::pod_read_unaligned(other));
                slot.copy_from_slice(bytemuck::bytes_of(&value));
            }
        }
        let n = self.ty.row_bytes();
        let mut data = self.bytes().to_vec();
        for &(row, own) in adds {
            let bytes = &mut data[row * n..(row + 1) * n];
            match self.ty.dtype {
                DType::Bool => add::<u8>(bytes, own, |a, b| a | b),
                DType::Int8 => add::<i8>(bytes, own, i8::wrapping_add),
                DType::Int16 => add::<i16>(bytes, own, i16::wrapping_add),
                DType::Int32 => add::<i32>(bytes, own, i32::wrapping_add),
                DType::Int64 => add::<i64>(bytes, own, i64::wrapping_add),
                DType::UInt8 => add::<u8>(bytes, own, u8::wrapping_add),
                DType::UInt16 => add::<u16>(bytes, own, u16::wrapping_add),
                DType::UInt32 => add::<u32>(bytes, own, u32::wrapping_add),
                DType::UInt64 => add::<u64>(bytes, own, u64::wrapping_add),
                DType::Float16 => add::<f16>(bytes, own, |a, b| a + b),
                DType::Float32 => add::<f32>(bytes, own, |a, b| a + b),
                DType::Float64 => add::<f64>(bytes, own, |a, b| a + b),
            }
        }
        Self { ty: self.ty.clone(), rows: self.rows, data: aligned(&data) }
    }

    /// The same values as another dtype, rounding to nearest even as NumPy's `astype` and torch's `.to` do.
    ///
    /// # Errors
    /// If the conversion is none that the pipeline needs (float to float, integer to a wider type or to float).
    pub fn cast(&self, dtype: DType) -> Result<Self> {
        if dtype == self.ty.dtype {
            return Ok(self.clone());
        }
        let flat = self.flat_arrow();
        let out = arrow::compute::cast(&flat, &dtype.arrow())
            .map_err(|e| Error::internal(format!("cast of {} to {dtype}: {e}", self.ty.dtype)))?;
        Ok(Self { ty: self.ty.with_dtype(dtype), rows: self.rows, data: element_bytes(out.as_ref(), dtype)? })
    }

    /// The elements as one flat Arrow array.
    fn flat_arrow(&self) -> ArrayRef {
        fn primitive<P: ArrowPrimitiveType>(data: &Buffer) -> ArrayRef {
            Arc::new(PrimitiveArray::<P>::new(ScalarBuffer::from(data.clone()), None))
        }
        match self.ty.dtype {
            DType::Bool => {
                let bytes = self.bytes();
                Arc::new(BooleanArray::new(BooleanBuffer::collect_bool(bytes.len(), |i| bytes[i] != 0), None))
            }
            DType::Int8 => primitive::<adt::Int8Type>(&self.data),
            DType::Int16 => primitive::<adt::Int16Type>(&self.data),
            DType::Int32 => primitive::<adt::Int32Type>(&self.data),
            DType::Int64 => primitive::<adt::Int64Type>(&self.data),
            DType::UInt8 => primitive::<adt::UInt8Type>(&self.data),
            DType::UInt16 => primitive::<adt::UInt16Type>(&self.data),
            DType::UInt32 => primitive::<adt::UInt32Type>(&self.data),
            DType::UInt64 => primitive::<adt::UInt64Type>(&self.data),
            DType::Float16 => primitive::<adt::Float16Type>(&self.data),
            DType::Float32 => primitive::<adt::Float32Type>(&self.data),
            DType::Float64 => primitive::<adt::Float64Type>(&self.data),
        }
    }

    /// The column as Arrow: a primitive array for scalars, else one flat fixed-size list. No copy but for booleans.
    ///
    /// # Errors
    /// If a row has more elements than an Arrow list can (2^31 - 1).
    pub fn to_arrow(&self) -> Result<ArrayRef> {
        let flat = self.flat_arrow();
        if self.ty.shape.is_empty() {
            return Ok(flat);
        }
        let len = i32::try_from(self.ty.row_elements())
            .map_err(|_| Error::usage(format!("rows of {} are too large for Arrow", self.ty)))?;
        let field = Arc::new(Field::new_list_field(self.ty.dtype.arrow(), false));
        FixedSizeListArray::try_new_with_length(field, len, flat, None, self.rows)
            .map(|a| Arc::new(a) as ArrayRef)
            .map_err(|e| Error::internal(format!("fixed-size list of {}: {e}", self.ty)))
    }

    /// A column over the elements of a flat Arrow array without nulls.
    ///
    /// # Errors
    /// If the array's type is no element type, or its length does not make whole rows.
    pub fn from_flat_arrow(elements: &dyn Array, shape: impl Into<Vec<usize>>, rows: usize) -> Result<Self> {
        let dtype = DType::from_arrow(elements.data_type())
            .ok_or_else(|| Error::usage(format!("{} is no tensor element type", elements.data_type())))?;
        let ty = TensorType::new(dtype, shape);
        let data = element_bytes(elements, dtype)?;
        if data.len() != rows * ty.row_bytes() {
            return Err(Error::data(format!("found {} elements, expected {rows} rows of {ty}", elements.len())));
        }
        Ok(Self::new(ty, rows, data))
    }
}

/// Appends the rows at `places`, each of `size` bytes.
fn copy_rows(out: &mut MutableBuffer, bytes: &[u8], size: usize, places: impl Iterator<Item = usize>) {
    /// Rows of a known size are moved as registers, not by calls of `memcpy`, and room is made once.
    fn fixed<const N: usize>(out: &mut MutableBuffer, bytes: &[u8], places: impl Iterator<Item = usize>) {
        let (rows, _) = bytes.as_chunks::<N>();
        let mut few = [[0; N]; 64];
        let mut n = 0;
        for i in places {
            few[n] = rows[i];
            n += 1;
            if n == few.len() {
                out.extend_from_slice(few.as_flattened());
                n = 0;
            }
        }
        out.extend_from_slice(few[..n].as_flattened());
    }
    match size {
        0 => {}
        1 => fixed::<1>(out, bytes, places),
        2 => fixed::<2>(out, bytes, places),
        4 => fixed::<4>(out, bytes, places),
        8 => fixed::<8>(out, bytes, places),
        16 => fixed::<16>(out, bytes, places),
        32 => fixed::<32>(out, bytes, places),
        64 => fixed::<64>(out, bytes, places),
        _ => places.for_each(|i| out.extend_from_slice(&bytes[i * size..(i + 1) * size])),
    }
}

/// The raw elements of a flat Arrow array (booleans spread to bytes). Nulls are the caller's to refuse.
fn element_bytes(elements: &dyn Array, dtype: DType) -> Result<Buffer> {
    if dtype == DType::Bool {
        let bits = elements
            .as_any()
            .downcast_ref::<BooleanArray>()
            .ok_or_else(|| Error::internal("a boolean column that is no boolean array"))?;
        let bytes: Vec<u8> = bits.values().iter().map(u8::from).collect();
        return Ok(Buffer::from_vec(bytes));
    }
    let data = elements.to_data();
    let size = dtype.size();
    Ok(data.buffers()[0].slice_with_length(data.offset() * size, data.len() * size))
}

/// A copy of `bytes` at Arrow's alignment.
fn aligned(bytes: &[u8]) -> Buffer {
    let mut out = MutableBuffer::with_capacity(bytes.len());
    out.extend_from_slice(bytes);
    out.into()
}

/// Appends rows to a tensor column.
#[derive(Debug)]
pub struct TensorBuilder {
    ty: TensorType,
    rows: usize,
    data: MutableBuffer,
}

impl TensorBuilder {
    /// An empty column with room for `rows` rows.
    #[must_use]
    pub fn with_capacity(ty: TensorType, rows: usize) -> Self {
        let data = MutableBuffer::with_capacity(rows * ty.row_bytes());
        Self { ty, rows: 0, data }
    }

    /// Dtype and shape of a row.
    #[must_use]
    pub const fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Rows so far.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Appends rows `start..start + len` of `from`.
    ///
    /// # Panics
    /// If the types differ.
    pub fn extend(&mut self, from: &Tensor, start: usize, len: usize) {
        assert_eq!(self.ty, from.ty, "parts of one column");
        let n = self.ty.row_bytes();
        self.data.extend_from_slice(&from.bytes()[start * n..(start + len) * n]);
        self.rows += len;
    }

    /// Appends `len` rows of `from`: row `start`, and each `step`th after it.
    ///
    /// # Panics
    /// If the types differ, or there is no such row.
    pub fn extend_strided(&mut self, from: &Tensor, start: usize, len: usize, step: usize) {
        if step == 1 {
            return self.extend(from, start, len);
        }
        assert_eq!(self.ty, from.ty, "parts of one column");
        let places = (start..).step_by(step).take(len);
        copy_rows(&mut self.data, from.bytes(), self.ty.row_bytes(), places);
        self.rows += len;
    }

    /// Appends whole rows from raw bytes in native byte order.
    ///
    /// # Panics
    /// If `bytes` is not `rows` rows long.
    pub fn extend_bytes(&mut self, bytes: &[u8], rows: usize) {
        assert_eq!(bytes.len(), rows * self.ty.row_bytes(), "raw rows of {}", self.ty);
        self.data.extend_from_slice(bytes);
        self.rows += rows;
    }

    /// Appends `n` rows of zeros.
    pub fn extend_zeros(&mut self, n: usize) {
        self.data.extend_zeros(n * self.ty.row_bytes());
        self.rows += n;
    }

    /// The column.
    #[must_use]
    pub fn finish(self) -> Tensor {
        Tensor { ty: self.ty, rows: self.rows, data: self.data.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_memory_and_round_trip_through_arrow() {
        let t = Tensor::from_values::<f32>([2], &[1., 2., 3., 4., 5., 6.]);
        let s = t.slice(1, 2);
        assert_eq!(s.values::<f32>(), &[3., 4., 5., 6.]);
        let arrow = s.to_arrow().unwrap();
        let list = arrow.as_any().downcast_ref::<FixedSizeListArray>().unwrap();
        assert_eq!(Tensor::from_flat_arrow(list.values(), [2], 2).unwrap(), s);
    }

    #[test]
    fn rows_are_taken_in_any_order() {
        for width in [0, 1, 2, 3, 4, 8, 16, 17] {
            let values: Vec<f32> = (0..u8::try_from(width * 4).unwrap()).map(f32::from).collect();
            let t = Tensor::new(TensorType::new(DType::Float32, [width]), 4, aligned(bytemuck::cast_slice(&values)));
            let taken = t.take(&[3, 0, 0]);
            assert_eq!(taken, Tensor::concat(t.ty(), &[t.slice(3, 1), t.slice(0, 1), t.slice(0, 1)]), "{width}");
        }
        let bytes = Tensor::from_values::<u8>([], &[1, 2, 3]);
        assert_eq!(bytes.take(&[2, 1]).values::<u8>(), [3, 2]);
        let many: Vec<u16> = (0..1000).collect();
        let many = Tensor::from_values::<u16>([], &many);
        let mut out = TensorBuilder::with_capacity(many.ty().clone(), 0);
        out.extend_strided(&many, 1, 150, 3);
        out.extend_strided(&many, 7, 2, 1);
        let expected: Vec<u16> = (0..150).map(|i| 1 + 3 * i).chain([7, 8]).collect();
        assert_eq!(out.finish().values::<u16>(), expected);
    }

    #[test]
    fn booleans_are_bytes_here_and_bits_in_arrow() {
        let t = Tensor::from_bools([true, false, true]);
        assert_eq!(t.bytes(), &[1, 0, 1]);
        assert_eq!(Tensor::from_flat_arrow(&t.to_arrow().unwrap(), [], 3).unwrap(), t);
    }

    #[test]
    fn casts_round_to_nearest_even() {
        let t = Tensor::from_values::<f64>([], &[0.1, 16_777_217.0, f64::MAX, -0.0]);
        let c = t.cast(DType::Float32).unwrap();
        assert_eq!(
            c.values::<f32>().iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
            [0.1f32.to_bits(), 16_777_216f32.to_bits(), f32::INFINITY.to_bits(), (-0.0f32).to_bits()]
        );
    }

    #[test]
    fn unions_lose_nothing() {
        use DType as D;
        assert_eq!(D::Float32.lossless_union(D::Float64), Some(D::Float64));
        assert_eq!(D::Int32.lossless_union(D::Int64), Some(D::Int64));
        assert_eq!(D::UInt8.lossless_union(D::Int8), Some(D::Int16));
        assert_eq!(D::Int32.lossless_union(D::Float32), Some(D::Float64));
        assert_eq!(D::Int64.lossless_union(D::Float64), None);
        assert_eq!(D::UInt64.lossless_union(D::Int8), None);
        assert_eq!(D::Bool.lossless_union(D::UInt8), None);
    }

    #[test]
    fn empty_rows_and_empty_columns() {
        let t = Tensor::zeros(TensorType::new(DType::Float32, [0]), 3);
        assert_eq!((t.rows(), t.bytes().len()), (3, 0));
        assert_eq!(t.to_arrow().unwrap().len(), 3);
        assert_eq!(Tensor::concat(&TensorType::new(DType::Int8, []), &[]).rows(), 0);
    }
}
