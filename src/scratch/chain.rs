//! Bytes that are written in pieces, of which memory knows the first and the last.
//!
//! ```text
//! in memory    chain a: first, last, bytes     chain b: ..
//! scratch      |a: .. ->|b: .. ->|a: .. ->|b: .. |a: .. |
//!                   └─────────────────┘   └──────────┘
//! ```
//!
//! A list of segments in memory would grow with the data, by many small ones in particular. Here each segment begins with
//! the place of the next one, which is filled in when that is written.

use super::ScratchFile;
use crate::error::{Error, Result};

/// Where a segment is. No segment is empty, so one of no bytes is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Place {
    at: u64,
    bytes: u64,
}

/// A chain of segments in a [`ScratchFile`], which may hold others. Plain numbers, however long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain {
    first: Place,
    /// Where the last segment begins.
    last: u64,
    bytes: u64,
}

impl Chain {
    /// Bytes at the start of each segment that are the chain's own.
    pub const HEAD: usize = size_of::<[u64; 2]>();

    /// Bytes in its segments, without their heads.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no segment.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first.bytes == 0
    }

    /// Writes a segment behind all others. Its first [`Self::HEAD`] bytes are made what they must be.
    ///
    /// # Errors
    /// If the disk is full, or fails; or if there is no head.
    pub fn push(&mut self, file: &ScratchFile, segment: &mut [u8]) -> Result<()> {
        let bytes = segment.len() as u64;
        let head = segment.get_mut(..Self::HEAD).ok_or_else(|| Error::internal("a segment without a head"))?;
        head.fill(0);
        let place = Place { at: file.append(segment)?, bytes };
        if self.is_empty() {
            self.first = place;
        } else {
            file.write(self.last, bytemuck::bytes_of(&[place.at, place.bytes]))?;
        }
        self.last = place.at;
        self.bytes += bytes - Self::HEAD as u64;
        Ok(())
    }

    /// Hands every segment to `each`, in order and without its head. One at a time is in memory.
    ///
    /// # Errors
    /// If the disk fails, and those of `each`.
    pub fn each(&self, file: &ScratchFile, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let damaged = || Error::internal("found a damaged chain in a scratch file");
        let (mut place, mut segment) = (self.first, Vec::new());
        while place.bytes > 0 {
            segment.resize(usize::try_from(place.bytes).map_err(|_| damaged())?, 0);
            file.read(place.at, &mut segment)?;
            let (head, own) = segment.split_at_checked(Self::HEAD).ok_or_else(damaged)?;
            let [at, bytes] = bytemuck::pod_read_unaligned(head);
            each(own)?;
            place = Place { at, bytes };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scratch;
    use super::*;

    /// What owns memory of its own cannot be copied as plain numbers are.
    const fn is_plain<T: Copy>() -> usize {
        size_of::<T>()
    }

    #[test]
    fn chains_in_one_file_keep_their_order_and_take_no_more_memory() {
        let dir = tempfile::tempdir().unwrap();
        let file = Scratch::new(dir.path()).file().unwrap();
        let mut chains = [Chain::default(); 3];
        let mut want: [Vec<Vec<u8>>; 3] = Default::default();
        for i in 0..200_u8 {
            // The third one stays empty; some segments hold nothing but their head.
            let (which, own) = (usize::from(i % 3 == 1), vec![i; usize::from(i) % 7]);
            let mut segment = [vec![0xff; Chain::HEAD], own.clone()].concat();
            chains[which].push(&file, &mut segment).unwrap();
            want[which].push(own);
        }
        for (chain, want) in chains.iter().zip(&want) {
            let mut got = Vec::new();
            let keep = |segment: &[u8]| {
                got.push(segment.to_vec());
                Ok(())
            };
            chain.each(&file, keep).unwrap();
            assert_eq!(&got, want);
            assert_eq!(chain.bytes(), want.concat().len() as u64);
            assert_eq!(chain.is_empty(), want.is_empty());
        }
        assert_eq!(is_plain::<Chain>(), 32);
        let stopped = chains[0].each(&file, |_| Err(Error::internal("stop")));
        assert_eq!(stopped.unwrap_err().what(), "stop");
        assert!(chains[0].push(&file, &mut [0; Chain::HEAD - 1]).is_err());
    }
}
