//! Shares equal prompts among sessions. Sessions of one mode in one folder usually have the same prompts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Different prompts that later sessions can share.
const MAX_PROMPTS: usize = 64;

/// The prompts of sessions that are open. Keeps none of them alive.
#[derive(Debug)]
struct SharedPrompts(VecDeque<Weak<str>>);

/// Returns the text that another session has if it is equal to this one, and otherwise this one.
pub(super) fn share(text: String) -> Arc<str> {
    static SHARED: Mutex<SharedPrompts> = Mutex::new(SharedPrompts(VecDeque::new()));
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).share(text)
}

impl SharedPrompts {
    fn share(&mut self, text: String) -> Arc<str> {
        if let Some(known) = self.0.iter().filter_map(Weak::upgrade).find(|known| **known == *text) {
            return known;
        }
        self.0.retain(|known| known.strong_count() > 0);
        if self.0.len() >= MAX_PROMPTS {
            self.0.pop_front();
        }
        let text: Arc<str> = Arc::from(text);
        self.0.push_back(Arc::downgrade(&text));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_equal_prompts_up_to_a_limit() {
        let mut shared = SharedPrompts(VecDeque::new());
        let first = shared.share("first".to_owned());
        assert!(Arc::ptr_eq(&first, &shared.share("first".to_owned())));
        let others: Vec<_> = (0..MAX_PROMPTS).map(|number| shared.share(number.to_string())).collect();
        assert_eq!(shared.0.len(), MAX_PROMPTS);
        // The oldest has made room, and a later session with it has its own.
        assert!(!Arc::ptr_eq(&first, &shared.share("first".to_owned())));
        assert!(others.iter().enumerate().all(|(number, text)| **text == *number.to_string()));
        drop(others);
        drop(shared.share("last".to_owned()));
        assert!(shared.0.len() <= 2, "prompts of ended sessions leave");
    }
}
