//! The places that a session has at agents outside: one for each mode such an agent works in, and for each mode of ours
//! in which one is the model. An agent that does not know what was said meanwhile is told it with the next prompt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agents::{
    Before, Entering, Event, History, Notifier, Opening, Outside, Seat, Status, TurnEnd, Unreachable, told,
};
use crate::conversation::{Content, Message, Role};
use crate::ids::{AgentName, ModeId};
use crate::tool::head;

/// Bytes of what was said without it that an agent is told.
const MAX_TOLD: usize = 40_000;

/// The mode, and the agent that works in it.
pub(super) type Key = (ModeId, AgentName);

#[derive(Default)]
pub(super) struct Seats {
    taken: Mutex<HashMap<Key, Taken>>,
    /// Held while one is taken, so that none is taken twice.
    taking: tokio::sync::Mutex<()>,
}

/// What was chosen at an agent: option and value.
type Chosen = Vec<(String, Value)>;

#[derive(Clone)]
struct Taken {
    /// By the user, to be chosen again if the agent is started again.
    chosen: Chosen,
    /// What the agent calls the session.
    id: String,
    seat: Option<Arc<dyn Seat>>,
    /// It knew the session once, and does not any more; nobody was told yet.
    forgot: bool,
    /// It does not know anything yet, not even what the mode says about itself.
    fresh: bool,
    /// How many messages of the session it knows.
    knows: usize,
}

impl Seats {
    /// What the record of a session tells about them.
    pub(super) fn recorded(&self, session: &str, events: &[Event], history: &History) {
        let mut taken = self.taken();
        for event in events {
            // What was taken back is still known to the agents, so they begin anew.
            if matches!(event, Event::Undone { .. }) {
                taken.clear();
            }
            if let Event::Seated { mode, agent, id, of } = event
                && of == session
                && let (Ok(mode), agent) = (mode.parse::<ModeId>(), AgentName::new(agent))
            {
                let knows = history.messages().len();
                taken.insert(
                    (mode, agent),
                    Taken { chosen: Chosen::new(), id: id.clone(), seat: None, forgot: false, fresh: false, knows },
                );
            }
        }
    }

    pub(super) fn known(&self, key: &Key) -> Option<String> {
        self.taken().get(key).map(|taken| taken.id.clone())
    }

    /// The one in use, if its agent still runs.
    pub(super) fn current(&self, key: &Key) -> Option<Arc<dyn Seat>> {
        self.taken().get(key)?.seat.clone().filter(|seat| seat.is_alive())
    }

    /// The one in use, or a new one; with what is to be recorded about it.
    pub(super) async fn take(
        &self,
        key: &Key,
        outside: &dyn Outside,
        entering: Entering,
    ) -> Result<(Arc<dyn Seat>, Option<Event>), Unreachable> {
        let _taking = self.taking.lock().await;
        if let Some(seat) = self.current(key) {
            seat.rebind(entering.binding, entering.asker);
            return Ok((seat, None));
        }
        let of = entering.session.id.clone();
        let seat = outside.enter(entering).await?;
        let chosen = self.taken().get(key).map(|taken| taken.chosen.clone()).unwrap_or_default();
        for (option, value) in &chosen {
            if let Err(problem) = seat.choose(option.clone(), value.clone()).await {
                tracing::warn!(problem, option, "what was chosen at an agent outside is not what it has now");
            }
        }
        let id = seat.id();
        let mut all = self.taken();
        let knows = all.get(key).filter(|_| seat.remembers()).map_or(0, |taken| taken.knows);
        let fresh = !seat.remembers();
        let forgot = fresh && all.contains_key(key);
        all.insert(key.clone(), Taken { chosen, id: id.clone(), seat: Some(Arc::clone(&seat)), forgot, fresh, knows });
        let event = Event::Seated { mode: key.0.to_string(), agent: key.1.to_string(), id, of };
        Ok((seat, Some(event)))
    }

    /// Chooses at the agent, for as long as the session lasts.
    pub(super) async fn choose(&self, key: &Key, option: &str, value: Value) -> Result<(), String> {
        let seat = self.current(key).ok_or("the agent does not run; it is started with the next prompt")?;
        seat.choose(option.to_owned(), value.clone()).await?;
        if let Some(taken) = self.taken().get_mut(key) {
            taken.chosen.retain(|(known, _)| known != option);
            taken.chosen.push((option.to_owned(), value));
        }
        Ok(())
    }

    /// What was said is no longer what the agents know: each begins anew.
    pub(super) fn forget(&self) {
        self.taken().clear();
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<Key, Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn that an agent outside works on.
pub(super) struct Guest {
    pub(super) seats: Arc<Seats>,
    pub(super) key: Key,
    pub(super) seat: Arc<dyn Seat>,
    pub(super) notifier: Arc<dyn Notifier>,
    /// What the mode says about itself, for one who has not heard it.
    pub(super) system: Option<Arc<str>>,
}

impl Guest {
    pub(super) async fn turn(self, history: &mut History, opening: Opening, cancel: &CancellationToken) -> TurnEnd {
        let beside = self.beside(history);
        let missed = !beside.is_empty();
        let prompt = Arc::new(Message::user(opening.prompt.clone()));
        history.push(Arc::clone(&prompt));
        self.notifier.log(Event::Message { message: prompt });
        for event in opening.decided {
            told(self.notifier.as_ref(), event);
        }
        if self.seats.taken().get_mut(&self.key).is_some_and(|taken| std::mem::take(&mut taken.forgot)) {
            let who = &self.key.1;
            let text =
                format!("`{who}` was started again and does not remember this session; it is told what was said");
            self.notifier.status(Status::Notice(text));
        }
        let heard = Arc::new(Heard { inner: Arc::clone(&self.notifier), said: Mutex::default() });
        let front = Arc::clone(&heard) as Arc<dyn Notifier>;
        // A command must come first, and is for the agent itself.
        let command = self.is_command(&opening.prompt);
        let prompt = if command {
            opening.prompt.into_iter().filter(|content| !matches!(content, Content::Aside(_))).collect()
        } else {
            beside.into_iter().chain(opening.prompt).collect()
        };
        let end = self.seat.turn(prompt, front, cancel).await;
        let said = std::mem::take(&mut *heard.said.lock().unwrap_or_else(PoisonError::into_inner));
        said.into_iter().for_each(|message| history.push(message));
        // After a command the agent still has to hear what it has missed.
        if let Some(taken) = self.seats.taken().get_mut(&self.key).filter(|_| !(command && missed)) {
            (taken.fresh, taken.knows) = (false, history.messages().len());
        }
        self.notifier.log(Event::TurnEnded { end: end.clone() });
        end
    }

    /// Whether the prompt is one of the agent's own commands.
    fn is_command(&self, prompt: &[Content]) -> bool {
        let Some(line) = prompt.iter().find_map(Content::as_text).and_then(|text| text.trim_start().strip_prefix('/'))
        else {
            return false;
        };
        let name = line.split_whitespace().next().unwrap_or_default();
        self.seat.commands().iter().any(|command| command["name"] == name)
    }

    /// What the agent should know before it hears the prompt.
    fn beside(&self, history: &History) -> Vec<Content> {
        let (fresh, knows) = self.seats.taken().get(&self.key).map_or((true, 0), |taken| (taken.fresh, taken.knows));
        let system = self.system.iter().filter(|_| fresh).map(|system| Content::Aside(system.to_string()));
        let since = history.messages().get(knows..).unwrap_or_default();
        system.chain(said_before(since).map(Content::Aside)).collect()
    }
}

/// What was said without the agent, the last of it if it is long.
fn said_before(messages: &[Arc<Message>]) -> Option<String> {
    let line = |message: &Arc<Message>| {
        let text = message.text();
        let who = match message.role {
            Role::User if message.is_prompt() => "The user",
            Role::User => return None,
            Role::Assistant => "The answer",
        };
        (!text.trim().is_empty()).then(|| format!("{who}: {}", text.trim()))
    };
    let mut lines: Vec<_> = messages.iter().filter_map(line).collect();
    let (mut size, all) = (0, lines.len());
    let kept = lines.iter().rev().take_while(|line| {
        size += line.len();
        size <= MAX_TOLD
    });
    let kept = kept.count().max(1).min(all);
    lines.drain(..all - kept);
    let said = head(&lines.join("\n\n"), MAX_TOLD).to_owned();
    (!said.is_empty()).then(|| format!("What was said in this session so far, without you:\n\n{said}"))
}

/// Keeps what was said for the history on its way.
struct Heard {
    inner: Arc<dyn Notifier>,
    said: Mutex<Vec<Arc<Message>>>,
}

impl Notifier for Heard {
    fn log(&self, event: Event) {
        for event in event.in_our_words() {
            if let Event::Message { message } = event {
                self.said.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(message));
            }
        }
        self.inner.log(event);
    }

    fn status(&self, status: Status) {
        self.inner.status(status);
    }

    fn backlog(&self) -> usize {
        self.inner.backlog()
    }
}

/// What a session has that opens it again.
pub(super) fn before(id: Option<String>, must: bool) -> Before {
    match id {
        None => Before::Never,
        Some(id) if must => Before::Must(id),
        Some(id) => Before::IfItCan(id),
    }
}
