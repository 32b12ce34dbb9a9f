//! `skein token`: creates, lists and revokes the tokens of `skein serve`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::store_failure::store_failure;
use super::store_flag::StoreFlag;
use super::{Global, workspace};
use crate::graph::Plan;
use crate::ids::{ModeId, NamePattern};
use crate::manifest::ApprovalLevel;
use crate::principal::{Principal, TokenLimits};
use crate::store::{NewToken, StorePlace, StoredToken, TokenState, TokenStore};

#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    #[command(flatten)]
    store: StoreFlag,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token and print it as the last word
    ///
    /// Skein keeps only its hash. --approval is the loosest level that a session of the token may have.
    Create(Box<CreateArgs>),
    /// List tokens and their limits
    List {
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token; its connections close
    Revoke {
        /// Id of the token, from `skein token list`
        id: String,
    },
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Principal that owns the data; tokens of one name share it
    #[arg(long)]
    name: String,
    /// Allow only these modes, as `agent/mode`; repeatable
    #[arg(long, value_name = "GLOB")]
    modes: Vec<String>,
    /// Allow only these services at /mcp/services; repeatable
    #[arg(long, value_name = "GLOB")]
    services: Vec<String>,
    /// Allow clients to bring services that start programs here
    #[arg(long)]
    client_services: bool,
    /// Allow sessions in this folder and below; repeatable
    #[arg(long, value_name = "PATH")]
    root: Vec<PathBuf>,
    /// Limit the open sessions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sessions: Option<u32>,
    /// Limit the turns that run at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    turns: Option<u32>,
    /// Limit the requests per minute, as in `60/m`
    #[arg(long, value_name = "N/m", value_parser = parse_requests)]
    requests: Option<u32>,
    /// Allow managing tokens, manifests and rules
    #[arg(long)]
    admin: bool,
    /// End the token after this time, as in `30d`, `12h` or `90m`
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    expires: Option<SignedDuration>,
}

pub(super) fn run(
    args: &TokenArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime =
        runtime.map_err(|error| CommandError::work(format!("no async runtime: {error}"), "check the limits"))?;
    let place = args.store.place(folders, output)?;
    match &args.command {
        TokenCommand::Create(args) => {
            let new = new_token(args, global, folders, output)?;
            runtime.block_on(create(new, &place, output))
        }
        TokenCommand::List { json } => runtime.block_on(list(*json, &place, output)),
        TokenCommand::Revoke { id } => runtime.block_on(revoke(id, &place, output)),
    }
}

/// Checks the arguments. Fails if a name, folder or time is wrong, or if a glob matches nothing.
fn new_token(
    args: &CreateArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<NewToken, CommandError> {
    let principal = Principal::new(&args.name).map_err(|error| {
        CommandError::usage(display_line(&error.to_string()), "choose another --name, such as `ann` or `ci`")
    })?;
    let roots = args.root.iter().map(|root| resolve_root("--root", root, folders)).collect::<Result<_, _>>()?;
    if !args.modes.is_empty() || !args.services.is_empty() {
        let plan = workspace::plan(global, folders, output)?;
        check_modes("--modes", &args.modes, &plan)?;
        check_services("--services", &args.services, &plan)?;
    }
    let limits = TokenLimits {
        modes: args.modes.clone(),
        services: (!args.services.is_empty()).then(|| args.services.clone()),
        client_services: args.client_services,
        approval: loosest_approval(global),
        roots,
        sessions: args.sessions,
        turns: args.turns,
        requests_per_minute: args.requests,
        admin: args.admin,
    };
    let expires = args.expires.map(|lifetime| Timestamp::now().checked_add(lifetime)).transpose();
    let expires = expires.map_err(|_| CommandError::usage("--expires is too far away", "leave it out for never"))?;
    Ok(NewToken { principal, limits, expires })
}

/// Returns the level of the flag. The environment variable is for the sessions of this user, not for a token.
fn loosest_approval(global: &Global) -> Option<ApprovalLevel> {
    let is_flag = |argument: std::ffi::OsString| argument.to_string_lossy().starts_with("--approval");
    global.approval.filter(|_| std::env::args_os().any(is_flag))
}

/// Returns the folder of a setting with its links resolved. Fails if it is missing or not a folder.
pub(super) fn resolve_root(setting: &str, root: &Path, folders: &Folders) -> Result<PathBuf, CommandError> {
    let path = folders.cwd.join(root);
    let shown = display_line(&root.to_string_lossy());
    let resolved = path.canonicalize().map_err(|error| {
        CommandError::usage(
            format!("the folder `{shown}` of {setting} cannot be used: {error}"),
            "name a folder that exists",
        )
    })?;
    if !resolved.is_dir() {
        return Err(CommandError::usage(format!("`{shown}` of {setting} is not a folder"), "name a folder"));
    }
    Ok(resolved)
}

fn mode_names(plan: &Plan) -> Vec<String> {
    let of_agent = |(agent, modes): (&crate::manifest::AgentEntry, Vec<&crate::manifest::ModeEntry>)| {
        let name = agent.manifest.name.clone();
        modes.into_iter().map(|mode| ModeId::new(name.clone(), mode.mode.slug.clone()).to_string()).collect::<Vec<_>>()
    };
    plan.selectable_modes().flat_map(of_agent).collect()
}

/// Fails if a glob of the setting matches no mode.
pub(super) fn check_modes(setting: &str, globs: &[String], plan: &Plan) -> Result<(), CommandError> {
    check_globs(setting, "mode", globs, &mode_names(plan), "`skein agents` lists agents and modes")
}

/// Fails if a glob of the setting matches no service.
pub(super) fn check_services(setting: &str, globs: &[String], plan: &Plan) -> Result<(), CommandError> {
    let services: Vec<_> = plan.services().map(|service| service.manifest.name.to_string()).collect();
    check_globs(setting, "service", globs, &services, "`skein services` lists them")
}

/// Fails if a glob matches no name.
fn check_globs(flag: &str, kind: &str, globs: &[String], names: &[String], help: &str) -> Result<(), CommandError> {
    for glob in globs {
        let pattern = NamePattern::new(glob);
        if !names.iter().any(|name| pattern.matches(name)) {
            return Err(CommandError::usage(format!("{flag} `{}` matches no {kind}", display_line(glob)), help));
        }
    }
    Ok(())
}

async fn create(new: NewToken, place: &StorePlace, output: &mut CommandOutput) -> Result<(), CommandError> {
    let until = lifetime_text(new.expires);
    let name = new.principal.name().to_owned();
    let tokens = open(place)?;
    let created = tokens.create(new).await.map_err(|error| store_failure(&error))?;
    output.note("keep the token now: Skein stores only its hash and cannot show it again");
    if output.unique_line(&format!("token {} of {name}, {until}: {}", created.id, created.token)) {
        return Ok(());
    }
    // A token whose secret is lost must not stay active.
    tokens.revoke(&created.id).await.map_err(|error| store_failure(&error))?;
    let problem = format!("token {} could not be printed and is revoked", created.id);
    Err(CommandError::work(problem, "create another one, with an output that can be written"))
}

async fn list(json: bool, place: &StorePlace, output: &mut CommandOutput) -> Result<(), CommandError> {
    let tokens = open(place)?.list().await.map_err(|error| store_failure(&error))?;
    if json {
        let tokens: Vec<_> = tokens.iter().map(token_json).collect();
        output.json(&json!(tokens));
        return Ok(());
    }
    if tokens.is_empty() {
        output.note("there are no tokens; `skein token create --name NAME` makes one");
    }
    for StoredToken { grant, state, .. } in &tokens {
        let until = match state {
            TokenState::Active => lifetime_text(grant.expires),
            TokenState::Expired | TokenState::Revoked => state.as_str().to_owned(),
        };
        output.line(&format!("{}  {}  {until}", grant.id, grant.principal));
        limit_lines(&grant.limits).iter().for_each(|line| output.line(&format!("  {line}")));
    }
    Ok(())
}

async fn revoke(id: &str, place: &StorePlace, output: &mut CommandOutput) -> Result<(), CommandError> {
    if !open(place)?.revoke(id).await.map_err(|error| store_failure(&error))? {
        let problem = format!("there is no token `{}`", display_line(id));
        return Err(CommandError::usage(problem, "`skein token list` shows the ids"));
    }
    output.line(&format!("revoked {id}"));
    Ok(())
}

fn open(place: &StorePlace) -> Result<TokenStore, CommandError> {
    place.tokens().map_err(|error| store_failure(&error))
}

fn lifetime_text(expires: Option<Timestamp>) -> String {
    expires.map_or_else(|| "without end".to_owned(), |at| format!("until {}", at.strftime("%Y-%m-%d %H:%M UTC")))
}

fn token_json(token: &StoredToken) -> serde_json::Value {
    let StoredToken { grant, created, state } = token;
    let time = |at: Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "id": grant.id, "name": grant.principal.name(), "state": state, "created": time(*created),
        "expires": grant.expires.map(time), "limits": grant.limits,
    })
}

/// Describes each limit in a line, with the flag that sets it.
fn limit_lines(limits: &TokenLimits) -> Vec<String> {
    let list =
        |flag: &str, values: &[String]| values.iter().map(|value| format!("--{flag} {value}")).collect::<Vec<_>>();
    let number = |flag: &str, value: Option<u32>, unit: &str| value.map(|value| format!("--{flag} {value}{unit}"));
    let mut lines = list("modes", &limits.modes);
    lines.extend(list("services", limits.services.as_deref().unwrap_or_default()));
    lines.extend(limits.client_services.then(|| "--client-services".to_owned()));
    lines.extend(limits.approval.map(|level| format!("--approval {}", level.as_str())));
    lines.extend(limits.roots.iter().map(|root| format!("--root {}", display_line(&root.to_string_lossy()))));
    lines.extend(number("sessions", limits.sessions, ""));
    lines.extend(number("turns", limits.turns, ""));
    lines.extend(number("requests", limits.requests_per_minute, "/m"));
    lines.extend(limits.admin.then(|| "--admin".to_owned()));
    lines
}

/// A value of a flag that has another form than it must.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum TokenFlagError {
    #[error("write a number of requests per minute, as in `60/m`")]
    Requests,
    #[error("write a time such as `30d`, `12h` or `90m`")]
    Lifetime,
}

fn parse_requests(text: &str) -> Result<u32, TokenFlagError> {
    let number = text.strip_suffix("/m").and_then(|number| number.parse().ok());
    number.filter(|number| *number > 0).ok_or(TokenFlagError::Requests)
}

fn parse_lifetime(text: &str) -> Result<SignedDuration, TokenFlagError> {
    let units = [("m", 60), ("h", 3_600), ("d", 86_400), ("w", 7 * 86_400)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let number: u32 = text.strip_suffix(unit)?.parse().ok()?;
        (number > 0).then(|| SignedDuration::from_secs(i64::from(number) * seconds))
    });
    parsed.ok_or(TokenFlagError::Lifetime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_has_a_number_and_a_unit() {
        for (text, hours) in [("30d", 720), ("12h", 12), ("120m", 2), ("1w", 168)] {
            assert_eq!(parse_lifetime(text), Ok(SignedDuration::from_hours(hours)), "{text}");
        }
        for text in ["", "30", "d", "0d", "-1d", "1.5d", "30 d", "30D", "30y", "99999999999d"] {
            assert_eq!(parse_lifetime(text), Err(TokenFlagError::Lifetime), "{text}");
        }
    }

    #[test]
    fn requests_are_per_minute() {
        assert_eq!(parse_requests("60/m"), Ok(60));
        for text in ["60", "60/s", "/m", "0/m", "-1/m", "60/min"] {
            assert_eq!(parse_requests(text), Err(TokenFlagError::Requests), "{text}");
        }
    }
}
