//! What the pool costs on machines of up to 512 cores, in cache-line transfers, beside its peers.
//!
//! One thread plays all cores in turn. The pool is the real one, compiled over counting atomics
//! (`--cfg sheafio_scale`); the peers are models. `tests/scale/run` builds and runs this; it writes
//! `tests/scale/results/`, or with `--check` compares what lies there. It measures no time: a transfer
//! costs tens of nanoseconds between near cores and many times that between far ones that contend.
//!
//! What lies where: `machine` is the coherence model, `traffic` drives, `sheaves` is the pool under
//! observation, `peers` are the models, `figures` collects, `table` and `plot` show.

#[cfg(sheafio_scale)]
mod figures;
#[cfg(sheafio_scale)]
mod machine;
#[cfg(sheafio_scale)]
mod peers;
#[cfg(sheafio_scale)]
mod plot;
#[cfg(sheafio_scale)]
mod sheaves;
#[cfg(sheafio_scale)]
mod table;
#[cfg(sheafio_scale)]
mod traffic;

#[cfg(not(sheafio_scale))]
fn main() {
    eprintln!("scale: this needs a build with --cfg sheafio_scale; tests/scale/run makes one");
    std::process::exit(2);
}

#[cfg(sheafio_scale)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(other) => return Err(format!("scale: no such option: {other}; there is --check").into()),
    };
    let figures = figures::Figures::measure();
    assert_bounds(&figures);
    let table = table::render(&figures);
    print!("{table}");
    let results = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let files = [
        ("table.txt", table),
        ("transfers.svg", plot::transfers(&figures)?),
        ("rmws.svg", plot::rmws(&figures)?),
    ];
    for (name, text) in files {
        let path = results.join(name);
        if !check {
            std::fs::write(&path, text)?;
        } else if std::fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            let path = path.display();
            return Err(format!("scale: {path} is not what this build computes; run tests/scale/run").into());
        }
    }
    Ok(())
}

/// Line transfers a packet that a lane may cost with sheaves of 60: ten a sheaf.
#[cfg(sheafio_scale)]
const TRANSFERS_OVER_LANES: f64 = 0.17;

/// What the pool promises: nothing shared where cores free what they allocate, no read-modify-write
/// over lanes, and elsewhere no more than one for each capacity of frames, allocated or freed.
///
/// A core's first exchange in the part that is measured may come early, and so may a round's bursts.
#[cfg(sheafio_scale)]
fn assert_bounds(figures: &figures::Figures) {
    let of_pool =
        |row: &&figures::Row| [figures::LANES, figures::SHEAVES, figures::ZONED].contains(&row.allocator);
    for row in figures.rows.iter().filter(of_pool) {
        for ((sample, cores), capacity) in row.samples.iter().zip(figures::CORES).zip(figures.capacities) {
            let (rmws, title) = (sample.tally.rmws, row.traffic.title());
            if row.traffic == traffic::Traffic::RunToCompletion {
                assert_eq!((rmws, sample.tally.transfers), (0, 0), "{title}, {cores} cores");
            }
            let frames = sample.packets + (traffic::BURST * cores) as u64;
            let mut most = 2 * (frames / u64::from(capacity) + cores as u64);
            if row.allocator == figures::ZONED {
                // A half-full sheaf for each other zone every 64 bursts.
                most += frames / (64 * traffic::BURST as u64) * (figures::ZONES as u64 - 1);
            }
            assert!(rmws <= most, "{title}, {cores} cores: {rmws} where {most} are allowed");
            if row.allocator == figures::LANES && !row.traffic.lanes(cores).is_empty() {
                // Where one core frees for many, its bursts can run into a lane that is full at the moment.
                let most = if row.traffic == traffic::Traffic::Pipeline { 0 } else { sample.packets / 1000 };
                assert!(rmws <= most, "{title}, {cores} cores, over lanes: {rmws} where {most} are allowed");
                let transfers = sample.transfers();
                assert!(
                    capacity < 60 || transfers <= TRANSFERS_OVER_LANES,
                    "{title}, {cores} cores: {transfers} transfers a packet over lanes"
                );
            }
        }
    }
}
