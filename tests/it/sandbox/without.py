"""Runs a program on a machine that lacks layers of a sandbox: without.py LAYER[,LAYER…] PROGRAM ARGUMENT…

LAYER is `landlock` or `user-namespaces`. A seccomp filter refuses their system calls, so the program finds the same
as on an older kernel (ENOSYS) or on one that forbids user namespaces (EPERM).
"""

import ctypes
import os
import platform
import struct
import sys

ENOSYS, EPERM = 38, 1
CLONE_NEWUSER = 0x10000000
LANDLOCK = (444, 445, 446)
# The architecture for seccomp, and the numbers of clone and unshare.
MACHINES = {"x86_64": (0xC000003E, 56, 272), "aarch64": (0xC00000B7, 220, 97)}
CLONE3 = 435
# Operations of BPF: load a word, jump if equal, jump if a bit is set, return.
LOAD, EQUAL, HAS_BITS, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def refuse(number, code):
    """Refuses a system call whatever its arguments are. The number is loaded."""
    return [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | code)]


def refuse_new_user(number):
    """Refuses a system call whose first argument asks for a user namespace."""
    return [
        (EQUAL, 0, 3, number),
        (LOAD, 0, 0, 16),
        (HAS_BITS, 0, 1, CLONE_NEWUSER),
        (RETURN, 0, 0, ERRNO | EPERM),
        (LOAD, 0, 0, 0),
    ]


def rules(layers):
    architecture, clone, unshare = MACHINES[platform.machine()]
    found = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, 0)]
    for layer in layers:
        if layer == "landlock":
            for number in LANDLOCK:
                found += refuse(number, ENOSYS)
        elif layer == "user-namespaces":
            # Its flags are in memory, which a filter cannot read; programs then use clone.
            found += refuse(CLONE3, ENOSYS) + refuse_new_user(clone) + refuse_new_user(unshare)
        else:
            sys.exit(f"unknown layer {layer}")
    return found + [(RETURN, 0, 0, ALLOW)]


def main():
    program = b"".join(struct.pack("HBBI", *rule) for rule in rules(sys.argv[1].split(",")))
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)):
        if libc.prctl(*arguments) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[2], sys.argv[2:])


main()
