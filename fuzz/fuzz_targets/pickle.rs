#![no_main]
//! Pickles: arrays whose bytes are those that the pickle has, or an error.

use gristmill::source::pickle::located;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok((array, place)) = located(bytes) else { return };
    assert_eq!(Some(array.data.len()), gristmill::source::elements::array_bytes(&array.ty.shape, array.ty.dtype));
    assert!(array.data.len() <= bytes.len());
    if let Some(place) = place {
        assert_eq!(array.data, bytes[place]);
    }
});
