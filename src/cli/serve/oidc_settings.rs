//! Reads the flags and settings for JWTs: the issuer, the audience, and the principals of the user's config.

use std::time::Instant;

use super::super::folders::Folders;
use super::super::output::{CommandError, CommandOutput, display_line};
use super::super::token::{check_modes, check_services, resolve_root};
use super::super::{Global, workspace};
use super::ServeArgs;
use crate::graph::Plan;
use crate::manifest::{Layer, PrincipalRule};
use crate::network::is_private_url;
use crate::principal::{Principal, TokenLimits};
use crate::serve::{OidcSettings, OidcVerifier, PrincipalMapping};

/// Returns the verifier of JWTs. `None` if the flags name no issuer. Fails if a flag or an entry of `serve.principals`
/// cannot be used.
pub(super) fn verifier(
    args: &ServeArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<Option<OidcVerifier>, CommandError> {
    let (Some(issuer), Some(audience)) = (&args.oidc_issuer, &args.oidc_audience) else { return Ok(None) };
    if !is_private_url(issuer) {
        let problem = format!("`{}` of --oidc-issuer is not an https URL", display_line(issuer));
        return Err(CommandError::usage(problem, "write it as the issuer does, such as https://login.example.com"));
    }
    if audience.is_empty() {
        return Err(CommandError::usage("--oidc-audience is empty", "name the audience of the JWTs for this server"));
    }
    let plan = workspace::plan(global, folders, output)?;
    let settings =
        OidcSettings { issuer: issuer.clone(), audience: audience.clone(), principals: principals(&plan, folders)? };
    let verifier = OidcVerifier::new(settings).map_err(|error| {
        CommandError::work(error.to_string(), "check the certificates of the system, or leave out --oidc-issuer")
    })?;
    Ok(Some(verifier))
}

/// Notes that this server refuses JWTs that other replicas pass on, if their audience is a requested address and there
/// is no `--public-url`. Other replicas reach the server at an address that clients do not know.
pub(super) fn note_replicas(args: &ServeArgs, output: &mut CommandOutput) {
    let audience = args.oidc_audience.as_deref().unwrap_or_default();
    let is_address = ["https://", "http://"].iter().any(|scheme| audience.starts_with(scheme));
    if is_address && args.replica.has_internal_address() && args.public_url.is_none() {
        output.note(
            "a JWT whose audience is the address of a request works only on the replica that got the request; \
             start each replica with the same --public-url",
        );
    }
}

/// Fetches the keys of the issuer. An issuer that cannot be reached now may be reached later, so it gets a note.
pub(super) async fn load_keys(verifier: &OidcVerifier, output: &mut CommandOutput) {
    match verifier.load_keys(Instant::now()).await {
        Ok(0) => output.note("the issuer has no key for RS256, ES256 or EdDSA, so JWTs are refused"),
        Ok(_) => {}
        Err(error) => {
            let problem = display_line(&error.to_string());
            output.note(&format!("JWTs are refused until the keys of the issuer can be read: {problem}"));
        }
    }
}

/// Returns the principals of the user's config with their limits. Fails if there are none.
fn principals(plan: &Plan, folders: &Folders) -> Result<Vec<PrincipalMapping>, CommandError> {
    let configs = plan.manifests().configs.iter().filter(|entry| entry.layer == Layer::User);
    let rules: Vec<_> = configs.filter_map(|entry| entry.config.serve.as_ref()).flat_map(|it| &it.principals).collect();
    if rules.is_empty() {
        let problem = "--oidc-issuer needs `serve.principals` in your config.yaml, or else every JWT is refused";
        return Err(CommandError::usage(problem, "add an entry with `claims` and `name`"));
    }
    rules.iter().enumerate().map(|(index, rule)| mapping(index, rule, plan, folders)).collect()
}

/// Checks an entry of `serve.principals`, as `skein token create` checks its flags.
fn mapping(
    index: usize,
    rule: &PrincipalRule,
    plan: &Plan,
    folders: &Folders,
) -> Result<PrincipalMapping, CommandError> {
    let setting = |field: &str| format!("serve.principals[{index}].{field}");
    if let Some(name) = &rule.name {
        Principal::new(name).map_err(|error| {
            let problem = format!("{}: {}", setting("name"), display_line(&error.to_string()));
            CommandError::usage(problem, "choose another name, such as `ann` or `ci`")
        })?;
    }
    check_modes(&setting("modes"), &rule.modes, plan)?;
    check_services(&setting("services"), rule.services.as_deref().unwrap_or_default(), plan)?;
    let mut roots = Vec::new();
    for root in &rule.roots {
        if !root.is_absolute() {
            let shown = display_line(&root.to_string_lossy());
            let problem = format!("`{shown}` of {} is not an absolute path", setting("roots"));
            return Err(CommandError::usage(problem, "write the whole path of the folder"));
        }
        roots.push(resolve_root(&setting("roots"), root, folders)?);
    }
    let limits = TokenLimits {
        modes: rule.modes.clone(),
        services: rule.services.clone(),
        client_services: rule.client_services,
        approval: rule.approval,
        roots,
        sessions: rule.sessions,
        turns: rule.turns,
        requests_per_minute: rule.requests_per_minute,
        admin: rule.admin,
    };
    Ok(PrincipalMapping { rule: rule.clone(), limits })
}
