//! Copies of settings files without their credentials, so that tools find registries and proxies.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{PlannedMount, SandboxContext, list};
use crate::sandbox::plan::MountSource;

/// Larger files are covered and not copied.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the text of a file without credentials.
type Sanitize = fn(&str) -> String;

/// Returns the copies to mount over the files, which are hidden otherwise.
pub(super) fn sanitized_copies(context: &SandboxContext) -> Vec<PlannedMount> {
    let copies: [(&str, Sanitize); 2] =
        [(".npmrc", without_npm_credentials), (".docker/config.json", without_docker_credentials)];
    let mounts = copies.iter().filter_map(|(name, sanitize)| {
        let path = context.home.join(name).canonicalize().ok()?;
        let text = read(&path)?;
        Some(PlannedMount { target: path.into(), source: MountSource::Text(sanitize(&text)) })
    });
    mounts.collect()
}

/// Returns the public keys in `~/.ssh`, which git names to sign. Files with other contents stay hidden.
pub(super) fn public_keys(context: &SandboxContext) -> Vec<PathBuf> {
    let is_public = |path: &PathBuf| {
        let is_file = fs::symlink_metadata(path).is_ok_and(|data| data.is_file());
        path.extension().is_some_and(|ending| ending == "pub")
            && is_file
            && read(path).is_some_and(|text| is_public_key(&text))
    };
    let folder = context.home.join(".ssh").canonicalize();
    folder.map(|folder| list(&folder).into_iter().filter(is_public).collect()).unwrap_or_default()
}

/// Returns whether a text is one line with a public key of ssh.
fn is_public_key(text: &str) -> bool {
    let kinds = ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-"];
    text.trim_end().lines().count() == 1 && kinds.iter().any(|kind| text.starts_with(kind))
}

fn read(path: &Path) -> Option<String> {
    let is_small = fs::metadata(path).ok()?.len() <= MAX_BYTES;
    fs::read_to_string(path).ok().filter(|_| is_small)
}

/// Keeps only lines whose key is known to hold no secret.
fn without_npm_credentials(text: &str) -> String {
    let is_public = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default().trim().to_ascii_lowercase();
        let last = key.rsplit(':').next().unwrap_or_default();
        let is_secret = ["auth", "password", "token", "username", "email", "key", "cert"];
        !(is_secret.iter().any(|word| last.contains(word)) || line.contains('@') && has_user_info(line))
    };
    text.lines().filter(is_public).map(|line| format!("{line}\n")).collect()
}

/// Returns whether an address in the line contains a user name or password.
fn has_user_info(line: &str) -> bool {
    line.split_once("://").is_some_and(|(_, rest)| rest.split('/').next().is_some_and(|host| host.contains('@')))
}

/// Removes everything that authenticates. Text that is no object becomes an empty one.
fn without_docker_credentials(text: &str) -> String {
    let Ok(Value::Object(mut settings)) = serde_json::from_str(text) else { return "{}".to_owned() };
    let is_public = |name: &String| {
        let name = name.to_ascii_lowercase();
        !["auth", "cred", "token", "header"].iter().any(|word| name.contains(word))
    };
    settings.retain(|name, _| is_public(name));
    Value::Object(settings).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_keys_count_as_public() {
        assert!(is_public_key("ssh-ed25519 AAAAC3 me@host\n"));
        assert!(is_public_key("sk-ecdsa-sha2-nistp256@openssh.com AAAA\n"));
        for text in ["-----BEGIN OPENSSH PRIVATE KEY-----\n", "", "ssh-rsa AAAA\n-----BEGIN\n", "text"] {
            assert!(!is_public_key(text), "{text}");
        }
    }

    #[test]
    fn npm_settings_lose_their_credentials() {
        let text = "registry=https://npm.example.com/\n//npm.example.com/:_authToken=abc\n_auth=abc\n\
                    //x/:_password=abc\nproxy=http://user:secret@proxy:8080\n@scope:registry=https://s.example.com\n\
                    cafile=/etc/ca.pem\n";
        let expected = "registry=https://npm.example.com/\n@scope:registry=https://s.example.com\ncafile=/etc/ca.pem\n";
        assert_eq!(without_npm_credentials(text), expected);
    }

    #[test]
    fn docker_settings_lose_their_credentials() {
        let text = r#"{"auths":{"x":{"auth":"abc"}},"credsStore":"pass","HttpHeaders":{"X":"y"},"proxies":{"a":1}}"#;
        assert_eq!(without_docker_credentials(text), r#"{"proxies":{"a":1}}"#);
        assert_eq!(without_docker_credentials("not JSON"), "{}");
    }
}
