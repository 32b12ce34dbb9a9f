//! The commands that run in a sandbox: their consents, their refusals, and the time that they wait for an answer.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::gate::{CommandId, HostAnswer, HostConsent, HostGate, HostQuestion, HostRecord, HostRefusal, RefusalReason};
use crate::network::RemoteHost;
use crate::task::TaskScope;

/// Maximum number of open questions; a command could otherwise flood the user.
const MAX_QUESTIONS: usize = 8;
/// Maximum number of refusals that a command reports.
const MAX_REFUSALS: usize = 20;
/// Maximum time by which open questions extend the timeout of a command.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// ProxyCommands, consents and open questions of one proxy.
pub(super) struct ProxyCommands {
    state: Mutex<CommandsState>,
    gate: Arc<dyn HostGate>,
    tasks: TaskScope,
    /// How long a connection waits for an answer.
    patience: Duration,
    /// For the tasks that ask.
    this: Weak<Self>,
}

#[derive(Default)]
struct CommandsState {
    next: u64,
    running: HashMap<CommandId, RunningCommand>,
    /// Answers to background processes, whose command has ended. Kept until the next command begins.
    background: Answers,
    session: HashSet<String>,
    /// By host.
    open: HashMap<String, OpenQuestion>,
}

struct RunningCommand {
    line: String,
    answers: Answers,
    refusals: Vec<HostRefusal>,
    /// The number of connections that wait; the other end is in [`CommandNetwork`].
    waiting: watch::Sender<usize>,
}

/// The answers of the user to one command. Hosts are keys as of [`key`].
#[derive(Default)]
struct Answers {
    granted: HashSet<String>,
    declined: HashMap<String, RefusalReason>,
}

struct OpenQuestion {
    askers: Vec<Option<CommandId>>,
    answer: watch::Receiver<Option<HostAnswer>>,
    cancel: CancellationToken,
}

/// Ports 80 and 443 of a host are one question.
fn key(host: &RemoteHost) -> String {
    host.to_string()
}

impl ProxyCommands {
    pub(super) fn new(gate: Arc<dyn HostGate>, tasks: TaskScope, patience: Duration) -> Arc<Self> {
        Arc::new_cyclic(|this| Self { state: Mutex::default(), gate, tasks, patience, this: Weak::clone(this) })
    }

    fn state(&self) -> MutexGuard<'_, CommandsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn gate(&self) -> &dyn HostGate {
        self.gate.as_ref()
    }

    /// Registers a command. `consented` are the hosts in a command line that the user agreed to.
    pub(super) fn begin(self: &Arc<Self>, line: String, consented: &[RemoteHost]) -> CommandNetwork {
        let mut state = self.state();
        state.next += 1;
        let id = CommandId(state.next);
        state.background = Answers::default();
        let (waiting, receiver) = watch::channel(0);
        let answers = Answers { granted: consented.iter().map(key).collect(), declined: HashMap::new() };
        state.running.insert(id, RunningCommand { line, answers, refusals: Vec::new(), waiting });
        CommandNetwork { id, waiting: receiver, commands: Arc::clone(self) }
    }

    /// Ends a command. Cancels the questions that no other command needs.
    fn end(&self, id: CommandId) {
        let mut state = self.state();
        state.running.remove(&id);
        state.open.retain(|_, question| {
            question.askers.retain(|asker| *asker != Some(id));
            if question.askers.is_empty() {
                question.cancel.cancel();
            }
            !question.askers.is_empty()
        });
    }

    /// Returns the running command that a user name identifies. Without a known name, the only running command.
    pub(super) fn find(&self, user: Option<&str>) -> Option<CommandId> {
        let state = self.state();
        let named = user.and_then(CommandId::parse).filter(|id| state.running.contains_key(id));
        named.or_else(|| state.running.keys().next().copied().filter(|_| state.running.len() == 1))
    }

    /// Reports a decision to the gate, and a refusal also to the command. A refusal without a known command goes to all
    /// commands that run. `consented`: [`Self::consent`] allowed the connection.
    pub(super) fn record(
        &self,
        host: &RemoteHost,
        command: Option<CommandId>,
        refusal: Option<&RefusalReason>,
        consented: bool,
    ) {
        let running = {
            let mut state = self.state();
            if let Some(reason) = refusal {
                let refusal = HostRefusal { host: host.clone(), reason: reason.clone() };
                for (id, running) in &mut state.running {
                    let concerned = command.is_none_or(|command| command == *id);
                    if concerned && running.refusals.len() < MAX_REFUSALS && !running.refusals.contains(&refusal) {
                        running.refusals.push(refusal.clone());
                    }
                }
            }
            command.and_then(|id| Some((id, state.running.get(&id)?.line.clone())))
        };
        let (id, command) = running.unzip();
        self.gate.record(&HostRecord { host: host.clone(), id, command, refusal: refusal.cloned(), consented });
    }

    /// Returns when a rule, the approval level or the user, now or before, allows the host. Fails if one of them refuses,
    /// or the user does not answer in time; the question stays open then, and a later attempt gets the answer.
    pub(super) async fn consent(
        &self,
        host: &RemoteHost,
        command: Option<CommandId>,
    ) -> Result<HostConsent, RefusalReason> {
        // Before the earlier answers: a level that was tightened since then counts.
        if let Some(answer) = self.gate.settle(host) {
            let is_consented = matches!(self.state().earlier_answer(&key(host), command), Some(Ok(())));
            return answer.consent().map(|by| if is_consented { HostConsent::User } else { by });
        }
        let mut answer = {
            let mut state = self.state();
            if let Some(known) = state.earlier_answer(&key(host), command) {
                return known.map(|()| HostConsent::User);
            }
            self.join_question(&mut state, host, command)?
        };
        let _pause = self.pause(command);
        let answered = tokio::time::timeout(self.patience, answer.wait_for(Option::is_some)).await;
        match answered.ok().and_then(Result::ok).and_then(|answer| answer.clone()) {
            Some(answer) => answer.consent(),
            None => Err(RefusalReason::Unanswered),
        }
    }

    /// Stops the time limit of a command, or of all if `command` is `None`, until the result is dropped.
    pub(super) fn pause(&self, command: Option<CommandId>) -> CommandPause {
        let state = self.state();
        let concerned = |id: &CommandId| command.is_none_or(|command| command == *id);
        let running = state.running.iter().filter(|(id, _)| concerned(id));
        let senders: Vec<_> = running.map(|(_, running)| running.waiting.clone()).collect();
        for sender in &senders {
            sender.send_modify(|count| *count += 1);
        }
        CommandPause { senders }
    }

    /// Joins the open question about a host, or opens one.
    fn join_question(
        &self,
        state: &mut CommandsState,
        host: &RemoteHost,
        command: Option<CommandId>,
    ) -> Result<watch::Receiver<Option<HostAnswer>>, RefusalReason> {
        if let Some(question) = state.open.get_mut(&key(host)) {
            if !question.askers.contains(&command) {
                question.askers.push(command);
            }
            return Ok(question.answer.clone());
        }
        if state.open.len() >= MAX_QUESTIONS {
            return Err(RefusalReason::TooManyQuestions);
        }
        let (sender, answer) = watch::channel(None);
        let cancel = self.tasks.cancelled().child_token();
        let open = OpenQuestion { askers: vec![command], answer: answer.clone(), cancel: cancel.clone() };
        state.open.insert(key(host), open);
        let line = command.and_then(|id| state.running.get(&id)).map(|running| running.line.clone());
        let question = HostQuestion { host: host.clone(), command: line };
        let (gate, this, host) = (Arc::clone(&self.gate), Weak::clone(&self.this), host.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                answer = gate.ask(question) => {
                    if let Some(commands) = this.upgrade() {
                        commands.keep_answer(&host, &answer);
                    }
                    sender.send_replace(Some(answer));
                }
            }
        });
        Ok(answer)
    }

    fn keep_answer(&self, host: &RemoteHost, answer: &HostAnswer) {
        let mut state = self.state();
        let key = key(host);
        let Some(question) = state.open.remove(&key) else { return };
        if *answer == HostAnswer::Session {
            state.session.insert(key.clone());
        }
        for asker in question.askers {
            let answers = match asker {
                Some(id) => state.running.get_mut(&id).map(|running| &mut running.answers),
                None => Some(&mut state.background),
            };
            let Some(answers) = answers else { continue };
            match answer {
                HostAnswer::Once => {
                    answers.granted.insert(key.clone());
                }
                HostAnswer::Declined(reason) => {
                    answers.declined.insert(key.clone(), RefusalReason::Declined(reason.clone()));
                }
                // The process of a service outlives a level, and the time in which no user can be asked.
                HostAnswer::Session | HostAnswer::Permitted | HostAnswer::Forbidden(_) | HostAnswer::Unavailable(_) => {
                }
            }
        }
    }
}

impl CommandsState {
    /// Returns an earlier answer about a host. A process without a known command shares the consents of all that run.
    fn earlier_answer(&self, host: &str, command: Option<CommandId>) -> Option<Result<(), RefusalReason>> {
        let own: Vec<&Answers> = match command.and_then(|id| self.running.get(&id)) {
            Some(running) => vec![&running.answers],
            None => self.running.values().map(|running| &running.answers).chain([&self.background]).collect(),
        };
        if self.session.contains(host) || own.iter().any(|answers| answers.granted.contains(host)) {
            return Some(Ok(()));
        }
        // An answer of one command does not decline for the others.
        let declined = match own.as_slice() {
            [only] => only.declined.get(host),
            _ => self.background.declined.get(host),
        };
        declined.map(|reason| Err(reason.clone()))
    }
}

/// The time limits of commands stop while this exists.
#[derive(Debug)]
pub struct CommandPause {
    senders: Vec<watch::Sender<usize>>,
}

impl Drop for CommandPause {
    fn drop(&mut self) {
        for sender in &self.senders {
            sender.send_modify(|count| *count -= 1);
        }
    }
}

/// Runs `work` with a time limit that stops while `waiting` is not zero, for at most [`MAX_PAUSE`] in total. Returns
/// `None` if the limit is over.
pub(in crate::sandbox) async fn limit_work<T>(
    limit: Duration,
    mut waiting: watch::Receiver<usize>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let mut left = limit;
    let mut pause_left = MAX_PAUSE;
    loop {
        let paused = *waiting.borrow_and_update() > 0;
        let start = Instant::now();
        let budget = if paused { pause_left.saturating_add(left) } else { left };
        tokio::select! {
            biased;
            result = &mut work => return Some(result),
            () = tokio::time::sleep(budget) => return None,
            changed = waiting.changed() => {
                let spent = start.elapsed();
                if paused {
                    left = left.saturating_sub(spent.saturating_sub(pause_left));
                    pause_left = pause_left.saturating_sub(spent);
                } else {
                    left = left.saturating_sub(spent);
                }
                if changed.is_err() {
                    return tokio::time::timeout(left, work).await.ok();
                }
            }
        }
    }
}

/// The network of one command. Dropping it ends the consents that were given until the command ends.
pub struct CommandNetwork {
    id: CommandId,
    waiting: watch::Receiver<usize>,
    commands: Arc<ProxyCommands>,
}

impl std::fmt::Debug for CommandNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandNetwork").field("id", &self.id).finish_non_exhaustive()
    }
}

impl CommandNetwork {
    pub fn id(&self) -> CommandId {
        self.id
    }

    /// Returns the refusals so far, for the result of the command.
    pub fn refusals(&self) -> Vec<HostRefusal> {
        self.commands.state().running.get(&self.id).map(|running| running.refusals.clone()).unwrap_or_default()
    }

    /// Runs `work` with a time limit that stops while the command waits for an answer of the user, for at most five
    /// minutes in total. Returns `None` if the limit is over.
    pub async fn limit<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        limit_work(limit, self.waiting.clone(), work).await
    }
}

impl Drop for CommandNetwork {
    fn drop(&mut self) {
        self.commands.end(self.id);
    }
}

#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
