//! Messages of the agent protocol: which pass the filter, and which do not.

use proptest::prelude::*;

use super::*;

const KEY: &[u8] = b"\0\0\0\x0bssh-ed25519\0\0\0\x02kk";

fn sign(key: &[u8], data: &[u8]) -> Vec<u8> {
    [&[SIGN_REQUEST][..], &encode_string(key), &encode_string(data), &[0; 4]].concat()
}

/// The data that a login signs (RFC 4252, section 7).
fn login(user: &str, service: &str, method: &str, key: &[u8], end: &[u8]) -> Vec<u8> {
    let text = |text: &str| encode_string(text.as_bytes());
    [
        &encode_string(&[7; 32])[..],
        &[USERAUTH_REQUEST],
        &text(user),
        &text(service),
        &text(method),
        &[1],
        &text("ssh-ed25519"),
        &encode_string(key),
        end,
    ]
    .concat()
}

fn commit(namespace: &str) -> Vec<u8> {
    [
        SIGNATURE_MAGIC,
        &encode_string(namespace.as_bytes()),
        &encode_string(b""),
        &encode_string(b"sha512"),
        &encode_string(&[1; 64]),
    ]
    .concat()
}

fn purpose(message: &[u8]) -> Option<String> {
    match parse_request(message)? {
        AgentRequest::Sign { purpose, .. } => Some(purpose.to_string()),
        AgentRequest::List => Some("list".to_owned()),
    }
}

#[test]
fn lists_logins_and_commits_pass() {
    let bound = "publickey-hostbound-v00@openssh.com";
    for (message, expected) in [
        (vec![REQUEST_IDENTITIES], "list"),
        (sign(KEY, &login("git", "ssh-connection", "publickey", KEY, b"")), "ssh login as `git`"),
        (sign(KEY, &login("git", "ssh-connection", bound, KEY, &encode_string(b"host"))), "ssh login as `git`"),
        (sign(KEY, &commit("git")), "signature under a commit or tag"),
    ] {
        assert_eq!(purpose(&message).as_deref(), Some(expected));
    }
}

#[test]
fn everything_else_fails() {
    // Add, remove, lock, smartcard, constraints, extensions and unknown messages.
    for kind in (0..=255).filter(|kind| ![REQUEST_IDENTITIES, SIGN_REQUEST].contains(kind)) {
        assert_eq!(purpose(&[&[kind][..], &encode_string(KEY)].concat()), None, "{kind}");
        assert_eq!(purpose(&[kind]), None, "{kind}");
    }
    for message in [
        vec![REQUEST_IDENTITIES, 0],
        sign(KEY, b"any data"),
        sign(KEY, b""),
        sign(KEY, &commit("file")),
        sign(KEY, &commit("")),
        sign(KEY, &[&commit("git")[..], b"x"].concat()),
        sign(KEY, &login("git", "ssh-userauth", "publickey", KEY, b"")),
        sign(KEY, &login("git", "ssh-connection", "hostbased", KEY, b"")),
        sign(KEY, &login("git", "ssh-connection", "publickey", b"other", b"")),
        sign(KEY, &login("git", "ssh-connection", "publickey", KEY, b"x")),
        [&sign(KEY, &commit("git"))[..], b"x"].concat(),
        sign(KEY, &commit("git"))[..40].to_vec(),
    ] {
        assert_eq!(purpose(&message), None, "{message:?}");
    }
}

#[test]
fn key_lists_are_encoded_anew() {
    let keys = vec![
        AgentKey { blob: KEY.to_vec(), comment: b"me@host".to_vec() },
        AgentKey { blob: KEY.to_vec(), comment: b" ".to_vec() },
    ];
    let message = encode_keys(&keys);
    assert_eq!(parse_keys(&message), Some(keys.clone()));
    assert_eq!(parse_keys(&message[..message.len() - 1]), None);
    assert_eq!(parse_keys(&[&message[..], b"x"].concat()), None);
    assert_eq!(parse_keys(&[IDENTITIES, 0xff, 0xff, 0xff, 0xff]), None);
    assert_eq!((keys[0].label().as_str(), keys[1].label().as_str()), ("me@host", "ssh-ed25519"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in prop_oneof![Just(SIGN_REQUEST), Just(IDENTITIES), any::<u8>()]) {
        let bytes = [&[kind][..], &bytes].concat();
        parse_request(&bytes);
        parse_keys(&bytes);
    }

    /// A changed byte in the structure of a login is not signed as something else.
    #[test]
    fn changed_requests_keep_their_meaning(at in 0_usize..200, value in any::<u8>()) {
        let mut message = sign(KEY, &login("git", "ssh-connection", "publickey", KEY, b""));
        let at = at % message.len();
        message[at] = value;
        let meaning = purpose(&message);
        prop_assert!(meaning.as_ref().is_none_or(|text| text.starts_with("ssh login as") || message == [REQUEST_IDENTITIES]));
    }
}
