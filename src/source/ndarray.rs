//! One decoded NumPy array, whatever it was wrapped in.

use crate::tensor::TensorType;

/// A NumPy array out of a pickle or a msgpack item: C order, native byte order, booleans one byte each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NdArray {
    /// Dtype and shape of the whole array (no row dimension is split off).
    pub ty: TensorType,
    /// Its elements.
    pub data: Vec<u8>,
}
