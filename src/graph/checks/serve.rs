//! Checks the settings of `skein serve` and of the store in a config.

use std::time::Duration;

use super::Checks;
use crate::manifest::{ConfigEntry, DocumentPath, Layer};

/// A shorter expiry leaves no time for a heartbeat.
const MIN_EXPIRY: Duration = Duration::from_secs(1);

impl Checks<'_> {
    /// Checks the settings of the store. Only the user may say which sessions are removed, and where notifications come
    /// from.
    pub(super) fn store(&mut self, entry: &ConfigEntry) {
        let Some(store) = &entry.config.store else { return };
        let at = DocumentPath::root().key("store");
        if entry.layer == Layer::Project {
            self.error(
                "E122",
                entry.source.key_place(&at),
                "a project's config cannot set `store`".to_owned(),
                "move it to your own config.yaml, outside the project",
            );
        }
        if store.expiry() < MIN_EXPIRY {
            let place = entry.source.place(&at.key("expiry"));
            self.error("E013", place, "the expiry is shorter than a second".to_owned(), "write at least `1s`");
        }
    }

    /// Checks the principals of JWTs. Only the user may decide who uses the server.
    pub(super) fn serve(&mut self, entry: &ConfigEntry) {
        let Some(serve) = &entry.config.serve else { return };
        let at = DocumentPath::root().key("serve");
        if entry.layer == Layer::Project {
            self.error(
                "E122",
                entry.source.key_place(&at),
                "a project's config cannot set `serve`".to_owned(),
                "move it to your own config.yaml, outside the project",
            );
        }
        for (index, rule) in serve.principals.iter().enumerate() {
            if rule.name.is_some() == rule.name_claim.is_some() {
                let place = entry.source.place(&at.key("principals").index(index));
                let problem = "a principal needs either `name` or `name_claim`".to_owned();
                self.error("E013", place, problem, "write `name: ann`, or `name_claim: email` without `name`");
            }
        }
    }
}
