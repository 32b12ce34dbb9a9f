//! The hosts of the usual package registries, which the entry `registries` of a sandbox profile stands for.
//!
//! Only hosts from which build tools download packages, over https. Archives of Linux distributions are missing, because
//! system folders are read-only in a sandbox. Hosts of code, such as github.com, are missing because anyone can send
//! data to them.

/// The registries, grouped by tool: crates.io, npm, PyPI, Go, Maven and Gradle, RubyGems, Packagist, NuGet, Hex, pub.dev,
/// JSR. Port 443.
pub const REGISTRIES: &[&str] = &[
    "crates.io",
    "index.crates.io",
    "static.crates.io",
    "registry.npmjs.org",
    "registry.yarnpkg.com",
    "pypi.org",
    "files.pythonhosted.org",
    "proxy.golang.org",
    "sum.golang.org",
    "repo.maven.apache.org",
    "repo1.maven.org",
    "plugins.gradle.org",
    "rubygems.org",
    "index.rubygems.org",
    "repo.packagist.org",
    "api.nuget.org",
    "repo.hex.pm",
    "pub.dev",
    "jsr.io",
    "npm.jsr.io",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::RemoteHost;

    #[test]
    fn registries_are_distinct_hosts_in_normal_form() {
        for (index, name) in REGISTRIES.iter().enumerate() {
            let host = RemoteHost::of_text(name).expect("a host");
            assert_eq!(host.to_string(), *name);
            assert!(!REGISTRIES[..index].contains(name), "{name}");
        }
    }
}
