//! Finds the authorization server of a service: the challenge of the service, its protected-resource metadata (RFC 9728)
//! and the metadata of the authorization server (RFC 8414).

use serde::Deserialize;
use url::Url;

use super::LoginError;
use super::requests::LoginClient;

const RESOURCE: &str = "the resource metadata of the service";
const SERVER: &str = "the metadata of the authorization server";
/// Maximum length of the rights that a service wants.
const MAX_SCOPE: usize = 1_000;

/// Everything that a service and its authorization server say about logins.
pub(super) struct Discovery {
    /// The name of the service at the authorization server.
    pub(super) resource: String,
    /// The rights to ask for. `None` leaves them to the server.
    pub(super) scope: Option<String>,
    pub(super) server: ServerMetadata,
}

/// The part of RFC 8414 that Skein uses. The addresses are checked.
#[derive(Debug, Deserialize)]
pub(super) struct ServerMetadata {
    pub(super) issuer: String,
    pub(super) authorization_endpoint: String,
    pub(super) token_endpoint: String,
    pub(super) registration_endpoint: Option<String>,
    pub(super) revocation_endpoint: Option<String>,
    #[serde(default)]
    code_challenge_methods_supported: Vec<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
    /// RFC 9207: the answer of the browser names the issuer.
    #[serde(default)]
    pub(super) authorization_response_iss_parameter_supported: bool,
}

/// The part of RFC 9728 that Skein uses.
#[derive(Debug, Deserialize)]
struct ResourceMetadata {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

/// Returns whether the service refuses a request without a login. Fails if it cannot be reached.
pub async fn asks_for_login(service_url: &str) -> Result<bool, LoginError> {
    let (client, service) = client_for(service_url)?;
    Ok(client.challenges(&service).await?.is_some())
}

pub(super) fn client_for(service_url: &str) -> Result<(LoginClient, Url), LoginError> {
    let insecure = |_| LoginError::insecure_address(service_url);
    let service = Url::parse(service_url).map_err(insecure)?;
    Ok((LoginClient::for_service(&service)?, service))
}

/// Asks the service and its authorization server.
pub(super) async fn discover(client: &LoginClient, service: &Url) -> Result<Discovery, LoginError> {
    let challenges = client.challenges(service).await?.ok_or(LoginError::NotRequired)?;
    let challenge = |name: &str| challenges.iter().find_map(|challenge| parameter(challenge, name));
    let named = challenge("resource_metadata");
    let metadata = resource_metadata(client, service, named.as_deref()).await?;
    let mut base = service.clone();
    base.set_query(None);
    base.set_fragment(None);
    // Servers of MCP 2025-03-26 have no such metadata: their origin is the authorization server.
    let origin = service.origin().ascii_serialization();
    let (resource, issuer, scopes) = match metadata {
        Some(ResourceMetadata { resource, authorization_servers, scopes_supported }) => {
            (resource, authorization_servers.into_iter().next().unwrap_or(origin), scopes_supported)
        }
        None => (base.to_string(), origin, Vec::new()),
    };
    let server = server_metadata(client, &issuer).await?;
    let scope = challenge("scope").or_else(|| (!scopes.is_empty()).then(|| scopes.join(" ")));
    Ok(Discovery { resource, scope: scope.map(|scope| with_offline_access(scope, &server)), server })
}

/// Asks for a refresh token too, if this server has a separate right for it.
fn with_offline_access(scope: String, server: &ServerMetadata) -> String {
    const OFFLINE: &str = "offline_access";
    let offered = server.scopes_supported.iter().any(|scope| scope == OFFLINE);
    match offered && !scope.split(' ').any(|part| part == OFFLINE) {
        true => format!("{scope} {OFFLINE}"),
        false => scope,
    }
}

async fn resource_metadata(
    client: &LoginClient,
    service: &Url,
    named: Option<&str>,
) -> Result<Option<ResourceMetadata>, LoginError> {
    const NAME: &str = "/.well-known/oauth-protected-resource";
    let candidates = match named {
        Some(named) => vec![client.check(named)?],
        None => vec![at(service, &format!("{NAME}{}", path(service))), at(service, NAME)],
    };
    for candidate in candidates {
        if let Some(metadata) = client.document::<ResourceMetadata>(RESOURCE, &candidate).await? {
            check_resource(&metadata.resource, service)?;
            return Ok(Some(metadata));
        }
    }
    match named {
        Some(named) => Err(LoginError::Invalid { part: RESOURCE, problem: format!("there is none at {named}") }),
        None => Ok(None),
    }
}

/// Fails if the metadata are about another service, which could otherwise get a token for itself.
fn check_resource(resource: &str, service: &Url) -> Result<(), LoginError> {
    let includes = Url::parse(resource).is_ok_and(|resource| {
        let below = path(service).strip_prefix(path(&resource));
        resource.origin() == service.origin() && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    // The path of the service may contain a secret.
    let problem = || format!("it is about `{resource}`, not about this service");
    includes.then_some(()).ok_or_else(|| LoginError::Invalid { part: RESOURCE, problem: problem() })
}

async fn server_metadata(client: &LoginClient, issuer: &str) -> Result<ServerMetadata, LoginError> {
    let base = client.check(issuer)?;
    let path = path(&base);
    let (oauth, openid) = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration");
    let mut candidates = vec![format!("{oauth}{path}"), format!("{openid}{path}")];
    if !path.is_empty() {
        candidates.push(format!("{path}{openid}"));
    }
    for candidate in candidates {
        if let Some(metadata) = client.document::<ServerMetadata>(SERVER, &at(&base, &candidate)).await? {
            return check_server(client, issuer, metadata);
        }
    }
    Err(LoginError::Invalid { part: SERVER, problem: format!("there is none at {issuer}") })
}

/// Returns the metadata if they are of this issuer and safe to use.
fn check_server(client: &LoginClient, issuer: &str, metadata: ServerMetadata) -> Result<ServerMetadata, LoginError> {
    if !is_same_issuer(&metadata.issuer, issuer) {
        return Err(LoginError::WrongIssuer { expected: issuer.to_owned(), found: metadata.issuer });
    }
    if !metadata.code_challenge_methods_supported.iter().any(|method| method == "S256") {
        let problem = "it does not offer PKCE with S256, which protects the login".to_owned();
        return Err(LoginError::Invalid { part: SERVER, problem });
    }
    let optional = [&metadata.registration_endpoint, &metadata.revocation_endpoint];
    let required = [&metadata.authorization_endpoint, &metadata.token_endpoint];
    for endpoint in optional.into_iter().flatten().chain(required) {
        client.check(endpoint)?;
    }
    Ok(metadata)
}

/// Compares issuers. A slash at the end makes no difference, because many servers write it in one place only.
pub(super) fn is_same_issuer(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

/// Returns the path without a slash at the end.
fn path(url: &Url) -> &str {
    url.path().trim_end_matches('/')
}

fn at(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(path);
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// A service refused a request because the login lacks rights (RFC 6750).
#[derive(Debug, PartialEq, Eq)]
pub(in crate::services) struct RightsRefusal {
    /// The rights that the request needs. `None` if the service does not name them.
    pub(in crate::services) scope: Option<String>,
}

/// Returns what a `WWW-Authenticate` header of an answer with 403 wants. `None` if it has another reason.
pub(in crate::services) fn rights_refusal(challenge: &str) -> Option<RightsRefusal> {
    if parameter(challenge, "error")? != "insufficient_scope" {
        return None;
    }
    // The user sees the rights, so they have only the characters of the standard.
    let is_right = |letter: char| letter == ' ' || letter.is_ascii_graphic() && !['"', '\\', '`'].contains(&letter);
    let is_scope = |scope: &String| scope.len() <= MAX_SCOPE && scope.chars().all(is_right) && !scope.trim().is_empty();
    Some(RightsRefusal { scope: parameter(challenge, "scope").filter(is_scope) })
}

/// Returns a parameter of a `WWW-Authenticate` header for bearer tokens.
fn parameter(challenge: &str, name: &str) -> Option<String> {
    let lower = challenge.to_ascii_lowercase();
    let bearer = lower.find("bearer")?;
    let mut from = bearer;
    loop {
        let found = from + lower[from..].find(&format!("{name}="))?;
        from = found + name.len() + 1;
        // `scope=` is also the end of `max_scope=`.
        if lower[..found].ends_with([' ', ',', '\t']) {
            break;
        }
    }
    let value = &challenge[from..];
    let value = match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => value.split([',', ' ', '\t']).next(),
    };
    value.filter(|value| !value.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_challenge_are_read() {
        let header = r#"Basic realm="x", Bearer max_scope=all, resource_metadata="https://a.example/m", scope="a b""#;
        assert_eq!(parameter(header, "resource_metadata").as_deref(), Some("https://a.example/m"));
        assert_eq!(parameter(header, "scope").as_deref(), Some("a b"));
        assert_eq!(parameter("bearer scope=read, x=y", "scope").as_deref(), Some("read"));
        for without in ["Basic scope=a", "Bearer", "Bearer scope=", "Bearer scope=\"\"", ""] {
            assert_eq!(parameter(without, "scope"), None, "{without}");
        }
    }

    #[test]
    fn only_a_lack_of_rights_is_a_reason_for_a_wider_login() {
        let wants = |header: &str| rights_refusal(header).map(|refusal| refusal.scope);
        let header = r#"Bearer error="insufficient_scope", scope="files:read files:write", error_description="no""#;
        assert_eq!(wants(header), Some(Some("files:read files:write".to_owned())));
        assert_eq!(wants("Bearer scope=admin, error=insufficient_scope"), Some(Some("admin".to_owned())));
        assert_eq!(wants(r#"Bearer error="insufficient_scope""#), Some(None));
        for other in [r#"Bearer error="invalid_token", scope="a""#, r#"Bearer scope="a""#, "Basic realm=x", ""] {
            assert_eq!(wants(other), None, "{other}");
        }
        for hostile in ["a\u{1b}[2J", "a`b", "ü", "   ", &"x".repeat(MAX_SCOPE + 1)] {
            let header = format!("Bearer error=\"insufficient_scope\", scope=\"{hostile}\"");
            assert_eq!(wants(&header), Some(None), "{hostile}");
        }
    }

    #[test]
    fn metadata_are_about_the_service_itself() {
        let service = Url::parse("https://api.example/team/mcp").unwrap();
        for fine in ["https://api.example", "https://api.example/team/", "https://api.example/team/mcp"] {
            assert!(check_resource(fine, &service).is_ok(), "{fine}");
        }
        for other in ["https://other.example/team/mcp", "http://api.example", "https://api.example/te", "x"] {
            assert!(check_resource(other, &service).is_err(), "{other}");
        }
    }
}
