//! Tests of the lock that gives a cache folder to one sandbox at a time.

use super::*;

#[test]
#[expect(clippy::disallowed_methods, reason = "a process that ends by itself")]
fn the_next_sandbox_waits_for_mounts_of_the_one_before() {
    let caches = tempfile::tempdir().unwrap();
    let root = Path::new("/project");
    let mut process = std::process::Command::new("sleep").arg("0.5").spawn().unwrap();
    let first = CacheFolder::lock(caches.path(), root).unwrap();
    first.leave_to(Pid::from_child(&process)).unwrap();
    let other = CacheFolder::lock(caches.path(), root).unwrap();
    assert!(other.is_temporary, "the first has the lock");
    assert!(other.leave_to(Pid::from_child(&process)).is_err(), "a temporary folder is removed");
    drop(first);
    let second = CacheFolder::lock(caches.path(), root).unwrap();
    assert!(!second.is_temporary);
    assert!(process.try_wait().unwrap().is_some(), "the process has ended before");
    process.wait().unwrap();
}

#[test]
fn nobody_waits_for_a_process_that_has_only_the_same_id() {
    let caches = tempfile::tempdir().unwrap();
    let root = Path::new("/project");
    let first = CacheFolder::lock(caches.path(), root).unwrap();
    let own = rustix::process::getpid();
    let start = start_time(own).unwrap();
    first.lock.write_all_at(format!("{} {}\n", own.as_raw_nonzero(), start + 1).as_bytes(), 0).unwrap();
    drop(first);
    assert!(!CacheFolder::lock(caches.path(), root).unwrap().is_temporary);
}
