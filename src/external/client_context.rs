//! Holds what the requests of an external agent need of its session: the binding, the user and the terminals.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::call_ids::CallIds;
use super::local::LocalEditor;
use super::lock;
use super::updates::UpdateRelay;
use crate::adapter::export::BindingSource;
use crate::agents::{ExternalAgentSpec, Notifier};
use crate::broker::Binding;
use crate::tool::SessionContext;
use crate::tool::ask::Asker;
use crate::tool::editor::Terminal;

/// Maximum number of pages whose completion the agent may report.
const MAX_PAGES: usize = 100;
/// Maximum bytes of the id of a page.
pub(super) const MAX_PAGE_ID: usize = 1 << 10;

/// The binding that decides the agent's requests, the asker for its user and the context of its session.
#[derive(Clone)]
pub(super) struct SessionBinding {
    pub(super) binding: Arc<Binding>,
    pub(super) asker: Arc<dyn Asker>,
    pub(super) session: Arc<SessionContext>,
}

/// The context of an agent's requests in one external session.
pub(super) struct ClientContext {
    pub(super) agent: ExternalAgentSpec,
    /// Files and terminals of this machine, for a session without an editor.
    pub(super) local: LocalEditor,
    /// `None` if the agent is used as a model.
    binding: Option<Arc<Mutex<SessionBinding>>>,
    turn: Arc<Mutex<CancellationToken>>,
    pub(super) relay: Mutex<UpdateRelay>,
    pub(super) calls: CallIds,
    pub(super) terminals: Mutex<HashMap<String, Arc<dyn Terminal>>>,
    /// Ids of the pages that the agent has asked the user to open, the oldest first.
    pages: Mutex<VecDeque<String>>,
}

impl ClientContext {
    pub(super) fn new(agent: ExternalAgentSpec, local: LocalEditor, binding: Option<SessionBinding>) -> Self {
        // The token starts cancelled: before its first prompt, an agent's requests are not served.
        let inactive = CancellationToken::new();
        inactive.cancel();
        Self {
            agent,
            local,
            binding: binding.map(|binding| Arc::new(Mutex::new(binding))),
            turn: Arc::new(Mutex::new(inactive)),
            relay: Mutex::default(),
            calls: CallIds::new(),
            terminals: Mutex::default(),
            pages: Mutex::default(),
        }
    }

    pub(super) fn binding(&self) -> Option<SessionBinding> {
        self.binding.as_ref().map(|binding| lock(binding).clone())
    }

    /// Replaces the binding and the asker. Does nothing for an agent that is used as a model.
    pub(super) fn rebind(&self, binding: Arc<Binding>, asker: Arc<dyn Asker>) {
        if let Some(bound) = &self.binding {
            let mut bound = lock(bound);
            (bound.binding, bound.asker) = (binding, asker);
        }
    }

    /// Returns a source of the current binding, which keeps nothing else of this session alive. `None` if the session
    /// has no binding.
    pub(super) fn source(&self) -> Option<BindingSource> {
        let (bound, turn) = (Arc::clone(self.binding.as_ref()?), Arc::clone(&self.turn));
        let source = BindingSource::new(move || Arc::clone(&lock(&bound).binding));
        Some(source.in_turns(move || lock(&turn).clone()))
    }

    /// Starts a turn, whose requests end with `cancel`.
    pub(super) fn begin_turn(&self, cancel: &CancellationToken) {
        *lock(&self.turn) = cancel.child_token();
    }

    /// Cancels the requests that still run or wait for the turn.
    pub(super) fn end_turn(&self) {
        lock(&self.turn).cancel();
    }

    pub(super) fn turn_cancel(&self) -> CancellationToken {
        lock(&self.turn).clone()
    }

    pub(super) fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        lock(&self.relay).notifier()
    }

    /// Remembers a page that the user is asked to open. At the limit, the oldest page makes room.
    pub(super) fn add_page(&self, id: &str) {
        let mut pages = lock(&self.pages);
        pages.retain(|known| known != id);
        if pages.len() >= MAX_PAGES {
            pages.pop_front();
        }
        pages.push_back(id.to_owned());
    }

    /// Reports to the asker that the page `id`, which the user was asked to open, is done.
    pub(super) fn page_done(&self, id: &str) {
        let mut pages = lock(&self.pages);
        let found = pages.iter().position(|known| known == id).and_then(|at| pages.remove(at));
        drop(pages);
        if found.is_some()
            && let Some(bound) = self.binding()
        {
            bound.asker.page_done(&self.agent.title, id);
        }
    }
}
