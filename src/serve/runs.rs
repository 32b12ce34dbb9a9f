//! Runs: turns of sessions that programs start. REST and A2A show the same runs, each in its own format.
//!
//! Invariant: names no protocol. A client does not learn whether another principal has a run.

mod asker;
mod parts;
mod questions;
mod run;
mod run_error;
mod run_events;
mod run_table;
mod turns;

pub(super) use parts::RunPart;
pub(super) use run::{AgentRun, StreamEnd};
pub(super) use run_error::RunError;
pub(super) use run_events::{EventPosition, RunEvent, RunMessage, RunSnapshot, RunStatus};
pub(super) use run_table::RunTable;
pub(super) use turns::{MissingSession, RunRequest, find_agent, parse_uuid, resume, sessions, start};
