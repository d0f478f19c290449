//! NumPy's floating-point reductions, bit for bit.
//!
//! `np.sum` over contiguous floats adds pairwise (`numpy/_core/src/umath/loops_utils.h.src`):
//!
//! ```text
//! n < 8      one after the other, starting from -0.0
//! n <= 128   eight running sums over blocks of eight,
//!            ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7)), then the rest one by one
//! else       split at n / 2, rounded down to a multiple of eight, and add the two halves
//! ```

/// Floats that are added pairwise.
pub trait Float: Copy + std::ops::Add<Output = Self> {
    /// -0.0, which leaves every summand as it is.
    const NEGATIVE_ZERO: Self;
    /// 0.0.
    const ZERO: Self;
}

impl Float for f32 {
    const NEGATIVE_ZERO: Self = -0.0;
    const ZERO: Self = 0.0;
}

impl Float for f64 {
    const NEGATIVE_ZERO: Self = -0.0;
    const ZERO: Self = 0.0;
}

/// `np.sum` of the values `map(x)` for each `x`.
pub fn sum_of<T, F: Float>(values: &[T], map: &impl Fn(&T) -> F) -> F {
    F::ZERO + pairwise(values, map)
}

fn pairwise<T, F: Float>(values: &[T], map: &impl Fn(&T) -> F) -> F {
    let n = values.len();
    if n < 8 {
        return values.iter().fold(F::NEGATIVE_ZERO, |sum, v| sum + map(v));
    }
    if n <= 128 {
        let mut r: [F; 8] = std::array::from_fn(|i| map(&values[i]));
        let blocks = values.chunks_exact(8);
        let rest = blocks.remainder();
        for block in blocks.skip(1) {
            for (r, v) in r.iter_mut().zip(block) {
                *r = *r + map(v);
            }
        }
        let sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
        return rest.iter().fold(sum, |sum, v| sum + map(v));
    }
    let (left, right) = values.split_at(split(n));
    pairwise(left, map) + pairwise(right, map)
}

/// Where more than 128 values are split.
const fn split(n: usize) -> usize {
    let half = n / 2;
    half - half % 8
}

/// `np.sum` of the next `n` values that `next` gives.
///
/// # Errors
/// The first one that `next` gives.
pub fn sum_of_next<F: Float, E>(n: usize, next: &mut impl FnMut() -> Result<F, E>) -> Result<F, E> {
    fn pairs<F: Float, E>(n: usize, next: &mut impl FnMut() -> Result<F, E>) -> Result<F, E> {
        if n > 128 {
            let left = pairs(split(n), next)?;
            return Ok(left + pairs(n - split(n), next)?);
        }
        let mut values = [F::ZERO; 128];
        for value in &mut values[..n] {
            *value = next()?;
        }
        Ok(pairwise(&values[..n], &|v| *v))
    }
    Ok(F::ZERO + pairs(n, next)?)
}

/// `a.mean()` and `a.std()` of a float32 array of `n` values, each in float32. `chunks` gives the values in order; it is
/// asked twice.
///
/// # Errors
/// The first one among the chunks.
#[expect(clippy::cast_precision_loss, reason = "NumPy divides by the count as a float32, too")]
pub fn mean_std<E, I: Iterator<Item = Result<Vec<f32>, E>>>(n: usize, chunks: impl Fn() -> I) -> Result<(f32, f32), E> {
    let sum = |map: &dyn Fn(f32) -> f32| {
        let mut all = chunks();
        let mut chunk = Vec::new().into_iter();
        sum_of_next(n, &mut || {
            loop {
                if let Some(value) = chunk.next() {
                    return Ok(map(value));
                }
                match all.next() {
                    Some(next) => chunk = next?.into_iter(),
                    None => return Ok(f32::NAN), // fewer values than promised
                }
            }
        })
    };
    let mean = sum(&|v| v)? / n as f32;
    let squares = sum(&|v| (v - mean) * (v - mean))?;
    Ok((mean, (squares / n as f32).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `np.random.default_rng(0).standard_normal(n, dtype=np.float32)` would need NumPy; these values need none:
    /// `((np.arange(n) * 7919) % 1000 - 500).astype(np.float32) / np.float32(7)`.
    fn values(n: u32) -> Vec<f32> {
        (0..n).map(|i| f32::from(i16::try_from((i * 7919) % 1000).unwrap() - 500) / 7.0).collect()
    }

    #[test]
    fn sums_equal_numpys() {
        // Printed in hexadecimal by: a.sum().view(np.uint32), a.mean().view(np.uint32), a.std().view(np.uint32)
        for (n, sum, mean, std) in SUMS {
            let a = values(*n);
            let of = |size: usize| {
                let chunks = || a.chunks(size).map(|c| Ok::<_, ()>(c.to_vec()));
                mean_std(a.len(), chunks).unwrap()
            };
            let (m, s) = of(a.len());
            assert_eq!((m, s.to_bits()), (of(100).0, of(100).1.to_bits()), "however it comes");
            assert_eq!((sum_of(&a, &|v| *v).to_bits(), m.to_bits(), s.to_bits()), (*sum, *mean, *std), "n = {n}");
        }
    }

    const SUMS: &[(u32, u32, u32, u32)] = &[
        (1, 0xC28E_DB6E, 0xC28E_DB6E, 0),
        (7, 0x42E4_4924, 0x4182_72F0, 0x4220_E130),
        (8, 0x42D1_2493, 0x4151_2493, 0x421A_5566),
        (9, 0x42A6_DB6E, 0x4114_5145, 0x4217_BB0A),
        (127, 0xC2A6_0002, 0xBF27_4E9F, 0x4227_18C6),
        (128, 0xC252_4928, 0xBED2_4928, 0x4226_CD65),
        (129, 0xC206_DB6E, 0xBE85_CFCE, 0x4226_4ABF),
        (1000, 0xC28E_DB74, 0xBD92_492B, 0x4224_F507),
        (20001, 0xC4BB_8005, 0xBD99_97A6, 0x4224_F722),
    ];
}
