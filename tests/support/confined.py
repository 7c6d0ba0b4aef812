"""Ways to start a program with less than the tests have: for subprocess's preexec_fn."""

import ctypes
import errno
import os
import resource
import struct

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
NOBODY = 65534
IO_URING_SETUP = 425
IO_SETUP = {"x86_64": 206, "aarch64": 0}[os.uname().machine]

_libc = ctypes.CDLL(None, use_errno=True)


def with_locked_memory(limit):
    """So many bytes of it, at most."""
    return lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))


def as_nobody(limit):
    """An unprivileged user, whom that limit binds."""
    def become():
        with_locked_memory(limit)()
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    return become


def without(*numbers):
    """System calls that fail with EPERM, as under the seccomp filter of a container."""
    def instruction(code, jump_true, jump_false, value):
        return struct.pack("HBBI", code, jump_true, jump_false, value)

    allow, deny = instruction(0x06, 0, 0, 0x7FFF0000), instruction(0x06, 0, 0, 0x00050000 | errno.EPERM)
    code = [instruction(0x20, 0, 0, 0)]  # the number of the call
    for number in numbers:
        code += [instruction(0x15, 0, 1, number), deny]
    code.append(allow)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    program = Program(len(code), b"".join(code))

    def install():
        if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)) != 0:
            raise OSError(ctypes.get_errno(), "cannot install a seccomp filter")

    return install
