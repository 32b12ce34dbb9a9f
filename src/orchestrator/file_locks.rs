//! Serializes writes of parallel tasks to the same file. The first task that writes to a file holds it until the task
//! ends; other tasks wait.
//!
//! Invariant: tasks never deadlock. A task whose wait would close a cycle gets an error and can do other work.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::broker::{WriteDeadlock, WriteLock};

/// The file locks of all tasks of a session.
#[derive(Debug)]
pub(super) struct FileLocks {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The task that holds each file.
    held: HashMap<PathBuf, String>,
    /// The task that each waiting task waits for.
    waits: HashMap<String, String>,
}

impl Default for FileLocks {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: watch::channel(()).0 }
    }
}

impl FileLocks {
    /// Returns the write lock of one task. Calls `waiting` once per acquisition, with a description, if the task has to
    /// wait.
    pub(super) fn of(
        self: &Arc<Self>,
        task: &str,
        waiting: impl Fn(String) + Send + Sync + 'static,
    ) -> Arc<dyn WriteLock> {
        Arc::new(TaskWriteLock { locks: Arc::clone(self), task: task.to_owned(), waiting: Box::new(waiting) })
    }

    /// Releases the files of a task that has ended.
    pub(super) fn release(&self, task: &str) {
        let mut state = self.state();
        state.held.retain(|_, holder| holder != task);
        state.waits.remove(task);
        drop(state);
        self.changed.send_replace(());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes all the files or none. The error is a file that another task holds, and that task.
    fn take(&mut self, task: &str, files: &[PathBuf]) -> Result<(), (PathBuf, String)> {
        let other = files.iter().find_map(|file| {
            self.held.get(file).filter(|holder| *holder != task).map(|holder| (file.clone(), holder.clone()))
        });
        match other {
            Some(taken) => Err(taken),
            None => {
                self.held.extend(files.iter().map(|file| (file.clone(), task.to_owned())));
                Ok(())
            }
        }
    }

    fn leads_to(&self, from: &str, task: &str) -> bool {
        let mut at = from;
        // Waits never form a cycle, so this loop ends.
        while let Some(next) = self.waits.get(at) {
            if next == task {
                return true;
            }
            at = next;
        }
        false
    }
}

struct TaskWriteLock {
    locks: Arc<FileLocks>,
    task: String,
    waiting: Box<dyn Fn(String) + Send + Sync>,
}

/// Removes the task from the waiting list when dropped.
struct WaitGuard<'a>(&'a TaskWriteLock);

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.locks.state().waits.remove(&self.0.task);
    }
}

impl WriteLock for TaskWriteLock {
    fn acquire(&self, files: Vec<PathBuf>) -> BoxFuture<'_, Result<(), WriteDeadlock>> {
        Box::pin(async move {
            let mut changed = self.locks.changed.subscribe();
            let _waiting = WaitGuard(self);
            let mut told = false;
            loop {
                {
                    let mut state = self.locks.state();
                    let Err((file, holder)) = state.take(&self.task, &files) else { return Ok(()) };
                    if state.leads_to(&holder, &self.task) {
                        return Err(WriteDeadlock { task: holder, file });
                    }
                    state.waits.insert(self.task.clone(), holder.clone());
                    drop(state);
                    if !std::mem::replace(&mut told, true) {
                        (self.waiting)(format!("waits for task `{holder}`, which writes to {}", file.display()));
                    }
                }
                // The sender lives as long as the locks.
                drop(changed.changed().await);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    fn files(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[tokio::test]
    async fn the_second_writer_of_a_file_waits_for_the_end_of_the_first() {
        let writers: Arc<FileLocks> = Arc::default();
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let (a, heard) = (writers.of("a", |_| {}), Arc::clone(&told));
        let b = writers.of("b", move |what| heard.lock().unwrap().push(what));
        a.acquire(files(&["/x"])).await.unwrap();
        a.acquire(files(&["/x"])).await.unwrap();
        b.acquire(files(&["/y"])).await.unwrap();
        let mut waiting = b.acquire(files(&["/x"]));
        assert!(poll!(&mut waiting).is_pending());
        assert_eq!(*told.lock().unwrap(), ["waits for task `a`, which writes to /x"]);
        writers.release("a");
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn nobody_waits_in_a_circle_and_who_gives_up_is_not_waited_for() {
        let writers: Arc<FileLocks> = Arc::default();
        let [a, b, c] = ["a", "b", "c"].map(|task| writers.of(task, |_| {}));
        a.acquire(files(&["/a"])).await.unwrap();
        b.acquire(files(&["/b"])).await.unwrap();
        c.acquire(files(&["/c"])).await.unwrap();
        let mut first = a.acquire(files(&["/b"]));
        let mut second = b.acquire(files(&["/c"]));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        assert!(c.acquire(files(&["/new", "/a"])).await.unwrap_err().task == "a");
        drop(second);
        let mut third = c.acquire(files(&["/a"]));
        assert!(poll!(&mut third).is_pending(), "`b` waits no more, so there is no circle");
        assert!(!writers.state().held.contains_key(&PathBuf::from("/new")), "what is refused takes nothing");
        writers.release("b");
        first.await.unwrap();
    }
}
