//! Implements `run_script`: runs the text of a script with its interpreter, as `shell` runs a command line.
//!
//! Invariant: what runs is the text that the user was asked about, never a file that could have changed meanwhile.
//! A script that is kept is written by a process in the sandbox of the call, which can write what its mode allows.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{ContentBlock, MetaObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::services::builtin::answer::{ToolRefusal, ToolReply, size};
use crate::services::builtin::developer::{
    DEFAULT_TIMEOUT, DeveloperOptions, DeveloperState, MAX_TIMEOUT, ProgramLine, Shell, check_folder, paths,
    run_program,
};
use crate::tool::{Activity, CallContext, SessionStates};

/// The longest script. Permission requests show it in full.
const MAX_SCRIPT: usize = 16 << 10;
/// Time to write a script to its file.
const SAVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Writes its second argument to the file in its first, and replaces the file at once.
const SAVE: &str = r#"new="$1.$$.part"; mkdir -p -- "${1%/*}" && printf %s "$2" >"$new" && mv -f -- "$new" "$1""#;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunScript {
    /// Run with bash, python3 or node
    language: ScriptLanguage,
    /// Its text
    #[schemars(length(min = 1, max = 16384))]
    script: String,
    /// File that keeps the script, such as tools/plot.py
    #[schemars(length(min = 1))]
    save: Option<String>,
    /// Seconds, default 120
    #[schemars(range(min = 1, max = 600))]
    timeout: Option<u64>,
}

/// The language of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline, description = "")]
enum ScriptLanguage {
    Shell,
    Python,
    Javascript,
}

impl ScriptLanguage {
    /// Returns the names of the interpreter. The second counts if the machine has no program of the first.
    fn programs(self) -> [&'static str; 2] {
        match self {
            Self::Shell => ["bash", "sh"],
            Self::Python => ["python3", "python"],
            Self::Javascript => ["node", "nodejs"],
        }
    }

    /// Returns the option of the interpreter before the text of a script.
    fn option(self) -> &'static str {
        match self {
            Self::Shell | Self::Python => "-c",
            // The short option would take a text that starts with `-` for another option.
            Self::Javascript => "--eval",
        }
    }

    fn args(self, script: &str) -> Vec<std::ffi::OsString> {
        match self {
            Self::Shell | Self::Python => vec![self.option().into(), script.into()],
            Self::Javascript => vec![format!("{}={script}", self.option()).into()],
        }
    }
}

/// Returns metadata for the gate: a call runs a script, so the rules for command lines apply to it. A language with a program
/// stands for the command line `PROGRAM 'SCRIPT'`, and one without is a command line.
pub(super) fn script_meta() -> MetaObject {
    let program = |language: ScriptLanguage| format!("{} {}", language.programs()[0], language.option());
    let programs = json!({
        "python": program(ScriptLanguage::Python),
        "javascript": program(ScriptLanguage::Javascript),
    });
    let mut meta = MetaObject::default();
    let script = json!({"script": "script", "language": "language", "programs": programs});
    meta.insert("skein/script".to_owned(), script);
    meta
}

/// Hashes of the scripts that a session has kept, by path.
#[derive(Debug, Default)]
pub(in crate::services::builtin) struct SavedScripts(Mutex<HashMap<PathBuf, ScriptHash>>);

type ScriptHash = [u8; 32];

/// Runs scripts in the sandboxes of the session's shell.
#[derive(Debug)]
pub(in crate::services::builtin) struct ScriptRunner {
    shell: Shell,
    states: Arc<SessionStates<DeveloperState>>,
    saved: Arc<SessionStates<SavedScripts>>,
}

/// A runner without environment and sandbox.
impl Default for ScriptRunner {
    fn default() -> Self {
        Self::new(Shell::new(DeveloperOptions::default()), Arc::default(), Arc::default())
    }
}

impl ScriptRunner {
    pub(in crate::services::builtin) fn new(
        shell: Shell,
        states: Arc<SessionStates<DeveloperState>>,
        saved: Arc<SessionStates<SavedScripts>>,
    ) -> Self {
        Self { shell, states, saved }
    }

    /// Keeps the script if that is wanted, and runs it to its end. A script that cannot be kept does not run.
    pub(super) async fn run(&self, call: &CallContext, request: &RunScript) -> ToolReply {
        let RunScript { language, script, .. } = request;
        check(script)?;
        let limit = match request.timeout {
            Some(seconds @ 1..=MAX_TIMEOUT) => Duration::from_secs(seconds),
            Some(_) => return Err(ToolRefusal::new(format!("`timeout` is between 1 and {MAX_TIMEOUT} seconds"))),
            None => DEFAULT_TIMEOUT,
        };
        check_folder(&call.session.cwd)?;
        let state = DeveloperState::of(&self.states, &call.session);
        let kept = match &request.save {
            Some(name) => Some(self.keep(call, &state, name, script).await?),
            None => None,
        };
        let program = ProgramLine::new(language.programs(), language.args(script), script);
        let result = run_program(&self.shell, call, &state, &program, limit).await;
        let mut result = result.map_err(|error| {
            let [name, _] = language.programs();
            let kept = kept.as_ref().map(|shown| format!(". The script is in `{shown}`")).unwrap_or_default();
            if error.is_not_found() {
                ToolRefusal::new(format!(
                    "`{name}` is not installed here or not visible in the sandbox; write the script in another \
                     language, or ask the user to install `{name}`{kept}"
                ))
            } else {
                ToolRefusal::new(format!("`{name}` could not be started: {error}{kept}"))
            }
        })?;
        if let Some(shown) = kept {
            result.content.push(ContentBlock::text(format!("[the script is in `{shown}`]")));
            if let Some(data) = result.structured_content.as_mut() {
                data["saved"] = json!(shown);
            }
        }
        Ok(result)
    }

    /// Writes the script to a file. Returns its path as it is shown. Fails if the file has other contents than what this
    /// session kept there.
    async fn keep(
        &self,
        call: &CallContext,
        state: &DeveloperState,
        name: &str,
        script: &str,
    ) -> Result<String, ToolRefusal> {
        let place = paths::resolve(&call.session, name)?;
        let shown = paths::display_path(&call.session, &place);
        let saved = self.saved.of(&call.session);
        if place.symlink_metadata().is_ok() {
            let now = read(call, &place).map_err(|error| ToolRefusal::io("read", &shown, &error))?;
            let known = saved.0.lock().unwrap_or_else(PoisonError::into_inner).get(&place).copied();
            if now == script.as_bytes() {
                return Ok(shown);
            }
            if known != Some(hash(&now)) {
                return Err(ToolRefusal::new(format!(
                    "`{shown}` exists and is not a script of this session; give another name in `save`, or leave it out. \
                     The script did not run"
                )));
            }
        }
        let path = place.to_str().ok_or_else(|| ToolRefusal::new("the path in `save` is not UTF-8"))?;
        let args = ["-c", SAVE, "save", path, script].map(Into::into).to_vec();
        let line = format!("keep the script in {shown}");
        let program = ProgramLine::new(["sh", "bash"], args, &line);
        let refuse = |reason: String| {
            ToolRefusal::new(format!("`{shown}` was not written, so the script did not run: {reason}"))
        };
        let written = run_program(&self.shell, call, state, &program, SAVE_TIMEOUT).await;
        let written = written.map_err(|error| refuse(error.to_string()))?;
        if written.is_error == Some(true) {
            let texts: Vec<&str> =
                written.content.iter().filter_map(|block| block.as_text()).map(|text| text.text.as_str()).collect();
            return Err(refuse(texts.join("\n")));
        }
        saved.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place.clone(), hash(script.as_bytes()));
        call.report(Activity::Location { path: paths::session_path(&call.session, &place), line: None });
        Ok(shown)
    }
}

fn hash(script: &[u8]) -> ScriptHash {
    Sha256::digest(script).into()
}

/// Reads a file up to one byte beyond the longest script.
fn read(call: &CallContext, place: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    paths::anchor(&call.session, place)?.read()?.take(MAX_SCRIPT as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Fails for scripts that no interpreter should be started for.
fn check(script: &str) -> Result<(), ToolRefusal> {
    if script.trim().is_empty() {
        return Err(ToolRefusal::new("the script is empty"));
    }
    if script.contains('\0') {
        return Err(ToolRefusal::new("a script cannot contain a NUL character"));
    }
    if script.len() > MAX_SCRIPT {
        return Err(ToolRefusal::new(format!(
            "the script is longer than {}; write it to a file and run the file with `shell`",
            size(MAX_SCRIPT as u64)
        )));
    }
    Ok(())
}

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
