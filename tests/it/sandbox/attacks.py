"""Attempts to leave a sandbox. Usage: attacks.py NAME SETTINGS, where SETTINGS is JSON.

Prints ESCAPED if the attempt succeeds, REFUSED and the error otherwise.
"""

import ctypes
import fcntl
import json
import os
import platform
import signal
import socket
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
# Numbers that differ between architectures, for x86_64 and the others.
NUMBERS = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "clone": (56, 220),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "process_vm_readv": (310, 270), "personality": (135, 92), "clock_settime": (227, 112),
    "sethostname": (170, 161), "fanotify_init": (300, 262), "init_module": (175, 105),
    "syslog": (103, 116), "ptrace": (101, 117),
}
SAME = {"io_uring_setup": 425, "open_tree": 428, "fsopen": 430, "mount_setattr": 442, "clone3": 435}


def call(name, *arguments):
    number = SAME.get(name) or NUMBERS[name][0 if X86 else 1]
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *converted)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def contains_secret(path):
    with open(path) as file:
        return "SECRET" in file.read()


def can_write(path):
    with open(path, "a") as file:
        file.write("changed")
    return True


def can_open_for_writing(path):
    os.close(os.open(path, os.O_WRONLY))
    return True


# Files.

def read_hidden(s):
    return contains_secret(s["home"] + "/.ssh/id_rsa")


def read_hidden_through_proc_root(s):
    return contains_secret("/proc/self/root" + s["home"] + "/.ssh/id_rsa")


def read_hidden_through_proc_cwd(s):
    return contains_secret("/proc/self/cwd/" + os.path.relpath(s["home"] + "/.ssh/id_rsa", os.getcwd()))


def read_hidden_through_link(s):
    os.symlink(s["home"] + "/.ssh", "link-to-ssh")
    try:
        return contains_secret("link-to-ssh/id_rsa")
    finally:
        os.unlink("link-to-ssh")


def read_hidden_through_init(s):
    return contains_secret(f"/proc/{s['outside_pid']}/root" + s["home"] + "/.ssh/id_rsa")


def read_skein_config(s):
    return contains_secret(s["config"] + "/config.yaml")


def read_hidden_history(s):
    return contains_secret(s["home"] + "/.bash_history")


def read_hidden_by_flag(s):
    return contains_secret(s["home"] + "/notes/diary")


def read_npm_token(s):
    return contains_secret(s["home"] + "/.npmrc")


def write_outside(s):
    return can_write(s["outside"] + "/file")


def write_home(s):
    return can_write(s["home"] + "/.bashrc")


def create_outside(s):
    return can_write(s["outside"] + "/new")


def truncate_outside(s):
    os.truncate(s["outside"] + "/file", 0)
    return True


def unlink_outside(s):
    os.unlink(s["outside"] + "/victim")
    return True


def rename_outside_into_project(s):
    os.rename(s["outside"] + "/victim", "stolen")
    return True


def rename_project_over_outside(s):
    open("payload", "w").close()
    os.rename("payload", s["outside"] + "/victim")
    return True


def link_outside_into_project(s):
    os.link(s["outside"] + "/file", "hard-link")
    return can_write("hard-link")


def link_hidden_into_project(s):
    os.link(s["home"] + "/.ssh/id_rsa", "hard-link-to-key")
    return contains_secret("hard-link-to-key")


def write_through_link(s):
    os.symlink(s["outside"] + "/file", "link-to-outside")
    try:
        return can_write("link-to-outside")
    finally:
        os.unlink("link-to-outside")


def make_folder_outside(s):
    os.mkdir(s["outside"] + "/folder")
    return True


def chmod_outside(s):
    os.chmod(s["outside"] + "/file", 0o777)
    return True


def change_times_outside(s):
    os.utime(s["outside"] + "/file", (1, 1))
    return True


def set_attribute_outside(s):
    os.setxattr(s["outside"] + "/file", "user.attack", b"1")
    return True


def write_git_hook(s):
    return can_write(".git/hooks/pre-commit")


def write_git_config(s):
    return can_write(".git/config")


def replace_git_config(s):
    open("config", "w").close()
    os.rename("config", ".git/config")
    return True


def rename_git_folder(s):
    os.rename(".git", "git-moved")
    return True


def rename_git_hooks(s):
    os.rename(".git/hooks", ".git/hooks-moved")
    return True


def rename_folder_of_nested_git(s):
    os.rename("nested", "nested-moved")
    return True


def write_nested_git_hook(s):
    return can_write("nested/lib/.git/hooks/post-checkout")


def write_module_config(s):
    return can_write(".git/modules/lib/config")


def write_mcp_json(s):
    return can_write(".mcp.json")


def write_editor_tasks(s):
    return can_write(".vscode/tasks.json")


def replace_editor_folder(s):
    os.rename(".vscode", "vscode-moved")
    return True


def write_skein_manifest(s):
    return can_write(".skein/config.yaml")


def write_envrc(s):
    return can_write(".envrc")


def unlink_protected_link(s):
    os.unlink(".husky")
    return True


def write_user_programs(s):
    return can_write(s["home"] + "/.cargo/bin/tool")


def read_inherited_descriptor(s):
    descriptor = os.open("secret", os.O_RDONLY, dir_fd=9)
    return b"SECRET" in os.read(descriptor, 100)


def open_by_handle(s):
    # A handle names a file of a file system, not a path.
    path = s["outside"] + "/handle"
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount_id = ctypes.c_int()
    call("name_to_handle_at", -100, path.encode(), handle, ctypes.byref(mount_id), 0)
    folder = os.open(s["outside"], os.O_RDONLY)
    descriptor = call("open_by_handle_at", folder, handle, os.O_RDONLY)
    return b"SECRET" in os.read(descriptor, 100)


def make_device(s):
    device = os.stat(s["outside"]).st_dev
    os.mknod("device", 0o600 | 0o060000, device)
    try:
        os.close(os.open("device", os.O_RDONLY))
    finally:
        os.unlink("device")
    return True


def read_raw_disk(s):
    device = os.stat(s["outside"]).st_dev
    for name in os.listdir("/sys/class/block"):
        with open(f"/sys/class/block/{name}/dev") as file:
            if file.read().strip() == f"{os.major(device)}:{os.minor(device)}":
                os.close(os.open("/dev/" + name, os.O_RDONLY))
                return True
    raise OSError("no block device")


def write_kernel_setting(s):
    return can_open_for_writing("/proc/sys/kernel/core_pattern")


def trigger_sysrq(s):
    return can_open_for_writing("/proc/sysrq-trigger")


def write_sys(s):
    return can_open_for_writing("/sys/kernel/mm/transparent_hugepage/enabled")


def read_kernel_memory(s):
    os.close(os.open("/proc/kcore", os.O_RDONLY))
    return True


def write_etc(s):
    return can_open_for_writing("/etc/passwd")


def read_shadow(s):
    with open("/etc/shadow") as file:
        return "root:" in file.read()


# Namespaces and mounts.

def mount_over(s):
    call("mount", b"tmpfs", os.getcwd().encode(), b"tmpfs", 0, 0)
    call("umount2", os.getcwd().encode(), 2)
    return True


def unmount_cover(s):
    # Without a sandbox there is no cover to remove.
    try:
        call("umount2", (s["home"] + "/.ssh").encode(), 2)
    except OSError as error:
        if error.errno != 22:
            raise
    return contains_secret(s["home"] + "/.ssh/id_rsa")


def change_root(s):
    call("chroot", b"/")
    return True


def clone_tree(s):
    call("open_tree", -100, s["outside"].encode(), 1)
    return True


def open_file_system(s):
    call("fsopen", b"tmpfs", 0)
    return True


def unshare_user(s):
    call("unshare", 0x10000000)
    return True


def clone_user(s):
    child = call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def join_namespace(s):
    descriptor = os.open(f"/proc/{s['outside_pid']}/ns/net", os.O_RDONLY)
    call("setns", descriptor, 0)
    return True


# Kernel interfaces.

def load_bpf(s):
    attributes = ctypes.create_string_buffer(struct.pack("IIII", 1, 4, 4, 1) + bytes(112))
    call("bpf", 0, attributes, 72)
    return True


def open_performance_event(s):
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 120, 0) + bytes(104))
    call("perf_event_open", attributes, 0, -1, -1, 0)
    return True


def open_userfaultfd(s):
    call("userfaultfd", 1)
    return True


def set_up_io_uring(s):
    call("io_uring_setup", 1, ctypes.create_string_buffer(120))
    return True


def add_key(s):
    call("add_key", b"user", b"attack", b"x", 1, -3)
    return True


def watch_all_files(s):
    call("fanotify_init", 4, 0)
    return True


def load_module(s):
    # The kernel checks the right before the module, which is empty.
    try:
        call("init_module", ctypes.create_string_buffer(1), 0, b"")
    except OSError as error:
        if error.errno == 8:
            return True
        raise


def read_kernel_log(s):
    call("syslog", 10, 0, 0)
    return True


def set_clock(s):
    now = time.clock_gettime(time.CLOCK_REALTIME)
    call("clock_settime", 0, ctypes.create_string_buffer(struct.pack("qq", int(now), int(now % 1 * 1e9))))
    return True


def set_host_name(s):
    name = os.uname().nodename.encode()
    call("sethostname", name, len(name))
    return True


def change_personality(s):
    # READ_IMPLIES_EXEC
    call("personality", 0x0400000)
    return True


# Processes.

def attach_to_process(s):
    call("ptrace", 16, s["outside_pid"], 0, 0)
    return True


def read_process_memory(s):
    with open(f"/proc/{s['outside_pid']}/maps") as maps:
        return len(maps.read()) > 0


def read_process_environment(s):
    with open(f"/proc/{s['outside_pid']}/environ") as file:
        return "SECRET" in file.read()


def list_processes(s):
    with open(f"/proc/{s['outside_pid']}/cmdline") as file:
        return len(file.read()) > 0


def signal_process(s):
    os.kill(s["outside_pid"], signal.SIGURG)
    return True


def read_environment(s):
    return "SECRET" in "".join(os.environ.values())


# Network.

def connect_tcp(s):
    with socket.create_connection(("127.0.0.1", s["tcp"]), 2) as connection:
        return connection.recv(10) == b"HELLO"


def connect_tcp_by_fast_open(s):
    with socket.socket() as connection:
        connection.sendto(b"x", 0x20000000, ("127.0.0.1", s["tcp"]))
        return connection.recv(10) == b"HELLO"


def send_udp(s):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(2)
        connection.connect(("127.0.0.1", s["udp"]))
        connection.send(b"x")
        return connection.recv(10) == b"HELLO"


def connect_path_socket(s):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect(s["outside"] + "/socket")
        return connection.recv(10) == b"HELLO"


def connect_temporary_socket(s):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect(s["temporary_socket"])
        return connection.recv(10) == b"HELLO"


def connect_abstract_socket(s):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect("\0" + s["abstract"])
        return connection.recv(10) == b"HELLO"


def open_raw_socket(s):
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP).close()
    return True


def open_packet_socket(s):
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    return True


def open_vsock(s):
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    return True


def open_kernel_events(s):
    # NETLINK_KOBJECT_UEVENT
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).close()
    return True


def open_alg_socket(s):
    socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close()
    return True


def open_multipath_tcp(s):
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).close()
    return True


# Terminals.

def inject(number):
    import pty
    child, terminal = pty.fork()
    if child == 0:
        try:
            result = libc.ioctl(0, ctypes.c_ulong(number), b"x")
            os._exit(0 if result == 0 else 1)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def inject_input(s):
    return inject(0x5412)


def inject_input_with_high_bits(s):
    return inject(0x5412 | 1 << 40)


def write_other_terminal(s):
    return can_open_for_writing(s["terminal"])


def main():
    attack = globals()[sys.argv[1]]
    try:
        succeeded = attack(json.loads(sys.argv[2]))
    except (OSError, ValueError) as error:
        print("REFUSED", error)
    else:
        print("ESCAPED" if succeeded else "REFUSED without an error")


main()
