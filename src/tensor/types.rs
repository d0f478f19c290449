//! What a row of a tensor column is: an element type and a shape.

use std::fmt;

use arrow::datatypes::DataType;
use half::f16;
use serde::{Deserialize, Serialize};

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
