//! The XDP program itself, run by the kernel on packets of our choice (BPF_PROG_TEST_RUN), against `taken.rs`.
//! (Above 400 lines: all of it needs the same bench.)

use std::{
    cell::RefCell,
    os::fd::{AsFd, OwnedFd},
};

use libbpf_rs::ProgramInput;
use proptest::{collection::vec, prelude::*, sample::select};

use super::{taken::Headers, *};
use crate::af_xdp::{
    Verdict,
    interface::Interface,
    program::{Attachment, Program, Variant},
    rights::{self, Right},
    room::Limit,
    sys,
};

/// xdp_action of linux/bpf.h.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// The program, loaded and not attached, with a socket for queue 0.
struct Bench {
    /// Running it needs it alone.
    program: RefCell<Program>,
    attachment: Attachment,
    /// Keeps its place in the map.
    _socket: OwnedFd,
}

/// The programs, and whether they copy the headers.
const PLAIN: (Variant, bool) = (Variant::Plain, false);
const FRAGS: (Variant, bool) = (Variant::Frags, false);
const COPIES: (Variant, bool) = (Variant::Frags, true);

impl Bench {
    /// `None`, and a word, where programs can't be loaded.
    fn new(test: &str, (variant, copies): (Variant, bool)) -> Option<Self> {
        let missing: Vec<_> = rights::missing().into_iter().map(Right::name).collect();
        if !missing.is_empty() {
            skip(test, &format!("{} missing", missing.join(", ")));
            return None;
        }
        let interface = Interface::lookup("lo").unwrap();
        let program = Program::load_reading(&interface, 1, variant, copies).unwrap();
        assert_eq!(program.variant(), variant, "this kernel has both kinds");
        let socket = sys::socket().unwrap();
        let attachment = program.serve(&interface, std::iter::once((0, socket.as_fd()))).unwrap();
        Some(Self { program: RefCell::new(program), attachment, _socket: socket })
    }

    fn set(&self, steering: &Steering) {
        self.program.borrow().steer().set(steering).unwrap();
    }

    /// What the program does with a packet of which `linear` bytes are in its first buffer.
    fn verdict(&self, packet: &[u8], linear: Option<usize>) -> libbpf_rs::Result<Verdict> {
        let (returned, verdict) = self.run(packet, linear)?;
        assert_eq!(returned, if verdict == Verdict::Redirected { XDP_REDIRECT } else { XDP_PASS });
        Ok(verdict)
    }

    /// The same, by what it returns and by what it counts.
    fn run(&self, packet: &[u8], linear: Option<usize>) -> libbpf_rs::Result<(u32, Verdict)> {
        let counts = || self.program.borrow().steer().counts().unwrap();
        // struct xdp_md: data, data_end, data_meta, ingress interface, queue, egress interface.
        let mut context: Vec<u8> =
            [0, linear.unwrap_or(0) as u32, 0, 0, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        let input = ProgramInput {
            context_in: linear.map(|_| context.as_mut_slice()),
            data_in: Some(packet),
            ..Default::default()
        };
        let before = counts();
        let returned = self.program.borrow_mut().loaded_mut().test_run(input)?.return_value;
        let after = counts();
        let mut counted =
            Verdict::ALL.into_iter().filter(|verdict| after.of(*verdict) != before.of(*verdict));
        let verdict = counted.next().expect("each packet is counted");
        assert_eq!((after.total(), counted.next()), (before.total() + 1, None));
        Ok((returned, verdict))
    }
}

/// Notes that a test was skipped; as in the package of tests that cross crates, which can't be used here.
fn skip(test: &str, why: &str) {
    assert!(std::env::var_os("SHEAFIO_NO_SKIP").is_none(), "{test} can't run: {why}");
    println!("skipped: {test}: {why}");
    if let Some(path) = std::env::var_os("SHEAFIO_SKIPPED") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| {
            std::io::Write::write_all(&mut file, format!("skipped: {test}: {why}\n").as_bytes())
        });
    }
}

/// What `taken.rs` says.
fn expected(steering: &Steering, packet: &[u8]) -> Verdict {
    if steering.takes(packet) {
        Verdict::Redirected
    } else if Headers::read(packet).is_none() {
        Verdict::Malformed
    } else {
        Verdict::Passed
    }
}

/// Addresses and ports are few, so that rules and packets meet often.
const ADDRESSES4: [[u8; 4]; 3] = [[10, 0, 0, 2], [10, 0, 0, 3], [192, 168, 1, 2]];
const ADDRESSES6: [[u8; 16]; 3] = [
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2],
    // Begins like the first of IPv4.
    [10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];
const PORTS: [u16; 2] = [7, 0x0700];

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let kind = prop_oneof![
        3 => select(vec![TCP, UDP]).prop_map(Traffic::Protocol),
        2 => select(vec![ICMP, ICMP6, SCTP, 47, 0, 43, 44, 60]).prop_map(Traffic::Protocol),
        2 => select(vec![IPV4, ARP, ARP, IPV6, 0x88b5]).prop_map(Traffic::Ethertype),
    ];
    let v4 =
        (select(ADDRESSES4.to_vec()), 0..=32_u8).prop_map(|(address, bits)| (IpAddr::from(address), bits));
    let v6 =
        (select(ADDRESSES6.to_vec()), 0..=128_u8).prop_map(|(address, bits)| (IpAddr::from(address), bits));
    let whole = prop_oneof![
        select(ADDRESSES4.to_vec()).prop_map(|address| (IpAddr::from(address), 32)),
        select(ADDRESSES6.to_vec()).prop_map(|address| (IpAddr::from(address), 128)),
    ];
    let prefix = prop_oneof![2 => whole, 1 => v4, 1 => v6]
        .prop_map(|(address, bits)| Prefix { address: network(address, bits), bits });
    let rule = (kind, proptest::option::weighted(0.4, prefix), proptest::option::of(select(PORTS.to_vec())));
    let rule = rule.prop_filter_map("asks for what there is not", |(traffic, to, port)| {
        // Ask for what the kind can have, so that most are rules.
        let to = to.filter(|_| !matches!(traffic, Traffic::Ethertype(0x88b5)));
        let port = port.filter(|_| matches!(traffic, Traffic::Protocol(TCP | UDP | SCTP)));
        Rule { traffic, to, port }.checked().ok()
    });
    prop_oneof![4 => vec(rule.clone(), 0..4), 1 => vec(rule, Steering::MAX_RULES - 1..=Steering::MAX_RULES)]
}

/// A packet with tags, options, extension headers and fragments; sometimes with a damaged length or version.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let count = prop_oneof![3 => 0..3_usize, 1 => Just(3)];
    let tags = count.prop_flat_map(|count| vec(select(TAGS.to_vec()), count));
    let network = prop_oneof![
        4 => ipv4().prop_map(|bytes| (IPV4, bytes)),
        4 => ipv6().prop_map(|bytes| (IPV6, bytes)),
        2 => arp().prop_map(|bytes| (ARP, bytes)),
        1 => (select(vec![ARP, 0x88b5, 0x0040, 0x9100]), vec(any::<u8>(), 0..50)),
        // The other version's header, or none at all.
        1 => (select(vec![IPV4, IPV6]), prop_oneof![ipv4(), ipv6(), vec(any::<u8>(), 0..50)]),
    ];
    (tags, network, vec(any::<u8>(), 0..20)).prop_map(|(tags, (ethertype, network), padding)| {
        let mut packet = vec![2; 12];
        for tag in tags {
            packet.extend(tag.to_be_bytes());
            packet.extend([0x20, 5]);
        }
        packet.extend(ethertype.to_be_bytes());
        packet.extend(network);
        packet.extend(padding);
        packet
    })
}

/// Four bytes of ports and some more.
fn transport() -> impl Strategy<Value = Vec<u8>> {
    (select(PORTS.to_vec()), select(PORTS.to_vec()), vec(any::<u8>(), 0..12))
        .prop_map(|(from, to, rest)| [&from.to_be_bytes()[..], &to.to_be_bytes(), &rest].concat())
}

/// Mostly 0: what is no fragment, or the first one.
fn fragment_offset() -> impl Strategy<Value = u16> + Clone {
    prop_oneof![3 => Just(0_u16), 1 => select(vec![1_u16, 2, 0x100, 0x1fff])]
}

fn arp() -> impl Strategy<Value = Vec<u8>> {
    let other = select(vec![[0, 1, 8, 6, 6, 4, 0, 1], [0, 1, 8, 0, 6, 16, 0, 2], [0, 1, 8, 0, 8, 4, 0, 2]]);
    let kind = prop_oneof![2 => Just([0, 1, 8, 0, 6, 4, 0, 1]), 1 => other];
    (kind, select(ADDRESSES4.to_vec())).prop_map(|(kind, to)| [&kind[..], &[7; 16], &to].concat())
}

/// Lengths are mostly as they should be, else too short by a few bytes, or anything.
fn length_error() -> impl Strategy<Value = Result<u16, u16>> {
    prop_oneof![6 => Just(Ok(0)), 3 => (1..12_u16).prop_map(Ok), 1 => (0..90_u16).prop_map(Err)]
}

fn ipv4() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![3 => Just(0x45_u8), 4 => 0x40..=0x4f_u8, 1 => any::<u8>()];
    let protocol = select(vec![TCP, TCP, UDP, UDP, ICMP, SCTP, ICMP6, 47, 0, 44]);
    let fields =
        (first, protocol, length_error(), fragment_offset(), any::<bool>(), select(ADDRESSES4.to_vec()));
    (fields, transport()).prop_map(|((first, protocol, error, offset, more, to), payload)| {
        let options = (usize::from(first & 0xf) * 4).saturating_sub(20);
        let total =
            error.map_or_else(|total| total, |missing| (20 + options + payload.len()) as u16 - missing);
        let mut packet = vec![first, 0];
        packet.extend(total.to_be_bytes());
        packet.extend([0, 1]);
        packet.extend((offset | u16::from(more) << 13).to_be_bytes());
        packet.extend([64, protocol, 0, 0, 10, 0, 0, 1]);
        packet.extend(to);
        packet.extend(vec![1; options]);
        packet.extend(payload);
        packet
    })
}

fn ipv6() -> impl Strategy<Value = Vec<u8>> {
    let extension =
        (select(vec![0_u8, 43, 44, 60]), prop_oneof![Just(0_u8), 0..3_u8], fragment_offset(), any::<bool>());
    let last = select(vec![TCP, TCP, UDP, UDP, SCTP, ICMP6, ICMP, 47, 51, 59]);
    let first = prop_oneof![9 => Just(0x60_u8), 1 => any::<u8>()];
    let fields = (first, length_error(), last, select(ADDRESSES6.to_vec()));
    let count = prop_oneof![3 => 0..2_usize, 2 => 2..9_usize];
    let extensions = count.prop_flat_map(move |count| vec(extension.clone(), count));
    (fields, extensions, transport()).prop_map(|((first, error, last, to), extensions, transport)| {
        let kinds: Vec<u8> = extensions.iter().map(|(kind, ..)| *kind).chain([last]).collect();
        let mut payload = Vec::new();
        for ((kind, eights, offset, more), next) in extensions.iter().zip(&kinds[1..]) {
            payload.extend([*next, *eights]);
            let word: u16 = if *kind == 44 { offset << 3 | u16::from(*more) } else { 0xffff };
            payload.extend(word.to_be_bytes());
            // A fragment header has no length: its second byte is reserved.
            payload.extend(vec![7; if *kind == 44 { 4 } else { usize::from(*eights) * 8 + 4 }]);
        }
        payload.extend(transport);
        let mut packet = vec![first, 0, 0, 0];
        let payload_bytes =
            error.map_or_else(|bytes| bytes, |missing| (payload.len() as u16).saturating_sub(missing));
        packet.extend(payload_bytes.to_be_bytes());
        packet.extend([kinds[0], 64]);
        packet.extend([0xfd; 16]);
        packet.extend(to);
        packet.extend(payload);
        packet
    })
}

/// The kernel runs no shorter packet (ETH_HLEN).
const SHORTEST: usize = 14;

/// Cases of each of the two tests below, and packets for one set of rules: to change the rules takes longest.
const CASES: u32 = 150;
const PACKETS: usize = 20;

/// A failure prints its smallest case, which then becomes a test; no file is written.
fn config() -> ProptestConfig {
    ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn the_program_takes_what_the_rules_say_of_packets_cut_at_every_length() {
    let test = "the_program_takes_what_the_rules_say_of_packets_cut_at_every_length";
    for kind in [PLAIN, FRAGS, COPIES] {
        let Some(bench) = Bench::new(test, kind) else { return };
        proptest!(config(), |(rules in rules(), packets in vec(packet(), PACKETS))| {
            let steering = Steering::Only(rules);
            bench.set(&steering);
            for packet in packets {
                for len in SHORTEST..=packet.len() {
                    let cut = &packet[..len];
                    let verdict = bench.verdict(cut, None).unwrap();
                    prop_assert_eq!(verdict, expected(&steering, cut), "{} of {:02x?}", &steering, cut);
                }
            }
        });
    }
}

/// Headers that lie in the second buffer, or over the border.
#[test]
fn headers_in_later_buffers_are_read() {
    let test = "headers_in_later_buffers_are_read";
    for kind in [FRAGS, COPIES] {
        let Some(bench) = Bench::new(test, kind) else { return };
        if let Err(error) = bench.verdict(&[0; 64], Some(20)) {
            skip(test, &format!("this kernel runs no packets of several short buffers (6.18 does): {error}"));
            return;
        }
        proptest!(config(), |(rules in rules(), packets in vec(packet(), PACKETS))| {
            let steering = Steering::Only(rules);
            bench.set(&steering);
            for packet in packets {
                for linear in SHORTEST..packet.len() {
                    let verdict = bench.verdict(&packet, Some(linear)).unwrap();
                    let expected = expected(&steering, &packet);
                    prop_assert_eq!(verdict, expected, "{} of {:02x?}, {} linear", &steering, &packet, linear);
                }
            }
        });
    }
}

/// The generators above must not miss what they are for.
#[test]
fn random_packets_meet_random_rules_often() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut seen = [0; Verdict::ALL.len()];
    let mut with_port = 0;
    for _ in 0..2000 {
        let rules = rules().new_tree(&mut runner).unwrap().current();
        let packet = packet().new_tree(&mut runner).unwrap().current();
        let by_port: Vec<_> = rules.iter().filter(|rule| rule.port.is_some()).copied().collect();
        with_port += u32::from(Steering::Only(by_port).takes(&packet));
        seen[expected(&Steering::Only(rules), &packet) as usize] += 1;
    }
    let [redirected, _, passed, malformed] = seen;
    assert!(redirected > 200 && passed > 200 && malformed > 100 && with_port > 25, "{seen:?}, {with_port}");
}

proptest! {
    #[test]
    fn rules_read_back_as_they_were_written(rules in rules()) {
        let steering = Steering::Only(rules);
        prop_assert_eq!(steering.to_string().parse::<Steering>().unwrap(), steering);
    }

    #[test]
    fn no_text_and_no_packet_panics(text in "[a-z0-9:@/+.\\[\\]]{0,30}", rules in rules(), packet in packet(), len in 0..80_usize) {
        if let Ok(steering) = text.parse::<Steering>() {
            prop_assert_eq!(steering.to_string().parse::<Steering>().unwrap(), steering);
        }
        // Shorter packets than the kernel would run.
        let takes = Steering::Only(rules).takes(&packet[..len.min(packet.len())]);
        prop_assert!(!takes || len >= SHORTEST);
    }
}

#[test]
fn everything_is_taken_without_rules_and_nothing_without_a_socket() {
    let Some(bench) = Bench::new("everything_is_taken_without_rules_and_nothing_without_a_socket", PLAIN)
    else {
        return;
    };
    let packet = [0; 60];
    for (steering, verdict) in
        [("all", Verdict::Redirected), ("none", Verdict::Passed), ("arp", Verdict::Passed)]
    {
        for _ in 0..2 {
            bench.set(&steering.parse().unwrap());
            assert_eq!(bench.verdict(&packet, None).unwrap(), verdict, "{steering}");
            assert_eq!(bench.program.borrow().steer().steering().to_string(), steering);
        }
    }
    bench.set(&Steering::All);
    bench.attachment.detach(0);
    assert_eq!(bench.verdict(&packet, None).unwrap(), Verdict::NotBound);
}

/// As many packets as there are frames go to the socket; the others are ours all the same.
#[test]
fn a_packet_for_which_there_is_no_frame_is_dropped_and_counted() {
    for kind in [PLAIN, FRAGS, COPIES] {
        let test = "a_packet_for_which_there_is_no_frame_is_dropped_and_counted";
        let Some(bench) = Bench::new(test, kind) else { return };
        let interface = Interface::lookup("lo").unwrap();
        let room = bench.program.borrow().rooms(&interface, 1).unwrap().of(0, 100);
        let mut limit = Limit::new();
        let actions = |len: usize, count: u32| {
            let run = |_| bench.run(&vec![0; len], None).unwrap();
            let runs: Vec<_> = (0..count).map(run).collect();
            assert!(runs.iter().all(|(_, verdict)| *verdict == Verdict::Redirected), "{kind:?}: {runs:?}");
            runs.into_iter().map(|(returned, _)| returned).collect::<Vec<_>>()
        };
        // Nothing is known of frames yet.
        assert_eq!(actions(60, 3), [XDP_REDIRECT; 3], "{kind:?}");
        limit.raise(&room, 2);
        assert_eq!(actions(60, 4), [XDP_REDIRECT, XDP_REDIRECT, XDP_DROP, XDP_DROP], "{kind:?}");
        // What is larger than a frame is the socket's to drop, or to put into several.
        assert_eq!((actions(101, 2), actions(100, 1)), (vec![XDP_REDIRECT; 2], vec![XDP_DROP]), "{kind:?}");
        limit.raise(&room, 1);
        assert_eq!(actions(100, 2), [XDP_REDIRECT, XDP_DROP], "{kind:?}");
        assert_eq!(room.lost(), 4, "{kind:?}");
        room.open();
        assert_eq!(actions(60, 1), [XDP_REDIRECT], "{kind:?}");
    }
}

/// Rules that change all the time, each time to ones of the same effect on this packet: a mix would show.
#[test]
fn a_packet_never_sees_a_mix_of_two_sets_of_rules() {
    let Some(bench) = Bench::new("a_packet_never_sees_a_mix_of_two_sets_of_rules", PLAIN) else { return };
    let mut packet = [0; 60];
    packet[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
    // Ours stands last of many, or first of few; the places between are of others.
    let many = format!("{}+0x88b5", vec!["arp"; 63].join("+")).parse().unwrap();
    let few = "0x88b5+arp".parse().unwrap();
    let steer = bench.program.borrow().steer().clone();
    // The bank that holds is not the one that is written. Without that, the load below finds a mix now and then.
    let mut banks = vec![steer.bank_in_force()];
    for steering in [&many, &few, &many, &Steering::All, &few, &many, &few] {
        steer.set(steering).unwrap();
        banks.push(steer.bank_in_force());
        assert_eq!(banks.last().unwrap().is_none(), *steering == Steering::All);
        let [.., before, now] = banks.as_slice() else { unreachable!("there are two") };
        assert_ne!(before, now);
    }
    let mut different = banks.clone();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 3, "two banks, and none");

    let mut runs = 0;
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for _ in 0..150 {
                steer.set(&many).unwrap();
                steer.set(&few).unwrap();
            }
        });
        while !changes.is_finished() {
            let input = ProgramInput { data_in: Some(&packet), repeat: 5000, ..Default::default() };
            bench.program.borrow_mut().loaded_mut().test_run(input).unwrap();
            runs += 5000;
        }
    });
    let counts = bench.program.borrow().steer().counts().unwrap();
    assert_eq!((counts.of(Verdict::Redirected), counts.total()), (runs, runs));
}
