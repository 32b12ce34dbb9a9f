//! Models as the command line finds them: by the environment's keys and addresses.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::output::Failure;
use crate::llm::{self, LlmError, Provider};
use crate::session::Models;

/// Each model is made once: its connections are shared by all sessions.
#[derive(Default)]
pub(super) struct KnownModels {
    made: Mutex<HashMap<String, Arc<dyn Provider>>>,
}

impl KnownModels {
    /// Says before anything starts what is wrong with a model's name or key.
    pub(super) fn check(&self, name: &str) -> Result<(), Failure> {
        let made = self.provider(name).map(drop);
        made.map_err(|error| Failure::usage(error.to_string(), "choose another --model or SKEIN_MODEL"))
    }
}

impl Models for KnownModels {
    fn provider(&self, name: &str) -> Result<Arc<dyn Provider>, LlmError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(provider) = made.get(name) {
            return Ok(Arc::clone(provider));
        }
        let provider = llm::provider(name, |name| std::env::var(name).ok())?;
        made.insert(name.to_owned(), Arc::clone(&provider));
        Ok(provider)
    }
}
