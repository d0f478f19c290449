//! Columns made row by row, or stretch by stretch.

use arrow::buffer::MutableBuffer;

use super::{Tensor, TensorType};

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

/// Appends the rows at `places`, each of `size` bytes.
pub(super) fn copy_rows(out: &mut MutableBuffer, bytes: &[u8], size: usize, places: impl Iterator<Item = usize>) {
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
