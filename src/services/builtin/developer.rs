//! Files, shell, plan.
use std::collections::BTreeMap;
use std::ffi::OsString;
#[derive(Debug, Clone)]
pub struct Developer;
#[derive(Debug)]
pub struct DeveloperOptions {
    pub reaper: Option<crate::process::Reaper>,
    pub environment: BTreeMap<OsString, OsString>,
}
impl Developer {
    pub fn new(_: DeveloperOptions) -> Self {
        Self
    }
}
impl rmcp::ServerHandler for Developer {}
