#![no_main]
//! Episodes as msgpack. What the first pass has scanned, the second decodes, in memory that the item's size bounds.

use gristmill::source::episode_state::{ItemDecoder, LeafTypes, content_hash, scan};
use libfuzzer_sys::fuzz_target;

/// Bytes decoded for a byte read: a one-byte int may become a float64, and every observation of a step may repeat it.
const GROWTH: usize = 64;

fuzz_target!(|item: &[u8]| {
    let _ = content_hash(item);
    let mut types = LeafTypes::new();
    let Ok(header) = scan(item, &mut types) else { return };
    let mut merged = LeafTypes::new();
    merged.merge(&types).expect("nothing differs from itself");
    let leaves: Vec<_> = types.iter().map(|(name, leaf)| (name, leaf.ty)).collect();
    let mut decoder = ItemDecoder::new(leaves).expect("what was scanned can be decoded");
    // Values may still not fit the dtype of their rows, which only decoding tells.
    let before = decoder.bytes();
    match decoder.decode(item) {
        Ok(again) => {
            assert_eq!(header, again);
            assert!(decoder.bytes() <= item.len() * GROWTH, "{} bytes of {}", decoder.bytes(), item.len());
            for (name, rows) in decoder.finish() {
                let counts = rows.items.last().copied().unwrap_or_default();
                assert!(counts.steps == 0 || counts.steps as usize == header.len, "{name}");
                assert_eq!(rows.steps.rows(), counts.steps as usize, "{name}");
            }
        }
        Err(_) => assert_eq!(decoder.bytes(), before),
    }
});
