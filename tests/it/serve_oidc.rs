//! JWTs of an OpenID Connect issuer: a real issuer on loopback, its keys, and what `skein serve` makes of its JWTs.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use skein::principal::{TokenGrant, TokenLimits};
use skein::serve::{JwtError, OidcError, OidcSettings, OidcVerifier, PrincipalMapping};

use crate::serve_acp::{Socket, initialize, root};
use crate::serve_mcp;
use crate::support::Sandbox;
use crate::support::issuer::{AUDIENCE, Issuer, SigningKey, sign_with_secret, unsigned};
use crate::support::serve::{HttpAnswer, Server, eventually, token};

/// One principal by its group, one by its mail address, and those with a role by the address itself.
fn rules() -> Value {
    json!([
        {"claims": {"groups": "ops"}, "name": "ops", "admin": true},
        {"claims": {"email": "ann@example.com"}, "name": "ann"},
        {"claims": {"/realm_access/roles": ["user", "guest"]}, "name_claim": "email"},
    ])
}

fn verifier(issuer: &Issuer) -> OidcVerifier {
    verifier_for(issuer, AUDIENCE)
}

fn verifier_for(issuer: &Issuer, audience: &str) -> OidcVerifier {
    let rules = rules().as_array().unwrap().clone();
    let mapping = |rule: Value| PrincipalMapping {
        rule: serde_json::from_value(rule).unwrap(),
        limits: TokenLimits { sessions: Some(3), ..TokenLimits::default() },
    };
    let principals = rules.into_iter().map(mapping).collect();
    let settings = OidcSettings { issuer: issuer.url.clone(), audience: audience.to_owned(), principals };
    OidcVerifier::new(settings).unwrap()
}

async fn verify(verifier: &OidcVerifier, jwt: &str) -> Result<TokenGrant, OidcError> {
    verifier.verify(jwt, Timestamp::now(), Instant::now()).await
}

fn refused<T>(error: JwtError) -> Result<T, OidcError> {
    Err(OidcError::Refused(error))
}

fn with(mut claims: Value, change: Value) -> Value {
    claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    claims
}

#[tokio::test]
async fn each_algorithm_verifies_and_no_changed_byte_does() {
    let keys = [SigningKey::rsa("r"), SigningKey::p256("p"), SigningKey::ed25519("e")];
    let issuer = Issuer::start(&keys.each_ref());
    let verifier = verifier(&issuer);
    for key in &keys {
        let jwt = key.sign(&issuer.claims("ann", 60));
        let grant = verify(&verifier, &jwt).await.unwrap();
        assert_eq!((grant.principal.name(), grant.limits.sessions), ("ann", Some(3)), "{}", key.algorithm());
        // Without an id, the only key of the algorithm counts.
        let without_id = key.sign_with(&json!({"alg": key.algorithm()}), &issuer.claims("ann", 60));
        assert!(verify(&verifier, &without_id).await.is_ok(), "{}", key.algorithm());
        let (head, rest) = jwt.split_once('.').unwrap();
        let (_, signature) = rest.split_once('.').unwrap();
        let other = unsigned(&json!({}), &issuer.claims("eve", 60));
        let swapped = format!("{head}.{}.{signature}", other.split_once('.').unwrap().1);
        assert_eq!(verify(&verifier, &swapped).await, refused(JwtError::Signature), "{}", key.algorithm());
    }
    assert_eq!(issuer.key_requests(), 1, "keys are cached");
}

#[tokio::test]
async fn a_key_verifies_only_its_own_algorithm() {
    let (rsa, p256) = (SigningKey::rsa("a"), SigningKey::p256("b"));
    let issuer = Issuer::start(&[&rsa, &p256]);
    let verifier = verifier(&issuer);
    let claims = issuer.claims("ann", 60);
    for algorithm in ["none", "None", "HS256", "HS512"] {
        let header = json!({"alg": algorithm, "kid": "a"});
        let unsigned = format!("{}.", unsigned(&header, &claims));
        assert_eq!(verify(&verifier, &unsigned).await, refused(JwtError::Algorithm), "{algorithm}");
        let secret = rsa.public()["n"].as_str().unwrap().to_owned();
        let symmetric = sign_with_secret(secret.as_bytes(), &header, &claims);
        assert_eq!(verify(&verifier, &symmetric).await, refused(JwtError::Algorithm), "{algorithm}");
    }
    let unsigned = format!("{}.", unsigned(&json!({"alg": "RS256", "kid": "a"}), &claims));
    assert_eq!(verify(&verifier, &unsigned).await, refused(JwtError::Signature));
    let mixed = rsa.sign_with(&json!({"alg": "RS256", "kid": "b"}), &claims);
    assert_eq!(verify(&verifier, &mixed).await, refused(JwtError::UnknownKey), "`b` is no RSA key");
    let forged = SigningKey::p256("b").sign(&claims);
    assert_eq!(verify(&verifier, &forged).await, refused(JwtError::Signature), "another key with the same id");
}

#[tokio::test]
async fn claims_decide_about_the_principal() {
    let key = SigningKey::ed25519("k");
    let issuer = Issuer::start(&[&key]);
    let verifier = verifier(&issuer);
    let name =
        async |claims: Value| verify(&verifier, &key.sign(&claims)).await.map(|grant| grant.principal.to_string());
    let claims = |subject: &str, change: Value| with(issuer.claims(subject, 60), change);
    assert_eq!(name(claims("ann", json!({}))).await.as_deref(), Ok("ann"));
    assert_eq!(name(claims("ann", json!({"groups": ["dev", "ops"]}))).await.as_deref(), Ok("ops"), "the first match");
    let roles = json!({"realm_access": {"roles": ["guest"]}});
    assert_eq!(name(claims("bob", roles.clone())).await.as_deref(), Ok("bob@example.com"));
    assert_eq!(name(claims("bob", json!({}))).await, refused(JwtError::NoPrincipal));
    for (email, error) in [("local", JwtError::NoName), ("../ann", JwtError::NoName), ("Bob", JwtError::NoName)] {
        let change = with(roles.clone(), json!({"email": email}));
        assert_eq!(name(claims("bob", change)).await, refused(error), "{email}");
    }
    assert_eq!(name(claims("ann", json!({"sub": null}))).await, refused(JwtError::NoSubject));
    assert_eq!(name(claims("ann", json!({"iss": "http://127.0.0.1:1"}))).await, refused(JwtError::Issuer));
    assert_eq!(name(claims("ann", json!({"aud": "other"}))).await, refused(JwtError::Audience));
    assert_eq!(name(issuer.claims("ann", -60)).await, refused(JwtError::Expired));
    // JWTs of one subject count together, those of two do not.
    let id = async |subject: &str, seconds: i64| {
        let claims = with(issuer.claims(subject, seconds), roles.clone());
        verify(&verifier, &key.sign(&claims)).await.unwrap().id
    };
    assert_eq!(id("bob", 60).await, id("bob", 90).await);
    assert_ne!(id("bob", 60).await, id("eve", 60).await);
}

/// The clock of the keys is given, so that no test waits for a minute.
#[tokio::test]
async fn an_unknown_key_is_looked_up_once_a_minute() {
    let (first, second) = (SigningKey::p256("first"), SigningKey::p256("second"));
    let issuer = Issuer::start(&[&first]);
    let verifier = verifier(&issuer);
    let (now, begun) = (Timestamp::now(), Instant::now());
    let claims = issuer.claims("ann", 3_600);
    let at = async |key: &SigningKey, seconds: u64| {
        let wall = now + SignedDuration::from_secs(i64::try_from(seconds).unwrap());
        verifier.verify(&key.sign(&claims), wall, begun + Duration::from_secs(seconds)).await.map(|grant| grant.id)
    };
    assert!(at(&first, 0).await.is_ok());
    for seconds in [1, 2, 59] {
        assert_eq!(at(&second, seconds).await, refused(JwtError::UnknownKey));
        assert!(at(&first, seconds).await.is_ok(), "the known key still works");
    }
    assert_eq!(issuer.key_requests(), 1);
    // The issuer rotates its key. The old one stops working as soon as the keys are fetched.
    issuer.publish(&[&second]);
    assert!(at(&second, 60).await.is_ok());
    assert_eq!(issuer.key_requests(), 2);
    assert_eq!(at(&first, 61).await, refused(JwtError::UnknownKey));
    assert_eq!(issuer.key_requests(), 2, "not twice in a minute");
    assert_eq!(at(&first, 121).await, refused(JwtError::UnknownKey));
    assert_eq!(issuer.key_requests(), 3);
    // A key that is withdrawn without a successor stops working, too.
    issuer.publish(&[]);
    assert!(at(&second, 200).await.is_ok(), "it is still cached");
    assert_eq!(at(&second, 121 + 15 * 60).await, refused(JwtError::UnknownKey));
}

#[tokio::test]
async fn an_issuer_that_fails_leaves_the_known_keys() {
    let key = SigningKey::ed25519("k");
    let issuer = Issuer::start(&[&key]);
    issuer.set_broken(true);
    let verifier = verifier(&issuer);
    let begun = Instant::now();
    let jwt = key.sign(&issuer.claims("ann", 60));
    let at = async |seconds: u64| {
        verifier.verify(&jwt, Timestamp::now(), begun + Duration::from_secs(seconds)).await.map(|grant| grant.id)
    };
    assert_eq!(at(0).await, Err(OidcError::NoKeys));
    issuer.set_broken(false);
    assert_eq!(at(59).await, Err(OidcError::NoKeys), "failures count, too");
    assert!(at(60).await.is_ok());
    issuer.set_broken(true);
    assert!(at(60 + 60 * 60).await.is_ok(), "the keys stay");
    let day = 24 * 60 * 60;
    assert!(at(60 + day - 1).await.is_ok(), "for a day");
    assert_eq!(at(60 + day).await, Err(OidcError::OldKeys), "and no longer");
    issuer.set_broken(false);
    assert!(at(60 + day + 60).await.is_ok(), "until the issuer answers again");
    // A document that names another issuer is not used.
    let other = Issuer::start(&[&key]);
    other.rename("https://login.example.com");
    let verifier = self::verifier(&other);
    let jwt = key.sign(&other.claims("ann", 60));
    assert_eq!(verify(&verifier, &jwt).await.map(|grant| grant.id), Err(OidcError::NoKeys));
}

/// The config with one principal, whose sessions work in the project.
fn write_config(sandbox: &Sandbox, more: &str) {
    let root = root(sandbox);
    let entry = format!("{{claims: {{email: ann@example.com}}, name: ann, roots: [{root:?}]{more}}}");
    sandbox.write("config/config.yaml", &format!("version: 1\nserve:\n  principals:\n    - {entry}\n"));
}

fn serve(sandbox: &Sandbox, issuer: &Issuer) -> Server {
    Server::start(sandbox, &["--oidc-issuer", &issuer.url, "--oidc-audience", AUDIENCE])
}

/// Whatever is wrong with a JWT, the answer is that of a missing token, byte for byte.
#[test]
fn the_server_accepts_only_jwts_that_fit() {
    let sandbox = Sandbox::new();
    write_config(&sandbox, ", modes: ['coding/*'], requests_per_minute: 60");
    let (key, retired) = (SigningKey::rsa("k"), SigningKey::p256("retired"));
    let issuer = Issuer::start(&[&key]);
    let server = serve(&sandbox, &issuer);
    let good = key.sign(&issuer.claims("ann", 60));
    let listed = server.get("/agents", &good);
    assert_eq!(listed.status, 200, "{listed:?}");
    let modes = listed.json()["agents"].as_array().unwrap().clone();
    let is_coding = |agent: &Value| agent["metadata"]["annotations"]["skein/mode"].as_str().unwrap().starts_with("cod");
    assert!(!modes.is_empty() && modes.iter().all(is_coding), "the limits hold: {modes:?}");
    let missing = server.request("GET", "/agents", &[], "").timeless();
    assert_eq!(missing.status, 401);
    let claims = issuer.claims("ann", 60);
    let secret = key.public()["n"].as_str().unwrap().to_owned();
    let symmetric = json!({"alg": "HS256", "kid": "k"});
    for (what, jwt) in [
        ("another audience", key.sign(&with(claims.clone(), json!({"aud": "other"})))),
        ("another issuer", key.sign(&with(claims.clone(), json!({"iss": "https://login.example.com"})))),
        ("none", format!("{}.", unsigned(&json!({"alg": "none"}), &claims))),
        ("the public key as a secret", sign_with_secret(secret.as_bytes(), &symmetric, &claims)),
        ("expired", key.sign(&issuer.claims("ann", -60))),
        ("not valid yet", key.sign(&with(claims.clone(), json!({"nbf": Timestamp::now().as_second() + 300})))),
        ("unknown key", retired.sign(&claims)),
        ("no principal", key.sign(&issuer.claims("bob", 60))),
        ("not a JWT", "a.b.c".to_owned()),
    ] {
        assert_eq!(server.get("/agents", &jwt).timeless(), missing, "{what}");
    }
    assert_eq!(issuer.key_requests(), 1, "unknown keys cause no further requests within a minute");
    assert_eq!(server.get("/agents", &good).status, 200);
    let stored = token(&sandbox, "ann", &[]);
    assert_eq!(server.get("/agents", &stored).status, 200, "tokens work as before");
    let log = || sandbox.log().iter().map(ToString::to_string).collect::<String>();
    eventually("the log has the reason", || log().contains("it is for another audience"));
    assert!(!log().contains(&good), "and not the JWT");
}

/// The path of the documents that name the issuer.
const DOCUMENT: &str = "/.well-known/oauth-protected-resource";

/// The address in the challenge of a 401.
fn metadata_address(refused: &HttpAnswer) -> String {
    let challenge = refused.header("www-authenticate").expect("a challenge");
    let address = challenge.strip_prefix("Bearer realm=\"skein\", resource_metadata=\"");
    address.and_then(|rest| rest.strip_suffix('"')).unwrap_or_else(|| panic!("{challenge}")).to_owned()
}

/// A client that is refused finds the issuer from the answer alone, as RFC 9728 describes it. The document is about
/// exactly the address that the client requested. MCP clients of all versions since 2025-06-18 compare the two.
#[test]
fn a_refusal_leads_to_the_issuer() {
    let sandbox = Sandbox::new();
    write_config(&sandbox, "");
    let key = SigningKey::ed25519("k");
    let issuer = Issuer::start(&[&key]);
    let server = serve(&sandbox, &issuer);
    let base = format!("http://{}", server.address);
    let hello = serve_mcp::hello();
    for (method, path, body) in [
        ("POST", "/mcp/coding/qa", &*hello),
        ("GET", "/mcp/coding/qa", ""),
        ("POST", "/mcp/services/memory", &*hello),
        ("POST", "/mcp/agents", &*hello),
        ("POST", "/mcp/no/such", &*hello),
        ("GET", "/acp", ""),
        ("GET", "/agents", ""),
    ] {
        let refused = server.request(method, &format!("{path}?a=b"), &[], body);
        assert_eq!(refused.status, 401, "{method} {path}");
        assert_eq!(metadata_address(&refused), format!("{base}{DOCUMENT}{path}"), "{method} {path}");
        let document = server.request("GET", &format!("{DOCUMENT}{path}"), &[], "");
        assert_eq!((document.status, document.header("content-type")), (200, Some("application/json")), "{path}");
        let expected = json!({
            "resource": format!("{base}{path}"),
            "authorization_servers": [issuer.url],
            "bearer_methods_supported": ["header"],
            "resource_name": "Skein",
        });
        assert_eq!(document.json(), expected, "{path}");
    }
    // Clients that get no challenge look for the document of the whole server.
    let whole = server.request("GET", DOCUMENT, &[], "");
    assert_eq!((whole.status, &whole.json()["resource"]), (200, &json!(base)));
    // A path that could end the quoted text of the header is not repeated.
    let hostile = server.request("GET", "/mcp/a\"b", &[], "");
    assert_eq!((hostile.status, metadata_address(&hostile)), (401, format!("{base}{DOCUMENT}")));
    for path in [DOCUMENT.to_owned(), format!("{DOCUMENT}/mcp/coding/qa")] {
        let foreign = server.request("GET", &path, &[("host", "evil.example")], "");
        assert_eq!(foreign.status, 403, "no foreign name gets into {path}");
    }
    assert_eq!(server.request("GET", &format!("{DOCUMENT}s"), &[], "").status, 401, "another path is not public");
    drop(server);
    // Without an issuer there is no document, and no answer names one.
    let server = Server::start(&sandbox, &[]);
    for path in [DOCUMENT.to_owned(), format!("{DOCUMENT}/mcp/coding/qa")] {
        assert_eq!(server.request("GET", &path, &[], "").status, 404, "{path}");
    }
    let refused = server.request("GET", "/mcp/coding/qa", &[], "");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"skein\""));
}

/// Behind a proxy, the resource has the public name: a client knows no other.
#[test]
fn the_resource_has_the_public_name() {
    let sandbox = Sandbox::new();
    write_config(&sandbox, "");
    let issuer = Issuer::start(&[&SigningKey::ed25519("k")]);
    let public = "https://skein.example.com";
    let flags = ["--oidc-issuer", &issuer.url, "--oidc-audience", AUDIENCE, "--behind-proxy", "--public-url", public];
    let server = Server::start(&sandbox, &flags);
    let refused = server.request("POST", "/mcp/coding/qa", &[("host", "skein.example.com")], "{}");
    assert_eq!(metadata_address(&refused), format!("{public}{DOCUMENT}/mcp/coding/qa"));
    let document = server.request("GET", &format!("{DOCUMENT}/mcp/coding/qa"), &[("host", "skein.example.com")], "");
    assert_eq!(document.json()["resource"], format!("{public}/mcp/coding/qa"));
}

/// An issuer that knows RFC 8707 makes the address that the client names the audience. Such a JWT works only there, and
/// only if the audience of the server is its own address.
#[tokio::test]
async fn a_jwt_for_one_address_works_only_there() {
    let key = SigningKey::ed25519("k");
    let issuer = Issuer::start(&[&key]);
    let verify = async |audience: &str, requested: Option<&str>, claimed: &str| {
        let jwt = key.sign(&with(issuer.claims("ann", 60), json!({"aud": claimed})));
        let verifier = verifier_for(&issuer, audience);
        verifier.verify_for(&jwt, requested, Timestamp::now(), Instant::now()).await.map(|grant| grant.id)
    };
    let (server, mode, other) = ("https://a.example", "https://a.example/mcp/a/b", "https://a.example/mcp/agents");
    for (audience, requested, claimed) in [
        (server, Some(mode), mode),
        (server, Some(mode), server),
        ("https://a.example/", Some(mode), mode),
        (AUDIENCE, Some(mode), AUDIENCE),
    ] {
        assert!(verify(audience, requested, claimed).await.is_ok(), "{audience} {claimed}");
    }
    for (audience, requested, claimed) in [
        (server, Some(other), mode),
        (server, None, mode),
        (AUDIENCE, Some(mode), mode),
        ("https://a.exam", Some(mode), mode),
        (server, Some("https://a.example.org/mcp/a/b"), "https://a.example.org/mcp/a/b"),
    ] {
        assert_eq!(verify(audience, requested, claimed).await, refused(JwtError::Audience), "{audience} {claimed}");
    }
}

/// The same on the wire.
#[test]
fn the_server_accepts_a_jwt_for_the_requested_address() {
    let sandbox = Sandbox::new();
    write_config(&sandbox, "");
    let key = SigningKey::ed25519("k");
    let issuer = Issuer::start(&[&key]);
    let public = "https://skein.example.com";
    let flags = ["--oidc-issuer", &issuer.url, "--oidc-audience", public, "--behind-proxy", "--public-url", public];
    let server = Server::start(&sandbox, &flags);
    let jwt = |audience: &str| key.sign(&with(issuer.claims("ann", 60), json!({"aud": audience})));
    let begin = |path: &str, jwt: &str| serve_mcp::post(&server, path, jwt, None, &serve_mcp::hello()).status;
    let for_agents = jwt("https://skein.example.com/mcp/agents");
    assert_eq!(begin("/mcp/agents", &for_agents), 200);
    assert_eq!(begin("/mcp/coding/qa", &for_agents), 401);
    assert_eq!(begin("/mcp/coding/qa", &jwt(public)), 200);
}

/// A JWT and a token of one name share data. The end of the JWT ends its connection.
#[tokio::test]
async fn a_jwt_acts_for_its_principal_until_it_expires() {
    let sandbox = Sandbox::new();
    write_config(&sandbox, "");
    let key = SigningKey::p256("k");
    let issuer = Issuer::start(&[&key]);
    let server = serve(&sandbox, &issuer);
    let mut socket = Socket::connect(&server, &key.sign(&issuer.claims("ann", 600))).await;
    let session = socket.session(&sandbox).await;
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]});
    assert_eq!(socket.ask(2, "session/prompt", prompt).await["result"]["stopReason"], "end_turn");
    for (name, seen) in [("ann", 1), ("bob", 0)] {
        let stored = token(&sandbox, name, &["--root", &root(&sandbox)]);
        let mut other = Socket::connect(&server, &stored).await;
        other.say(&initialize()).await;
        other.answer(0).await;
        let listed = other.ask(1, "session/list", json!({})).await;
        assert_eq!(listed["result"]["sessions"].as_array().unwrap().len(), seen, "{name}: {listed}");
    }
    // Clocks may differ by 30 seconds, so this JWT of another subject works for ten more.
    let claims = with(issuer.claims("ann", -20), json!({"sub": "another"}));
    let mut ending = Socket::connect(&server, &key.sign(&claims)).await;
    let begun = Instant::now();
    assert_eq!(ending.close_code().await, 1008);
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    assert!(socket.ask(3, "session/list", json!({})).await["result"].is_object(), "the other JWT is still valid");
}

/// A newer JWT of the subject keeps the connection of the first one open.
#[tokio::test]
async fn a_renewed_jwt_keeps_its_connection() {
    let sandbox = Sandbox::new();
    write_config(&sandbox, "");
    let key = SigningKey::ed25519("k");
    let issuer = Issuer::start(&[&key]);
    let server = serve(&sandbox, &issuer);
    let mut socket = Socket::connect(&server, &key.sign(&issuer.claims("ann", -20))).await;
    assert_eq!(server.get("/agents", &key.sign(&issuer.claims("ann", 600))).status, 200);
    // Longer than the first JWT lasts, and than tokens take to be checked.
    tokio::time::sleep(Duration::from_secs(14)).await;
    socket.say(&initialize()).await;
    assert!(socket.answer(0).await["result"].is_object());
}

#[test]
fn wrong_settings_of_an_issuer_are_explained() {
    let sandbox = Sandbox::new();
    let issuer = ["--oidc-issuer", "https://login.example.com"];
    let both = [&issuer[..], &["--oidc-audience", "skein"]].concat();
    let config = |principal: &str| format!("version: 1\nserve: {{principals: [{principal}]}}\n");
    let unclear = "either `name` or `name_claim`";
    for (args, text, problem) in [
        (&issuer[..], String::new(), "--oidc-audience"),
        (&["--oidc-audience", "skein"], String::new(), "--oidc-issuer"),
        (&["--oidc-issuer", "http://login.example.com", "--oidc-audience", "a"], String::new(), "https"),
        (&both[..], String::new(), "serve.principals"),
        (&both[..], config("{claims: {sub: x}, name: local}"), "reserved"),
        (&both[..], config("{claims: {sub: x}, name: Ann}"), "name"),
        (&both[..], config("{claims: {sub: x}}"), unclear),
        (&both[..], config("{claims: {sub: x}, name: ann, name_claim: email}"), unclear),
        (&both[..], config("{claims: {}, name: ann}"), "claims"),
        (&both[..], config("{claims: {sub: x}, name: ann, modes: ['codng/*']}"), "serve.principals[0].modes `codng/*`"),
        (&both[..], config("{claims: {sub: x}, name: ann, services: [nothing]}"), "serve.principals[0].services"),
        (&both[..], config("{claims: {sub: x}, name: ann, roots: [sub]}"), "`sub` of serve.principals[0].roots is not"),
        (
            &both[..],
            config("{claims: {sub: x}, name: ann, roots: [/no/such]}"),
            "`/no/such` of serve.principals[0].roots",
        ),
        (&both[..], config("{claims: {sub: x}, name: ann, approval: sometimes}"), "sometimes"),
    ] {
        match text.is_empty() {
            true => drop(std::fs::remove_file(sandbox.path("config/config.yaml"))),
            false => sandbox.write("config/config.yaml", &text),
        }
        let run = sandbox.skein(&[&["serve", "--listen", "127.0.0.1:0"], args].concat());
        assert_eq!(run.code, 2, "{args:?} {text}: {}", run.whole());
        assert!(run.stderr.contains(problem), "{args:?} {text}: {}", run.whole());
    }
    sandbox.write("config/config.yaml", "version: 1\n");
    sandbox.write("project/.skein/config.yaml", &config("{claims: {sub: x}, name: ann}"));
    let checked = sandbox.skein(&["check"]);
    assert!(checked.whole().contains("a project's config cannot set `serve`"), "{}", checked.whole());
}

/// A replica gets the requests of the others at its internal address, which no JWT names.
#[test]
fn a_replica_without_a_public_url_is_noted_for_jwts() {
    let sandbox = Sandbox::new();
    write_config(&sandbox, "");
    let public = "https://skein.example.com";
    let replica = ["--store", "postgres://skein@127.0.0.1:1/skein", "--internal-listen", "127.0.0.1:0"];
    for (audience, flags, is_noted) in
        [(public, &[][..], true), (public, &["--public-url", public][..], false), ("skein", &[][..], false)]
    {
        let oidc = ["serve", "--listen", "127.0.0.1:0", "--oidc-issuer", public, "--oidc-audience", audience];
        // No database listens there.
        let run = sandbox.skein(&[&oidc[..], &replica, flags].concat());
        assert_eq!(run.code, 2, "{}", run.whole());
        let note = "start each replica with the same --public-url";
        assert_eq!(run.stderr.contains(note), is_noted, "{audience} {flags:?}: {}", run.whole());
    }
}
