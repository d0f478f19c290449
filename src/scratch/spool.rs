//! A list of numbers that goes on in a scratch file where memory ends.

use std::ops::Range;

use bytemuck::Pod;

use super::{Scratch, ScratchFile};
use crate::error::{Error, Result};

/// Values that are appended, and read back from any place.
///
/// ```text
/// file    [ v0 v1 v2 v3 | v4 v5 v6 v7 ]     written whenever `room` values wait
/// waiting                               [ v8 v9 ]
/// ```
#[derive(Debug)]
pub struct Spool<T> {
    /// Bytes that may wait, and where they go then; `None` keeps everything in memory.
    room: Option<(usize, Scratch)>,
    file: Option<ScratchFile>,
    written: usize,
    waiting: Vec<T>,
}

impl<T> Default for Spool<T> {
    fn default() -> Self {
        Self { room: None, file: None, written: 0, waiting: Vec::new() }
    }
}

impl<T: Pod> Spool<T> {
    /// An empty list that holds `bytes` bytes in memory at most.
    #[must_use]
    pub fn new(bytes: usize, scratch: Scratch) -> Self {
        Self { room: Some((bytes, scratch)), ..Self::default() }
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.written + self.waiting.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds values at the end.
    ///
    /// # Errors
    /// If the scratch folder is full, or fails.
    pub fn extend(&mut self, values: &[T]) -> Result<()> {
        self.waiting.extend_from_slice(values);
        let Some((room, scratch)) = &self.room else { return Ok(()) };
        // What waits is copied when the list grows, so it may take half.
        if size_of_val(self.waiting.as_slice()) > room / 2 {
            let file = match self.file.take() {
                Some(file) => file,
                None => scratch.file()?,
            };
            file.append(bytemuck::cast_slice(&self.waiting))?;
            self.file = Some(file);
            self.written += self.waiting.len();
            self.waiting.clear();
        }
        Ok(())
    }

    /// The values of `range`.
    ///
    /// # Errors
    /// If the scratch folder fails.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<T>> {
        if range.end > self.len() || range.start > range.end {
            return Err(Error::internal(format!("found {} values, expected {range:?}", self.len())));
        }
        let on_file = range.start.min(self.written)..range.end.min(self.written);
        let mut out = vec![T::zeroed(); on_file.len()];
        if let (Some(file), false) = (&self.file, out.is_empty()) {
            file.read((on_file.start * size_of::<T>()) as u64, bytemuck::cast_slice_mut(&mut out))?;
        }
        let from = range.start.max(self.written) - self.written;
        let to = range.end.max(self.written) - self.written;
        out.extend_from_slice(&self.waiting[from..to]);
        Ok(out)
    }

    /// All values in order, as many at once as are fast to read.
    pub fn chunks(&self) -> impl Iterator<Item = Result<Vec<T>>> + '_ {
        const AT_ONCE: usize = 64 << 10;
        (0..self.len()).step_by(AT_ONCE).map(|start| self.read(start..self.len().min(start + AT_ONCE)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_values_with_and_without_room() {
        let dir = tempfile::tempdir().unwrap();
        let values: Vec<f32> = (0..1000_u16).map(f32::from).collect();
        let scratch = Scratch::new(dir.path());
        for mut spool in [Spool::default(), Spool::new(0, scratch.clone()), Spool::new(600, scratch)] {
            for part in values.chunks(7) {
                spool.extend(part).unwrap();
            }
            assert_eq!(spool.len(), 1000);
            for range in [0..1000, 0..0, 3..4, 900..1000, 990..1000, 1000..1000] {
                assert_eq!(spool.read(range.clone()).unwrap(), values[range]);
            }
            assert!(spool.read(999..1001).is_err());
            let all: Vec<f32> = spool.chunks().flat_map(Result::unwrap).collect();
            assert_eq!(all, values);
        }
    }
}
