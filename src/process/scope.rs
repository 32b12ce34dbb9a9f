//! Ends processes together, including those that left their process group with `setsid`.
//!
//! [`adopt_orphans`] makes the kernel reparent every orphaned descendant to this process, so none of them escapes while
//! it lives. When a scope ends, its orphans are killed with all their descendants. An orphan's scope is in its
//! inherited environment.
//!
//! An orphan without that variable, or with an unreadable environment, is killed when no older scope is left. Its scope
//! must be one of the older ones. Such an orphan may therefore outlive its scope, but never this process.
//!
//! Limits: a process can put another scope's value into the environment of its children, which then end with that
//! scope. If this process is killed, its orphans get another parent, and the reaper finds only those that still have
//! the variable. Processes that the user's service manager, cron or a container engine starts on request are not
//! descendants.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, getpid, waitid, waitpid};

use super::table::{Process, ProcessTable};

/// How often ended orphans are collected.
const COLLECT_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of searches. Processes may start others until they are gone, so the search is repeated.
const MAX_ROUNDS: usize = 50;
const ROUND_PAUSE: Duration = Duration::from_millis(2);

/// A set of processes that end when the last clone of this is dropped.
#[derive(Debug, Clone, Default)]
pub struct ProcessScope(Arc<ScopeEnd>);

impl ProcessScope {
    /// Returns the value of the environment variable that marks its processes.
    pub(super) fn marker(&self) -> &str {
        &self.0.marker
    }
}

#[derive(Debug)]
struct ScopeEnd {
    marker: String,
}

impl Default for ScopeEnd {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self { marker: format!("{}{}", marker_prefix(), LAST.fetch_add(1, Ordering::Relaxed)) }
    }
}

impl Drop for ScopeEnd {
    fn drop(&mut self) {
        let mut children = Children::lock();
        // A scope that is not listed started no process.
        if children.scopes.remove(&self.marker).is_some() {
            children.end_orphans();
        }
    }
}

/// Returns the prefix of this process's markers. The start time distinguishes it from an earlier process with the same
/// id.
fn marker_prefix() -> &'static str {
    static PREFIX: LazyLock<String> = LazyLock::new(|| {
        let start = Process::read(getpid()).map_or(0, |process| process.start);
        format!("{}.{start}.", getpid().as_raw_nonzero())
    });
    &PREFIX
}

/// The children of this process. There is one instance, because there is one process.
#[derive(Debug, Default)]
pub(super) struct Children {
    adoption: Adoption,
    /// Children that this process started. The code that started them collects their exits.
    own: HashSet<Pid>,
    /// The scopes that have processes, and the start time of the first process.
    scopes: HashMap<String, u64>,
    /// A thread collects orphans.
    has_collector: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux lets a process adopt orphans"))]
enum Adoption {
    #[default]
    Off,
    /// Every orphan descends from a process of a scope.
    On,
    /// The process had children before this program started, because `exec` replaced the program that started them. An
    /// orphan without a scope may be theirs and is left alone.
    OnWithOlderChildren,
}

impl Children {
    /// Locks the list. Hold the lock while starting a child: until the child is listed, it looks like an orphan.
    pub(super) fn lock() -> MutexGuard<'static, Self> {
        static CHILDREN: LazyLock<Mutex<Children>> = LazyLock::new(Mutex::default);
        CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&mut self, pid: Pid) {
        self.own.insert(pid);
        if self.adoption != Adoption::Off {
            self.start_collector();
        }
    }

    /// Starts the thread that collects orphans, if it does not run. Without it they stay as zombies until their scope
    /// ends.
    fn start_collector(&mut self) {
        if self.has_collector {
            return;
        }
        let started = std::thread::Builder::new().name("orphan-collector".to_owned()).spawn(collect_orphans);
        match started {
            Ok(_) => self.has_collector = true,
            Err(error) => tracing::warn!(%error, "orphans that end are not collected at once"),
        }
    }

    pub(super) fn add_to(&mut self, scope: &ProcessScope, pid: Pid) {
        self.add(pid);
        let start = || Process::read(pid).map_or(0, |process| process.start);
        self.scopes.entry(scope.marker().to_owned()).or_insert_with(start);
    }

    pub(super) fn remove(&mut self, pid: Pid) {
        self.own.remove(&pid);
    }

    /// Kills the orphans whose scope has ended, and collects those that have exited.
    fn end_orphans(&self) {
        if self.adoption == Adoption::Off {
            return;
        }
        for _ in 0..MAX_ROUNDS {
            let table = ProcessTable::read();
            let orphans = self.collect(&table);
            let ended: Vec<Process> = orphans.into_iter().filter(|orphan| !self.belongs_to_scope(orphan)).collect();
            if ended.is_empty() {
                return;
            }
            for orphan in ended {
                orphan.kill();
                table.descendants(orphan.pid).iter().for_each(Process::kill);
            }
            std::thread::sleep(ROUND_PAUSE);
        }
        tracing::warn!("processes that were killed are still there");
    }

    /// Collects the exits of adopted orphans, and returns those that still live.
    fn collect(&self, table: &ProcessTable) -> Vec<Process> {
        let orphans = table.children(getpid()).iter().filter(|child| !self.own.contains(&child.pid));
        let (ended, living): (Vec<Process>, Vec<Process>) = orphans.copied().partition(|orphan| orphan.is_zombie);
        for orphan in ended {
            if let Err(error) = waitpid(Some(orphan.pid), WaitOptions::NOHANG) {
                tracing::debug!(%error, "an exit was collected elsewhere");
            }
        }
        living
    }

    fn belongs_to_scope(&self, orphan: &Process) -> bool {
        match orphan.marker() {
            Some(marker) if marker.starts_with(marker_prefix()) => self.scopes.contains_key(&marker),
            _ if self.adoption == Adoption::OnWithOlderChildren => true,
            _ => self.scopes.values().any(|start| *start <= orphan.start),
        }
    }
}

/// Makes this process adopt its orphaned descendants, so that they end with their scope. Call it before the first child
/// is started. Does nothing on systems other than Linux.
pub fn adopt_orphans() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let mut children = Children::lock();
        if children.adoption != Adoption::Off {
            return Ok(());
        }
        rustix::process::set_child_subreaper(Some(getpid()))?;
        if matches!(peek(), Err(rustix::io::Errno::CHILD)) {
            children.adoption = Adoption::On;
        } else {
            children.adoption = Adoption::OnWithOlderChildren;
            children.start_collector();
        }
    }
    Ok(())
}

/// Ends every remaining process of any scope. Call it when this process ends.
pub fn end_all_scopes() {
    let mut children = Children::lock();
    children.scopes.clear();
    children.end_orphans();
}

/// Kills all descendants of this process, until none is left.
pub(super) fn end_descendants() {
    for _ in 0..MAX_ROUNDS {
        let table = ProcessTable::read();
        table.descendants(getpid()).iter().for_each(Process::kill);
        while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
        if let Err(rustix::io::Errno::CHILD) = peek() {
            return;
        }
        std::thread::sleep(ROUND_PAUSE);
    }
}

/// Collects orphans that end by themselves and would stay as zombies. Does not touch children that this process
/// started; the code that started them waits for them.
fn collect_orphans() {
    loop {
        std::thread::sleep(COLLECT_INTERVAL);
        if let Ok(Some(_)) = peek() {
            let children = Children::lock();
            children.collect(&ProcessTable::read());
        }
    }
}

/// Returns whether any child has ended, without collecting its exit. Fails if there is no child at all.
fn peek() -> rustix::io::Result<Option<rustix::process::WaitIdStatus>> {
    waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
}

/// Kills every process with one of these markers, until none is left. For the reaper, which has no descendants.
pub(super) fn end_marked(markers: &HashSet<String>) {
    for _ in 0..MAX_ROUNDS {
        let table = ProcessTable::read();
        let is_marked = |process: &&Process| process.marker().is_some_and(|marker| markers.contains(&marker));
        let marked: Vec<&Process> = table.all().filter(is_marked).collect();
        if marked.is_empty() {
            return;
        }
        for process in marked {
            process.kill();
            table.descendants(process.pid).iter().for_each(Process::kill);
        }
        std::thread::sleep(ROUND_PAUSE);
    }
}
