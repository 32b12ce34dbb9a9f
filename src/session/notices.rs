//! Delivers the notices of a session: to the notifier of the running turn, or with the next turn.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::agents::{Notifier, StatusUpdate};
use crate::tool::{Notice, NoticeSink};

/// Maximum number of notices that wait for a turn. When there are more, the oldest is dropped and logged.
const MAX_PENDING: usize = 50;

/// The notices of a session, and the notifier of its running turn.
#[derive(Default)]
pub(super) struct SessionNotices {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    notifier: Option<Arc<dyn Notifier>>,
    pending: VecDeque<Notice>,
}

impl SessionNotices {
    /// Sets the notifier of a turn that starts, and sends it the pending notices.
    pub(super) fn attach(&self, notifier: Arc<dyn Notifier>) {
        let pending = {
            let mut state = self.state();
            state.notifier = Some(Arc::clone(&notifier));
            std::mem::take(&mut state.pending)
        };
        pending.into_iter().for_each(|notice| notifier.status(StatusUpdate::Notice(notice)));
    }

    /// Forgets the notifier of a turn that has ended.
    pub(super) fn detach(&self) {
        self.state().notifier = None;
    }

    /// Returns the notifier of the running turn. `None` between turns.
    pub(super) fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        self.state().notifier.clone()
    }

    /// Keeps a notice until a turn starts or a front end takes it.
    pub(super) fn queue(&self, notice: Notice) {
        let mut state = self.state();
        state.pending.push_back(notice);
        let dropped = if state.pending.len() > MAX_PENDING { state.pending.pop_front() } else { None };
        drop(state);
        if let Some(dropped) = dropped {
            tracing::warn!("a notice was not shown, because too many wait: {}", dropped.text);
        }
    }

    /// Takes the pending notices, for a front end that can show them between turns.
    pub(super) fn take(&self) -> Vec<Notice> {
        std::mem::take(&mut self.state().pending).into()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NoticeSink for SessionNotices {
    fn send(&self, notice: Notice) {
        match self.notifier() {
            Some(notifier) => notifier.status(StatusUpdate::Notice(notice)),
            None => self.queue(notice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::Event;

    #[derive(Default)]
    struct Shown(Mutex<Vec<String>>);

    impl Notifier for Shown {
        fn log(&self, _: Event) {}

        fn status(&self, status: StatusUpdate) {
            if let StatusUpdate::Notice(notice) = status {
                self.0.lock().unwrap().push(notice.text);
            }
        }
    }

    #[test]
    fn a_notice_between_turns_is_sent_with_the_next_turn() {
        let (notices, shown) = (SessionNotices::default(), Arc::new(Shown::default()));
        notices.send(Notice::new("before"));
        notices.attach(Arc::clone(&shown) as Arc<dyn Notifier>);
        notices.send(Notice::new("during"));
        notices.detach();
        notices.send(Notice::new("after"));
        assert_eq!(*shown.0.lock().unwrap(), ["before", "during"]);
        assert_eq!(notices.take(), [Notice::new("after")]);
        assert_eq!(notices.take(), []);
    }

    #[test]
    fn only_the_newest_notices_wait() {
        let notices = SessionNotices::default();
        (0..MAX_PENDING + 2).for_each(|n| notices.send(Notice::new(n.to_string())));
        let waiting = notices.take();
        assert_eq!((waiting.len(), waiting[0].text.as_str()), (MAX_PENDING, "2"));
    }
}
