//! Memory of large columns, filled again once nobody reads them any more.
//!
//! The system hands out memory page by page and clears each one, which for a batch of stacked frames takes several times
//! as long as laying them out. Allocators keep what is small; what is large they give back at once.
//!
//! ```text
//! take    ──> [ 56 MB ] ──> a Tensor, a NumPy array, a slice of it ..   in use
//!                ^                            │ the last one is dropped
//!                └────────── free <───────────┘
//! ```

use std::sync::{Arc, Mutex, PoisonError, Weak};

use arrow::buffer::Buffer;

/// What is smaller is left to the allocator.
const LARGE: usize = 1 << 20;
/// The most bytes that are free: batches are smaller, and what is larger is not read again and again.
const MOST: usize = 1 << 30;

/// Buffers to be filled again. A clone is a handle to the same ones.
///
/// Together, those in use and those that are free never are more bytes than were in use at once: whoever holds one batch
/// while it makes the next holds two, and no third one is kept. At most 1 GiB is free, and with the last handle it goes.
#[derive(Debug, Clone, Default)]
pub struct Buffers(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// Those given back longest ago first.
    free: Vec<Vec<u8>>,
    free_bytes: usize,
    used_bytes: usize,
    /// The most bytes that were in use at once.
    most: usize,
}

impl Kept {
    /// Lets go of what there was no need for.
    fn trim(&mut self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while self.free_bytes > 0 && (self.free_bytes > MOST || self.free_bytes + self.used_bytes > self.most) {
            let oldest = self.free.remove(0);
            self.free_bytes -= oldest.len();
            out.push(oldest);
        }
        out
    }
}

/// A buffer of its own. What it holds is whatever was there before.
#[derive(Debug)]
pub struct Reused {
    /// At least `len` bytes.
    bytes: Vec<u8>,
    len: usize,
    home: Weak<Mutex<Kept>>,
}

impl Buffers {
    /// A buffer of `len` bytes, of any content: who takes it writes all of it.
    #[must_use]
    pub fn take(&self, len: usize) -> Reused {
        if len < LARGE {
            return Reused { bytes: vec![0; len], len, home: Weak::new() };
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The smallest one that does, if it is not far too large.
        let fit = kept.free.iter().enumerate().filter(|(_, b)| (len..=len * 2).contains(&b.len()));
        let bytes = if let Some((at, _)) = fit.min_by_key(|(_, b)| b.len()) {
            let bytes = kept.free.remove(at);
            kept.free_bytes -= bytes.len();
            kept.used_bytes += bytes.len();
            bytes
        } else {
            kept.used_bytes += len;
            kept.most = kept.most.max(kept.used_bytes);
            let unneeded = kept.trim();
            drop(kept);
            drop(unneeded);
            vec![0; len]
        };
        Reused { bytes, len, home: Arc::downgrade(&self.0) }
    }
}

impl AsRef<[u8]> for Reused {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl AsMut<[u8]> for Reused {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else { return };
        let bytes = std::mem::take(&mut self.bytes);
        let mut kept = home.lock().unwrap_or_else(PoisonError::into_inner);
        kept.used_bytes -= bytes.len();
        kept.free_bytes += bytes.len();
        kept.free.push(bytes);
        let unneeded = kept.trim();
        drop(kept);
        drop(unneeded);
    }
}

impl From<Reused> for Buffer {
    /// Without a copy. The buffer goes back when the last slice of it is dropped.
    fn from(filled: Reused) -> Self {
        if filled.home.strong_count() == 0 {
            let mut filled = filled;
            filled.bytes.truncate(filled.len);
            return std::mem::take(&mut filled.bytes).into();
        }
        bytes::Bytes::from_owner(filled).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Buffers {
        /// Bytes that are free, and in use.
        fn kept(&self) -> (usize, usize) {
            let kept = self.0.lock().unwrap();
            (kept.free_bytes, kept.used_bytes)
        }
    }

    fn filled(buffers: &Buffers, len: usize, with: u8) -> Buffer {
        let mut bytes = buffers.take(len);
        bytes.as_mut().fill(with);
        bytes.into()
    }

    #[test]
    fn what_was_dropped_is_filled_again() {
        let buffers = Buffers::default();
        let first = filled(&buffers, 2 * LARGE, 1);
        let (place, part) = (first.as_ptr(), first.slice(7));
        drop(first);
        assert_eq!(buffers.kept(), (0, 2 * LARGE), "a slice is left");
        assert!(filled(&buffers, LARGE, 2).as_ptr() != place);
        assert!(part.iter().all(|byte| *byte == 1) && part.len() == 2 * LARGE - 7);
        drop(part);
        let again = filled(&buffers, 2 * LARGE - 5, 3);
        assert_eq!((again.as_ptr(), again.len()), (place, 2 * LARGE - 5));
    }

    #[test]
    fn no_more_is_kept_than_was_in_use() {
        let buffers = Buffers::default();
        let two = [LARGE, 2 * LARGE].map(|len| filled(&buffers, len, 0));
        drop(two);
        assert_eq!(buffers.kept(), (3 * LARGE, 0));
        // Too large for both: the older one goes, then the other one.
        let large = filled(&buffers, 3 * LARGE - 1, 0);
        assert_eq!(buffers.kept(), (0, 3 * LARGE - 1));
        drop(large);
        assert_eq!(buffers.kept(), (3 * LARGE - 1, 0));
        // Far too small for it, but there is room for both.
        drop(filled(&buffers, LARGE, 0));
        assert_eq!(buffers.kept(), (LARGE, 0));
        // Small ones are not kept.
        drop(filled(&buffers, LARGE - 1, 0));
        assert_eq!(buffers.kept(), (LARGE, 0));
    }

    #[test]
    fn without_a_home_it_is_freed() {
        let buffers = Buffers::default();
        let column = filled(&buffers, LARGE, 9);
        let mut larger = buffers.take(2 * LARGE);
        larger.as_mut().fill(8);
        drop(larger);
        let part = buffers.take(LARGE + 1);
        drop(buffers);
        assert!(column.iter().all(|byte| *byte == 9));
        assert_eq!(Buffer::from(part).as_slice(), vec![8; LARGE + 1]);
    }
}
