//! `skein services login` and `logout`: the user's browser, the stored login, and its state in the list of services.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::super::folders::Folders;
use super::super::keys::KeyLocation;
use super::super::logins::Logins;
use super::super::new::check_name;
use super::super::open_browser::open_browser;
use super::super::output::{CommandError, CommandOutput, display_line};
use super::super::run::span;
use super::super::{Global, workspace};
use super::find;
use crate::clock;
use crate::ids::ServiceName;
use crate::manifest::{ServiceEntry, Transport};
use crate::services::Environment;
use crate::services::login::{
    LoginAttempt, LoginError, LoginOptions, LoginStore as _, StoredLogin, asks_for_login, revoke,
};

/// Time for the user to log in while a service is added.
const TIME_LIMIT: Duration = Duration::from_secs(300);

#[derive(Debug, Args)]
pub(super) struct LoginArgs {
    name: String,
    /// Print the address of the page instead of opening a browser
    #[arg(long)]
    no_browser: bool,
    /// Use a client that you registered yourself
    ///
    /// For authorization servers that do not register clients by themselves. Register a public client with the redirect
    /// address http://127.0.0.1/callback and any port.
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Wait this long for the browser, as 90s or 10m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = span)]
    time_limit: Duration,
}

#[derive(Debug, Args)]
pub(super) struct LogoutArgs {
    name: String,
}

/// How to log in to a service.
pub(super) struct LoginRequest {
    options: LoginOptions,
    opens_browser: bool,
    limit: Duration,
}

impl LoginRequest {
    /// Returns the usual way to log in. Fails if the service has no login.
    pub(super) fn of(entry: &ServiceEntry, folders: &Folders) -> Result<Self, CommandError> {
        let url = service_url(entry, folders)?;
        // A login that cannot be read is replaced.
        let stored = Logins::of(folders).find(&entry.manifest.name).ok().flatten().map(|(_, login)| login);
        let scope = stored.filter(|login| login.is_for(&url)).and_then(|login| login.wider_scope());
        let options = LoginOptions { service_url: url, client_id: None, scope };
        Ok(Self { options, opens_browser: true, limit: TIME_LIMIT })
    }
}

pub(super) fn login(
    args: &LoginArgs,
    json: bool,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let plan = workspace::plan(global, folders, output)?;
    let entry = find(&plan, &args.name)?;
    let mut request = LoginRequest::of(entry, folders)?;
    request.options.client_id = args.client_id.clone();
    request.opens_browser = !args.no_browser;
    request.limit = args.time_limit;
    let (location, login) = perform(&entry.manifest.name, &request, folders, output)?;
    if json {
        output.json(&json!({
            "name": args.name, "issuer": login.issuer, "scope": login.scope, "stored_in": location.as_str(),
            "expires_at": login.expires_at.map(clock::iso), "renewable": login.refresh_token.is_some(),
        }));
    } else {
        let place = match location {
            KeyLocation::File => folders.display_path(&Logins::of(folders).file()),
            KeyLocation::Keyring | KeyLocation::Environment | KeyLocation::Nowhere => "your keyring".to_owned(),
        };
        output.line(&format!(
            "logged in to `{}` at {}; the login is in {place}",
            args.name,
            display_line(&login.issuer)
        ));
        if login.refresh_token.is_none() {
            output.note("the server does not renew this login: you must log in again when it expires");
        }
    }
    Ok(())
}

/// Logs in with the browser, and stores the login. Returns its place.
pub(super) fn perform(
    service: &ServiceName,
    request: &LoginRequest,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(KeyLocation, StoredLogin), CommandError> {
    let login = async_runtime()?.block_on(async {
        let attempt = LoginAttempt::begin(&request.options).await?;
        show_page(&attempt, request.opens_browser, folders, output);
        attempt.finish(request.limit).await
    });
    let login = login.map_err(|error| login_failure(service, &error))?;
    let logins = Logins::of(folders);
    let not_stored = |problem: String| {
        let help = "correct this, then log in again; `skein doctor` shows where keys are stored";
        CommandError::work(format!("the login was not stored: {}", display_line(&problem)), help)
    };
    // A running Skein that renews the old login must not overwrite the new one.
    let lock = logins.lock(service).map_err(|error| not_stored(error.to_string()))?;
    let location = logins.keep(service, &login).map_err(|error| not_stored(format!("{error:#}")))?;
    drop(lock);
    Ok((location, login))
}

/// Forgets a login. Revokes its tokens first, if the authorization server can be reached.
pub(super) fn logout(
    args: &LogoutArgs,
    json: bool,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    check_name(&args.name)?;
    let service = ServiceName::new(args.name.as_str());
    let logins = Logins::of(folders);
    let failure = |error: &anyhow::Error| {
        let problem = format!("the login of `{service}` was not removed: {}", display_line(&format!("{error:#}")));
        CommandError::work(problem, "unlock your keyring, or correct the file, and try again")
    };
    // A login that cannot be read can still be removed.
    let stored = logins.find(&service).ok().flatten();
    let revoked = match &stored {
        Some((_, login)) => async_runtime()?.block_on(revoke(login)),
        None => Ok(false),
    };
    let places = logins.forget(&service).map_err(|error| failure(&error))?;
    if let Err(error) = &revoked {
        output.note(&format!("the tokens were not revoked, and stay valid until they expire: {error}"));
    }
    let revoked = revoked.unwrap_or(false);
    match (json, places.is_empty()) {
        (true, is_empty) => {
            output.json(&json!({"name": args.name, "removed": !is_empty, "revoked": revoked}));
        }
        (false, true) => output.line(&format!("there was no login of `{service}`")),
        (false, false) if revoked => output.line(&format!("logged out of `{service}` and revoked its tokens")),
        (false, false) => output.line(&format!("logged out of `{service}`")),
    }
    Ok(())
}

/// Removes the login of a service that was not added.
pub(super) fn discard(service: &ServiceName, folders: &Folders) {
    if let Err(error) = Logins::of(folders).forget(service) {
        tracing::warn!(%service, error = %format!("{error:#}"), "a login is left");
    }
}

/// Returns whether the service refuses requests without a login. False if it cannot have one.
pub(super) fn is_wanted(entry: &ServiceEntry, folders: &Folders) -> bool {
    let (Ok(url), Ok(runtime)) = (service_url(entry, folders), async_runtime()) else { return false };
    runtime.block_on(asks_for_login(&url)).unwrap_or(false)
}

/// Returns the address of an HTTP service. Fails if Skein cannot log in to the service.
fn service_url(entry: &ServiceEntry, folders: &Folders) -> Result<String, CommandError> {
    let name = &entry.manifest.name;
    let Transport::Http(http) = &entry.manifest.transport else {
        let problem = format!("`{name}` is not an HTTP service, so it has no login");
        return Err(CommandError::usage(problem, "give a program its keys with `env` in its manifest"));
    };
    if http.headers.keys().any(|header| header.eq_ignore_ascii_case("authorization")) {
        let problem = format!("the manifest of `{name}` has its own `Authorization` header");
        return Err(CommandError::usage(problem, "remove the header from the manifest, then log in"));
    }
    let url = Environment::new(folders.environment()).fill_in(&http.url);
    url.map_err(|error| CommandError::usage(error.to_string(), "set it, then log in"))
}

fn async_runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    tokio::runtime::Runtime::new()
        .map_err(|error| CommandError::work(format!("no async runtime: {error}"), "check the limits on threads"))
}

fn show_page(attempt: &LoginAttempt, opens_browser: bool, folders: &Folders, output: &mut CommandOutput) {
    let url = attempt.authorization_url();
    let opened = opens_browser && open_browser(url, folders).is_some();
    let introduction = match opened {
        true => "your browser shows the login; if it does not, open this page",
        false => "open this page in a browser on this machine",
    };
    let issuer = display_line(attempt.issuer());
    output.aside(&format!("log in at {issuer}\n{introduction}:\n{}\n", display_line(url)));
}

fn login_failure(service: &ServiceName, error: &LoginError) -> CommandError {
    let again = format!("run `skein services login {service}` again");
    let help = match error {
        LoginError::InsecureAddress { .. } => "use an https address; tokens are not sent without encryption".to_owned(),
        LoginError::NotRequired => format!("use `{service}` without a login"),
        LoginError::NoRegistration { .. } => {
            "register a client there with the redirect address http://127.0.0.1/callback, then pass --client-id"
                .to_owned()
        }
        LoginError::Unanswered { .. } => format!("{again}, and agree in the browser"),
        LoginError::Refused { .. } => format!("{again}, and agree in the browser"),
        LoginError::Unreachable { .. } | LoginError::Unexpected { .. } => format!("check the network, then {again}"),
        LoginError::Invalid { .. } | LoginError::WrongIssuer { .. } => {
            "nothing was stored; ask the operator of the service".to_owned()
        }
        LoginError::Random(_) | LoginError::Listen(_) | LoginError::Stopped | LoginError::Store(_) => again,
    };
    CommandError::work(format!("no login to `{service}`: {}", display_line(&error.to_string())), help)
}

/// The logins of all services, for the list of services.
pub(super) struct LoginStates<'a> {
    logins: Logins,
    folders: &'a Folders,
}

/// What is known about the login of one service, without asking a server.
enum LoginState {
    None,
    /// The login belongs to another origin and is not used.
    OtherAddress,
    Expired,
    Valid(KeyLocation, Box<StoredLogin>),
    Unreadable(String),
}

impl<'a> LoginStates<'a> {
    pub(super) fn new(folders: &'a Folders) -> Self {
        Self { logins: Logins::of(folders), folders }
    }

    fn state(&self, entry: &ServiceEntry) -> LoginState {
        let Ok(url) = service_url(entry, self.folders) else { return LoginState::None };
        match self.logins.find(&entry.manifest.name) {
            Ok(None) => LoginState::None,
            Ok(Some((_, login))) if !login.is_for(&url) => LoginState::OtherAddress,
            Ok(Some((_, login))) if login.is_due() && login.refresh_token.is_none() => LoginState::Expired,
            Ok(Some((location, login))) => LoginState::Valid(location, Box::new(login)),
            Err(error) => LoginState::Unreadable(format!("{error:#}")),
        }
    }

    /// Returns the state of the login for a person. `None` if the service has no login.
    pub(super) fn text(&self, entry: &ServiceEntry) -> Option<String> {
        let again = format!("run `skein services login {}`", entry.manifest.name);
        match self.state(entry) {
            LoginState::None => None,
            LoginState::OtherAddress => Some(format!("for another address, so it is not used; {again}")),
            LoginState::Expired => Some(format!("expired; {again}")),
            LoginState::Valid(location, login) => Some(format!("at {}, in the {}", login.issuer, location.as_str())),
            LoginState::Unreadable(problem) => Some(problem),
        }
    }

    /// Returns the state of the login as JSON. Null if the service has no login.
    pub(super) fn json(&self, entry: &ServiceEntry) -> Value {
        match self.state(entry) {
            LoginState::None => Value::Null,
            LoginState::OtherAddress => json!({"state": "other-address"}),
            LoginState::Expired => json!({"state": "expired"}),
            LoginState::Valid(location, login) => json!({
                "state": "valid", "issuer": login.issuer, "scope": login.scope, "stored_in": location.as_str(),
                "expires_at": login.expires_at.map(clock::iso), "renewable": login.refresh_token.is_some(),
            }),
            LoginState::Unreadable(problem) => json!({"state": "unreadable", "problem": problem}),
        }
    }
}
