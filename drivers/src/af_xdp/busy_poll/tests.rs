//! What can be seen on files that stand for settings, to which no right is needed; on real devices, see `tests/busy_poll.rs`.

use std::{
    env, fs,
    path::PathBuf,
    process,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// A file that stands for a setting, deleted when dropped.
struct Setting(PathBuf);

impl Setting {
    fn new(name: &str, value: &str) -> Self {
        let path = env::temp_dir().join(format!("sheafio-{}-{name}", process::id()));
        fs::write(&path, value).unwrap();
        Self(path)
    }

    fn open(&self) -> File {
        File::options().read(true).write(true).open(&self.0).unwrap()
    }

    fn value(&self) -> String {
        read(&self.open()).unwrap()
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Killed between the two, this process would leave its value behind.
#[test]
fn the_guard_is_there_before_the_value_is() {
    let setting = Setting::new("order", "0\n");
    let mut at_start = None;
    let guard = |file: &File, before: &str, value: &str| {
        at_start = Some(read(file)?);
        Guard::spawn(file, before, value)
    };
    let (changed, no_guard) = Changed::set(setting.open(), "2", guard).unwrap().unwrap();
    assert_eq!((at_start.as_deref(), no_guard.is_none(), setting.value().as_str()), (Some("0"), true, "2"));
    drop(BusyPolling { changed: vec![changed] });
    assert_eq!(setting.value(), "0");
}

#[test]
fn only_the_very_value_that_was_set_is_ours() {
    let setting = Setting::new("ours", "000000");
    let set = || Changed::set(setting.open(), "200000", Guard::spawn).unwrap().unwrap().0;
    // The value of the other setting, which someone has put into this one.
    let changed = set();
    fs::write(&setting.0, "2").unwrap();
    drop(BusyPolling { changed: vec![changed] });
    assert_eq!(setting.value(), "2");
    fs::write(&setting.0, "000000").unwrap();
    drop(BusyPolling { changed: vec![set()] });
    assert_eq!(setting.value(), "000000");
}

fn wait_until(what: &str, is_so: &dyn Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_mins(1), "not {what} after a minute");
        thread::sleep(RETRY);
    }
}

/// The guard of a run that was killed may still have its work to do; but anyone can hold the lock, for as long as they like.
#[test]
fn a_setting_that_someone_holds_is_waited_for_until_then_and_no_longer() {
    let setting = Setting::new("held", "0\n");
    let (held, file) = (setting.open(), setting.open());
    held.lock().unwrap();
    wait_for_guard(&file, Instant::now());
    assert!(setting.open().try_lock().is_err(), "it is still theirs");

    let is_put_back = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(20 * RETRY);
            is_put_back.store(true, Ordering::Relaxed);
            held.unlock().unwrap();
        });
        // Relaxed: the lock that is given and taken lies between.
        wait_for_guard(&file, Instant::now() + Duration::from_mins(1));
        assert!(is_put_back.load(Ordering::Relaxed), "did not wait");
    });
    assert!(setting.open().try_lock().is_err(), "it is ours by now");
}

/// Where its work is done already, nothing is lost when it is killed; else it is left to it, however long that takes.
#[test]
fn a_guard_that_hangs_is_killed_when_it_has_no_work() {
    let setting = Setting::new("hangs", "0\n");
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.trim_start().chars().next()
    };
    let hanging = || {
        let changed = Changed::set(setting.open(), "2", Guard::spawn).unwrap().unwrap().0;
        let pid = changed.guard.as_ref().unwrap().pid();
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
        wait_until("stopped", &|| state(pid) == Some('T'));
        (changed.guard.unwrap(), pid)
    };
    let (guard, pid) = hanging();
    guard.dismiss().finish(Instant::now());
    wait_until("killed", &|| state(pid).is_none_or(|state| state == 'Z'));
    assert_eq!(setting.value(), "2", "dismissed");
    fs::write(&setting.0, "0\n").unwrap();
    let (guard, pid) = hanging();
    guard.call().finish(Instant::now());
    assert_eq!((state(pid), setting.value().as_str()), (Some('T'), "2"), "it was killed");
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::CONT).unwrap();
    wait_until("put back", &|| setting.value() == "0");
}

#[test]
fn what_users_should_know_is_told_with_commands() {
    assert!(Told::default().lines("ve0").is_empty());
    let told = Told {
        failed: vec![("gro_flush_timeout", "no".to_owned())],
        unguarded: vec![("napi_defer_hard_irqs", "1".to_owned(), "too many".to_owned())],
        same: vec!["gro_flush_timeout"],
    };
    let lines = told.lines("ve0");
    assert_eq!(lines.len(), 3);
    for (line, parts) in lines.iter().zip([
        ["could not be set: gro_flush_timeout (no)", "echo 2 > /sys/class/net/ve0/napi_defer_hard_irqs"],
        ["started (too many)", "then: echo 1 > /sys/class/net/ve0/napi_defer_hard_irqs"],
        ["ve0: gro_flush_timeout had the value", "run: echo 0 > /sys/class/net/ve0/gro_flush_timeout"],
    ]) {
        assert!(line.starts_with("ve0: ") && parts.iter().all(|part| line.contains(part)), "{line}");
    }
}
