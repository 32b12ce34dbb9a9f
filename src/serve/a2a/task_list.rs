//! `ListTasks`: the tasks of a principal, page by page.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::runs::AgentRun;
use super::errors::A2aError;
use super::task_json;
use crate::clock;

const DEFAULT_PAGE: usize = 50;
const MAX_PAGE: usize = 100;

/// The parameters of `ListTasks`. Unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListRequest {
    context_id: String,
    /// The name of a state.
    status: String,
    page_size: Option<i64>,
    /// The number of tasks on the pages before.
    page_token: String,
    status_timestamp_after: Option<String>,
    include_artifacts: bool,
}

impl ListRequest {
    /// Returns the page of these runs. Fails if a parameter is out of its range.
    pub(super) fn answer(&self, runs: &[Arc<AgentRun>]) -> Result<Value, A2aError> {
        let size = match self.page_size {
            None => DEFAULT_PAGE,
            Some(size) => {
                let size = usize::try_from(size).ok().filter(|size| (1..=MAX_PAGE).contains(size));
                size.ok_or_else(|| A2aError::params(format!("`pageSize` must be from 1 to {MAX_PAGE}")))?
            }
        };
        let skipped = match &*self.page_token {
            "" => 0,
            token => token.parse::<usize>().map_err(|_| A2aError::params("`pageToken` is not one of this server"))?,
        };
        let after = self
            .status_timestamp_after
            .as_deref()
            .map(|text| clock::parse(text).ok_or_else(|| A2aError::params("`statusTimestampAfter` is not a time")));
        let after = after.transpose()?;
        let snapshots = runs.iter().map(|run| (run, run.snapshot()));
        let found: Vec<_> = snapshots
            .filter(|(run, _)| self.context_id.is_empty() || self.context_id.eq_ignore_ascii_case(&run.owner.session))
            .filter(|(_, state)| is_unset(&self.status) || task_json::state_name(state.status) == self.status)
            .filter(|(_, state)| after.is_none_or(|after| state.changed_at >= after))
            .collect();
        let page = found.iter().skip(skipped).take(size).map(|(run, state)| {
            let mut task = task_json::snapshot(run, state);
            if let Some(fields) = task.as_object_mut().filter(|_| !self.include_artifacts) {
                fields.remove("artifacts");
            }
            task
        });
        let tasks: Vec<_> = page.collect();
        let end = skipped.saturating_add(tasks.len());
        let next = if end < found.len() { end.to_string() } else { String::new() };
        Ok(json!({"tasks": tasks, "nextPageToken": next, "pageSize": size, "totalSize": found.len()}))
    }
}

/// Returns whether the client asks for every state.
fn is_unset(status: &str) -> bool {
    ["", "TASK_STATE_UNSPECIFIED"].contains(&status)
}
