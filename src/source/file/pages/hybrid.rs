//! Parquet's hybrid of run lengths and bit packing, in which levels and dictionary indices are stored.
//!
//! ```text
//! header, unsigned LEB128    even: n << 1      the next value (ceil(width / 8) bytes) n times
//!                            odd:  g << 1 | 1  g groups of 8 values, `width` bits each, lowest bits first
//! ```
//!
//! Source: the Parquet format's `Encodings.md`, "Run Length Encoding / Bit-Packing Hybrid".

/// Reads values out of the hybrid.
#[derive(Debug, Clone)]
pub(super) struct Hybrid<'a> {
    bytes: &'a [u8],
    width: u32,
}

/// Consecutive values.
#[derive(Debug, Clone, Copy)]
pub(super) enum Run<'a> {
    /// One value, so many times.
    Same(u32, usize),
    /// Packed values; how many there are at most (the last group may be filled up).
    Packed(&'a [u8], usize),
}

impl<'a> Hybrid<'a> {
    /// `width` bits a value, 32 at most.
    pub fn new(bytes: &'a [u8], width: u32) -> Option<Self> {
        (width <= 32).then_some(Self { bytes, width })
    }

    /// The next run; `None` at the end and where the bytes make no run.
    pub fn run(&mut self) -> Option<Run<'a>> {
        let header = self.varint()?;
        let n = usize::try_from(header >> 1).ok()?;
        if header & 1 == 0 {
            let (value, rest) = self.bytes.split_at_checked(self.width.div_ceil(8) as usize)?;
            self.bytes = rest;
            let value = value.iter().rev().fold(0, |v, &b| v << 8 | u32::from(b));
            return Some(Run::Same(value, n));
        }
        // Some writers leave out the bytes of the last group's filling.
        let size = n.checked_mul(self.width as usize)?.min(self.bytes.len());
        let (packed, rest) = self.bytes.split_at(size);
        self.bytes = rest;
        Some(Run::Packed(packed, if self.width == 0 { n.checked_mul(8)? } else { size * 8 / self.width as usize }))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut out = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            out |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(out);
            }
        }
        None
    }
}

/// Unpacks `out.len()` values of `width` bits from value number `start` of `packed` on. What lies behind the end is 0.
pub(super) fn unpack(packed: &[u8], width: u32, start: usize, out: &mut [u32]) {
    let width = width as usize;
    if width == 8 {
        let from = packed.get(start..).unwrap_or_default();
        out.iter_mut().zip(from).for_each(|(slot, &byte)| *slot = byte.into());
        return;
    }
    let mask = (1_u64 << width) - 1;
    let mut bit = start * width;
    // A value of 32 bits that starts inside a byte spans five.
    let whole = packed.len().saturating_sub(7) * 8;
    for slot in out {
        let at = bit / 8;
        let word = if bit < whole {
            let mut word = [0; 8];
            word.copy_from_slice(&packed[at..at + 8]);
            u64::from_le_bytes(word)
        } else {
            let mut word = [0; 8];
            let tail = packed.get(at..).unwrap_or_default();
            let n = tail.len().min(8);
            word[..n].copy_from_slice(&tail[..n]);
            u64::from_le_bytes(word)
        };
        // The mask leaves 32 bits at most.
        *slot = u32::try_from(word >> (bit % 8) & mask).unwrap_or(u32::MAX);
        bit += width;
    }
}

/// A [`Hybrid`] read in stretches of any length.
#[derive(Debug, Clone)]
pub(super) struct Indices<'a> {
    hybrid: Hybrid<'a>,
    /// The run being read: its bytes (and all behind it), itself, and how many of its values were taken.
    run: Option<(&'a [u8], Run<'a>, usize)>,
}

impl<'a> Indices<'a> {
    pub fn new(hybrid: Hybrid<'a>) -> Self {
        Self { hybrid, run: None }
    }

    /// Goes on where [`Indices::place`] was: `hybrid` starts at a run of which `within` values were taken.
    pub fn resume(hybrid: Hybrid<'a>, within: usize) -> Option<Self> {
        let mut out = Self::new(hybrid);
        if within > 0 {
            let bytes = out.hybrid.bytes;
            out.run = Some((bytes, out.hybrid.run()?, within));
        }
        Some(out)
    }

    /// Where the run starts that is being read, out of `len` bytes, and how many of its values were taken.
    pub fn place(&self, len: usize) -> (usize, usize) {
        match self.run {
            Some((bytes, _, used)) => (len - bytes.len(), used),
            None => (len - self.hybrid.bytes.len(), 0),
        }
    }

    /// Fills `out` with the next values; `None` if there are not that many.
    pub fn fill(&mut self, mut out: &mut [u32]) -> Option<()> {
        while !out.is_empty() {
            let (bytes, run, used) = if let Some(run) = self.run.take() {
                run
            } else {
                let bytes = self.hybrid.bytes;
                (bytes, self.hybrid.run()?, 0)
            };
            let (Run::Same(_, n) | Run::Packed(_, n)) = run;
            let take = (n - used).min(out.len());
            let (now, later) = out.split_at_mut(take);
            match run {
                Run::Same(value, _) => now.fill(value),
                Run::Packed(packed, _) => unpack(packed, self.hybrid.width, used, now),
            }
            if used + take < n {
                self.run = Some((bytes, run, used + take));
            }
            out = later;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packed_groups_come_in_order() {
        // 5 times 3 (width 3), then one group 0..8
        let bytes = [5 << 1, 3, 1 << 1 | 1, 0b1000_1000, 0b1100_0110, 0b1111_1010];
        let mut out = [0; 13];
        let mut indices = Indices::new(Hybrid::new(&bytes, 3).unwrap());
        indices.fill(&mut out[..2]).unwrap();
        indices.fill(&mut out[2..7]).unwrap();
        indices.fill(&mut out[7..]).unwrap();
        assert_eq!(out, [3, 3, 3, 3, 3, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(indices.fill(&mut [0]).is_none(), "the bytes are over");
    }

    #[test]
    fn every_width_unpacks() {
        for width in 0..=32_u32 {
            let mask = if width == 32 { u32::MAX } else { (1 << width) - 1 };
            let values: Vec<u32> = (0..40_u32).map(|i| i.wrapping_mul(2_654_435_761) & mask).collect();
            let mut packed = vec![0_u8; 40 * width as usize / 8];
            for (i, v) in values.iter().enumerate() {
                for b in 0..width as usize {
                    let bit = i * width as usize + b;
                    packed[bit / 8] |= u8::from(v >> b & 1 == 1) << (bit % 8);
                }
            }
            let mut out = vec![0; 27];
            unpack(&packed, width, 13, &mut out);
            assert_eq!(out, values[13..], "width {width}");
        }
    }

    #[test]
    fn nonsense_ends_quietly() {
        for bytes in [&[][..], &[0x80; 20], &[4], &[0xff, 0xff, 0xff, 0xff, 0x0f, 1]] {
            assert!(Indices::new(Hybrid::new(bytes, 9).unwrap()).fill(&mut [0; 100]).is_none());
        }
        assert!(Indices::new(Hybrid::new(&[0, 0, 0, 0], 8).unwrap()).fill(&mut [0]).is_none(), "empty runs");
        assert!(Hybrid::new(&[], 33).is_none());
    }
}
