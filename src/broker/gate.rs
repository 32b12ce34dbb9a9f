//! The permission gate: whether a call may run, must be asked about, or is refused. It sits inside
//! `Binding::call`; a front door supplies who may be asked.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::consent::Subject;
use crate::manifest::Approval;

/// Who can be asked. A front door with nobody behind it uses [`Nobody`].
pub trait Asker: Send + Sync {
    fn ask(&self, question: Question) -> BoxFuture<'_, Answer>;
}

/// A call that somebody must consent to.
#[derive(Debug, Clone)]
pub struct Question {
    /// The id of the call, if it has one.
    pub call: Option<Arc<str>>,
    /// As the model sees it.
    pub tool: String,
    pub title: Option<String>,
    pub arguments: Map<String, Value>,
    /// What [`Answer::AllowAlways`] and [`Answer::RefuseAlways`] would cover, for this session.
    pub always: Subject,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Allow,
    AllowAlways,
    Refuse,
    RefuseAlways,
    /// There is no one to ask.
    Unheard,
}

/// No terminal and no client: whatever would be asked is refused.
#[derive(Debug, Clone, Copy)]
pub struct Nobody;

impl Asker for Nobody {
    fn ask(&self, _: Question) -> BoxFuture<'_, Answer> {
        Box::pin(async { Answer::Unheard })
    }
}

/// What the level says about a call, before anybody is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Run,
    Ask,
    Refuse(&'static str),
}

pub(super) fn judge(approval: Approval, read_only: bool) -> Verdict {
    match approval {
        Approval::Auto => Verdict::Run,
        // Without a judge that reads the call, `smart` asks.
        Approval::Ask | Approval::Smart if read_only => Verdict::Run,
        Approval::Ask | Approval::Smart => Verdict::Ask,
        Approval::ReadOnly if read_only => Verdict::Run,
        Approval::ReadOnly => Verdict::Refuse("the session is read-only, and this call may change something"),
        Approval::Deny => Verdict::Refuse("the session allows no tool calls"),
    }
}

pub(super) const UNHEARD: &str =
    "this call needs consent and there is nobody to ask; run skein with `--approval auto` to allow such calls";
