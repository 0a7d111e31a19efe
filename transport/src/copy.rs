//! Copies of small messages.

/// Copies `from` to the front of `to`. What is as short as most messages are goes by a few moves in place: a call that first
/// looks at how long it is costs as much as they do.
///
/// # Panics
/// When `from` is longer than `to`.
#[inline(always)]
pub fn copy(from: &[u8], to: &mut [u8]) {
    let to = &mut to[..from.len()];
    match from.len() {
        16..=32 => ends::<16>(from, to),
        33..=64 => ends::<32>(from, to),
        65..=128 => ends::<64>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// The first `N` bytes and the last ones: all of what has no more than twice as many.
#[inline(always)]
fn ends<const N: usize>(from: &[u8], to: &mut [u8]) {
    if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) {
        if let Some(place) = to.first_chunk_mut() {
            *place = *first;
        }
        if let Some(place) = to.last_chunk_mut() {
            *place = *last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_and_nothing_behind_it() {
        let from: Vec<u8> = (1..=200).collect();
        for bytes in 0..=from.len() {
            let mut to = [0; 201];
            copy(&from[..bytes], &mut to);
            assert_eq!(to[..bytes], from[..bytes]);
            assert!(to[bytes..].iter().all(|byte| *byte == 0), "{bytes}");
        }
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn what_does_not_fit_is_not_copied() {
        copy(&[1; 40], &mut [0; 39]);
    }
}
