//! Checks that tightening never widens, for any pair of profiles.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::{
    ByteSize, CacheAccess, Enforcement, GitAccess, HostSettings, LimitSettings, NetworkSettings, SandboxDevice,
    SandboxSettings, StatedEnforcement,
};
use super::*;
use crate::network::{HostPattern, REGISTRIES, RemoteHost, UnstatedPort};

const PATHS: [&str; 14] =
    ["dist", "dist/", "dist/js", "dist/*", ".", "tests", "../up", "~", "~/a", "~/a/b", "/", "/srv", "/srv/x", "a/../b"];
const HOSTS: [&str; 14] = [
    "registries",
    "crates.io",
    "*.crates.io",
    "index.crates.io:443",
    "example.com",
    "example.com:443",
    "example.com:8080",
    "*.example.com",
    "*.example.com:443",
    "a.example.com",
    "*.a.example.com",
    "127.0.0.1:5432",
    "EXAMPLE.com.",
    "no host",
];

fn files() -> impl Strategy<Value = FileAccess> {
    select(vec![FileAccess::None, FileAccess::ReadOnly, FileAccess::Workspace, FileAccess::Full])
}

fn write() -> impl Strategy<Value = Vec<WritePath>> {
    let path = select(PATHS.to_vec()).prop_map(|path| WritePath::Path(path.to_owned()));
    vec(prop_oneof![4 => path, 1 => Just(WritePath::GitIgnored)], 0..4)
}

fn read() -> impl Strategy<Value = Vec<ReadPath>> {
    let ask = vec(select(vec!["kubectl", "helm", "aws"]).prop_map(str::to_owned), 0..3);
    vec((select(PATHS.to_vec()), ask).prop_map(|(path, ask)| ReadPath { path: path.to_owned(), ask }), 0..4)
}

fn texts(from: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    vec(select(from.to_vec()).prop_map(str::to_owned), 0..4)
}

fn otherwise() -> impl Strategy<Value = OtherHosts> {
    select(vec![OtherHosts::Off, OtherHosts::Ask, OtherHosts::On])
}

fn ports() -> impl Strategy<Value = PortAccess> {
    prop_oneof![
        Just(PortAccess::Off),
        Just(PortAccess::Ask),
        vec(select(vec![80u16, 5173, 8080]), 0..3).prop_map(PortAccess::List)
    ]
}

fn devices() -> impl Strategy<Value = Vec<SandboxDevice>> {
    vec(select(vec![SandboxDevice::Gpu, SandboxDevice::Kvm, SandboxDevice::Fuse]), 0..3)
}

fn limit() -> impl Strategy<Value = Option<u64>> {
    option::of(1u64..5)
}

fn profile() -> impl Strategy<Value = SandboxProfile> {
    let lists = (files(), write(), read(), texts(&PATHS), texts(&HOSTS), texts(&HOSTS), otherwise());
    let rest = (
        select(vec![CacheAccess::Off, CacheAccess::Private, CacheAccess::Shared]),
        select(vec![GitAccess::Off, GitAccess::Ask]),
        ports(),
        texts(&["/run/a.sock", "/run/./a.sock", "~/b.sock"]),
        devices(),
        (limit(), limit(), limit()),
        select(vec![Enforcement::Required, Enforcement::Preferred, Enforcement::Off]),
    );
    (lists, rest).prop_map(|((files, write, read, hide, allow, deny, otherwise), rest)| {
        let (caches, git, ports, sockets, devices, (processes, memory, file_size), enforce) = rest;
        SandboxProfile {
            files,
            write,
            read,
            hide,
            network: NetworkAccess { allow, deny, otherwise },
            caches,
            git,
            ports,
            sockets,
            devices,
            limits: SandboxLimits { processes: processes.and_then(|count| count.try_into().ok()), memory, file_size },
            enforce,
        }
    })
}

/// Settings with any subset of the fields of a profile.
fn settings() -> impl Strategy<Value = SandboxSettings> {
    (profile(), vec(any::<bool>(), 13), 0..3u8).prop_map(|(profile, stated, form)| {
        let mut stated = stated.into_iter();
        let mut next = || stated.next().unwrap_or_default();
        let NetworkAccess { allow, deny, otherwise } = profile.network;
        let network = match form {
            0 => NetworkSettings::Word(otherwise),
            1 => NetworkSettings::List(allow),
            _ => NetworkSettings::Hosts(HostSettings {
                allow: next().then_some(allow),
                deny: next().then_some(deny),
                otherwise: next().then_some(otherwise),
            }),
        };
        let size = |bytes: Option<u64>| bytes.map(ByteSize);
        let limits = LimitSettings {
            processes: profile.limits.processes,
            memory: size(profile.limits.memory),
            file_size: size(profile.limits.file_size),
        };
        SandboxSettings {
            files: next().then_some(profile.files),
            write: next().then_some(profile.write),
            read: next().then_some(profile.read),
            hide: next().then_some(profile.hide),
            network: next().then_some(network),
            caches: next().then_some(profile.caches),
            git: next().then_some(profile.git),
            ports: next().then_some(profile.ports),
            sockets: next().then_some(profile.sockets),
            devices: next().then_some(profile.devices),
            limits: next().then_some(limits),
            enforce: match profile.enforce {
                Enforcement::Required => Some(StatedEnforcement::Required),
                Enforcement::Preferred => Some(StatedEnforcement::Preferred),
                Enforcement::Off => None,
            },
        }
    })
}

/// Concrete paths as pairs of their start and their names: what an entry grants is judged on these.
const PROBES: [(&str, &[&str]); 12] = [
    ("root", &["src"]),
    ("root", &["dist"]),
    ("root", &["dist", "js"]),
    ("root", &["dist", "css", "x"]),
    ("root", &["tests", "x"]),
    ("root", &["b"]),
    ("home", &["other"]),
    ("home", &["a"]),
    ("home", &["a", "b", "c"]),
    ("system", &["srv"]),
    ("system", &["srv", "x", "y"]),
    ("above", &["up"]),
];

/// Returns true if a path or glob of a manifest contains the probe.
fn names_probe(path: &str, (start, probe): (&str, &[&str])) -> bool {
    let (place, text) = match path {
        "../up" => ("above", "up"),
        "a/../b" => ("root", "b"),
        path if path.starts_with('/') => ("system", path),
        path if path.starts_with('~') => ("home", &path[1..]),
        path => ("root", path),
    };
    let parts: Vec<_> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    // Roots and homes lie in the file system.
    let in_all = path == "/";
    in_all
        || (place == start
            && parts.len() <= probe.len()
            && parts.iter().zip(probe).all(|(part, name)| *part == "*" || part == name))
}

/// Returns true if the profile writes the probe. Git ignores `dist` in these probes.
fn writes(profile: &SandboxProfile, probe: (&str, &[&str])) -> bool {
    let by_files = match profile.files {
        FileAccess::None | FileAccess::ReadOnly => false,
        FileAccess::Workspace => probe.0 == "root",
        FileAccess::Full => true,
    };
    by_files
        || profile.write.iter().any(|entry| match entry {
            WritePath::GitIgnored => probe.0 == "root" && probe.1[0] == "dist",
            WritePath::Path(path) => names_probe(path, probe),
        })
}

/// Returns the programs for which the probe opens: `None` for all.
fn opens(profile: &SandboxProfile, probe: (&str, &[&str])) -> Vec<Option<String>> {
    let entries = profile.read.iter().filter(|entry| names_probe(&entry.path, probe));
    entries
        .flat_map(|entry| match entry.ask.as_slice() {
            [] => vec![None],
            programs => programs.iter().cloned().map(Some).collect(),
        })
        .collect()
}

fn matches(entries: &[String], host: &RemoteHost, unstated: UnstatedPort) -> bool {
    entries.iter().any(|entry| match entry.as_str() {
        "registries" => REGISTRIES
            .iter()
            .any(|registry| HostPattern::parse(&format!("{registry}:443")).unwrap().matches(host, unstated)),
        pattern => HostPattern::parse(pattern).is_ok_and(|pattern| pattern.matches(host, unstated)),
    })
}

/// Returns what happens with a host. Addresses need an entry or a consent.
fn reaches(network: &NetworkAccess, host: &str) -> OtherHosts {
    let remote = RemoteHost::of_url(host).expect("a host");
    if matches(&network.deny, &remote, UnstatedPort::Any) {
        OtherHosts::Off
    } else if matches(&network.allow, &remote, UnstatedPort::Web) {
        OtherHosts::On
    } else if host.contains("127.0.0.1") {
        network.otherwise.min(OtherHosts::Ask)
    } else {
        network.otherwise
    }
}

const URLS: [&str; 11] = [
    "https://crates.io",
    "http://crates.io",
    "https://index.crates.io",
    "https://evil.crates.io",
    "https://example.com",
    "http://example.com",
    "http://example.com:8080",
    "https://a.example.com",
    "https://b.a.example.com",
    "http://127.0.0.1:5432",
    "https://elsewhere.net",
];

/// Fails if `narrow` allows something that `wide` does not.
fn assert_within(narrow: &SandboxProfile, wide: &SandboxProfile) {
    assert!(narrow.files <= wide.files);
    for probe in PROBES {
        assert!(!writes(narrow, probe) || writes(wide, probe), "{probe:?}");
        let allowed = opens(wide, probe);
        for program in opens(narrow, probe) {
            assert!(allowed.contains(&None) || allowed.contains(&program), "{probe:?} {program:?}");
        }
    }
    assert!(wide.hide.iter().all(|path| narrow.hide.contains(path)));
    for url in URLS {
        assert!(reaches(&narrow.network, url) <= reaches(&wide.network, url), "{url}");
    }
    assert!(narrow.caches <= wide.caches && narrow.git <= wide.git && narrow.enforce <= wide.enforce);
    match (&narrow.ports, &wide.ports) {
        (PortAccess::Off, _) | (PortAccess::Ask, PortAccess::Ask) => {}
        (PortAccess::List(narrow), wide) => {
            let listed = |port: &u16| matches!(wide, PortAccess::List(ports) if ports.contains(port));
            assert!(narrow.iter().all(listed), "{narrow:?} {wide:?}");
        }
        (narrow, wide) => panic!("{narrow:?} {wide:?}"),
    }
    let is_listed = |socket: &String| wide.sockets.iter().any(|there| is_same(socket, there));
    assert!(narrow.sockets.iter().all(is_listed));
    assert!(narrow.devices.iter().all(|device| wide.devices.contains(device)));
    fn at_most<T: Ord>(narrow: Option<T>, wide: Option<T>) -> bool {
        wide.is_none_or(|wide| narrow.is_some_and(|narrow| narrow <= wide))
    }
    assert!(at_most(narrow.limits.processes, wide.limits.processes));
    assert!(at_most(narrow.limits.memory, wide.limits.memory));
    assert!(at_most(narrow.limits.file_size, wide.limits.file_size));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn delegation_only_tightens(parent in profile(), child in profile()) {
        let effective = child.tighten(&parent);
        assert_within(&effective, &parent);
        assert_within(&effective, &child);
    }

    #[test]
    fn project_files_only_tighten(before in profile(), project in settings()) {
        assert_within(&project.tighten(&before), &before);
    }

    #[test]
    fn tightening_by_itself_changes_no_right(profile in profile()) {
        let same = profile.tighten(&profile);
        for probe in PROBES {
            prop_assert_eq!(writes(&same, probe), writes(&profile, probe), "{:?}", probe);
        }
        for url in URLS {
            prop_assert_eq!(reaches(&same.network, url), reaches(&profile.network, url), "{}", url);
        }
    }
}

#[test]
fn a_child_keeps_the_writable_paths_of_its_parent() {
    let base = SandboxProfile::narrowest(super::super::ProfileOwner::Mode);
    let path = |path: &str| WritePath::Path(path.to_owned());
    let qa = SandboxProfile {
        files: FileAccess::ReadOnly,
        write: vec![WritePath::GitIgnored, path("tests")],
        ..base.clone()
    };
    let backend = SandboxProfile { files: FileAccess::Workspace, write: vec![path("~/.cache/bazel")], ..base };
    let effective = backend.tighten(&qa);
    assert_eq!(effective.files, FileAccess::ReadOnly);
    assert_eq!(effective.write, [WritePath::GitIgnored, path("tests")]);
}
