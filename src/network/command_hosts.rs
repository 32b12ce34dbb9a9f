//! Finds the hosts that a command line reaches over ssh and git, which are no URLs of the web.

use super::RemoteHost;

const SSH: u16 = 22;
const GIT: u16 = 9418;

/// Returns the hosts of `ssh://` and `git://` URLs, and of `USER@HOST` and `USER@HOST:PATH`.
pub fn remote_hosts_in_command(line: &str) -> Vec<RemoteHost> {
    let ends = |c: char| c.is_whitespace() || c.is_control() || "\"'`;|&()<>".contains(c);
    line.split(ends).filter_map(read_word).collect()
}

fn read_word(word: &str) -> Option<RemoteHost> {
    if let Some((scheme, rest)) = word.split_once("://") {
        let port = match scheme {
            "ssh" | "git+ssh" => SSH,
            "git" => GIT,
            _ => return None,
        };
        let authority = rest.split('/').next()?;
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        return RemoteHost::of_authority(host).or_else(|| RemoteHost::new(host, port));
    }
    let (user, rest) = word.split_once('@')?;
    let named = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    let host = rest.split(':').next().filter(|host| named(user) && named(host))?;
    // `name@1.2.3` is a version of a package.
    let version = host.split('.').all(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
        && host.parse::<std::net::Ipv4Addr>().is_err();
    RemoteHost::new(host, SSH).filter(|_| !version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_of_ssh_and_git_are_found() {
        for (line, expected) in [
            ("git clone git@github.com:a/b.git", "github.com:22"),
            ("git push ssh://git@example.com:2222/x main", "example.com:2222"),
            ("git fetch 'ssh://example.com/x' && ls", "example.com:22"),
            ("git clone git://example.com/x", "example.com:9418"),
            ("scp a deploy@10.0.0.1:/srv", "10.0.0.1:22"),
            ("npm i react@18.2.0 @types/node@20 https://example.com", ""),
        ] {
            let found: Vec<_> = remote_hosts_in_command(line).iter().map(RemoteHost::authority).collect();
            assert_eq!(found.join(" "), expected, "{line}");
        }
    }
}
