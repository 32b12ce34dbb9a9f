//! Attempts to leave a sandbox. Each runs inside, where it must fail, and without a sandbox, where it must succeed.

use std::fs;
use std::io::Write as _;

use super::{Host, Place, TestUser, users};
use crate::support::{full_tests, repository};

/// The machine on which an attempt is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Machine {
    /// Without a sandbox.
    Bare,
    Complete,
    /// Skein is told not to use user namespaces.
    NamespacesExcluded,
    /// The kernel refuses user namespaces, which Skein has to find out.
    NamespacesRefused,
}

/// How far an attempt gets without user namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alone {
    /// Landlock and seccomp stop it.
    Refused,
    /// A limit that docs/sandbox.md names.
    Limit,
}

/// The user that can make the attempt without a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Anyone,
    Root,
    /// Root on a machine that permits it: not every container does.
    RootOnSomeMachines,
}

use Alone::{Limit, Refused};
use Needs::{Anyone, Root, RootOnSomeMachines};

const ATTACKS: &[(&str, Needs, Alone)] = &[
    ("read_hidden", Anyone, Refused),
    ("read_hidden_through_proc_root", Anyone, Refused),
    ("read_hidden_through_proc_cwd", Anyone, Refused),
    ("read_hidden_through_link", Anyone, Refused),
    ("read_hidden_through_init", Anyone, Refused),
    ("read_skein_config", Anyone, Refused),
    ("read_hidden_history", Anyone, Refused),
    ("read_hidden_by_flag", Anyone, Refused),
    ("read_npm_token", Anyone, Refused),
    ("write_outside", Anyone, Refused),
    ("write_home", Anyone, Refused),
    ("create_outside", Anyone, Refused),
    ("truncate_outside", Anyone, Refused),
    ("unlink_outside", Anyone, Refused),
    ("rename_outside_into_project", Anyone, Refused),
    ("rename_project_over_outside", Anyone, Refused),
    ("link_outside_into_project", Anyone, Refused),
    ("link_hidden_into_project", Anyone, Refused),
    ("write_through_link", Anyone, Refused),
    ("make_folder_outside", Anyone, Refused),
    ("chmod_outside", Anyone, Limit),
    ("change_times_outside", Anyone, Limit),
    ("set_attribute_outside", Anyone, Limit),
    ("write_git_hook", Anyone, Limit),
    ("write_git_config", Anyone, Limit),
    ("replace_git_config", Anyone, Limit),
    ("rename_git_folder", Anyone, Limit),
    ("rename_git_hooks", Anyone, Limit),
    ("rename_folder_of_nested_git", Anyone, Limit),
    ("write_nested_git_hook", Anyone, Limit),
    ("write_module_config", Anyone, Limit),
    ("write_mcp_json", Anyone, Limit),
    ("write_editor_tasks", Anyone, Limit),
    ("replace_editor_folder", Anyone, Limit),
    ("write_skein_manifest", Anyone, Limit),
    ("write_envrc", Anyone, Limit),
    ("unlink_protected_link", Anyone, Limit),
    ("write_user_programs", Anyone, Refused),
    ("read_inherited_descriptor", Anyone, Refused),
    ("open_by_handle", Root, Refused),
    ("make_device", RootOnSomeMachines, Refused),
    ("read_raw_disk", RootOnSomeMachines, Refused),
    ("write_kernel_setting", Root, Refused),
    ("trigger_sysrq", RootOnSomeMachines, Refused),
    ("write_sys", RootOnSomeMachines, Refused),
    ("read_kernel_memory", RootOnSomeMachines, Refused),
    ("write_etc", Root, Refused),
    ("read_shadow", Root, Refused),
    ("mount_over", Root, Refused),
    ("unmount_cover", Root, Refused),
    ("change_root", Root, Refused),
    ("clone_tree", Root, Refused),
    ("open_file_system", Root, Refused),
    ("unshare_user", Anyone, Refused),
    ("clone_user", Anyone, Refused),
    ("join_namespace", Root, Refused),
    ("load_bpf", Root, Refused),
    ("open_performance_event", RootOnSomeMachines, Refused),
    ("open_userfaultfd", Root, Refused),
    ("set_up_io_uring", RootOnSomeMachines, Refused),
    ("add_key", Anyone, Refused),
    ("watch_all_files", Root, Refused),
    ("load_module", RootOnSomeMachines, Refused),
    ("read_kernel_log", Root, Refused),
    ("set_clock", Root, Refused),
    ("set_host_name", Root, Refused),
    ("change_personality", Anyone, Refused),
    ("attach_to_process", Anyone, Refused),
    ("read_process_memory", Anyone, Refused),
    ("read_process_environment", Anyone, Refused),
    ("list_processes", Anyone, Limit),
    ("signal_process", Anyone, Refused),
    ("read_environment", Anyone, Refused),
    ("connect_tcp", Anyone, Refused),
    ("connect_tcp_by_fast_open", Anyone, Refused),
    ("send_udp", Anyone, Refused),
    ("connect_path_socket", Anyone, Refused),
    ("connect_temporary_socket", Anyone, Refused),
    ("connect_abstract_socket", Anyone, Refused),
    ("open_raw_socket", Root, Refused),
    ("open_packet_socket", Root, Refused),
    ("open_vsock", RootOnSomeMachines, Refused),
    ("open_kernel_events", Anyone, Refused),
    ("open_alg_socket", RootOnSomeMachines, Refused),
    ("open_multipath_tcp", RootOnSomeMachines, Refused),
    ("inject_input", RootOnSomeMachines, Refused),
    ("inject_input_with_high_bits", RootOnSomeMachines, Refused),
    ("write_other_terminal", Anyone, Limit),
];

/// A place with everything that the attempts look for.
fn prepare(user: TestUser) -> Place {
    let place = Place::new(user);
    for path in [".ssh/id_rsa", "notes/diary", ".bash_history", ".config/skein/config.yaml"] {
        place.write(&format!("home/{path}"), "SECRET");
    }
    place.write("home/.npmrc", "//registry.example.com/:_authToken=SECRET\n");
    for path in ["home/.bashrc", "home/.cargo/bin/tool", "outside/file", "outside/victim"] {
        place.write(path, "text");
    }
    for path in ["outside/secret", "outside/handle"] {
        place.write(path, "SECRET");
    }
    for git in ["project/.git", "project/.git/modules/lib", "project/nested/lib/.git"] {
        place.write(&format!("{git}/HEAD"), "ref: refs/heads/main\n");
        place.write(&format!("{git}/config"), "[core]\n");
        place.write(&format!("{git}/hooks/sample"), "");
        place.write(&format!("{git}/objects/info/packs"), "");
    }
    for path in [".mcp.json", ".vscode/tasks.json", ".skein/config.yaml", ".envrc", "scripts/hook"] {
        place.write(&format!("project/{path}"), "{}");
    }
    std::os::unix::fs::symlink("scripts", place.path("project/.husky")).unwrap();
    place
}

/// Makes one attempt. Returns what it prints.
fn attempt(place: &Place, host: &Host, name: &str, machine: Machine) -> String {
    // Others cannot read this repository's folder.
    for script in ["attacks.py", "without.py"].iter().filter(|script| !place.path(script).exists()) {
        fs::copy(repository("tests/it/sandbox").join(script), place.path(script)).unwrap();
    }
    let (script, wrapper) = (place.path("attacks.py"), place.path("without.py"));
    let settings = host.settings(place);
    let python = ["/usr/bin/python3", script.to_str().unwrap(), name, &settings];
    // A descriptor that Skein's parent forgot to close.
    let folder = place.path("outside");
    let mut args = vec!["-c", "exec 9<\"$0\" \"$@\"", folder.to_str().unwrap()];
    if machine == Machine::NamespacesRefused {
        args.extend(["/usr/bin/python3", wrapper.to_str().unwrap(), "user-namespaces"]);
    }
    if machine != Machine::Bare {
        args.push(env!("CARGO_BIN_EXE_skein"));
        // Without namespaces, nothing protects paths in a workspace.
        if machine == Machine::NamespacesRefused {
            args.extend(["--sandbox", "preferred"]);
        }
        args.extend(["sandbox", "--hide", "~/notes", "--"]);
    }
    args.extend(python);
    let mut command = place.program("/bin/bash", &args);
    if machine == Machine::NamespacesExcluded {
        command.env("SKEIN_TEST_SANDBOX_LAYERS", "no-namespaces,preferred");
    }
    super::text(&command.output().unwrap())
}

fn make_all_attempts(user: TestUser, machine: Machine) {
    let mut problems = Vec::new();
    for (name, needs, alone) in ATTACKS {
        if *needs != Anyone && user != TestUser::Root {
            continue;
        }
        let place = prepare(user);
        let host = Host::start(&place);
        let inside = attempt(&place, &host, name, machine);
        let expected = if machine != Machine::Complete && *alone == Limit { "ESCAPED" } else { "REFUSED" };
        if !inside.starts_with(expected) {
            problems.push(format!("{name} as {user:?}: expected {expected}, got {inside}"));
        }
        drop(host);
        // One control is enough.
        if machine != Machine::Complete {
            continue;
        }
        let place = prepare(user);
        let host = Host::start(&place);
        let control = attempt(&place, &host, name, Machine::Bare);
        if !control.starts_with("ESCAPED") {
            if *needs == RootOnSomeMachines || (*needs == Root && !control.contains("REFUSED")) {
                drop(writeln!(std::io::stderr(), "skipped: no control for {name} on this machine: {}", control.trim()));
            } else {
                problems.push(format!("{name} as {user:?}: the control fails: {control}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn make_all_attempts_as_everyone(machine: Machine) {
    if full_tests() {
        users().into_iter().for_each(|user| make_all_attempts(user, machine));
    }
}

#[test]
fn no_attempt_leaves_a_sandbox() {
    make_all_attempts_as_everyone(Machine::Complete);
}

#[test]
fn without_namespaces_only_known_limits_remain() {
    make_all_attempts_as_everyone(Machine::NamespacesExcluded);
}

#[test]
fn where_the_kernel_refuses_namespaces_only_known_limits_remain() {
    make_all_attempts_as_everyone(Machine::NamespacesRefused);
}

#[test]
fn every_attempt_is_in_the_list() {
    let script = fs::read_to_string(repository("tests/it/sandbox/attacks.py")).unwrap();
    let functions = script.lines().filter_map(|line| line.strip_prefix("def ")?.strip_suffix("(s):"));
    let listed: Vec<&str> = ATTACKS.iter().map(|(name, ..)| *name).collect();
    for name in functions {
        assert!(listed.contains(&name), "{name} is not in ATTACKS");
    }
    assert!(listed.len() >= 80, "{}", listed.len());
}
