"""Which system calls a worker may make, and the filter that denies the others."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import struct
from collections.abc import Sequence

from kwharness.process import linux, policy

# System calls by number, per architecture: a filter sees numbers only.
_DENIED: dict[str, tuple[int, int]] = {  # name -> (x86_64, aarch64)
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "personality": (135, 92),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "fanotify_init": (300, 262),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "memfd_secret": (447, 447),
    "mknodat": (259, 33),
    # Signals that the kernel sends by itself would let a stopped process go on.
    "timer_create": (222, 107),
    "mq_notify": (244, 184),
    "socket": (41, 198),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "connect": (42, 203),
}
_DENIED_X86: dict[str, int] = {
    "iopl": 172,
    "ioperm": 173,
    "modify_ldt": 154,
    "mknod": 133,
    "uselib": 134,
    "ustat": 136,
    "sysfs": 139,
    "lookup_dcookie": 212,
}
_EXECUTE: dict[str, tuple[int, int]] = {"execve": (59, 221), "execveat": (322, 281)}
_FORK_X86: dict[str, int] = {"fork": 57, "vfork": 58}
# Memory that no limit of a process counts. On a GPU the harness itself keeps Triton's kernels in
# such files, and the driver may.
_UNCOUNTED: dict[str, tuple[int, int]] = {
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "msgget": (68, 186),
}
_CLONE, _CLONE3, _SOCKETPAIR = (56, 220), (435, 435), (53, 199)
# CUDA does not start without a local socket that it listens on. Nobody can connect to one here: the
# network namespace is the worker's own, and connect is denied.
_CUDA_NEEDS = frozenset(("socket", "bind", "listen"))
# CUDA asks for a server that would share the GPU (MPS) by itself, and makes the device file of each
# other GPU of the machine, in vain: on a GPU these are nothing to tell of.
_CUDA_TRIES = frozenset(("connect", "mknodat"))
# A tool that looks at a process, as compute-sanitizer does, speaks with it through named pipes and
# a local socket, both the worker's own: its file system and its network namespace are private.
_TOOLS_NEED = _CUDA_NEEDS | {"accept", "accept4", "connect"}
_S_IFMT, _S_IFIFO = 0o170000, 0o010000
_PRCTL, _IOCTL, _FCNTL = (157, 167), (16, 29), (72, 25)
_OTHERS = {"clone": _CLONE, "socketpair": _SOCKETPAIR, "prctl": _PRCTL, "ioctl": _IOCTL}
_OTHERS |= {"fcntl": _FCNTL}
_F_SETSIG = 10
# Who makes a thread by vfork sleeps until it ends, in a sleep out of which nobody can stop it.
_CLONE_VFORK, _CLONE_THREAD = 0x00004000, 0x00010000
_AF_UNIX = 1
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

# Answered as any other call, but named like those that are refused: nobody who computes sends
# signals.
NAMED = {"kill": (62, 129), "tkill": (200, 130)}
# Answered as any other call; whose file it is says whether it is named.
_OPENS = {"openat": (257, 56), "openat2": (437, 437)}
_OPENS_X86 = {"open": 2, "creat": 85}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC  # of a file that is opened
# Answered and named likewise: these change what a path leads to.
CHANGING = {
    "unlinkat": (263, 35),
    "mkdirat": (258, 34),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "linkat": (265, 37),
    "symlinkat": (266, 36),
    "truncate": (76, 45),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchownat": (260, 54),
    "utimensat": (280, 88),
}
CHANGING_X86 = {
    "unlink": 87,
    "rmdir": 84,
    "mkdir": 83,
    "rename": 82,
    "link": 86,
    "symlink": 88,
    "chmod": 90,
    "chown": 92,
    "lchown": 94,
    "utime": 132,
    "utimes": 235,
}
# Which arguments are paths, and which the folder that each is below; -1: the process's own. Others
# have one path, after its folder where the name ends like this.
_PATHS = {
    "renameat": ((1, 0), (3, 2)),
    "renameat2": ((1, 0), (3, 2)),
    "linkat": ((3, 2),),
    "symlinkat": ((2, 1),),
    "openat2": ((1, 0),),
    "fchmodat2": ((1, 0),),
    "rename": ((0, -1), (1, -1)),
    "link": ((1, -1),),
    "symlink": ((1, -1),),
}
_SECCOMP = (317, 277)
_NEW_LISTENER, _NOTIFY = 1 << 3, 0x7FC00000


def _filter(
    profile: policy.Profile,
    column: int,
    arch: int,
    cuda: bool = False,
    listened: bool = False,
    tools: bool = False,
) -> bytes:
    """The seccomp program: classic BPF over (number, arch, arguments).

    ``listened``: whether somebody is asked about, and so hears of, what is denied. ``tools``: see
    Settings.
    """
    load, jeq, jge, jset, ret, both = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
    allow, kill = 0x7FFF0000, 0x80000000
    deny, absent = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
    quiet = deny
    if listened and profile.named == policy.ALL:
        deny = _NOTIFY
    tried = {_DENIED[name][column] for name in _CUDA_TRIES} if cuda else set()
    program: list[tuple[int, int, int, int]] = []

    def op(code: int, value: int, yes: int = 0, no: int = 0) -> None:
        program.append((code, yes, no, value))

    def low_argument(index: int) -> None:
        op(load, 16 + 8 * index)  # little-endian: the low half comes first

    def unless_number(number: int, body: int) -> None:
        op(jeq, number, 0, body)

    op(load, 4)
    op(jeq, arch, 1, 0)
    op(ret, kill)
    op(load, 0)
    if column == 0:
        op(jge, 0x40000000, 0, 1)  # the x32 set: other numbers, same calls
        op(ret, kill)
    unclonable = linux.CLONE_NEWUSER | (0 if profile.execute else _CLONE_VFORK)
    for bit in linux.NAMESPACES.values():
        unclonable |= bit
    unless_number(_CLONE[column], 5 if profile.execute else 7)
    low_argument(0)
    op(jset, unclonable, 0, 1)
    op(ret, deny)
    if not profile.execute:
        op(jset, _CLONE_THREAD, 1, 0)
        op(ret, deny)
    op(ret, allow)
    op(ret, allow)
    unless_number(
        _CLONE3[column], 1
    )  # its flags lie in memory, out of sight: the C library falls back to clone
    op(ret, absent)
    allowed = (_CUDA_NEEDS if cuda else frozenset()) | (_TOOLS_NEED if tools else frozenset())
    if tools:
        unless_number(_DENIED["mknodat"][column], 5)
        low_argument(2)
        op(both, _S_IFMT)
        op(jeq, _S_IFIFO, 1, 0)
        op(ret, quiet if cuda else deny)
        op(ret, allow)
    for makes_socket in (_SOCKETPAIR, *([_DENIED["socket"]] if "socket" in allowed else [])):
        unless_number(makes_socket[column], 4)
        low_argument(0)
        op(jeq, _AF_UNIX, 1, 0)
        op(ret, deny)
        op(ret, allow)
    unless_number(_PRCTL[column], 5)
    low_argument(0)
    op(jeq, linux.PR_SET_PDEATHSIG, 1, 0)
    op(jeq, linux.PR_SET_DUMPABLE, 0, 1)  # nobody could look into it any more
    op(ret, deny)
    op(ret, allow)
    unless_number(_IOCTL[column], 5)
    low_argument(1)
    op(jeq, _TIOCSTI, 1, 0)
    op(jeq, _TIOCLINUX, 0, 1)
    op(ret, deny)
    op(ret, allow)
    unless_number(_FCNTL[column], 4)
    low_argument(1)
    op(jeq, _F_SETSIG, 0, 1)
    op(ret, deny)
    op(ret, allow)
    denied = [pair[column] for name, pair in _DENIED.items() if name not in allowed]
    if column == 0:
        denied += _DENIED_X86.values()
    if not profile.execute:
        denied += [pair[column] for pair in _EXECUTE.values()]
        if column == 0:
            denied += _FORK_X86.values()
        if not cuda:
            denied += [pair[column] for pair in _UNCOUNTED.values()]
    for number in denied:
        unless_number(number, 1)
        op(ret, quiet if number in tried else deny)
    heard = [pair[column] for pair in NAMED.values()] if listened else []
    if listened and _release() >= (5, 5):  # before, nothing that is heard of can go on
        heard += [pair[column] for pair in CHANGING.values()]
        heard += CHANGING_X86.values() if column == 0 else []
        if profile.named == policy.ALL:
            heard += [pair[column] for pair in _OPENS.values()]
            heard += _OPENS_X86.values() if column == 0 else []
        else:  # openat2 has its flags in memory, and the C library does not call it
            flags = {_OPENS["openat"][column]: 2} | ({_OPENS_X86["open"]: 1} if column == 0 else {})
            for number, index in flags.items():
                unless_number(number, 4)
                low_argument(index)
                op(jset, WRITES, 0, 1)
                op(ret, _NOTIFY)
                op(ret, allow)
            heard += [_OPENS_X86["creat"]] if column == 0 else []
    for number in heard:
        unless_number(number, 1)
        op(ret, _NOTIFY)
    op(ret, allow)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _release() -> tuple[int, int]:
    """Returns Linux's version."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(found[1]), int(found[2])) if found else (0, 0)


def install_filter(profile: policy.Profile, cuda: bool, tools: bool = False) -> int:
    """Installs the filter. Returns the descriptor that hears what it denies, or -1."""
    known = linux.ARCHES.get(platform.machine())
    if known is None or struct.calcsize("P") != 8:
        raise OSError(errno.ENOSYS, f"no filter for {platform.machine()}")

    def install(listened: bool) -> int:
        code = _filter(profile, *known, cuda, listened, tools)
        buffer = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
        holder = ctypes.create_string_buffer(program, len(program))
        if not listened:
            linux.prctl(linux.PR_SET_SECCOMP, 2, ctypes.addressof(holder))
            return -1
        call, at = ctypes.c_long(_SECCOMP[known[0]]), ctypes.c_ulong(ctypes.addressof(holder))
        fd = linux.libc.syscall(call, ctypes.c_long(1), ctypes.c_long(_NEW_LISTENER), at)
        linux.check(fd, "seccomp")
        return int(fd)

    if profile.named:
        try:
            return install(True)
        except OSError:  # an older kernel, or one who listens is there already
            pass
    return install(False)


def listened() -> tuple[dict[int, str], dict[int, Sequence[tuple[int, int]]]]:
    """Returns what a listener may hear of: calls' names by number, and for those that open or
    change a file which arguments are paths, each with the folder that it is below (-1: none).
    """
    column = linux.ARCHES[platform.machine()][0]
    tables = (_DENIED, _EXECUTE, _UNCOUNTED, NAMED, _OTHERS, _OPENS, CHANGING)
    names = {pair[column]: name for t in tables for name, pair in t.items()}
    paths = {pair[column]: name for t in (_OPENS, CHANGING) for name, pair in t.items()}
    if column == 0:
        for table in (_DENIED_X86, _FORK_X86, _OPENS_X86, CHANGING_X86):
            names |= {number: name for name, number in table.items()}
        paths |= {n: name for t in (_OPENS_X86, CHANGING_X86) for name, n in t.items()}
    usual = {True: ((1, 0),), False: ((0, -1),)}
    return names, {n: _PATHS.get(name, usual[name.endswith("at")]) for n, name in paths.items()}
