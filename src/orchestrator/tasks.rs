//! Keeps the table of tasks that a session has delegated, with their dependencies and states. The table is stored with
//! the session.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use petgraph::algo::toposort;
use petgraph::graph::DiGraph;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::conversation::{Message, MessagePart};
use crate::ids::ModeId;
use crate::tool::delegate::{DelegateError, TaskReport, TaskState};
use crate::tool::{StateEntries, StepStatus, TodoStep};

/// The tool with which a model delegates a task.
pub(super) const DELEGATE: &str = "summon__delegate";
/// Time an announced task has to start. A task that depends on it fails after that.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of tasks that have not ended. Each has a future that waits or works.
const MAX_UNFINISHED: usize = 32;
/// Maximum number of tasks in the table. The oldest that has ended makes room.
const MAX_TASKS: usize = 200;
/// The name under which the table is stored.
pub(super) const OWNER: &str = "tasks";
/// The result of a task that the end of the session interrupted.
const INTERRUPTED: &str = "the session was closed before the task had ended; delegate it again if it is still needed";

/// The delegated tasks of a session.
#[derive(Debug)]
pub(super) struct TaskTable {
    list: Mutex<Vec<TaskRecord>>,
    /// Ids of calls whose tasks were rejected before they were added, at most [`MAX_TASKS`].
    refused: Mutex<VecDeque<String>>,
    changed: watch::Sender<()>,
    stored: StateEntries,
    /// Set when the session ends. Later changes are not stored, so that unfinished tasks count as interrupted.
    closed: AtomicBool,
}

/// A task as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredTask {
    report: TaskReport,
    name: Option<String>,
}

#[derive(Debug)]
struct TaskRecord {
    /// The position among all tasks of the session, also those that have left the table.
    number: usize,
    report: TaskReport,
    name: Option<String>,
    /// Id of the call that delegated the task.
    call: Option<Arc<str>>,
    cancel: CancellationToken,
}

/// A reference to a task that another one waits for.
#[derive(Debug)]
pub(super) enum TaskDependency {
    /// A task that has ended. It may leave the table.
    Ended(TaskReport),
    /// A task in the table that has not ended.
    Id(String),
    /// A task that this call of the same message delegates; it may not be in the table yet.
    Call(String),
}

impl From<TaskReport> for TaskDependency {
    fn from(report: TaskReport) -> Self {
        if report.state.has_ended() { Self::Ended(report) } else { Self::Id(report.id) }
    }
}

impl TaskTable {
    /// Returns the table that earlier openings of the session stored. Tasks that had not ended are interrupted.
    pub(super) fn load(stored: StateEntries) -> Self {
        let record = |(key, value): (String, Vec<u8>)| {
            let number = key.parse().ok()?;
            let StoredTask { mut report, name } = serde_json::from_slice(&value)
                .inspect_err(|error| tracing::warn!(%error, "a stored task cannot be read"))
                .ok()?;
            if !report.state.has_ended() {
                (report.state, report.result) = (TaskState::Interrupted, INTERRUPTED.to_owned());
            }
            Some(TaskRecord { number, report, name, call: None, cancel: CancellationToken::new() })
        };
        let list = stored.take().into_iter().filter_map(record).collect();
        Self {
            list: Mutex::new(list),
            refused: Mutex::default(),
            changed: watch::channel(()).0,
            stored,
            closed: AtomicBool::new(false),
        }
    }

    /// Adds a task. Its id is its name if no other task has it, else the name with a number. Fails if too many tasks have
    /// not ended.
    pub(super) fn add(
        &self,
        name: Option<String>,
        mode: &ModeId,
        task: &str,
        call: Option<Arc<str>>,
        cancel: CancellationToken,
    ) -> Result<TaskReport, DelegateError> {
        let mut list = self.list();
        if list.iter().filter(|record| !record.report.state.has_ended()).count() >= MAX_UNFINISHED {
            return Err(DelegateError::TooManyTasks { limit: MAX_UNFINISHED });
        }
        let number = list.last().map_or(0, |record| record.number + 1);
        let free = |id: &String| list.iter().all(|record| record.report.id != *id);
        let id = match &name {
            Some(name) => std::iter::once(name.clone()).chain((2..).map(|n| format!("{name}-{n}"))).find(free),
            None => (number + 1..).map(|n| n.to_string()).find(free),
        };
        let report = TaskReport {
            id: id.unwrap_or_default(),
            mode: mode.to_string(),
            state: TaskState::Waiting,
            task: task.to_owned(),
            session: None,
            result: String::new(),
        };
        if list.len() >= MAX_TASKS
            && let Some(oldest) = list.iter().position(|record| record.report.state.has_ended())
        {
            self.stored.remove(&key(list.remove(oldest).number));
        }
        let record = TaskRecord { number, report: report.clone(), name, call, cancel };
        self.store(&record);
        list.push(record);
        drop(list);
        self.changed.send_replace(());
        Ok(report)
    }

    /// Changes the report of a task and returns it. `None` if there is no such task.
    pub(super) fn change(&self, id: &str, change: impl FnOnce(&mut TaskReport)) -> Option<TaskReport> {
        let report = {
            let mut list = self.list();
            let record = list.iter_mut().find(|record| record.report.id == id)?;
            change(&mut record.report);
            self.store(record);
            record.report.clone()
        };
        self.changed.send_replace(());
        Some(report)
    }

    fn store(&self, record: &TaskRecord) {
        if !self.closed.load(Ordering::Relaxed) {
            let task = StoredTask { report: record.report.clone(), name: record.name.clone() };
            self.stored.put_json(&key(record.number), &task);
        }
    }

    pub(super) fn all(&self) -> Vec<TaskReport> {
        self.list().iter().map(|record| record.report.clone()).collect()
    }

    /// Returns the latest task with this name, else the task with this id.
    pub(super) fn find(&self, wanted: &str) -> Option<TaskReport> {
        let list = self.list();
        let by_name = || list.iter().rev().find(|record| record.name.as_deref() == Some(wanted));
        let found = by_name().or_else(|| list.iter().find(|record| record.report.id == wanted));
        found.map(|record| record.report.clone())
    }

    /// Cancels a task.
    pub(super) fn cancel(&self, id: &str) {
        if let Some(record) = self.list().iter().find(|record| record.report.id == id) {
            record.cancel.cancel();
        }
    }

    /// Cancels all tasks because the session ends.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.list().iter().for_each(|record| record.cancel.cancel());
    }

    /// Records that the task of this call was rejected.
    pub(super) fn refuse(&self, call: Option<&str>) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.extend(call.map(str::to_owned));
        if refused.len() > MAX_TASKS {
            refused.pop_front();
        }
    }

    fn get(&self, wanted: &TaskDependency) -> Option<TaskReport> {
        let list = self.list();
        let mut latest_first = list.iter().rev();
        let found = match wanted {
            TaskDependency::Ended(report) => return Some(report.clone()),
            TaskDependency::Id(id) => latest_first.find(|record| record.report.id == *id),
            TaskDependency::Call(call) => latest_first.find(|record| record.call.as_deref() == Some(call.as_str())),
        };
        found.map(|record| record.report.clone())
    }

    /// Waits until the task has ended. Fails if it does not start within [`START_TIMEOUT`].
    pub(super) async fn wait_for_end(&self, wanted: &TaskDependency) -> Result<TaskReport, DelegateError> {
        let mut changed = self.changed.subscribe();
        let missing = tokio::time::sleep(START_TIMEOUT);
        tokio::pin!(missing);
        loop {
            let found = self.get(wanted);
            if let Some(report) = found.clone().filter(|report| report.state.has_ended()) {
                return Ok(report);
            }
            tokio::select! {
                biased;
                // `self` owns the sender, so this never fails.
                _ = changed.changed() => {}
                () = &mut missing, if found.is_none() => {
                    return Err(DelegateError::DependencyNotStarted);
                }
            }
        }
    }

    /// Returns the tasks of these calls as to-do steps. Tasks that are not in the table yet are pending.
    pub(super) fn plan(&self, together: &[AnnouncedTask]) -> Vec<TodoStep> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let step_of = |task: &AnnouncedTask| {
            let known = self.get(&TaskDependency::Call(task.call.clone()));
            known.as_ref().map_or_else(|| task.step(refused.contains(&task.call)), step)
        };
        together.iter().map(step_of).collect()
    }

    fn list(&self) -> MutexGuard<'_, Vec<TaskRecord>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the key of a stored task. Keys sort in the order of the tasks.
fn key(number: usize) -> String {
    format!("{number:06}")
}

fn step(report: &TaskReport) -> TodoStep {
    let status = match report.state {
        TaskState::Waiting => StepStatus::Pending,
        TaskState::Working => StepStatus::InProgress,
        TaskState::Done | TaskState::Failed | TaskState::Cancelled | TaskState::Interrupted => StepStatus::Completed,
    };
    // A to-do step has no status for failure, so its text shows it.
    let ended = match report.state {
        TaskState::Failed => " (failed)",
        TaskState::Cancelled => " (cancelled)",
        TaskState::Interrupted => " (interrupted)",
        TaskState::Waiting | TaskState::Working | TaskState::Done => "",
    };
    TodoStep { text: format!("{}: {}{ended}", report.mode, report.task), status, priority: None }
}

/// A task that the current message delegates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AnnouncedTask {
    pub(super) call: String,
    pub(super) name: Option<String>,
    after: Vec<String>,
    task: String,
    to: String,
}

impl AnnouncedTask {
    fn step(&self, refused: bool) -> TodoStep {
        let (status, note) = if refused { (StepStatus::Completed, " (failed)") } else { (StepStatus::Pending, "") };
        TodoStep { text: format!("{}: {}{note}", self.to, self.task), status, priority: None }
    }
}

/// Returns all tasks that this message delegates.
pub(super) fn tasks_in_message(message: Option<&Message>) -> Vec<AnnouncedTask> {
    let parts = message.map(|message| message.parts.as_slice()).unwrap_or_default();
    let tasks = parts.iter().filter_map(|part| match part {
        MessagePart::ToolUse(call) if call.name == DELEGATE => {
            let text = |key: &str| call.arguments[key].as_str().map(str::to_owned);
            let after = call.arguments["after"].as_array().map(Vec::as_slice).unwrap_or_default();
            let to: Vec<_> = [text("agent"), text("mode")].into_iter().flatten().collect();
            Some(AnnouncedTask {
                call: call.id.clone(),
                name: text("name"),
                after: after.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
                task: text("task").unwrap_or_default(),
                to: to.join("/"),
            })
        }
        MessagePart::ToolUse(_) | MessagePart::Content(_) | MessagePart::Thought(_) | MessagePart::ToolResult(_) => {
            None
        }
    });
    tasks.collect()
}

/// A task that depends on itself, directly or not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its tasks wait for each other, beginning with `{task}`")]
pub(super) struct CyclicTasksError {
    pub(super) task: String,
}

/// Fails if a task depends on itself, directly or not.
pub(super) fn check_acyclic(tasks: &[AnnouncedTask]) -> Result<(), CyclicTasksError> {
    let named = tasks.iter().filter_map(|task| Some((task.name.clone()?, task.after.clone())));
    sort_by_dependency(&named.collect()).map(drop)
}

/// Sorts the tasks so that each follows its dependencies. Fails if a task depends on itself.
pub(super) fn sort_by_dependency(tasks: &BTreeMap<String, Vec<String>>) -> Result<Vec<String>, CyclicTasksError> {
    let mut graph = DiGraph::<&str, ()>::new();
    let nodes: BTreeMap<&str, _> = tasks.keys().map(|name| (name.as_str(), graph.add_node(name))).collect();
    for (name, after) in tasks {
        for before in after.iter().filter_map(|before| nodes.get(before.as_str())) {
            graph.add_edge(*before, nodes[name.as_str()], ());
        }
    }
    let order = toposort(&graph, None).map_err(|cycle| CyclicTasksError { task: graph[cycle.node_id()].to_owned() })?;
    Ok(order.into_iter().map(|node| graph[node].to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::{Role, ToolUse};

    fn mode() -> ModeId {
        "coding/backend".parse().unwrap()
    }

    fn add(tasks: &TaskTable, name: Option<&str>) -> String {
        tasks.add(name.map(str::to_owned), &mode(), "do", name.map(Arc::from), CancellationToken::new()).unwrap().id
    }

    fn end(tasks: &TaskTable, id: &str) {
        tasks.change(id, |report| report.state = TaskState::Done);
    }

    #[test]
    fn a_task_over_the_limit_is_refused_until_one_ends() {
        let tasks = TaskTable::load(StateEntries::default());
        let ids: Vec<_> = (0..MAX_UNFINISHED).map(|_| add(&tasks, None)).collect();
        let further = || tasks.add(None, &mode(), "do", None, CancellationToken::new());
        assert!(matches!(further(), Err(DelegateError::TooManyTasks { limit: MAX_UNFINISHED })));
        end(&tasks, &ids[0]);
        assert_eq!(further().unwrap().id, "33");
    }

    #[test]
    fn the_oldest_ended_task_makes_room() {
        let tasks = TaskTable::load(StateEntries::default());
        let working = add(&tasks, None);
        for number in 2..=MAX_TASKS + 1 {
            assert_eq!(add(&tasks, None), number.to_string());
            end(&tasks, &number.to_string());
        }
        let left: Vec<_> = tasks.all().into_iter().map(|report| report.id).collect();
        assert_eq!(left.len(), MAX_TASKS);
        assert_eq!(left[..2], [working, "3".to_owned()], "a task that has not ended stays");
        (0..=MAX_TASKS).for_each(|call| tasks.refuse(Some(&call.to_string())));
        assert_eq!(tasks.refused.lock().unwrap().len(), MAX_TASKS);
    }

    #[test]
    fn task_ids_are_unique_and_a_name_means_the_latest() {
        let tasks = TaskTable::load(StateEntries::default());
        let ids: Vec<_> =
            [Some("api"), None, Some("api"), Some("2"), None].iter().map(|name| add(&tasks, *name)).collect();
        assert_eq!(ids, ["api", "2", "api-2", "2-2", "5"]);
        assert_eq!(tasks.find("api").unwrap().id, "api-2");
        assert_eq!(tasks.find("2").unwrap().id, "2-2", "what has the name comes before what has the number");
        assert!(tasks.find("6").is_none());
    }

    #[tokio::test]
    async fn a_dependency_that_has_ended_may_leave_the_table() {
        let tasks = TaskTable::load(StateEntries::default());
        let add_ended = || {
            let id = add(&tasks, None);
            end(&tasks, &id);
            tasks.find(&id).unwrap()
        };
        let dependency = TaskDependency::from(add_ended());
        (0..MAX_TASKS).for_each(|_| drop(add_ended()));
        assert!(tasks.find("1").is_none());
        assert_eq!(tasks.wait_for_end(&dependency).await.unwrap().id, "1");
    }

    #[tokio::test(start_paused = true)]
    async fn one_waits_for_the_end_and_not_for_ever_for_the_beginning() {
        let tasks = TaskTable::load(StateEntries::default());
        let api = TaskDependency::Id(add(&tasks, Some("api")));
        let (ended, _) = tokio::join!(tasks.wait_for_end(&api), async {
            tokio::task::yield_now().await;
            tasks.change("api", |report| report.state = TaskState::Working);
            tokio::task::yield_now().await;
            tasks.change("api", |report| report.state = TaskState::Failed)
        });
        assert_eq!(ended.unwrap().state, TaskState::Failed);
        let other = TaskDependency::Call("other".to_owned());
        assert!(matches!(tasks.wait_for_end(&other).await, Err(DelegateError::DependencyNotStarted)));
    }

    #[test]
    fn announced_tasks_are_sorted_or_form_a_cycle() {
        let call = |name: &str, after: &[&str]| {
            let arguments = json!({"task": "do", "name": name, "after": after});
            MessagePart::ToolUse(ToolUse::new(name.to_owned(), DELEGATE.to_owned(), arguments))
        };
        let message = |parts: Vec<MessagePart>| Message { role: Role::Assistant, parts };
        let said = message(vec![call("c", &["a", "b"]), call("b", &["a"]), call("a", &["gone"])]);
        assert_eq!(check_acyclic(&tasks_in_message(Some(&said))), Ok(()));
        let said = message(vec![call("a", &["b"]), call("b", &["a"])]);
        assert!(check_acyclic(&tasks_in_message(Some(&said))).is_err());
        assert!(tasks_in_message(None).is_empty());
        let order = BTreeMap::from([("c", vec!["a", "b"]), ("b", vec!["a"]), ("a", vec![])]);
        let order =
            order.into_iter().map(|(name, after)| (name.to_owned(), after.into_iter().map(str::to_owned).collect()));
        assert_eq!(sort_by_dependency(&order.collect()), Ok(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()]));
    }

    #[test]
    fn plan_shows_announced_tasks_and_failed_ones() {
        let tasks = TaskTable::load(StateEntries::default());
        let task = |name: &str| {
            let (text, name) = (|text: &str| text.to_owned(), name.to_owned());
            AnnouncedTask {
                call: name.clone(),
                name: Some(name),
                after: Vec::new(),
                task: text("do"),
                to: text("coding/qa"),
            }
        };
        let together = ["a", "b", "c"].map(task);
        add(&tasks, Some("before"));
        add(&tasks, Some("a"));
        add(&tasks, Some("b"));
        tasks.change("b", |report| report.state = TaskState::Failed);
        let steps: Vec<_> = tasks.plan(&together).into_iter().map(|step| step.text).collect();
        assert_eq!(steps, ["coding/backend: do", "coding/backend: do (failed)", "coding/qa: do"]);
    }
}
