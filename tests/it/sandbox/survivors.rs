//! Nothing survives a sandbox, however it or Skein ends.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Place, users};

/// Returns the processes whose command line contains the text.
fn processes_with(text: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(text)).collect()
}

fn until_none(text: &str) {
    let start = Instant::now();
    while !processes_with(text).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "left: {:?}", processes_with(text));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A duration that no other process sleeps for.
fn unusual_duration(at: u32) -> String {
    format!("{}.{at}", 100_000 + std::process::id())
}

/// Starts a background process, one in a new session, and one that two forks hide.
fn script(duration: &str) -> String {
    format!(
        "sleep {duration} & setsid sleep {duration} & (setsid sh -c 'sleep {duration} &' &); sleep 0.3; echo started"
    )
}

#[test]
fn nothing_survives_the_command() {
    for (at, user) in (0..).zip(users()) {
        for (inner, layers) in (0..).zip(["", "no-namespaces,preferred"]) {
            let place = Place::new(user);
            let duration = unusual_duration(at * 10 + inner);
            let mut command = place.sandbox(layers, &["--", "sh", "-c", &script(&duration)]);
            let output = command.output().unwrap();
            assert!(super::text(&output).contains("started"), "{}", super::text(&output));
            until_none(&duration);
        }
    }
}

#[test]
fn nothing_survives_a_killed_skein() {
    for (at, user) in (0..).zip(users()) {
        for (inner, layers) in (0..).zip(["", "no-namespaces,preferred"]) {
            let place = Place::new(user);
            let duration = unusual_duration(100 + at * 10 + inner);
            let line = format!("{}; sleep {duration}", script(&duration));
            let mut skein = place.sandbox(layers, &["--", "sh", "-c", &line]).stdout(Stdio::piped()).spawn().unwrap();
            let mut first = String::new();
            BufReader::new(skein.stdout.take().unwrap()).read_line(&mut first).unwrap();
            assert_eq!(first, "started\n");
            let pid = Pid::from_raw(skein.id().cast_signed()).unwrap();
            kill_process(pid, Signal::KILL).unwrap();
            skein.wait().unwrap();
            until_none(&duration);
        }
    }
}

#[test]
fn a_signal_reaches_the_command() {
    let place = Place::new(users()[0]);
    let line = "trap 'echo got it; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut skein = place.sandbox("", &["--", "sh", "-c", line]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(skein.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    kill_process(Pid::from_raw(skein.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "got it");
    assert_eq!(skein.wait().unwrap().code(), Some(7));
}

#[test]
fn the_sandbox_leaves_nothing_in_git_status() {
    let place = Place::new(users()[0]);
    if !super::needs_tool("git") {
        return;
    }
    place.works(&[], "git init -q . && git -c user.name=a -c user.email=b@c commit -q --allow-empty -m first");
    assert_eq!(place.works(&[], "git status --porcelain --ignored"), "");
}
