//! The values of pages: copied as they lie, narrowed, or looked up in the dictionary.

use arrow::array::BooleanBufferBuilder;
use arrow::buffer::{Buffer, MutableBuffer};
use bytes::Bytes;
use parquet::basic::Encoding;

use super::form::Values;
use super::hybrid::{Hybrid, Indices};

/// A column's values as they become an Arrow buffer.
pub(super) enum Out {
    Bytes(MutableBuffer),
    Bits(BooleanBufferBuilder),
}

impl Out {
    /// Room for `n` values.
    pub fn new(values: Values, n: usize) -> Self {
        match values {
            Values::Bits => Self::Bits(BooleanBufferBuilder::new(n)),
            values => Self::Bytes(MutableBuffer::with_capacity(n * values.size())),
        }
    }

    pub fn finish(self) -> Buffer {
        match self {
            Self::Bytes(bytes) => bytes.into(),
            Self::Bits(mut bits) => bits.finish().into_inner(),
        }
    }
}

/// A dictionary's values as they lie in memory.
pub(super) struct Dictionary {
    bytes: Vec<u8>,
    size: usize,
}

impl Dictionary {
    pub fn new(page: &[u8], n: usize, encoding: Encoding, values: Values) -> Option<Self> {
        if !matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) || values == Values::Bits {
            return None;
        }
        let mut out = Out::new(values, n);
        copy(page.get(..n.checked_mul(values.stored())?)?, values, &mut out)?;
        let Out::Bytes(bytes) = out else { return None };
        Some(Self { bytes: bytes.to_vec(), size: values.size() })
    }
}

/// The values of one page that were not taken yet.
pub(super) struct Stored {
    values: Values,
    bytes: Bytes,
    left: usize,
    /// Values of `bytes` that were taken (PLAIN).
    taken: usize,
    /// Width of the indices into the dictionary, where there are any, and the place in them.
    indices: Option<(u32, Place)>,
}

/// How far indices were read: values of the page. Decoding goes on from there without a borrow of the page.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Where the run starts that is being read.
    byte: usize,
    /// Values of that run that were taken.
    within: usize,
}

impl Stored {
    /// The `n` values of a page.
    pub fn new(bytes: Bytes, n: usize, encoding: Encoding, values: Values) -> Option<Self> {
        let (bytes, indices) = match encoding {
            Encoding::PLAIN => {
                let size = if values == Values::Bits { n.div_ceil(8) } else { n.checked_mul(values.stored())? };
                (bytes.len() >= size).then_some((bytes, None))?
            }
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => {
                let width = u32::from(*bytes.first()?);
                Hybrid::new(&[], width)?;
                (bytes.slice(1..), Some((width, Place::default())))
            }
            _ => return None,
        };
        Some(Self { values, bytes, left: n, taken: 0, indices })
    }

    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Moves at most `want` values to `out`; how many.
    pub fn take(&mut self, want: usize, dictionary: Option<&Dictionary>, out: &mut Out) -> Option<usize> {
        let n = want.min(self.left);
        if let Some((width, place)) = &mut self.indices {
            let (Out::Bytes(out), Some(dictionary)) = (out, dictionary) else { return None };
            *place = gather(&self.bytes, *width, *place, n, dictionary, out)?;
        } else if let Out::Bits(bits) = out {
            bits.append_packed_range(self.taken..self.taken + n, &self.bytes);
        } else {
            let size = self.values.stored();
            copy(self.bytes.get(self.taken * size..(self.taken + n) * size)?, self.values, out)?;
        }
        self.taken += n;
        self.left -= n;
        Some(n)
    }
}

/// Appends PLAIN values.
fn copy(bytes: &[u8], values: Values, out: &mut Out) -> Option<()> {
    let Out::Bytes(out) = out else { return None };
    match values {
        Values::Copy(_) => out.extend_from_slice(bytes),
        Values::Narrow(1) => out.extend(bytes.chunks_exact(4).map(|b| b[0])),
        Values::Narrow(2) => out.extend(bytes.chunks_exact(4).map(|b| u16::from_le_bytes([b[0], b[1]]))),
        Values::Narrow(_) | Values::Bits => return None,
    }
    Some(())
}

/// Indices decoded at once: they stay in the nearest cache.
const STRETCH: usize = 1024;

/// Appends `n` values of the dictionary, from `place` in the indices on; the place behind them.
fn gather(
    bytes: &[u8],
    width: u32,
    place: Place,
    n: usize,
    dictionary: &Dictionary,
    out: &mut MutableBuffer,
) -> Option<Place> {
    let mut indices = Indices::resume(Hybrid::new(bytes.get(place.byte..)?, width)?, place.within)?;
    let mut stretch = [0_u32; STRETCH];
    let mut left = n;
    while left > 0 {
        let now = left.min(STRETCH);
        indices.fill(&mut stretch[..now])?;
        match dictionary.size {
            1 => look_up::<1>(&stretch[..now], &dictionary.bytes, out)?,
            2 => look_up::<2>(&stretch[..now], &dictionary.bytes, out)?,
            4 => look_up::<4>(&stretch[..now], &dictionary.bytes, out)?,
            8 => look_up::<8>(&stretch[..now], &dictionary.bytes, out)?,
            size => {
                for &i in &stretch[..now] {
                    let at = (i as usize).checked_mul(size)?;
                    out.extend_from_slice(dictionary.bytes.get(at..at.checked_add(size)?)?);
                }
            }
        }
        left -= now;
    }
    let (byte, within) = indices.place(bytes.len());
    Some(Place { byte, within })
}

/// Appends the entries of `N` bytes; `None` if there is no such entry.
fn look_up<const N: usize>(indices: &[u32], entries: &[u8], out: &mut MutableBuffer) -> Option<()> {
    let (entries, _) = entries.as_chunks::<N>();
    let largest = indices.iter().copied().max()?;
    if largest as usize >= entries.len() {
        return None;
    }
    let mut values = [[0_u8; N]; STRETCH];
    for (slot, &i) in values.iter_mut().zip(indices) {
        *slot = entries[i as usize];
    }
    out.extend_from_slice(values[..indices.len()].as_flattened());
    Some(())
}
