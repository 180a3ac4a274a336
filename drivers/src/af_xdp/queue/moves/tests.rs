//! Both forms of pairs do the same in every loop, and what a word at a time is expected to do.

use std::{array::from_fn, ops::Range};

use proptest::{collection::vec, prelude::*};
use sheafio_mempool::{Hugepages, Mempool};

use super::{
    pair::{Array, Pair},
    *,
};

/// Frames of the pool: no power of two.
const FRAMES: u32 = 1000;
/// What no loop writes.
const UNTOUCHED: u64 = 0x5555_aaaa_5555_aaaa;
/// Behind the values that a loop is to write.
const BEHIND: usize = 8;

fn geometry() -> Geometry {
    static POOL: std::sync::LazyLock<&Mempool> = std::sync::LazyLock::new(|| {
        Mempool::builder().frames(FRAMES.into()).hugepages(Hugepages::Off).cores(1).build().unwrap()
    });
    *POOL.geometry()
}

/// Runs a loop over memory of its own; checks that it has written `count` values, and nothing behind.
fn written<T: Copy + PartialEq + std::fmt::Debug, S>(
    count: usize,
    untouched: T,
    run: impl FnOnce(*mut T) -> S,
) -> (Vec<T>, S) {
    let mut to = vec![untouched; count + BEHIND];
    let told = run(to.as_mut_ptr());
    assert_eq!(to[count..], [untouched; BEHIND]);
    to.truncate(count);
    (to, told)
}

fn receive<P: Pair>(from: &[[u64; 2]]) -> (Vec<[u64; 2]>, Seen) {
    let run = |to: *mut [u64; 2]| {
        // SAFETY: both are two words, and as many.
        unsafe { receive_run::<P>(&geometry(), from.as_ptr().cast(), to.cast(), from.len()) }
    };
    written(from.len(), [UNTOUCHED; 2], run)
}

fn send<P: Pair>(from: &[[u64; 2]]) -> (Vec<[u64; 2]>, Seen) {
    let run = |to: *mut [u64; 2]| {
        // SAFETY: both are two words, and as many; only the words of frames are looked at.
        unsafe { send_run::<P>(&geometry(), from.as_ptr().cast(), to.cast(), from.len()) }
    };
    written(from.len(), [UNTOUCHED; 2], run)
}

fn fill<P: Pair>(from: &[u32]) -> Vec<u64> {
    // SAFETY: both are as many.
    let run = |to| unsafe { fill_run::<P>(&geometry(), from.as_ptr(), to, from.len()) };
    written(from.len(), UNTOUCHED, run).0
}

fn reclaim<P: Pair>(from: &[u64]) -> (Vec<u32>, u64) {
    let run = |to: *mut u32| {
        // SAFETY: both are as many.
        unsafe { reclaim_run::<P>(&geometry(), from.as_ptr(), to.cast(), from.len()) }
    };
    written(from.len(), UNTOUCHED as u32, run)
}

/// Two words of a descriptor that is, more often than not, a packet.
fn desc() -> impl Strategy<Value = [u64; 2]> {
    let offsets = prop_oneof![8 => Just(256_u64), 2 => 0..2048_u64];
    let lens = prop_oneof![8 => 1..1793_u64, 2 => 0..2050_u64];
    let usual = (0..u64::from(FRAMES), offsets, lens);
    let packets = usual.prop_map(|(frame, offset, len)| [frame * 2048 + offset, len]);
    let options = (packets.clone(), 0..4_u64).prop_map(|([addr, len], options)| [addr, len | options << 32]);
    let beyond = (0..1024_u64, 0..2048_u64, 0..0x3_0000_0000_u64);
    prop_oneof![
        95 => packets,
        2 => options,
        2 => beyond.prop_map(|(frame, offset, word)| [frame * 2048 + offset, word]),
        1 => any::<[u64; 2]>(),
    ]
}

/// Two words of a frame, of this pool more often than not.
fn frame() -> impl Strategy<Value = [u64; 2]> {
    let over = geometry().frame_over_desc();
    let flags = prop_oneof![
        95 => Just(0),
        2 => Just(Frame::CONTINUES),
        2 => Just(Frame::TX_METADATA),
        1 => (0..1_u64 << 16).prop_map(|flags| flags << 32),
    ];
    let lens = prop_oneof![99 => 1..2048_u64, 1 => Just(0)];
    let addrs = prop_oneof![99 => 0..u64::from(FRAMES) * 2048, 1 => any::<u64>()];
    (addrs, lens, flags)
        .prop_map(move |(addr, len, flags)| [addr.wrapping_add(over[0]), over[1] | flags | len])
}

/// Bursts of all lengths that end a loop differently, and of the usual one.
fn lens() -> Range<usize> {
    0..37
}

proptest! {
    #[test]
    fn received_packets_become_frames(descs in vec(desc(), lens())) {
        let geometry = geometry();
        let (frames, seen) = receive::<Words>(&descs);
        let (frames_too, seen_too) = receive::<Array>(&descs);
        prop_assert_eq!(&frames, &frames_too);
        prop_assert_eq!((seen.bytes, seen.doubts == 0), (seen_too.bytes, seen_too.doubts == 0));

        let over = geometry.frame_over_desc();
        for (frame, desc) in frames.iter().zip(&descs) {
            prop_assert_eq!(*frame, from_fn(|at| desc[at].wrapping_add(over[at])));
        }
        let is_packet = |desc: &[u64; 2]| desc[1] >> 32 == 0 && geometry.is_packet(desc[0], desc[1] as u32);
        let all = descs.iter().all(is_packet);
        // SAFETY: these are the handles that were made just above.
        prop_assert_eq!(unsafe { are_packets(&geometry, frames.as_ptr().cast(), frames.len()) }, all);
        if seen.doubts == 0 {
            prop_assert!(all);
            prop_assert_eq!(seen.bytes, descs.iter().map(|desc| desc[1]).sum::<u64>());
        }
        // Where the bits of several addresses make no frame of their own, there is no doubt of packets that lie alike.
        let addrs = descs.iter().fold(0, |addrs, desc| addrs | desc[0]);
        let is_alike = descs.iter().all(|desc| desc[0] % 2048 == descs[0][0] % 2048);
        prop_assert!(seen.doubts == 0 || !(all && is_alike && addrs < geometry.umem_bytes()));
    }

    #[test]
    fn frames_become_descriptors(frames in vec(frame(), lens())) {
        let geometry = geometry();
        let (descs, seen) = send::<Words>(&frames);
        prop_assert_eq!((&descs, seen), (&send::<Array>(&frames).0, send::<Array>(&frames).1));

        let base = geometry.frame_over_desc()[0];
        let expected = frames.iter().map(|frame| [frame[0].wrapping_sub(base), frame[1] & 0xffff_ffff]);
        prop_assert_eq!(&descs, &expected.collect::<Vec<_>>());
        prop_assert_eq!(seen.bytes, descs.iter().map(|desc| desc[1]).sum::<u64>());
        let mut doubts = frames.iter().fold(0, |doubts, frame| doubts | frame[1]) & (3 << 32);
        doubts |= if descs.iter().any(|desc| desc[1] == 0) { Frame::EMPTY } else { 0 };
        doubts |= u64::from(descs.iter().any(|desc| !geometry.contains(desc[0])));
        prop_assert_eq!(seen.doubts, doubts);
    }

    #[test]
    fn indices_become_addresses(indices in vec(any::<u32>(), lens())) {
        let geometry = geometry();
        let addrs = fill::<Words>(&indices);
        prop_assert_eq!(&addrs, &fill::<Array>(&indices));
        let expected = indices.iter().map(|index| geometry.addr_of(FrameIndex(*index)));
        prop_assert_eq!(addrs, expected.collect::<Vec<_>>());
    }

    #[test]
    fn addresses_become_indices(addrs in vec(any::<u64>(), lens())) {
        let geometry = geometry();
        let (indices, any) = reclaim::<Words>(&addrs);
        prop_assert_eq!((&indices, any), (&reclaim::<Array>(&addrs).0, reclaim::<Array>(&addrs).1));
        prop_assert_eq!(any, addrs.iter().fold(0, |any, addr| any | addr));
        let expected = addrs.iter().map(|addr| geometry.index_within(*addr));
        prop_assert_eq!(indices, expected.collect::<Vec<_>>());
    }
}
