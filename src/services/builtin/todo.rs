//! Keeps one to-do list per session. The model writes it, and the user sees it as the plan.
//!
//! Invariant: each session has its own list, which is stored with the session. Sessions that share an instance cannot
//! mix lists.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::tool::{Activity, SessionContext, SessionStates, StateEntries, StepStatus, TodoStep};

use super::answer::{self, ToolRefusal, ToolReply};
use super::{call_context, schema};

const MAX_ITEMS: usize = 100;
/// Maximum bytes of one item.
const MAX_TEXT: usize = 4_000;
/// Maximum bytes of each item in the answer to a change; `list_todos` returns more.
const REMINDER: usize = 120;
/// Maximum bytes that `list_todos` shows; the structured content is complete.
const MAX_SHOWN: usize = 50_000;
/// The name and the key under which the list of a session is stored.
const OWNER: &str = "todo";
const LIST: &str = "list";

/// The to-do list of a session. It is stored after every change.
#[derive(Debug, Default)]
pub struct Todos {
    list: Mutex<List>,
    stored: StateEntries,
}

/// The stored form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    items: Vec<Todo>,
    /// Ids count up over the whole session, so that an id is never reused for another item.
    last_id: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Todo {
    pub id: u64,
    pub text: String,
    pub status: TodoStatus,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum TodoStatus {
    #[default]
    Pending,
    InProgress,
    Completed,
}

/// The stored value is not a valid to-do list.
#[derive(Debug, thiserror::Error)]
#[error("the stored todo list cannot be used: {0}")]
pub struct RestoreError(String);

impl Todos {
    /// Returns the stored list. An invalid one is logged and replaced by an empty list.
    fn load(stored: StateEntries) -> Self {
        let list = stored.take().remove(LIST);
        let todos = Self { list: Mutex::default(), stored };
        if let Some(list) = list {
            let snapshot = serde_json::from_slice(&list).map_err(|error| RestoreError(error.to_string()));
            if let Err(error) = snapshot.and_then(|snapshot| todos.restore(&snapshot)) {
                tracing::warn!(%error, "the session starts without its todo list");
            }
        }
        todos
    }

    pub fn items(&self) -> Vec<Todo> {
        self.list().items.clone()
    }

    /// Returns the whole list as JSON.
    pub fn snapshot(&self) -> Value {
        serde_json::to_value(&*self.list()).unwrap_or_default()
    }

    /// Replaces the list with a snapshot from [`Todos::snapshot`]. Fails and keeps the list if the snapshot is
    /// invalid.
    pub fn restore(&self, snapshot: &Value) -> Result<(), RestoreError> {
        let list = List::deserialize(snapshot).map_err(|error| RestoreError(error.to_string()))?;
        list.check().map_err(|refusal| RestoreError(refusal.0))?;
        *self.list() = list;
        Ok(())
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the change to a copy, which replaces the list only if it is valid.
    fn change(&self, change: impl FnOnce(&mut List) -> Result<(), ToolRefusal>) -> Result<Vec<Todo>, ToolRefusal> {
        let mut list = self.list();
        let mut changed = list.clone();
        change(&mut changed)?;
        changed.check()?;
        *list = changed;
        self.stored.put_json(LIST, &*list);
        Ok(list.items.clone())
    }
}

impl List {
    /// Replaces the items. An item whose text is already in the list keeps its id.
    fn set(&mut self, items: Vec<NewTodo>) {
        let mut earlier = std::mem::take(&mut self.items);
        for NewTodo { text, status } in items {
            let text = text.trim().to_owned();
            let known = earlier.iter().position(|todo| todo.text == text).map(|at| earlier.remove(at).id);
            let id = known.unwrap_or_else(|| {
                self.last_id += 1;
                self.last_id
            });
            self.items.push(Todo { id, text, status: status.unwrap_or_default() });
        }
    }

    fn update(&mut self, request: UpdateTodo) -> Result<(), ToolRefusal> {
        let UpdateTodo { id, text, status } = request;
        if text.is_none() && status.is_none() {
            return Err(ToolRefusal::new("say what to change: `text` or `status`"));
        }
        let known = self.items.iter().map(|todo| todo.id.to_string()).collect::<Vec<_>>().join(", ");
        let todo = self.items.iter_mut().find(|todo| todo.id == id).ok_or_else(|| {
            if known.is_empty() {
                ToolRefusal::new("the list is empty; make one with `set_todos`")
            } else {
                ToolRefusal::new(format!("there is no todo {id}; there are {known}"))
            }
        })?;
        todo.text = text.map_or_else(|| todo.text.clone(), |text| text.trim().to_owned());
        todo.status = status.unwrap_or(todo.status);
        Ok(())
    }

    fn check(&self) -> Result<(), ToolRefusal> {
        if self.items.len() > MAX_ITEMS {
            let count = self.items.len();
            return Err(ToolRefusal::new(format!("{count} todos are too many, {MAX_ITEMS} are the limit; join some")));
        }
        for (index, todo) in self.items.iter().enumerate() {
            if todo.text.is_empty() || todo.text.len() > MAX_TEXT {
                let place = index + 1;
                return Err(ToolRefusal::new(format!(
                    "the text of todo number {place} must have 1 to {MAX_TEXT} bytes"
                )));
            }
            if todo.id > self.last_id || self.items[..index].iter().any(|other| other.id == todo.id) {
                return Err(ToolRefusal::new(format!("the id {} is not unique", todo.id)));
            }
        }
        Ok(())
    }
}

/// The `todo` service. Clones share the lists of the sessions.
#[derive(Clone)]
pub struct TodoService {
    tool_router: Arc<ToolRouter<Self>>,
    lists: Arc<SessionStates<Todos>>,
}

impl std::fmt::Debug for TodoService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TodoService")
    }
}

impl Default for TodoService {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct NewTodo {
    /// What to do
    #[schemars(length(min = 1, max = 4000))]
    text: String,
    /// Default: pending
    status: Option<TodoStatus>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SetTodos {
    /// All items
    #[schemars(length(max = 100))]
    items: Vec<NewTodo>,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UpdateTodo {
    /// Which item
    #[schemars(range(min = 1))]
    id: u64,
    /// New text
    #[schemars(length(max = 4000))]
    text: Option<String>,
    /// New status
    status: Option<TodoStatus>,
}

#[tool_router]
impl TodoService {
    pub fn new() -> Self {
        Self { tool_router: Arc::new(schema::slim(Self::tool_router())), lists: Arc::default() }
    }

    #[tool(
        description = "Replace the whole list",
        annotations(read_only_hint = false, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn set_todos(
        &self,
        Parameters(request): Parameters<SetTodos>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        self.change(&context, |list| {
            list.set(request.items);
            Ok(())
        })
    }

    #[tool(
        description = "Change one item",
        annotations(read_only_hint = false, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn update_todo(
        &self,
        Parameters(request): Parameters<UpdateTodo>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        self.change(&context, |list| list.update(request))
    }

    #[tool(
        description = "Show the list",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn list_todos(&self, context: RequestContext<RoleServer>) -> ToolReply {
        let items = self.todos(&context)?.items();
        Ok(list_result(&items, MAX_SHOWN / items.len().max(1)))
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for TodoService {
    fn get_info(&self) -> rmcp::model::ServerConfig {
        let capabilities = rmcp::model::ServerCapabilities::builder().enable_tools().build();
        rmcp::model::ServerConfig::new(capabilities)
            .with_server_info(rmcp::model::Implementation::new("todo", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }
}

const INSTRUCTIONS: &str = "Keep a todo list for work of three steps or more. Have one item in_progress, and mark each \
                            completed as soon as it is done.";

impl TodoService {
    /// Returns the list of a session.
    pub fn list_of(&self, session: &SessionContext) -> Arc<Todos> {
        self.lists.of_or(session, || Todos::load(session.state_entries(OWNER)))
    }

    fn todos(&self, context: &RequestContext<RoleServer>) -> Result<Arc<Todos>, ToolRefusal> {
        Ok(self.list_of(&call_context(context)?.session))
    }

    /// Changes the list and reports it as the plan.
    fn change(
        &self,
        context: &RequestContext<RoleServer>,
        change: impl FnOnce(&mut List) -> Result<(), ToolRefusal>,
    ) -> ToolReply {
        let items = self.todos(context)?.change(change)?;
        let step = |todo: &Todo| TodoStep { text: todo.text.clone(), status: todo.status.into(), priority: None };
        call_context(context)?.report(Activity::TodoList(items.iter().map(step).collect()));
        Ok(list_result(&items, REMINDER))
    }
}

impl From<TodoStatus> for StepStatus {
    fn from(status: TodoStatus) -> Self {
        match status {
            TodoStatus::Pending => StepStatus::Pending,
            TodoStatus::InProgress => StepStatus::InProgress,
            TodoStatus::Completed => StepStatus::Completed,
        }
    }
}

fn list_result(items: &[Todo], width: usize) -> rmcp::model::CallToolResult {
    answer::with_data(text(items, width), json!({"items": items}))
}

/// Formats the list: `2 todos, 1 completed`, then one line per item.
fn text(items: &[Todo], width: usize) -> String {
    if items.is_empty() {
        return "the todo list is empty".to_owned();
    }
    let completed = items.iter().filter(|todo| todo.status == TodoStatus::Completed).count();
    let mut text = format!("{}, {completed} completed", answer::count(items.len(), "todo"));
    for todo in items {
        let mark = match todo.status {
            TodoStatus::Pending => ' ',
            TodoStatus::InProgress => '>',
            TodoStatus::Completed => 'x',
        };
        let kept = answer::truncate(&todo.text, width);
        let cut = if kept.len() < todo.text.len() { "…" } else { "" };
        text.push_str(&format!("\n{}. [{mark}] {}{cut}", todo.id, kept.replace('\n', " ")));
    }
    text
}

#[cfg(test)]
#[path = "todo_tests.rs"]
mod tests;
