//! The system calls that a sandbox refuses.
//!
//! A filter lists what is refused, because programs use more system calls than a list of allowed ones could follow.
//! Most answers are "not permitted". Some are "not implemented", after which programs fall back.

use std::collections::BTreeMap;
use std::num::TryFromIntError;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter, sock_filter,
};

use crate::sandbox::plan::{InternetSockets, SocketRules};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Instructions of a filter: they load a word of the call, jump, compare with a constant, and answer.
const LOAD_WORD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;
/// The word with the number of the call.
const CALL_NUMBER: u32 = 0;
/// The answer with an error number, which is added.
const RETURN_ERROR: u32 = 0x0005_0000;

/// Always refused, with any arguments.
const REFUSED: &[i64] = &[
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    OPEN_TREE_ATTR,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    // Kernel interfaces with a history of escapes.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_vhangup,
    libc::SYS_acct,
    libc::SYS_syslog,
    // The machine.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Clocks.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Answered as if the kernel did not have them: their arguments are in memory, which a filter cannot check.
const NOT_IMPLEMENTED: &[i64] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Same number on every architecture; newer than the `libc` crate.
const OPEN_TREE_ATTR: i64 = 467;

const NAMESPACE_FLAGS: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541C;
const TIOCSETD: u64 = 0x5423;
const ADDR_NO_RANDOMIZE: u64 = 0x0004_0000;
const QUERY_PERSONALITY: u64 = 0xffff_ffff;
const MSG_FASTOPEN: u64 = 0x2000_0000;
const TCP_FASTOPEN: u64 = 23;
const TCP_FASTOPEN_CONNECT: u64 = 30;
const SOCKET_TYPE: u64 = 0xf;

const UNIX: u64 = libc::AF_UNIX as u64;
const INET: u64 = libc::AF_INET as u64;
const INET6: u64 = libc::AF_INET6 as u64;
const NETLINK: u64 = libc::AF_NETLINK as u64;
const STREAM: u64 = libc::SOCK_STREAM as u64;
const RAW: u64 = libc::SOCK_RAW as u64;
const TCP: u64 = libc::IPPROTO_TCP as u64;
/// Protocols of internet sockets; others, such as MPTCP, avoid limits on TCP.
const PROTOCOLS: [u64; 5] = [0, TCP, libc::IPPROTO_UDP as u64, libc::IPPROTO_ICMP as u64, libc::IPPROTO_ICMPV6 as u64];

const ARCHITECTURE: Option<TargetArch> = if cfg!(target_arch = "x86_64") {
    Some(TargetArch::x86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(TargetArch::aarch64)
} else if cfg!(target_arch = "riscv64") {
    Some(TargetArch::riscv64)
} else {
    None
};

/// Errors of a filter.
#[derive(Debug, thiserror::Error)]
pub(super) enum SeccompError {
    #[error("system calls of this architecture are unknown")]
    Architecture,
    #[error(transparent)]
    Filter(#[from] seccompiler::Error),
    #[error(transparent)]
    Rule(#[from] seccompiler::BackendError),
    #[error("the rules do not begin as expected")]
    Beginning,
    #[error("a list of system calls does not fit into a filter")]
    List(#[from] TryFromIntError),
}

/// A filter that is ready to be applied.
pub(super) struct SystemCallFilter(BpfProgram);

impl SystemCallFilter {
    /// Refuses system calls for this process and all its descendants.
    pub(super) fn apply(&self) -> Result<(), SeccompError> {
        Ok(apply_filter(&self.0)?)
    }
}

/// Makes the filter for these sockets.
pub(super) fn filter(sockets: SocketRules) -> Result<SystemCallFilter, SeccompError> {
    let mut refused = Rules::new();
    refused.insert(libc::SYS_clone, namespace_rules()?);
    refused.insert(libc::SYS_ioctl, terminal_rules()?);
    refused.insert(libc::SYS_personality, vec![rule(&[ne(0, 0), ne(0, ADDR_NO_RANDOMIZE), ne(0, QUERY_PERSONALITY)])?]);
    refused.insert(libc::SYS_socket, socket_rules(sockets)?);
    refused.insert(libc::SYS_socketpair, vec![rule(&[ne(0, UNIX)])?]);
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        refused.insert(call, vec![rule(&[masked(flags, MSG_FASTOPEN, MSG_FASTOPEN)])?]);
    }
    let fast_open = [TCP_FASTOPEN, TCP_FASTOPEN_CONNECT].map(|option| rule(&[eq(1, TCP), eq(2, option)]));
    refused.insert(libc::SYS_setsockopt, fast_open.into_iter().collect::<Result<_, _>>()?);
    let program = with_listed_calls_refused(compile(refused)?)?;
    Ok(SystemCallFilter(with_foreign_calls_refused(program)))
}

fn namespace_rules() -> Result<Vec<SeccompRule>, SeccompError> {
    let flags = NAMESPACE_FLAGS.map(|flag| u64::from(flag.cast_unsigned()));
    flags.iter().map(|flag| rule(&[masked(0, *flag, *flag)])).collect()
}

/// The kernel compares only the low half of the number, so the filter does the same.
fn terminal_rules() -> Result<Vec<SeccompRule>, SeccompError> {
    [TIOCSTI, TIOCLINUX, TIOCSETD].iter().map(|number| rule(&[eq(1, *number)])).collect()
}

fn socket_rules(sockets: SocketRules) -> Result<Vec<SeccompRule>, SeccompError> {
    let mut families = Vec::new();
    if sockets.unix {
        families.push(UNIX);
    }
    if sockets.internet != InternetSockets::None {
        families.extend([INET, INET6]);
    }
    if sockets.netlink_route {
        families.push(NETLINK);
    }
    let mut rules = Vec::new();
    // A rule needs a condition: zero is no family of a socket.
    let others: Vec<_> = families.iter().chain([&0]).map(|family| ne(0, *family)).collect();
    rules.push(rule(&others)?);
    rules.push(rule(&[eq(0, 0)])?);
    if sockets.netlink_route {
        rules.push(rule(&[eq(0, NETLINK), ne(2, libc::NETLINK_ROUTE as u64)])?);
    }
    for family in [INET, INET6] {
        rules.push(rule(&[eq(0, family), masked(1, SOCKET_TYPE, RAW)])?);
        let mut unusual = vec![eq(0, family)];
        unusual.extend(PROTOCOLS.iter().map(|protocol| ne(2, *protocol)));
        rules.push(rule(&unusual)?);
        if sockets.internet == InternetSockets::TcpOnly {
            // Types are 1 for streams up to 10 for packets.
            for kind in (2..=10).filter(|kind| *kind != STREAM) {
                rules.push(rule(&[eq(0, family), masked(1, SOCKET_TYPE, kind)])?);
            }
        }
    }
    // The obsolete packet type works for every family.
    rules.push(rule(&[masked(1, SOCKET_TYPE, 10)])?);
    Ok(rules)
}

fn compile(rules: Rules) -> Result<BpfProgram, SeccompError> {
    let arch = ARCHITECTURE.ok_or(SeccompError::Architecture)?;
    let answer = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let program: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch)?.try_into()?;
    Ok(program)
}

/// Adds the calls that are refused with any arguments, before the rules. The kernel checks and translates every
/// instruction when a filter is applied; the compiled rules would have five for each call.
fn with_listed_calls_refused(mut program: BpfProgram) -> Result<BpfProgram, SeccompError> {
    // The check of the architecture comes before, and its jumps end there.
    let is_number = |instruction: &sock_filter| instruction.code == LOAD_WORD && instruction.k == CALL_NUMBER;
    let rules = program.iter().position(is_number).ok_or(SeccompError::Beginning)? + 1;
    let refused: Vec<i64> = REFUSED.iter().chain(REFUSED_HERE).copied().collect();
    let mut listed = answer(&refused, libc::EPERM)?;
    listed.extend(answer(NOT_IMPLEMENTED, libc::ENOSYS)?);
    program.splice(rules..rules, listed);
    Ok(program)
}

/// Returns instructions that answer these calls with an error. They need the number, and keep it for other calls.
fn answer(calls: &[i64], errno: i32) -> Result<Vec<sock_filter>, SeccompError> {
    let mut instructions = Vec::with_capacity(calls.len() + 2);
    for (at, call) in calls.iter().enumerate() {
        // Over the comparisons that follow, and over the jump.
        let distance = u8::try_from(calls.len() - at)?;
        instructions.push(sock_filter { code: JUMP_IF_EQUAL, jt: distance, jf: 0, k: u32::try_from(*call)? });
    }
    instructions.push(sock_filter { code: JUMP, jt: 0, jf: 0, k: 1 });
    instructions.push(sock_filter { code: RETURN, jt: 0, jf: 0, k: RETURN_ERROR | errno.cast_unsigned() });
    Ok(instructions)
}

/// Answers calls of other architectures with ENOSYS. The compiled filter kills the process instead, and does not know
/// the numbers of x32.
fn with_foreign_calls_refused(mut program: BpfProgram) -> BpfProgram {
    const KILL: u32 = 0x8000_0000;
    let not_implemented = RETURN_ERROR | libc::ENOSYS.cast_unsigned();
    for instruction in program.iter_mut().filter(|instruction| instruction.code == RETURN && instruction.k == KILL) {
        instruction.k = not_implemented;
    }
    if cfg!(target_arch = "x86_64") {
        const X32: u32 = 0x4000_0000;
        let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
        let check = [
            instruction(LOAD_WORD, 0, 0, CALL_NUMBER),
            instruction(JUMP_IF_AT_LEAST, 0, 1, X32),
            instruction(RETURN, 0, 0, not_implemented),
        ];
        program.splice(0..0, check);
    }
    program
}

/// An argument of a system call and the comparison that it must pass.
type Condition = (u8, SeccompCmpOp, u64);

fn rule(conditions: &[Condition]) -> Result<SeccompRule, SeccompError> {
    let conditions = conditions
        .iter()
        .map(|(argument, comparison, value)| {
            SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, comparison.clone(), *value)
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(SeccompRule::new(conditions)?)
}

fn eq(argument: u8, value: u64) -> Condition {
    (argument, SeccompCmpOp::Eq, value)
}

fn ne(argument: u8, value: u64) -> Condition {
    (argument, SeccompCmpOp::Ne, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Condition {
    (argument, SeccompCmpOp::MaskedEq(mask), value)
}

#[cfg(target_arch = "x86_64")]
#[cfg(test)]
mod tests {
    use super::*;

    const ARCHITECTURE_WORD: u32 = 4;
    const X86_64: u32 = 0xc000_003e;
    const I386: u32 = 0x4000_0003;
    const ALLOW: u32 = 0x7fff_0000;

    /// Returns the answer to a call whose arguments are zero, as the kernel computes it.
    fn answer_to(number: i64, architecture: u32) -> u32 {
        const MASK: u16 = 0x54;
        const JUMP_IF_GREATER: u16 = 0x25;
        let rules = SocketRules { unix: true, internet: InternetSockets::All, netlink_route: true };
        let SystemCallFilter(program) = filter(rules).unwrap();
        let (mut at, mut word) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at].clone();
            at += 1;
            let jump = |is_true: bool| usize::from(if is_true { jt } else { jf });
            match code {
                LOAD_WORD if k == CALL_NUMBER => word = u32::try_from(number).unwrap(),
                LOAD_WORD if k == ARCHITECTURE_WORD => word = architecture,
                LOAD_WORD => word = 0,
                MASK => word &= k,
                JUMP_IF_EQUAL => at += jump(word == k),
                JUMP_IF_AT_LEAST => at += jump(word >= k),
                JUMP_IF_GREATER => at += jump(word > k),
                JUMP => at += usize::try_from(k).unwrap(),
                RETURN => return k,
                _ => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn listed_calls_are_refused_and_others_pass() {
        let error = |errno: i32| RETURN_ERROR | errno.cast_unsigned();
        for call in REFUSED.iter().chain(REFUSED_HERE) {
            assert_eq!(answer_to(*call, X86_64), error(libc::EPERM), "{call}");
        }
        for call in NOT_IMPLEMENTED {
            assert_eq!(answer_to(*call, X86_64), error(libc::ENOSYS), "{call}");
        }
        for call in [libc::SYS_read, libc::SYS_openat, libc::SYS_execve, libc::SYS_clone, libc::SYS_ioctl] {
            assert_eq!(answer_to(call, X86_64), ALLOW, "{call}");
        }
        assert_eq!(answer_to(libc::SYS_socket, X86_64), error(libc::EPERM), "family zero");
        assert_eq!(answer_to(libc::SYS_read, I386), error(libc::ENOSYS));
        assert_eq!(answer_to(libc::SYS_read | 0x4000_0000, X86_64), error(libc::ENOSYS), "x32");
    }
}
