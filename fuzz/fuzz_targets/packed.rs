#![no_main]
//! Packed arrays: base64, LZ4 frames, pickles. A text unpacks to the same whatever was unpacked before it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gristmill::source::packed::{Unpacker, looks_packed};
use libfuzzer_sys::fuzz_target;

const LIMIT: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    // Two frames, the first one's length in front. As text, most mutations would end in base64; so they are of the frame.
    let [low, high, frames @ ..] = bytes else { return };
    let frames = frames.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(frames.len()));
    let texts = [STANDARD.encode(frames.0), STANDARD.encode(frames.1)];
    let mut unpacker = Unpacker::with_limit(LIMIT);
    for text in texts.iter().chain(&texts) {
        let found = unpacker.ndarray(text).map_err(|e| e.to_string());
        let alone = Unpacker::with_limit(LIMIT).ndarray(text).map_err(|e| e.to_string());
        assert_eq!(found, alone);
        if let Ok(array) = found {
            assert!(looks_packed(text) && array.data.len() as u64 <= LIMIT);
        }
    }
    if let Ok(text) = std::str::from_utf8(frames.0) {
        let _ = looks_packed(text);
        let _ = unpacker.ndarray(text);
    }
});
