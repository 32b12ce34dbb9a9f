//! Command lines: reading never fails, gives the same result twice, and stays within its limit of time.

#![no_main]

use std::time::{Duration, Instant};

libfuzzer_sys::fuzz_target!(|line: &str| {
    let start = Instant::now();
    let script = skein::permissions::read(line);
    assert_eq!(script, skein::permissions::read(line));
    assert!(start.elapsed() < Duration::from_secs(5), "reading takes too long");
    // A blank line has nothing to run.
    if line.trim_matches([' ', '\t', '\n']).is_empty() {
        assert!(script.parts.is_empty());
    }
});
