//! A token is accepted from its creation until it expires or is revoked, and only as it was created.

use jiff::SignedDuration;

use super::*;
use crate::principal::ApprovalLevel;

fn store() -> (TokenStore, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (TokenStore::open(folder.path()).unwrap(), folder)
}

fn new_token(name: &str) -> NewToken {
    NewToken { principal: Principal::new(name).unwrap(), limits: TokenLimits::default(), expires: None }
}

#[tokio::test]
async fn a_token_carries_its_principal_and_limits() {
    let (tokens, folder) = store();
    let limits = TokenLimits {
        modes: vec!["coding/*".to_owned()],
        services: Some(vec!["time".to_owned()]),
        client_services: true,
        approval: Some(ApprovalLevel::ReadOnly),
        roots: vec!["/srv/ann".into()],
        sessions: Some(2),
        turns: Some(1),
        requests_per_minute: Some(60),
        admin: true,
    };
    let expires = Timestamp::from_millisecond(4_000_000_000_000).unwrap();
    let new = NewToken { limits: limits.clone(), expires: Some(expires), ..new_token("ann") };
    let created = tokens.create(new).await.unwrap();
    let expected = TokenGrant {
        id: created.id.clone(),
        principal: Principal::new("ann").unwrap(),
        limits,
        expires: Some(expires),
    };
    assert_eq!(tokens.verify(&created.token).await.unwrap(), Some(expected.clone()));
    // Another process sees it too.
    let elsewhere = TokenStore::open(folder.path()).unwrap();
    assert_eq!(elsewhere.verify(&created.token).await.unwrap(), Some(expected));
}

#[tokio::test]
async fn the_format_is_prefix_id_and_256_bits() {
    let (tokens, folder) = store();
    let created = tokens.create(new_token("ann")).await.unwrap();
    let parts: Vec<_> = created.token.split('_').collect();
    assert_eq!((parts.len(), parts[0], parts[1]), (3, "skein", created.id.as_str()));
    assert_eq!(parts[2].len(), 64);
    assert_ne!(tokens.create(new_token("ann")).await.unwrap().token, created.token);
    drop(tokens);
    let secret = parts[2].as_bytes();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "no file holds the secret");
    }
    assert!(!format!("{created:?}").contains(parts[2]));
}

#[tokio::test]
async fn any_other_text_is_no_token() {
    let (tokens, _folder) = store();
    let (one, other) = (tokens.create(new_token("ann")).await.unwrap(), tokens.create(new_token("bob")).await.unwrap());
    let secret = |token: &str| token.rsplit('_').next().unwrap().to_owned();
    let mut changed = one.token.clone();
    let last = if changed.pop() == Some('0') { '1' } else { '0' };
    changed.push(last);
    for text in [
        String::new(),
        "skein".to_owned(),
        format!("skein_{}", one.id),
        format!("skein_{}_", one.id),
        format!("skein_{}_{}", one.id, secret(&other.token)),
        format!("skein_000000000000_{}", secret(&one.token)),
        format!("{}0", one.token),
        format!(" {}", one.token),
        one.token.to_uppercase(),
        one.token.replacen("skein", "goose", 1),
        changed,
    ] {
        assert_eq!(tokens.verify(&text).await.unwrap(), None, "{text}");
    }
    assert!(tokens.verify(&one.token).await.unwrap().is_some());
}

#[tokio::test]
async fn an_expired_or_revoked_token_is_like_an_unknown_one() {
    let (tokens, folder) = store();
    let past = Timestamp::now() - SignedDuration::from_secs(1);
    let expired = tokens.create(NewToken { expires: Some(past), ..new_token("ann") }).await.unwrap();
    let soon = Timestamp::now() + SignedDuration::from_secs(3_600);
    let active = tokens.create(NewToken { expires: Some(soon), ..new_token("ann") }).await.unwrap();
    let revoked = tokens.create(new_token("bob")).await.unwrap();
    assert!(tokens.is_active(&revoked.id).await.unwrap());
    // Another process revokes it.
    assert!(TokenStore::open(folder.path()).unwrap().revoke(&revoked.id).await.unwrap());
    assert!(tokens.revoke(&revoked.id).await.unwrap(), "a second time is fine");
    assert!(!tokens.revoke("000000000000").await.unwrap(), "there is no such token");
    for (token, state) in
        [(&expired, TokenState::Expired), (&active, TokenState::Active), (&revoked, TokenState::Revoked)]
    {
        let is_active = state == TokenState::Active;
        assert_eq!(tokens.verify(&token.token).await.unwrap().is_some(), is_active, "{state:?}");
        assert_eq!(tokens.is_active(&token.id).await.unwrap(), is_active, "{state:?}");
        let listed = tokens.list().await.unwrap();
        let listed = listed.iter().find(|stored| stored.grant.id == token.id).unwrap();
        assert_eq!(listed.state, state);
    }
}
