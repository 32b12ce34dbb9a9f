//! Paces notifications: at most one per session and interval. The last number of a session is always sent.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The shortest time between two notifications about one session.
const INTERVAL: Duration = Duration::from_millis(50);

/// The sessions with news, and those that were notified of lately.
#[derive(Debug, Default)]
pub(super) struct NotifyPacer {
    sessions: HashMap<String, PacedSession>,
}

#[derive(Debug, Default)]
struct PacedSession {
    /// The last number, if others do not know it yet.
    news: Option<u64>,
    /// When the last notification was sent.
    sent: Option<Instant>,
}

impl PacedSession {
    /// Returns when its news may be sent. `None`: at once.
    fn due(&self) -> Option<Instant> {
        self.sent.map(|sent| sent + INTERVAL)
    }
}

impl NotifyPacer {
    pub(super) fn add(&mut self, session: String, seq: u64) {
        let news = &mut self.sessions.entry(session).or_default().news;
        *news = Some(news.map_or(seq, |known| known.max(seq)));
    }

    /// Returns when the next news may be sent. `None` if there is none.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.sessions.values().filter(|session| session.news.is_some());
        waiting.map(|session| session.due().unwrap_or_else(Instant::now)).min()
    }

    /// Takes the news that may be sent now, in the order of the sessions.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(String, i64)> {
        let mut due = Vec::new();
        for (id, session) in &mut self.sessions {
            if session.due().is_none_or(|due| due <= now)
                && let Some(seq) = session.news.take()
            {
                session.sent = Some(now);
                due.push((id.clone(), i64::try_from(seq).unwrap_or(i64::MAX)));
            }
        }
        self.sessions.retain(|_, session| session.news.is_some() || session.due().is_some_and(|due| due > now));
        due.sort();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_notified_of_at_most_once_per_interval() {
        let (mut pacer, start) = (NotifyPacer::default(), Instant::now());
        pacer.add("a".to_owned(), 1);
        assert_eq!(pacer.take_due(start), [("a".to_owned(), 1)], "the first news waits for nothing");
        for seq in 2..=40 {
            pacer.add("a".to_owned(), seq);
            assert!(pacer.take_due(start + Duration::from_millis(seq)).is_empty(), "{seq}");
        }
        assert_eq!(pacer.next_due(), Some(start + INTERVAL));
        pacer.add("b".to_owned(), 7);
        assert_eq!(
            pacer.take_due(start + Duration::from_millis(41)),
            [("b".to_owned(), 7)],
            "sessions do not wait for others"
        );
        assert_eq!(pacer.take_due(start + INTERVAL), [("a".to_owned(), 40)], "the last number");
        assert!(pacer.next_due().is_none());
    }

    #[test]
    fn a_quiet_session_is_forgotten() {
        let (mut pacer, start) = (NotifyPacer::default(), Instant::now());
        pacer.add("a".to_owned(), 2);
        pacer.add("a".to_owned(), 1);
        assert_eq!(pacer.take_due(start), [("a".to_owned(), 2)]);
        assert!(pacer.take_due(start + 2 * INTERVAL).is_empty());
        assert!(pacer.sessions.is_empty());
    }
}
