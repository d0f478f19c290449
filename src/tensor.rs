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

mod added;
mod buffers;
mod builder;
mod types;

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, FixedSizeListArray, PrimitiveArray};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, ScalarBuffer};
use arrow::datatypes as adt;
use arrow::datatypes::Field;
use half::f16;

use crate::error::{Error, Result};

pub use self::buffers::Buffers;
pub use self::builder::TensorBuilder;
use self::builder::copy_rows;
pub use self::types::{DType, Element, TensorType};

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
        // Not `MutableBuffer::from_len_zeroed`: the zeros of memory that is aligned to 64 bytes are written one by one. Those
        // of a `Vec` are the system's where it is large.
        let data = vec![0_u8; rows * ty.row_bytes()];
        Self::new(ty, rows, data.into())
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

    /// Whether this is a clone of `other`: the same rows at the same place in memory.
    #[must_use]
    pub fn shares_memory(&self, other: &Self) -> bool {
        self.ty == other.ty && self.rows == other.rows && self.data.ptr_eq(&other.data)
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

    /// Whether all elements of a row are zero (of either sign).
    #[must_use]
    pub fn is_zero(&self, i: usize) -> bool {
        fn all_zero<T: Element>(bytes: &[u8], is_zero: impl Fn(T) -> bool) -> bool {
            bytes.chunks_exact(size_of::<T>()).all(|element| is_zero(bytemuck::pod_read_unaligned(element)))
        }
        let row = self.row(i);
        match self.ty.dtype {
            DType::Float16 => all_zero::<f16>(row, |x| x == f16::ZERO),
            DType::Float32 => all_zero::<f32>(row, |x| x == 0.0),
            DType::Float64 => all_zero::<f64>(row, |x| x == 0.0),
            _ => row.iter().all(|byte| *byte == 0),
        }
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
