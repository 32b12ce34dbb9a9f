//! Names the owners of data, and defines the limits of the tokens that act for them.
//!
//! Invariant: the principal `local` has no limits, and no token acts for it. The name of a principal is also a safe
//! name of a folder.

mod session_files;
mod usage;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::ids::{ModeId, NamePattern};
pub use crate::manifest::ApprovalLevel;
use crate::manifest::ManagedRefusal;
pub use session_files::SessionFiles;
use usage::TokenUsage;
pub use usage::{GrantRegistry, UsagePermit};

/// The name of the principal that owns the data of stdio, `run` and `chat`.
const LOCAL: &str = "local";
/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 64;

/// A named owner of data.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal(Arc<str>);

/// A text that is not the name of a principal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrincipalError {
    #[error("the name `local` is reserved for the user of this machine")]
    Reserved,
    #[error(
        "`{name}` is not a name: use 1 to 64 lower-case letters, digits and `.`, `_`, `-`, `@`, and start with a \
         letter or a digit"
    )]
    Malformed { name: String },
}

impl Principal {
    /// Returns the user of stdio, `run` and `chat`.
    pub fn local() -> Self {
        Self(LOCAL.into())
    }

    /// Returns the principal `name`. Fails if the name is reserved or malformed.
    ///
    /// ```
    /// use skein::principal::Principal;
    /// assert_eq!(Principal::new("ci").map(|ci| ci.name().to_owned()), Ok("ci".to_owned()));
    /// assert!(Principal::new("local").is_err() && Principal::new("../ci").is_err());
    /// ```
    pub fn new(name: &str) -> Result<Self, PrincipalError> {
        let is_start = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_part = |c: char| is_start(c) || matches!(c, '.' | '_' | '-' | '@');
        if name == LOCAL {
            return Err(PrincipalError::Reserved);
        }
        if name.len() > MAX_NAME || !name.starts_with(is_start) || !name.chars().all(is_part) {
            return Err(PrincipalError::Malformed { name: name.to_owned() });
        }
        Ok(Self(name.into()))
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    pub fn is_local(&self) -> bool {
        &*self.0 == LOCAL
    }

    /// Returns the folder of the principal's files below the data folder. The files of `local` are in the data folder
    /// itself.
    pub fn folder(&self, data: &Path) -> PathBuf {
        if self.is_local() { data.to_owned() } else { data.join("principals").join(self.name()) }
    }
}

impl Default for Principal {
    fn default() -> Self {
        Self::local()
    }
}

impl std::fmt::Display for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a token allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenLimits {
    /// Globs of the modes that the token reaches. Empty: all.
    pub modes: Vec<String>,
    /// Globs of the services that the token reaches directly. `None`: all if `modes` is empty, otherwise none.
    pub services: Option<Vec<String>>,
    /// Clients may bring services that start a program here.
    pub client_services: bool,
    /// The loosest approval level of a session.
    pub approval: Option<ApprovalLevel>,
    /// Folders of this machine in which sessions may work, with links resolved.
    pub roots: Vec<PathBuf>,
    /// Maximum number of open sessions.
    pub sessions: Option<u32>,
    /// Maximum number of turns that run at once.
    pub turns: Option<u32>,
    pub requests_per_minute: Option<u32>,
    /// The token may manage tokens, manifests and rules.
    pub admin: bool,
}

impl TokenLimits {
    pub fn admits_mode(&self, mode: &ModeId) -> bool {
        self.modes.is_empty() || matches_any(&self.modes, &mode.to_string())
    }

    /// Returns whether the token reaches the service without a mode.
    pub fn admits_service(&self, service: &str) -> bool {
        match &self.services {
            Some(globs) => matches_any(globs, service),
            None => self.modes.is_empty(),
        }
    }

    /// Returns the level, or the loosest one of the token if the level is looser.
    #[must_use]
    pub fn tighten(&self, level: ApprovalLevel) -> ApprovalLevel {
        self.approval.map_or(level, |loosest| level.stricter(loosest))
    }

    pub fn admits_approval(&self, level: ApprovalLevel) -> bool {
        self.tighten(level) == level
    }

    /// Returns whether a session may work in the folder, whose links must be resolved.
    pub fn admits_folder(&self, folder: &Path) -> bool {
        self.roots.iter().any(|root| folder.starts_with(root))
    }
}

fn matches_any(globs: &[String], name: &str) -> bool {
    globs.iter().any(|glob| NamePattern::new(glob).matches(name))
}

/// A verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenGrant {
    pub id: String,
    pub principal: Principal,
    pub limits: TokenLimits,
    pub expires: Option<Timestamp>,
}

/// A request that the limits of a token refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    #[error("`{}` is not below a folder of your token", .folder.display())]
    Folder { folder: PathBuf },
    #[error("the approval level `{}` is looser than `{}`, the loosest of your token", .level.as_str(), .loosest.as_str())]
    Approval { level: ApprovalLevel, loosest: ApprovalLevel },
    #[error(transparent)]
    Managed(#[from] ManagedRefusal),
    #[error("your token allows {limit} open sessions; close one first")]
    Sessions { limit: u32 },
    #[error("your token allows {limit} running turns; wait for the end of one")]
    Turns { limit: u32 },
    #[error("the session is open with a token that reaches more than yours; try again when it is closed there")]
    OtherToken,
}

/// The owner and the limits of a session. A front end sets it once; child sessions inherit it.
#[derive(Debug, Clone)]
pub struct SessionGrant {
    principal: Principal,
    limits: Arc<TokenLimits>,
    /// Shared by all sessions of the token.
    usage: Arc<TokenUsage>,
    /// Cancelled when the token is revoked or expires.
    ended: CancellationToken,
}

impl SessionGrant {
    /// Returns the grant of the user of this machine, which has no limits.
    pub fn local() -> Self {
        let limits = TokenLimits { client_services: true, admin: true, ..TokenLimits::default() };
        Self::new(Principal::local(), limits)
    }

    /// Returns a grant that shares its counts with no other. [`GrantRegistry::grant`] shares them per token.
    pub fn new(principal: Principal, limits: TokenLimits) -> Self {
        Self { principal, limits: Arc::new(limits), usage: Arc::default(), ended: CancellationToken::new() }
    }

    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    pub fn limits(&self) -> &TokenLimits {
        &self.limits
    }

    /// Returns the end of the token, which is cancelled when it is revoked or expires. That of `local` never is.
    pub fn end_signal(&self) -> &CancellationToken {
        &self.ended
    }

    /// Returns whether both grants are of one token.
    pub fn is_same_token(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.usage, &other.usage)
    }

    /// Fails if a client with this grant must not use a session that is open with another grant. The processes of the
    /// session see all roots of its token, and the client would see them through the session.
    pub fn check_session_of(&self, opener: &Self) -> Result<(), GrantError> {
        if self.is_same_token(opener) {
            return Ok(());
        }
        let is_covered =
            self.principal.is_local() || opener.limits.roots.iter().all(|root| self.limits.admits_folder(root));
        if is_covered && self.principal == opener.principal { Ok(()) } else { Err(GrantError::OtherToken) }
    }

    /// Returns true for a session that came over the network. `local` is the user of this machine.
    pub fn is_remote(&self) -> bool {
        !self.principal.is_local()
    }

    /// Returns the folders that processes of a remote session see, besides those of the system. `None` if the principal
    /// is `local`, whose processes see what their sandbox shows.
    pub fn visible_folders(&self) -> Option<&[PathBuf]> {
        self.is_remote().then_some(self.limits.roots.as_slice())
    }

    /// Returns where the files of a session in this folder are: here if a root of the token contains it, else at the
    /// client. Of a folder that does not exist, the part that does decides.
    pub fn files_of(&self, folder: &Path) -> SessionFiles {
        let existing = || folder.ancestors().find_map(|part| part.canonicalize().ok());
        let is_here = self.principal.is_local() || existing().is_some_and(|part| self.limits.admits_folder(&part));
        if is_here { SessionFiles::Server } else { SessionFiles::Client }
    }

    /// Returns the folder of a session whose files are at this place. Fails if they are here, and no root of the token
    /// contains the folder.
    pub fn check_place(&self, folder: &Path, files: SessionFiles) -> Result<PathBuf, GrantError> {
        match files {
            SessionFiles::Server => self.check_folder(folder),
            SessionFiles::Client | SessionFiles::Own => Ok(folder.to_owned()),
        }
    }

    /// Returns true if the session may use a path of this machine, whose links must be resolved. The folder of a session
    /// may have become a link since it was checked.
    pub fn admits_path(&self, path: &Path) -> bool {
        self.principal.is_local() || self.limits.admits_folder(path)
    }

    /// Returns the folder with its links resolved. Fails if the principal is not `local` and no root of the token
    /// contains the folder. The folder of `local` is returned as it is.
    pub fn check_folder(&self, folder: &Path) -> Result<PathBuf, GrantError> {
        if self.principal.is_local() {
            return Ok(folder.to_owned());
        }
        let resolved = folder.canonicalize().ok().filter(|resolved| self.limits.admits_folder(resolved));
        resolved.ok_or_else(|| GrantError::Folder { folder: folder.to_owned() })
    }

    /// Fails if the level is looser than the token allows.
    pub fn check_approval(&self, level: ApprovalLevel) -> Result<(), GrantError> {
        match self.limits.approval {
            Some(loosest) if !self.limits.admits_approval(level) => Err(GrantError::Approval { level, loosest }),
            _ => Ok(()),
        }
    }

    /// Counts a session until the permit is dropped. Fails if the token has too many open sessions.
    pub fn open_session(&self) -> Result<UsagePermit, GrantError> {
        let limit = self.limits.sessions;
        self.usage.open_session(limit).ok_or(GrantError::Sessions { limit: limit.unwrap_or_default() })
    }

    /// Counts a turn until the permit is dropped. Fails if too many turns of the token run.
    pub fn begin_turn(&self) -> Result<UsagePermit, GrantError> {
        let limit = self.limits.turns;
        self.usage.begin_turn(limit).ok_or(GrantError::Turns { limit: limit.unwrap_or_default() })
    }

    /// Counts a request. Fails, with the time to wait, if the token made too many in the last minute.
    pub fn count_request(&self, now: std::time::Instant) -> Result<(), std::time::Duration> {
        self.usage.count_request(self.limits.requests_per_minute, now)
    }
}

impl Default for SessionGrant {
    fn default() -> Self {
        Self::local()
    }
}

#[cfg(test)]
#[path = "principal/principal_tests.rs"]
mod tests;
