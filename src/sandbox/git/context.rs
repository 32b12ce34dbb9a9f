//! Reads from a command line what git is about to do, for the text of a permission request.

/// Remote, direction and branch of a git command, as far as its command line shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GitContext {
    pub direction: Option<GitDirection>,
    pub remote: Option<String>,
    pub branch: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitDirection {
    Push,
    Fetch,
}

/// `push main to origin`
impl std::fmt::Display for GitContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (verb, preposition) = match self.direction {
            Some(GitDirection::Push) => ("push", "to"),
            Some(GitDirection::Fetch) => ("fetch", "from"),
            None => return Ok(()),
        };
        f.write_str(verb)?;
        if let Some(branch) = &self.branch {
            write!(f, " {}", branch.escape_debug())?;
        }
        if let Some(remote) = &self.remote {
            write!(f, " {preposition} {}", remote.escape_debug())?;
        }
        Ok(())
    }
}

/// Options of `git` itself and of its subcommands whose value is the next word.
const WITH_VALUE: [&str; 14] = [
    "-C",
    "-c",
    "--git-dir",
    "--work-tree",
    "--namespace",
    "-o",
    "--push-option",
    "--receive-pack",
    "--upload-pack",
    "--depth",
    "-b",
    "--branch",
    "-j",
    "--jobs",
];

impl GitContext {
    /// Reads the first git command of a line that reaches a server. Empty if there is none.
    pub fn of_command(line: &str) -> Self {
        let commands = line.split(['\n', ';', '|', '&', '(', ')']);
        commands.filter_map(read_command).next().unwrap_or_default()
    }
}

fn read_command(command: &str) -> Option<GitContext> {
    let mut words = command.split_whitespace().map(|word| word.trim_matches(['"', '\'']));
    words.find(|word| *word == "git" || word.ends_with("/git"))?;
    let mut plain = Vec::new();
    while let Some(word) = words.next() {
        if WITH_VALUE.contains(&word) {
            words.next();
        } else if !word.starts_with('-') && !word.contains(['<', '>']) {
            plain.push(word);
        }
    }
    let (direction, arguments) = match plain.as_slice() {
        ["push", rest @ ..] => (GitDirection::Push, rest),
        ["fetch" | "pull" | "clone" | "ls-remote", rest @ ..] | ["submodule", "update", rest @ ..] => {
            (GitDirection::Fetch, rest)
        }
        ["remote", "update", rest @ ..] => (GitDirection::Fetch, rest),
        _ => return None,
    };
    let branch = arguments.get(1).filter(|_| plain.first() != Some(&"clone"));
    Some(GitContext {
        direction: Some(direction),
        remote: arguments.first().map(|remote| without_password(remote)),
        branch: branch.map(|branch| (*branch).to_owned()),
    })
}

/// Removes user name and password from a URL.
fn without_password(remote: &str) -> String {
    match remote.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => remote.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_tell_direction_remote_and_branch() {
        for (line, text) in [
            ("git push origin main", "push main to origin"),
            ("cd x && git -C repo push -u --force origin HEAD:main 2>&1 | tail", "push HEAD:main to origin"),
            ("git push", "push"),
            ("git pull --rebase upstream dev", "fetch dev from upstream"),
            ("git fetch --depth 1 origin", "fetch from origin"),
            ("git clone https://user:secret@example.com/a.git b", "fetch from https://example.com/a.git"),
            ("/usr/bin/git submodule update --init", "fetch"),
            ("git commit -m 'git push origin main'", ""),
            ("cargo build", ""),
        ] {
            assert_eq!(GitContext::of_command(line).to_string(), text, "{line}");
        }
    }
}
