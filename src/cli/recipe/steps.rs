//! Runs a recipe: a turn, validation of the answer, the checks, and a new attempt if they fail.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::super::output::{CommandError, display_line};
use super::super::progress::RefusedCall;
use super::super::runtime::bind_failure;
use crate::agents::{StopReason, TurnEnd};
use crate::broker::{Binding, BoundTool};
use crate::conversation::{Content, Usage};
use crate::graph::Plan;
use crate::ids::{ModeId, ServiceName};
use crate::manifest::{RecipeFile, Retry};
use crate::recipe::{RecipeError, ResponseSchema};
use crate::session::Session;
use crate::tool::{CallContext, ToolOutcome};

/// How often the model is asked to correct an answer that does not match the schema.
const MAX_CORRECTIONS: usize = 3;

/// The environment of a recipe: `skein run`, or a tool call of another recipe.
pub(in super::super) trait Stage: Send + Sync {
    /// Opens a new session.
    fn open(&self) -> BoxFuture<'_, Result<Arc<Session>, CommandError>>;

    /// Runs a turn to its end. The flag is false if the time limit ended it.
    fn turn<'a>(
        &'a self,
        session: &'a Arc<Session>,
        prompt: Vec<Content>,
    ) -> BoxFuture<'a, Result<(TurnEnd, bool), CommandError>>;

    /// Shows a notice to the user.
    fn notify(&self, text: &str);

    fn cancel(&self) -> CancellationToken;

    /// Waits until the time limit is reached. Without one, it waits for ever.
    fn wait_for_limit(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// The result of a recipe.
pub(in super::super) struct RecipeOutcome {
    pub(in super::super) session: Arc<Session>,
    pub(in super::super) end: TurnEnd,
    pub(in super::super) in_time: bool,
    /// The parsed answer, if the recipe has a `json_schema`.
    pub(in super::super) structured: Option<Value>,
    /// Why the recipe failed although the turn succeeded.
    pub(in super::super) failed: Option<CommandError>,
    /// The answer does not match the schema, or a check failed.
    pub(in super::super) is_rejected: bool,
    /// The command of the recipe that was refused.
    pub(in super::super) refused: Option<RefusedCall>,
}

/// Why a command of a recipe did not run, or not to its end.
enum CommandStop {
    Refused(RefusedCall),
    TimeLimit,
    Failed(CommandError),
}

impl RecipeOutcome {
    pub(in super::super) fn new(session: Arc<Session>, (end, in_time): (TurnEnd, bool)) -> Self {
        Self { session, end, in_time, structured: None, failed: None, is_rejected: false, refused: None }
    }

    /// Ends a recipe whose command did not run to its end. A refusal and the time limit leave the answer.
    fn stop(self, stop: CommandStop) -> Result<Self, CommandError> {
        match stop {
            CommandStop::Refused(call) => Ok(Self { refused: Some(call), ..self }),
            CommandStop::TimeLimit => Ok(Self { in_time: false, ..self }),
            CommandStop::Failed(error) => Err(error),
        }
    }

    /// Returns true if nothing failed, was refused or ran out of time.
    pub(in super::super) fn is_complete(&self) -> bool {
        self.in_time && self.failed.is_none() && self.refused.is_none()
    }

    /// Returns true if the model finished its answer.
    fn has_answer(&self) -> bool {
        self.in_time && matches!(self.end.ending, StopReason::EndTurn | StopReason::MaxTokens)
    }
}

/// The recipe that each session runs, with its values, keyed by session id. Entries of sessions that have ended are
/// removed when the next one is added.
#[derive(Default)]
pub(super) struct ActiveRecipes(Mutex<HashMap<String, (RecipeFile, Weak<Session>)>>);

impl ActiveRecipes {
    fn add(&self, file: &RecipeFile, session: &Arc<Session>) {
        let mut active = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        active.retain(|_, (_, session)| session.strong_count() > 0);
        active.insert(session.id().to_owned(), (file.clone(), Arc::downgrade(session)));
    }

    /// Returns the recipe that a session runs, and the session. `None` if it runs none.
    pub(super) fn find(&self, session: &str) -> Option<(RecipeFile, Weak<Session>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(session).cloned()
    }
}

/// A recipe with its parameters filled in.
#[derive(Debug)]
pub(super) struct FilledRecipe {
    pub(super) file: RecipeFile,
    form: Option<ResponseSchema>,
}

impl FilledRecipe {
    pub(super) fn new(file: RecipeFile) -> Result<Self, RecipeError> {
        let form = file.response.as_ref().map(|response| ResponseSchema::new(&response.json_schema)).transpose()?;
        Ok(Self { file, form })
    }

    pub(super) fn answers_late(&self) -> bool {
        self.form.is_some() || self.file.retry.is_some()
    }

    /// Returns the prompt for the model: instructions, task, and the format of the answer.
    pub(super) fn prompt(&self, typed: Vec<Content>) -> Vec<Content> {
        let file = &self.file;
        let told = |text: &Option<String>| text.as_deref().map(str::trim).unwrap_or_default().to_owned();
        let instructions = told(&file.instructions);
        let head = if instructions.is_empty() { String::new() } else { format!("Recipe: {}", file.title.trim()) };
        let mut parts = vec![head, instructions];
        parts.extend(file.context.iter().map(|text| text.trim().to_owned()));
        parts.push(told(&file.prompt));
        parts.retain(|part| !part.is_empty());
        let mut prompt = vec![Content::text(parts.join("\n\n"))];
        prompt.extend(typed);
        prompt.extend(self.form.iter().map(|form| Content::text(form.instructions())));
        prompt
    }

    /// Runs the recipe until its checks succeed or `max_retries` is reached. Each retry starts in a new session.
    pub(super) async fn run(
        &self,
        first: Arc<Session>,
        prompt: Vec<Content>,
        needed: &[ServiceName],
        active: &ActiveRecipes,
        stage: &dyn Stage,
    ) -> Result<RecipeOutcome, CommandError> {
        let mut session = first;
        let mut used = Usage::default();
        let mut again = 0;
        loop {
            let binding = session.binding().await.map_err(|error| bind_failure(&error))?;
            is_whole(&binding, needed)?;
            active.add(&self.file, &session);
            let mut done = self.attempt(session, prompt.clone(), stage).await?;
            used += done.end.usage;
            done.end.usage = used;
            // An earlier answer did not pass the checks, and there is no other.
            done.is_rejected |= again > 0 && !done.has_answer();
            let Some(retry) = self.file.retry.as_ref().filter(|_| done.has_answer() && done.failed.is_none()) else {
                return Ok(done);
            };
            let failed = match first_failed_check(retry, &done.session, &binding, stage).await {
                Ok(Some(failed)) => failed,
                Ok(None) => return Ok(done),
                Err(stop) => return done.stop(stop),
            };
            done.is_rejected = true;
            if again == retry.max_retries {
                let problem = format!("the recipe's check failed: {failed}");
                done.failed = Some(CommandError::work(problem, "see what it says; the session has the rest"));
                return Ok(done);
            }
            stage.notify(&format!("the check failed: {failed}"));
            if let Some(command) = &retry.on_failure {
                let seconds = retry.on_failure_timeout_seconds.or(retry.timeout_seconds);
                let outcome = match shell(command, seconds, &done.session, &binding, stage).await {
                    Ok(outcome) => outcome,
                    Err(stop) => return done.stop(stop),
                };
                if outcome.is_error {
                    stage.notify(&format!("`on_failure` failed: {}", last_line(&outcome)));
                }
            }
            again += 1;
            stage.notify(&format!("starting again, {again} of {}", retry.max_retries));
            session = stage.open().await?;
        }
    }

    /// Runs one turn, and asks for corrections until the answer matches the schema.
    async fn attempt(
        &self,
        session: Arc<Session>,
        prompt: Vec<Content>,
        stage: &dyn Stage,
    ) -> Result<RecipeOutcome, CommandError> {
        let ended = stage.turn(&session, prompt).await?;
        let mut done = RecipeOutcome::new(session, ended);
        let Some(form) = &self.form else { return Ok(done) };
        for again in 0.. {
            if !done.has_answer() {
                break;
            }
            // Use a blocking thread: an answer can be crafted so that validation takes long.
            let (form, answer) = (form.clone(), done.session.last_answer());
            let read = tokio::task::spawn_blocking(move || form.read(&answer)).await;
            let reason = match read.map_err(anyhow::Error::from).and_then(|read| Ok(read?)) {
                Ok(value) => {
                    done.structured = Some(value);
                    done.is_rejected = false;
                    break;
                }
                Err(reason) => reason,
            };
            done.is_rejected = true;
            if again == MAX_CORRECTIONS {
                let problem = format!("the answer does not fit the recipe's `json_schema`: {reason}");
                done.failed = Some(CommandError::work(problem, "try another model, or a simpler schema"));
                break;
            }
            stage.notify(&format!("the answer does not fit the schema: {reason}"));
            let correction = format!(
                "Your answer does not fit the schema: {reason}\n\nAnswer again, with JSON that fits and nothing else."
            );
            let used = done.end.usage;
            (done.end, done.in_time) = stage.turn(&done.session, vec![Content::text(correction)]).await?;
            done.end.usage += used;
        }
        Ok(done)
    }
}

/// Fails if a service of the recipe did not start: without it, the recipe would do something else.
fn is_whole(binding: &Binding, needed: &[ServiceName]) -> Result<(), CommandError> {
    match binding.missing_services().iter().find(|absent| needed.contains(&absent.service)) {
        Some(absent) => {
            let problem = format!("the recipe's {absent}");
            Err(CommandError::work(problem, "correct the extension, or what it needs on this machine"))
        }
        None => Ok(()),
    }
}

/// Fails if the recipe has checks and the mode has no shell to run them.
pub(super) fn shell_is_there(retries: bool, mode: &ModeId, plan: &Plan) -> Result<(), CommandError> {
    let admitted = plan.mode(mode).zip(plan.service("developer"));
    let admitted = admitted.is_some_and(|((_, scope), entry)| scope.admits(entry, "shell").is_ok());
    if !retries || admitted {
        return Ok(());
    }
    let problem = format!("the recipe has `retry` checks, and {mode} has no shell to run them in");
    Err(CommandError::usage(problem, "choose a mode that has one, as goose/assistant"))
}

/// Returns the first check that fails, and how it ended. `None` if all succeed.
async fn first_failed_check(
    retry: &Retry,
    session: &Session,
    binding: &Binding,
    stage: &dyn Stage,
) -> Result<Option<String>, CommandStop> {
    for check in &retry.checks {
        let outcome = shell(&check.command, retry.timeout_seconds, session, binding, stage).await?;
        if outcome.is_error {
            return Ok(Some(format!("`{}`: {}", display_line(&check.command), last_line(&outcome))));
        }
    }
    Ok(None)
}

/// Runs a command of the recipe as a normal tool call, so that rules and consent apply.
async fn shell(
    command: &str,
    seconds: Option<u64>,
    session: &Session,
    binding: &Binding,
    stage: &dyn Stage,
) -> Result<ToolOutcome, CommandStop> {
    let is_shell = |tool: &BoundTool| tool.service.as_str() == "developer" && tool.spec.name.as_str() == "shell";
    let name = binding.tools().iter().find(|(_, tool)| is_shell(tool)).map(|(name, _)| name.clone());
    let name = name.ok_or_else(|| {
        CommandStop::Failed(CommandError::work("there is no shell for the recipe's checks", "choose another mode"))
    })?;
    stage.notify(&format!("running {}", display_line(command)));
    let mut arguments = Map::from_iter([("command".to_owned(), json!(command))]);
    arguments.extend(seconds.map(|seconds| ("timeout".to_owned(), json!(seconds))));
    let cancel = stage.cancel().child_token();
    let context = CallContext::new(Arc::clone(session.context())).with_cancel(cancel.clone());
    let call = binding.call(&name, arguments.clone(), context);
    tokio::pin!(call);
    let outcome = tokio::select! {
        biased;
        () = stage.wait_for_limit() => {
            cancel.cancel();
            // The command ends with its processes.
            drop(call.await);
            return Err(CommandStop::TimeLimit);
        }
        outcome = &mut call => outcome,
    };
    let outcome = outcome.map_err(|_| CommandStop::Failed(CommandError::Interrupted))?;
    if outcome.refused {
        let call = RefusedCall { tool: name.clone(), arguments: Value::Object(arguments), by: None };
        return Err(CommandStop::Refused(call));
    }
    Ok(outcome)
}

/// Returns the last line of the output, which has the result of the command.
fn last_line(outcome: &ToolOutcome) -> String {
    display_line(outcome.all_text().lines().last().unwrap_or_default())
}
