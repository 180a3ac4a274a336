//! The figures as text.

use std::fmt::Write;

use crate::{
    figures::{CORES, Figures},
    sheaves,
    traffic::{BURST, IN_FLIGHT, Sample, Traffic},
};

/// One table a traffic, a block of columns for each kind of figure.
pub(crate) fn render(figures: &Figures) -> String {
    let mut text = format!(
        "What it costs cores to allocate and free frames: {IN_FLIGHT} in flight, bursts of {BURST},\n\
         {} frames where a pool's size can be chosen. Sheaves hold {} frames at {} cores.\n\
         Written by tests/scale/run.\n\n\
         sheafio, lanes: where the traffic's paths are known, they are declared as lanes; in the others there are none.\n\
         sheafio, 8 zones: on eight NUMA nodes (or as many as cores), {} frames, no lanes.\n\
         ring: DPDK's pool, with caches of 512 and as many frames as these take, or with caches that fit.\n\
         SLUB: the kernel's, before sheaves. in bulk: a burst in one operation; one by one: in 32.\n\
         busiest line: the cache line with the most transfers.\n",
        sheaves::FRAMES,
        join(figures.capacities),
        join(CORES),
        2 * sheaves::FRAMES
    );
    for traffic in Traffic::ALL {
        let _ = write!(text, "\n{}\n", traffic.title());
        block(&mut text, figures, traffic, "read-modify-writes a packet", |sample| {
            format!("{:.4}", sample.rmws())
        });
        block(&mut text, figures, traffic, "line transfers a packet", |sample| {
            format!("{:.4}", sample.transfers())
        });
        block(&mut text, figures, traffic, "busiest line, of all transfers", |sample| {
            match sample.tally.transfers {
                0 => "-".to_owned(),
                _ => format!("{:.1} %", 100.0 * sample.busiest()),
            }
        });
    }
    text
}

fn block(text: &mut String, figures: &Figures, traffic: Traffic, what: &str, figure: fn(&Sample) -> String) {
    let _ = write!(text, "  {what:<32}");
    for cores in CORES {
        let _ = write!(text, "{cores:>8}");
    }
    text.push_str(" cores\n");
    for row in figures.of(traffic) {
        let _ = write!(text, "    {:<30}", row.allocator);
        for sample in &row.samples {
            let _ = write!(text, "{:>8}", figure(sample));
        }
        text.push('\n');
    }
}

fn join<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}
