//! Packets that nobody should send: cut, changed, made up. No panic, and each has a name; what is answered all the same
//! has a right answer (`oracle.rs`).

use std::{fs, path::PathBuf};

use proptest::prelude::*;

use crate::{
    bench::{Bench, Outcome},
    packets::*,
    play::{ICMP, MEND, OWN, input, play},
};

const ALL_SETTINGS: u8 = OWN | ICMP | MEND;

#[test]
fn packets_cut_at_any_length_have_a_name() {
    for mut bench in [Bench::own(), Bench::shared()] {
        for (name, whole) in every_kind() {
            for len in 0..whole.len() {
                let outcome = bench.send(&whole[..len]);
                assert!(matches!(outcome, Outcome::Dropped(_)), "{name}, {len} bytes: {outcome:?}");
                // The same in a frame of the least length that Ethernet has: padding makes up for nothing.
                let mut padded = whole[..len].to_vec();
                padded.resize(len.max(60), 0);
                bench.send(&padded);
            }
        }
    }
}

#[test]
fn each_bit_of_a_packet_may_be_wrong() {
    for mut bench in [Bench::own(), Bench::shared()] {
        for (_, whole) in every_kind() {
            for bit in 0..whole.len() * 8 {
                let mut packet = whole.clone();
                packet[bit / 8] ^= 1 << (bit % 8);
                bench.send(&packet);
                mend(&mut packet);
                bench.send(&packet);
                bench.now_ns += 1_000_000_000;
            }
        }
    }
}

/// Some packets of all kinds, each changed in a few bytes, some cut or longer.
fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let kinds: Vec<_> = every_kind().into_iter().map(|(_, packet)| packet).collect();
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let packet = (prop::sample::select(kinds), changes, any::<prop::sample::Index>(), 0..8_u8).prop_map(
        |(mut packet, changes, index, cut)| {
            for (at, byte) in changes {
                let at = at.index(packet.len());
                packet[at] = byte;
            }
            match cut {
                0 => packet.truncate(index.index(packet.len())),
                1 => packet.extend(vec![0xaa; index.index(64)]),
                _ => {}
            }
            packet
        },
    );
    prop::collection::vec(packet, 1..8)
}

/// Runs a property on one host after the other, with the same memory.
fn for_all<T: std::fmt::Debug>(cases: u32, inputs: impl Strategy<Value = T>, test: impl Fn(&mut Bench, T)) {
    let bench = std::cell::RefCell::new(Bench::own());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let result = runner.run(&inputs, |input| {
        test(&mut bench.borrow_mut(), input);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn changed_packets_are_answered_right_or_have_a_name() {
    for_all(4000, (0..=ALL_SETTINGS, packets()), |bench, (settings, packets)| {
        play(bench, &input(settings, &packets));
    });
}

#[test]
fn made_up_bytes_are_answered_right_or_have_a_name() {
    let ethertype = prop::sample::select(vec![[0x08, 0x00], [0x08, 0x06], [0x86, 0xdd], [0x81, 0x00]]);
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    for_all(4000, (0..=ALL_SETTINGS, ethertype, bytes), |bench, (settings, ethertype, bytes)| {
        let framed = [&OUR_MAC[..], &PEER_MAC, &ethertype, &bytes].concat();
        play(bench, &input(settings, &[framed, bytes]));
    });
}

/// The inputs that fuzzing starts from; see core/net/fuzz.
fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/host")
}

/// `SHEAFIO_WRITE_CORPUS=1` writes them.
#[test]
fn the_corpus_has_every_kind_of_packet() {
    for (name, packet) in every_kind() {
        let input = input(ALL_SETTINGS, &[packet]);
        let path = corpus().join(name);
        if std::env::var_os("SHEAFIO_WRITE_CORPUS").is_some() {
            fs::create_dir_all(corpus()).unwrap();
            fs::write(&path, &input).unwrap();
        }
        assert_eq!(fs::read(&path).ok(), Some(input), "{}", path.display());
    }
}

#[test]
fn what_fuzzing_found_stays_found() {
    let mut bench = Bench::own();
    let mut inputs: Vec<_> = fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(inputs.len() >= every_kind().len());
    for path in inputs {
        let input = fs::read(&path).unwrap();
        println!("{}", path.display()); // Shown if it fails.
        for settings in 0..=ALL_SETTINGS {
            play(&mut bench, &[&[settings], &input[1..]].concat());
        }
    }
}
