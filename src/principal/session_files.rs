//! Says where the files of a session are: here, at its client, or in a folder that Skein creates.

/// Where the files of a session are. It never changes: a session does not fall back from one place to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SessionFiles {
    /// In a folder of this machine.
    #[default]
    Server,
    /// At the client. The folder need not exist here, and Skein reads nothing below it.
    Client,
    /// In an empty folder that Skein creates for the session.
    Own,
}

impl SessionFiles {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Own => "own",
        }
    }

    /// Returns the place with this name. `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Server, Self::Client, Self::Own].into_iter().find(|files| files.as_str() == name)
    }
}
