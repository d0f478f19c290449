//! Rows added to rows of a column, in the column's own dtype.

use half::f16;

use super::{DType, Element, Tensor, aligned};

/// Adds elements to a row, one row after the other; false if a sum is not the dtype's.
type Add = fn(&mut [u8], &[&[u8]]) -> bool;

/// Integers and booleans: exactly, whatever the sums on the way are.
fn whole<T: Element + Into<i128> + TryFrom<i128>>(row: &mut [u8], adds: &[&[u8]]) -> bool {
    let size = size_of::<T>();
    row.chunks_exact_mut(size).enumerate().all(|(i, slot)| {
        let own: T = bytemuck::pod_read_unaligned(slot);
        let other = |add: &&[u8]| bytemuck::pod_read_unaligned::<T>(&add[i * size..(i + 1) * size]).into();
        let sum: i128 = adds.iter().map(other).sum::<i128>() + own.into();
        T::try_from(sum).is_ok_and(|sum| {
            slot.copy_from_slice(bytemuck::bytes_of(&sum));
            true
        })
    })
}

/// Floats, rounded after each addition as NumPy's scalars are; finite ones must not become infinite.
fn rounded<T: Element>(row: &mut [u8], adds: &[&[u8]], add: fn(T, T) -> T, is_finite: fn(T) -> bool) -> bool {
    let size = size_of::<T>();
    row.chunks_exact_mut(size).enumerate().all(|(i, slot)| {
        let mut sum: T = bytemuck::pod_read_unaligned(slot);
        for other in adds {
            let other: T = bytemuck::pod_read_unaligned(&other[i * size..(i + 1) * size]);
            let before = is_finite(sum) && is_finite(other);
            sum = add(sum, other);
            if before && !is_finite(sum) {
                return false;
            }
        }
        slot.copy_from_slice(bytemuck::bytes_of(&sum));
        true
    })
}

fn add_of(dtype: DType) -> Add {
    match dtype {
        DType::Bool => |row, adds| whole::<u8>(row, adds) && row.iter().all(|byte| *byte <= 1),
        DType::Int8 => whole::<i8>,
        DType::Int16 => whole::<i16>,
        DType::Int32 => whole::<i32>,
        DType::Int64 => whole::<i64>,
        DType::UInt8 => whole::<u8>,
        DType::UInt16 => whole::<u16>,
        DType::UInt32 => whole::<u32>,
        DType::UInt64 => whole::<u64>,
        DType::Float16 => |row, adds| rounded::<f16>(row, adds, |a, b| a + b, f16::is_finite),
        DType::Float32 => |row, adds| rounded::<f32>(row, adds, |a, b| a + b, f32::is_finite),
        DType::Float64 => |row, adds| rounded::<f64>(row, adds, |a, b| a + b, f64::is_finite),
    }
}

impl Tensor {
    /// The same column with rows added to some of its rows: `(row, bytes of what is added)`, those of one row side by side.
    ///
    /// # Errors
    /// If a sum is none that the dtype has: an integer beyond its range, a boolean above one, a float that became infinite.
    /// The error is the position of the last addend of that row.
    ///
    /// # Panics
    /// If a row does not exist or has another size.
    pub fn with_added_rows(&self, adds: &[(usize, &[u8])]) -> Result<Self, usize> {
        let add = add_of(self.ty.dtype);
        let n = self.ty.row_bytes();
        let mut data = self.bytes().to_vec();
        let mut done = 0;
        for of_row in adds.chunk_by(|a, b| a.0 == b.0) {
            done += of_row.len();
            let (row, own) = (of_row[0].0, of_row.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>());
            if !add(&mut data[row * n..(row + 1) * n], &own) {
                return Err(done - 1);
            }
        }
        Ok(Self { ty: self.ty.clone(), rows: self.rows, data: aligned(&data) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum<T: Element>(own: &[T], adds: &[(usize, T)]) -> Result<Vec<T>, usize> {
        let adds: Vec<(usize, &[u8])> = adds.iter().map(|(row, value)| (*row, bytemuck::bytes_of(value))).collect();
        Ok(Tensor::from_values([], own).with_added_rows(&adds)?.values::<T>().to_vec())
    }

    #[test]
    fn sums_beyond_the_dtype_are_none() {
        assert_eq!(sum::<i8>(&[100, 1], &[(0, 100), (0, -90), (1, 2)]), Ok(vec![110, 3]));
        assert_eq!(sum::<i8>(&[100, 1], &[(0, 20), (0, 8), (1, 2)]), Err(1));
        assert_eq!(sum::<u8>(&[250, 1], &[(0, 5), (1, 255)]), Err(1));
        assert_eq!(sum::<i64>(&[i64::MAX], &[(0, 1)]), Err(0));
        assert_eq!(sum::<u64>(&[u64::MAX - 1], &[(0, 1)]), Ok(vec![u64::MAX]));
        assert_eq!(sum::<f32>(&[f32::MAX], &[(0, f32::MAX)]), Err(0));
        assert_eq!(sum::<f32>(&[1.0], &[(0, f32::INFINITY)]), Ok(vec![f32::INFINITY]));
        assert_eq!(sum::<f32>(&[0.1], &[(0, 0.2), (0, 0.3)]), Ok(vec![0.1 + 0.2 + 0.3]));
        let flags = Tensor::from_bools([false, true]);
        assert_eq!(flags.with_added_rows(&[(0, &[1]), (1, &[0])]), Ok(Tensor::from_bools([true, true])));
        assert_eq!(flags.with_added_rows(&[(1, &[1])]), Err(0));
    }
}
