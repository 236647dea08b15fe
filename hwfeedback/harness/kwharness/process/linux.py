"""Linux's calls that Python has not, and what a process asks for by prctl(2)."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

_CLONE_NEWNS, _CLONE_NEWCGROUP, _CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
_CLONE_NEWIPC, CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = (
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
NAMESPACES = {
    "mount namespace": _CLONE_NEWNS,
    "pid namespace": _CLONE_NEWPID,
    "network namespace": _CLONE_NEWNET,
    "ipc namespace": _CLONE_NEWIPC,
    "uts namespace": _CLONE_NEWUTS,
    "cgroup namespace": _CLONE_NEWCGROUP,
}

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, _PR_SET_CHILD_SUBREAPER = 38, 47, 36
ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # -> (column, AUDIT_ARCH)


def check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def prctl(option: int, *args: int) -> None:
    padded = [ctypes.c_ulong(a) for a in (*args, 0, 0, 0, 0)[:4]]
    check(libc.prctl(ctypes.c_int(option), *padded), f"prctl {option}")


def become_subreaper() -> None:
    """Makes orphans of this process' descendants its own children."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent dies; a change of credentials undoes it."""
    prctl(PR_SET_PDEATHSIG, 9)


class _Action(ctypes.Structure):
    """glibc's struct sigaction."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (128 // ctypes.sizeof(ctypes.c_ulong))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def no_word_of_stopped_children() -> None:
    """Has SIGCHLD come for children that end, and not when they are stopped or go on.

    Workers are stopped and let go on around every timed window
    (timing/window_session.py): whoever was woken by that would compute beside what is timed.
    """
    action = _Action()
    sigchld, nocldstop = 17, 1
    check(libc.sigaction(sigchld, None, ctypes.byref(action)), "sigaction")
    action.flags |= nocldstop
    check(libc.sigaction(sigchld, ctypes.byref(action), None), "sigaction")


def unshare(flags: int) -> None:
    check(libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encode = lambda s: None if s is None else os.fsencode(s)  # noqa: E731
    result = libc.mount(
        encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), encode(data)
    )
    check(result, f"mount {target}")


def _capabilities() -> int:
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.startswith("CapEff:"):
                    return int(line.split()[1], 16)
    except OSError:
        pass
    return 0


def privileged() -> bool:
    """Whether this process may make namespaces and change its user without a user namespace."""
    setgid, setuid, sys_admin = 1 << 6, 1 << 7, 1 << 21
    needed = setgid | setuid | sys_admin
    return os.geteuid() == 0 and _capabilities() & needed == needed
