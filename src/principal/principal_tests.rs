//! Names, limits and counts, each alone.

use std::time::{Duration, Instant};

use super::*;

fn mode(name: &str) -> ModeId {
    name.parse().expect("a mode")
}

fn globs(globs: &[&str]) -> Vec<String> {
    globs.iter().map(|glob| (*glob).to_owned()).collect()
}

fn ann(limits: TokenLimits) -> SessionGrant {
    SessionGrant::new(Principal::new("ann").expect("a name"), limits)
}

#[test]
fn a_name_is_safe_as_a_folder() {
    for name in ["ann", "ci-2", "a", "0", "ann@example.com", &"x".repeat(64)] {
        assert_eq!(Principal::new(name).map(|principal| principal.to_string()), Ok(name.to_owned()));
    }
    for name in ["", ".", "..", "-a", "a/b", "a b", "Ann", "ä", "a\n", "@a", &"x".repeat(65)] {
        assert_eq!(Principal::new(name), Err(PrincipalError::Malformed { name: name.to_owned() }));
    }
    assert_eq!(Principal::new("local"), Err(PrincipalError::Reserved));
}

#[test]
fn only_local_uses_the_data_folder_itself() {
    let data = Path::new("/data");
    assert_eq!(Principal::local().folder(data), data);
    assert_eq!(Principal::new("ann").expect("a name").folder(data), Path::new("/data/principals/ann"));
}

#[test]
fn modes_and_services_match_globs() {
    let all = TokenLimits::default();
    assert!(all.admits_mode(&mode("coding/backend")) && all.admits_service("time"));
    let coding = TokenLimits { modes: globs(&["coding/*", "goose/planner"]), ..TokenLimits::default() };
    for (name, admitted) in
        [("coding/backend", true), ("goose/planner", true), ("goose/assistant", false), ("orchestrator/auto", false)]
    {
        assert_eq!(coding.admits_mode(&mode(name)), admitted, "{name}");
    }
    assert!(!coding.admits_service("time"), "with modes, only named services are reached");
    let named = TokenLimits { services: Some(globs(&["ti*"])), ..coding };
    assert!(named.admits_service("time") && !named.admits_service("memory"));
}

#[test]
fn a_level_is_never_looser_than_the_loosest() {
    let limits = TokenLimits { approval: Some(ApprovalLevel::Ask), ..TokenLimits::default() };
    for (level, tightened) in [
        (ApprovalLevel::Auto, ApprovalLevel::Ask),
        (ApprovalLevel::Smart, ApprovalLevel::Ask),
        (ApprovalLevel::Ask, ApprovalLevel::Ask),
        (ApprovalLevel::ReadOnly, ApprovalLevel::ReadOnly),
        (ApprovalLevel::Deny, ApprovalLevel::Deny),
    ] {
        assert_eq!(limits.tighten(level), tightened, "{level:?}");
        assert_eq!(ann(limits.clone()).check_approval(level).is_ok(), level == tightened, "{level:?}");
    }
    assert!(TokenLimits::default().admits_approval(ApprovalLevel::Auto));
}

#[test]
fn folders_are_resolved_before_they_are_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let base = folder.path().canonicalize().expect("a folder");
    for name in ["root/below", "outside"] {
        std::fs::create_dir_all(base.join(name)).expect("a folder");
    }
    std::os::unix::fs::symlink(base.join("outside"), base.join("root/leads-out")).expect("a link");
    std::os::unix::fs::symlink(base.join("root/below"), base.join("leads-in")).expect("a link");
    let grant = ann(TokenLimits { roots: vec![base.join("root")], ..TokenLimits::default() });
    for (name, resolved) in [
        ("root", Some("root")),
        ("root/below", Some("root/below")),
        ("leads-in", Some("root/below")),
        ("root/leads-out", None),
        ("root/../outside", None),
        ("root/missing", None),
        ("outside", None),
    ] {
        assert_eq!(grant.check_folder(&base.join(name)).ok(), resolved.map(|name| base.join(name)), "{name}");
        // A missing folder below a root is a mistake, not a folder of the client.
        let is_here = resolved.is_some() || name == "root/missing";
        let files = if is_here { SessionFiles::Server } else { SessionFiles::Client };
        assert_eq!(grant.files_of(&base.join(name)), files, "{name}");
    }
    assert_eq!(ann(TokenLimits::default()).files_of(&base), SessionFiles::Client);
    assert!(ann(TokenLimits::default()).check_folder(&base).is_err(), "without a root there is no folder");
    let given = base.join("leads-in");
    assert_eq!(SessionGrant::local().check_folder(&given), Ok(given));
}

#[test]
fn permits_count_until_they_are_dropped() {
    let token = TokenGrant {
        id: "one".to_owned(),
        principal: Principal::new("ann").expect("a name"),
        limits: TokenLimits { sessions: Some(2), turns: Some(1), ..TokenLimits::default() },
        expires: None,
    };
    let registry = GrantRegistry::default();
    let (here, there) = (registry.grant(&token), registry.grant(&token));
    let first = here.open_session().expect("the first");
    let second = there.open_session().expect("the second");
    assert_eq!(here.open_session().err(), Some(GrantError::Sessions { limit: 2 }));
    let other = registry.grant(&TokenGrant { id: "two".to_owned(), ..token });
    assert!(other.open_session().is_ok(), "another token has its own count");
    drop((first, second));
    assert!(here.open_session().is_ok());
    let turn = here.begin_turn().expect("a turn");
    assert_eq!(there.begin_turn().err(), Some(GrantError::Turns { limit: 1 }));
    drop(turn);
    assert!(there.begin_turn().is_ok());
}

#[test]
fn requests_are_counted_over_a_minute() {
    let grant = ann(TokenLimits { requests_per_minute: Some(2), ..TokenLimits::default() });
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(grant.count_request(at(0)), Ok(()));
    assert_eq!(grant.count_request(at(20)), Ok(()));
    assert_eq!(grant.count_request(at(30)), Err(Duration::from_secs(30)));
    assert_eq!(grant.count_request(at(60)), Ok(()), "the first request is a minute old");
    assert_eq!(grant.count_request(at(60)), Err(Duration::from_secs(20)));
    let unlimited = ann(TokenLimits::default());
    assert!((0..1_000).all(|_| unlimited.count_request(start).is_ok()));
}

fn token(id: &str) -> TokenGrant {
    let principal = Principal::new("ann").expect("a name");
    TokenGrant { id: id.to_owned(), principal, limits: TokenLimits::default(), expires: None }
}

#[test]
fn all_grants_of_a_token_end_together() {
    let registry = GrantRegistry::default();
    let (here, there, other) =
        (registry.grant(&token("one")), registry.grant(&token("one")), registry.grant(&token("two")));
    assert!(here.is_same_token(&there) && !here.is_same_token(&other));
    assert!(registry.end("one") && !registry.end("one") && !registry.end("none"));
    let has_ended = |grant: &SessionGrant| grant.end_signal().is_cancelled();
    assert!(has_ended(&here) && has_ended(&there) && !has_ended(&other));
    // A subject whose JWT has expired may show a new one.
    let renewed = registry.grant(&token("one"));
    assert!(!has_ended(&renewed) && renewed.is_same_token(&here), "the counts are still shared");
    assert!(!has_ended(&SessionGrant::local()));
}

#[test]
fn a_token_is_in_use_while_something_holds_its_grant() {
    let (registry, now) = (GrantRegistry::default(), Instant::now());
    let limits = TokenLimits { requests_per_minute: Some(1), ..TokenLimits::default() };
    let limited = registry.grant(&TokenGrant { limits: limits.clone(), ..token("limited") });
    let session = registry.grant(&token("plain"));
    assert_eq!(limited.count_request(now), Ok(()));
    let mut used = registry.ids_in_use(now);
    used.sort();
    assert_eq!(used, ["limited", "plain"]);
    drop((limited, session));
    assert_eq!(registry.ids_in_use(now), [""; 0]);
    let limited = registry.grant(&TokenGrant { limits, ..token("limited") });
    assert!(limited.count_request(now).is_err(), "its requests still count");
}

#[test]
fn a_session_is_shared_only_with_tokens_that_reach_its_folders() {
    let with_roots = |name: &str, roots: &[&str]| {
        let limits = TokenLimits { roots: roots.iter().map(PathBuf::from).collect(), ..TokenLimits::default() };
        SessionGrant::new(Principal::new(name).expect("a name"), limits)
    };
    let opener = with_roots("ann", &["/srv/shop", "/srv/docs"]);
    for (roots, shared) in [
        (&["/srv"][..], true),
        (&["/srv/docs", "/srv/shop"], true),
        (&["/srv/shop"], false),
        (&["/srv/shop", "/srv/docs/public"], false),
        (&[], false),
    ] {
        assert_eq!(with_roots("ann", roots).check_session_of(&opener).is_ok(), shared, "{roots:?}");
    }
    assert!(with_roots("bob", &["/srv"]).check_session_of(&opener).is_err(), "another principal");
    assert!(opener.check_session_of(&opener.clone()).is_ok(), "the same token");
}
