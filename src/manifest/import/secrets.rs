//! Keeps secrets out of imported files. A value is copied only if it is clearly not a secret; otherwise it becomes
//! `${env:NAME}`. An unnecessary variable costs the user one line, a copied key costs more.

use std::collections::{BTreeMap, BTreeSet};

use super::super::placeholder::Placeholder;
use super::SkipReason;
use crate::secrets::{AddressParts, WORD_BORDERS, has_key_shape};

/// Parts of a name that suggest that its value is secret.
const TELLING: [&str; 12] =
    ["token", "secret", "pass", "key", "auth", "credential", "cookie", "session", "dsn", "pwd", "bearer", "private"];

/// Whole words of a name that suggest that its value is secret. They are parts of many other words.
const TELLING_WORDS: [&str; 2] = ["pat", "pw"];

/// Programs that run a package. Before the name of the package, `-p` is a package, too, or a version of Python.
const RUNNERS: [&str; 6] = ["bunx", "npm", "npx", "pnpm", "uv", "uvx"];

/// Commands of these programs that come before a package.
const RUNNER_COMMANDS: [&str; 5] = ["dlx", "exec", "run", "tool", "x"];

/// Flags of these programs that take the next argument.
const RUNNER_FLAGS: [&str; 11] = [
    "-C",
    "-p",
    "--directory",
    "--from",
    "--index",
    "--package",
    "--prefix",
    "--project",
    "--python",
    "--registry",
    "--with",
];

/// Programs that take a password directly after `-p`.
const DATABASE_CLIENTS: [&str; 6] = ["mariadb", "mariadb-admin", "mariadb-dump", "mysql", "mysqladmin", "mysqldump"];

/// The variables found so far.
#[derive(Default)]
pub(super) struct ImportedSecrets {
    /// The replaced values, to distinguish two services that each have a `TOKEN`. Never shown.
    values: BTreeMap<String, Option<String>>,
    used_by: BTreeMap<String, BTreeSet<String>>,
    /// Variables that must be set, because a service uses them without a default.
    required: BTreeSet<String>,
    /// Variables whose default was dropped, because it may be a secret.
    pub(super) without_default: BTreeSet<String>,
}

/// What the text around a variable says about its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DefaultContext {
    Harmless,
    /// The text suggests a secret, so no default is kept.
    Secret,
}

impl DefaultContext {
    fn of(suggests_secret: bool) -> Self {
        if suggests_secret { Self::Secret } else { Self::Harmless }
    }
}

impl ImportedSecrets {
    pub(super) fn into_variables(self) -> BTreeMap<String, BTreeSet<String>> {
        self.used_by
    }

    /// Returns the variables that services use only with an empty default.
    pub(super) fn optional(&self) -> BTreeSet<String> {
        self.used_by.keys().filter(|name| !self.required.contains(*name)).cloned().collect()
    }

    /// Returns `${env:NAME}` for a value that is stored elsewhere.
    pub(super) fn reference(&mut self, service: &str, name: &str) -> String {
        self.required.insert(name.to_owned());
        self.list(service, name);
        format!("${{env:{name}}}")
    }

    fn list(&mut self, service: &str, name: &str) {
        self.values.entry(name.to_owned()).or_default();
        self.used_by.entry(name.to_owned()).or_default().insert(service.to_owned());
    }

    /// Replaces a value with `${env:NAME}`. Services with different values for one name get separate variables.
    fn replace_value(&mut self, service: &str, name: &str, value: &str) -> String {
        let name = variable_name(name);
        let same = |known: &Option<String>| known.as_deref().is_none_or(|known| known == value);
        let name = match self.values.get(&name) {
            Some(known) if !same(known) => variable_name(&format!("{service}_{name}")),
            _ => name,
        };
        self.values.insert(name.clone(), Some(value.to_owned()));
        self.reference(service, &name)
    }

    /// Converts a value of `env` or `headers`. `variable` is the name to use if the value must be replaced.
    pub(super) fn value(
        &mut self,
        service: &str,
        name: &str,
        variable: &str,
        value: &str,
    ) -> Result<String, SkipReason> {
        let context = DefaultContext::of(is_telling(name) || names_secret(value) || has_credentials(value));
        let filled = self.placeholders(service, value, context)?;
        let (scheme, rest) = match filled.split_once(' ') {
            Some((scheme, rest)) if ["bearer", "basic", "token"].contains(&scheme.to_lowercase().as_str()) => {
                (format!("{scheme} "), rest)
            }
            _ => (String::new(), filled.as_str()),
        };
        let literal = without_placeholders(rest);
        if literal.trim().is_empty() || (!is_telling(name) && is_plain(&literal)) {
            return Ok(filled);
        }
        Ok(scheme + &self.replace_value(service, variable, value))
    }

    /// Converts the arguments of the program `command`, which may contain keys.
    pub(super) fn arguments(
        &mut self,
        service: &str,
        command: &str,
        args: &[String],
    ) -> Result<Vec<String>, SkipReason> {
        let mut kept: Vec<String> = Vec::new();
        for (index, argument) in args.iter().enumerate() {
            let before = &args[..index];
            let flag_says = announces(command, before, argument);
            let is_password = client_password(command, before, argument).is_some();
            let suggests_secret = flag_says || is_password || names_secret(argument) || has_credentials(argument);
            let context = DefaultContext::of(suggests_secret);
            let filled = self.placeholders(service, argument, context)?;
            let literal = without_placeholders(&filled);
            let assigned =
                assignment(&filled).filter(|(name, value)| is_telling(name) && !literal_of(value).is_empty());
            if literal.trim().is_empty() {
                kept.push(filled);
            } else if flag_says {
                let flag = kept.last().cloned().unwrap_or_default();
                kept.push(self.replace_value(service, &format!("{service}_{flag}"), argument));
            } else if let Some(password) = client_password(command, before, &filled) {
                let hidden = match literal_of(password).is_empty() {
                    true => password.to_owned(),
                    false => self.replace_value(service, &format!("{service}_password"), password),
                };
                kept.push(format!("-p{hidden}"));
            } else if let Some((name, value)) = assigned {
                let variable = if name.starts_with('-') { format!("{service}_{name}") } else { name.to_owned() };
                let separator = &filled[name.len()..=name.len()];
                let hidden = self.replace_value(service, &variable, value);
                kept.push(format!("{name}{separator}{hidden}"));
            } else {
                kept.push(self.text(service, &format!("argument_{}", kept.len() + 1), argument)?);
            }
        }
        Ok(kept)
    }

    /// Converts a program, a folder or an argument without a flag. Replaces all of it if any part may be a secret.
    pub(super) fn text(&mut self, service: &str, what: &str, text: &str) -> Result<String, SkipReason> {
        let context = DefaultContext::of(names_secret(text) || has_credentials(text));
        let filled = self.placeholders(service, text, context)?;
        let literal = without_placeholders(&filled);
        let secret = has_credentials(&literal) || names_secret(&literal) || has_key_shape(&literal);
        Ok(if secret { self.replace_value(service, &format!("{service}_{what}"), text) } else { filled })
    }

    /// Converts a URL. Replaces user names, query values, fragments and path parts that look like keys.
    pub(super) fn address(&mut self, service: &str, url: &str) -> Result<String, SkipReason> {
        // User, query and fragment of an address may be keys.
        let context = DefaultContext::of(names_secret(url) || url.contains(['@', '?', '#']));
        let filled = self.placeholders(service, url, context)?;
        let AddressParts { scheme, user, host, path, query, fragment } = AddressParts::split(&filled);
        let is_http =
            |scheme: &&str| ["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) || scheme.contains('$');
        let scheme = scheme.filter(is_http).ok_or(SkipReason::Address)?;
        let host = match user {
            Some(user) if !without_placeholders(user).trim_matches(':').is_empty() => {
                format!("{}@{host}", self.replace_value(service, &format!("{service}_user"), user))
            }
            Some(user) => format!("{user}@{host}"),
            None => host.to_owned(),
        };
        let mut address = format!("{scheme}://{host}");
        if let Some(path) = path {
            for part in path.split('/') {
                let part = if has_key_shape(part) {
                    self.replace_value(service, &format!("{service}_path"), part)
                } else {
                    part.to_owned()
                };
                address = format!("{address}/{part}");
            }
        }
        if let Some(query) = query {
            let mut pairs = Vec::new();
            for pair in query.split('&') {
                pairs.push(match pair.split_once('=') {
                    Some((name, value)) => {
                        let value = self.value(service, name, &format!("{service}_{name}"), value)?;
                        format!("{name}={value}")
                    }
                    None if literal_of(pair).is_empty() => pair.to_owned(),
                    None => self.replace_value(service, &format!("{service}_query"), pair),
                });
            }
            address = format!("{address}?{}", pairs.join("&"));
        }
        match fragment {
            Some(part) if !literal_of(part).is_empty() => {
                Ok(format!("{address}#{}", self.replace_value(service, &format!("{service}_fragment"), part)))
            }
            Some(part) => Ok(format!("{address}#{part}")),
            None => Ok(address),
        }
    }

    /// Converts the placeholders of these files to Skein's. Keeps a default that is certainly not a secret. Fails for a
    /// placeholder that only an editor can fill in.
    fn placeholders(&mut self, service: &str, text: &str, context: DefaultContext) -> Result<String, SkipReason> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (inside, behind) = after.split_once('}').ok_or(SkipReason::OpenPlaceholder)?;
            let Placeholder { name, default } = Placeholder::of(inside.strip_prefix("env:").unwrap_or(inside));
            let ours = if let Some(id) = inside.strip_prefix("input:") {
                self.reference(service, &variable_name(id))
            } else if inside == "userHome" {
                "${env:HOME}".to_owned()
            } else if is_variable(name)
                && !["workspaceFolder", "workspaceFolderBasename", "cwd", "file"].contains(&name)
            {
                match default {
                    Some(default) if context == DefaultContext::Harmless && !is_telling(name) && is_plain(default) => {
                        // A variable with a default need not be set, so it is not listed.
                        self.values.entry(name.to_owned()).or_default();
                        format!("${{env:{name}:-{default}}}")
                    }
                    // An empty default is no secret, and the service may start without the variable.
                    Some("") => {
                        self.list(service, name);
                        format!("${{env:{name}:-}}")
                    }
                    Some(_) => {
                        self.without_default.insert(name.to_owned());
                        self.reference(service, name)
                    }
                    None => self.reference(service, name),
                }
            } else if is_variable(inside) {
                return Err(SkipReason::EditorVariable { name: inside.to_owned() });
            } else {
                return Err(SkipReason::EditorPlaceholder);
            };
            filled.push_str(before);
            filled.push_str(&ours);
            rest = behind;
        }
        filled.push_str(rest);
        Ok(filled)
    }
}

/// Returns the arguments of the program `command` that may be secrets: each value with the name of its flag or variable,
/// or with its position. An argument with a placeholder is not among them.
pub fn secret_arguments(command: &str, args: &[String]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (index, argument) in args.iter().enumerate() {
        let before = &args[..index];
        if argument.contains("${") {
            continue;
        }
        let is_credential = has_credentials(argument)
            || names_secret(argument)
            || (!argument.starts_with("--") && has_key_shape(argument));
        if announces(command, before, argument) {
            let flag = before.last().map_or("", |flag| flag.trim_start_matches('-'));
            found.push((flag.to_owned(), argument.clone()));
        } else if let Some(password) = client_password(command, before, argument) {
            found.push(("p".to_owned(), password.to_owned()));
        } else if let Some((name, value)) = assignment(argument).filter(|(name, _)| is_telling(name)) {
            found.push((name.trim_start_matches('-').to_owned(), value.trim().to_owned()));
        } else if is_credential {
            found.push((format!("argument {}", index + 1), argument.clone()));
        }
    }
    found
}

/// Splits `--flag=value`, `NAME=value` or `Header: value`. `None` for other text, such as an image with a tag.
fn assignment(argument: &str) -> Option<(&str, &str)> {
    let at = argument.find(['=', ':'])?;
    let (name, value) = (&argument[..at], &argument[at + 1..]);
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    let is_header = value.starts_with(' ') || name.starts_with(|c: char| c.is_ascii_uppercase());
    let meant = argument[at..].starts_with('=') || is_header;
    (is_name && meant && !value.trim().is_empty()).then_some((name, value))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Converts `my-server_--api-key` to `MY_SERVER_API_KEY`.
fn variable_name(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_uppercase).collect::<Vec<_>>().join("_")
}

fn without_placeholders(text: &str) -> String {
    let mut parts = text.split("${");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('}').map_or(part, |(_, behind)| behind))
}

/// Replaces each variable with its default, or with nothing.
fn with_defaults(text: &str) -> String {
    let mut parts = text.split("${");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| match part.split_once('}') {
        Some((inside, behind)) => text + Placeholder::of(inside).default.unwrap_or_default() + behind,
        None => text + part,
    })
}

fn is_telling(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    TELLING.iter().any(|part| name.contains(part)) || name.split(['_', '-']).any(|word| TELLING_WORDS.contains(&word))
}

/// Returns true if a value is certainly not a secret: a switch, a number, short words, a readable path or URL.
fn is_plain(value: &str) -> bool {
    if has_credentials(value) || value.len() > 200 {
        return false;
    }
    let pieces = value.split(['/', ',', ';', ' ', ':', '.', '-', '_', '~', '*']);
    let short = |piece: &str| {
        let length = if piece.chars().any(|c| c.is_ascii_digit()) { 8 } else { 16 };
        piece.chars().count() <= length && piece.chars().all(|c| c.is_alphanumeric())
    };
    pieces.into_iter().all(short)
}

/// Returns true for a URL with a user, a query value or a fragment. The user `git` is common to all and not a secret.
fn has_credentials(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (_, query) = rest.split_once(['?', '#']).unwrap_or_default();
        let given = |pair: &str| pair.split_once('=').map_or(!pair.is_empty(), |(_, value)| !value.is_empty());
        host.rsplit_once('@').is_some_and(|(user, _)| !matches!(user, "" | ":" | "git")) || query.split('&').any(given)
    })
}

/// Returns true if a value follows a name that suggests a secret: `export API_KEY='x'`, `{"token":"x"}`. The tag of an
/// image and the version of a package do not count.
fn names_secret(text: &str) -> bool {
    let mut rest = text;
    while let Some(at) = rest.find(WORD_BORDERS) {
        let (name, behind) = rest.split_at(at);
        let name = if behind.starts_with('=') { name.rsplit('/').next().unwrap_or(name) } else { name };
        let name = name.trim_start_matches(['-', '/']);
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        let is_tag = behind.starts_with([':', '@'])
            && (behind[1..] == *"latest" || behind[1..].chars().all(|c| c.is_ascii_digit() || c == '.'));
        if is_name && is_telling(name) && !is_tag && !behind.trim_matches(WORD_BORDERS).is_empty() {
            return true;
        }
        rest = behind.trim_start_matches(WORD_BORDERS);
    }
    false
}

/// Returns true if the flag at the end of `before` suggests that the next argument is a secret.
fn announces(command: &str, before: &[String], next: &str) -> bool {
    let flag = before.last().map_or("", String::as_str);
    let is_flag = next.starts_with("--") || (next.starts_with('-') && next.chars().count() <= 2);
    let telling = flag.starts_with('-') && !flag.contains('=') && (is_telling(flag) || flag == "-k");
    let value = with_defaults(next);
    let user = matches!(flag, "-u" | "--user") && value.contains(':');
    let password = flag == "-p" && may_be_password(&value) && !belongs_to_runner(command, before);
    !is_flag && (telling || user || password)
}

/// Returns true if the last of these arguments belongs to a program that runs a package, not to the package.
fn belongs_to_runner(command: &str, args: &[String]) -> bool {
    let flags = std::iter::once("").chain(args.iter().map(String::as_str));
    let is_package = |(flag, word): (&str, &String)| {
        !word.starts_with('-') && !RUNNER_COMMANDS.contains(&word.as_str()) && !RUNNER_FLAGS.contains(&flag)
    };
    RUNNERS.contains(&file_name(command)) && !flags.zip(args).any(is_package)
}

/// Returns the password in an argument `-pPASSWORD` of a database client. Another program, such as `docker`, may run the
/// client, and has `-pPORT:PORT`.
fn client_password<'a>(command: &str, before: &[String], argument: &'a str) -> Option<&'a str> {
    let password = argument.strip_prefix("-p").filter(|password| !password.is_empty())?;
    let is_mapping = password.contains(':') && password.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ':'));
    let mut words = std::iter::once(command).chain(before.iter().map(String::as_str));
    (!is_mapping && words.any(|word| DATABASE_CLIENTS.contains(&file_name(word)))).then_some(password)
}

fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Returns true if the value of `-p` may be a password. The flag also stands for a port, a path or a package.
fn may_be_password(value: &str) -> bool {
    let is_port = value.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ':' | '-'));
    let is_path = value.starts_with(['/', '.', '~', '@']) || is_plain(value);
    !(is_port || value.contains('/') && is_path)
}

/// Returns the text without placeholders and surrounding blanks.
fn literal_of(text: &str) -> String {
    without_placeholders(text).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_may_be_secrets_are_found() {
        let args = [
            "-y",
            "@scope/server-files@1.2.3",
            "--api-key",
            "first",
            "--token=second",
            "GITHUB_TOKEN=third",
            "--header",
            "Authorization: Bearer fourth",
            "postgres://user:fifth@host/db",
            "0123456789abcdef01234567",
            "/home/user/some/folder-with-a-long-name-2024",
            "--password",
            "${env:SIXTH}",
            "--log-level=debug",
            "-p",
            "seventh",
            "-p",
            "8080",
            "--pw=eighth",
            "-pnone",
            "mysql",
            "-p3306:3306",
            "-pninth",
        ];
        let found = secret_arguments("docker", &args.map(str::to_owned));
        let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = [
            ("api-key", "first"),
            ("token", "second"),
            ("GITHUB_TOKEN", "third"),
            ("Authorization", "Bearer fourth"),
            ("argument 9", "postgres://user:fifth@host/db"),
            ("argument 10", "0123456789abcdef01234567"),
            ("p", "seventh"),
            ("pw", "eighth"),
            ("p", "ninth"),
        ];
        assert_eq!(found, expected);
        let args = ["-y", "-p", "some-package", "some-server", "-p", "first"];
        assert_eq!(secret_arguments("/usr/bin/npx", &args.map(str::to_owned)), [("p".to_owned(), "first".to_owned())]);
    }
}
