//! How long a cache line takes from CPU 0 to CPU 1 and back, in ns.
//!
//! Usage: handover. It tells the states of a host apart that puts two virtual CPUs on one core at times, and at others on
//! two that share no cache: 50 and 310 ns were seen. What two CPUs do together, as a generator and a forwarder do,
//! can only be compared within one of them.

use std::{
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use sheafio_core::{CoreError, Lcore};

/// Round trips for one look at the clock; others that run meanwhile on one of the CPUs spoil some of these windows.
const ROUNDS: u32 = 500;
const WINDOWS: u32 = 40;
/// After this long without an answer the other thread is taken to wait for its CPU.
const PATIENCE: Duration = Duration::from_millis(20);

/// On a pair of lines of its own, as CPUs fetch two at a time.
#[repr(align(128))]
struct Line(AtomicU32);

/// Odd: CPU 0 is to answer. Even: CPU 1 may ask.
static TURN: Line = Line(AtomicU32::new(0));
static IS_OVER: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    match measure() {
        Ok(Some(shortest)) => {
            println!("{}", shortest.as_nanos() / u128::from(ROUNDS));
            ExitCode::SUCCESS
        }
        Ok(None) => {
            eprintln!("handover: CPU 0 has never answered in time: something else keeps it busy");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("handover: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The shortest window, if there was one without a pause.
fn measure() -> Result<Option<Duration>, CoreError> {
    // First, for a thread may go where the one may that starts it.
    let answering = thread::spawn(|| {
        let _here = Lcore::pin(0)?;
        while !IS_OVER.load(Ordering::Relaxed) {
            // Nothing else goes with the turn, so no order is needed.
            let turn = TURN.0.load(Ordering::Relaxed);
            if !turn.is_multiple_of(2) {
                TURN.0.store(turn.wrapping_add(1), Ordering::Relaxed);
            }
        }
        Ok::<_, CoreError>(())
    });
    let _here = Lcore::pin(1)?;
    let mut shortest = None;
    for _ in 0..WINDOWS {
        let start = Instant::now();
        if (0..ROUNDS).all(|_| ask()) {
            let window = start.elapsed();
            shortest = Some(shortest.map_or(window, |shortest: Duration| shortest.min(window)));
        }
    }
    IS_OVER.store(true, Ordering::Relaxed);
    answering.join().expect("it does not panic")?;
    Ok(shortest)
}

/// Asks, and waits for the answer. Returns whether it came in time.
fn ask() -> bool {
    let turn = TURN.0.load(Ordering::Relaxed);
    if !turn.is_multiple_of(2) {
        // The last question is still open.
        thread::sleep(PATIENCE);
        return false;
    }
    TURN.0.store(turn.wrapping_add(1), Ordering::Relaxed);
    let mut looks = 0_u32;
    let mut asked = None;
    while TURN.0.load(Ordering::Relaxed) != turn.wrapping_add(2) {
        looks += 1;
        // The clock is not looked at in the usual case, which it would make longer.
        if looks.is_multiple_of(1 << 16) && asked.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return false;
        }
    }
    true
}
