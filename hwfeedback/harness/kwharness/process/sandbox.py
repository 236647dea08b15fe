"""What a worker may do: one policy table, and how Linux is made to enforce it.

``leave_host`` runs in a process between the fork server and the worker and moves what it forks next
into namespaces of its own. ``confine`` runs in the worker itself: it builds a root file system that
holds little more than a read-only system, gives up every privilege, and sets limits. It says what
the machine could not give; in mode "strict" the absence of anything in REQUIRED is a refusal.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import resource
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kwharness.base import paths

GIB = 1 << 30
MIB = 1 << 20

# No account has this id. A worker started by root becomes it, because the kernel exempts root from
# the limit on processes and because files that only root may read must stay unreadable whatever
# else fails.
SANDBOX_ID = 987_654

# Without one of these, code that a stranger or a model wrote is not contained.
REQUIRED = frozenset(
    {
        "mount namespace",
        "pid namespace",
        "network namespace",
        "ipc namespace",
        "own /proc",
        "seccomp",
    }
)


class SandboxError(Exception):
    """The sandbox that the mode asks for cannot be had here."""


ALL, CHANGES = "all", "changes"


@dataclass(frozen=True)
class Profile:
    """One row of the policy table. Sizes in bytes, times in seconds."""

    execute: bool  # may start programs: g++, and what it starts
    tmp_bytes: int  # the private /tmp
    shm_bytes: int  # the private /dev/shm
    tmp_programs: bool  # files written to /tmp may be loaded as code
    processes: int  # processes and threads together, beside OpenMP's: see POOLS
    open_files: int
    cpu_s: int  # processor time, all threads together: a backstop behind the caller's wall clock
    memory_share: float  # of the machine's memory
    # What of its doings the verdict says: ALL that the filter refuses and all files that are not
    # its own, or CHANGES alone, signals and files that it would change; "": nothing.
    named: str


# The policy table. All: no network, no privileges, nothing of the host's writable, nothing of
# other processes visible.
PROFILES: dict[str, Profile] = {
    "reference": Profile(True, 4 * GIB, GIB, True, 256, 1024, 3600, 0.8, CHANGES),
    "candidate": Profile(False, 512 * MIB, 256 * MIB, False, 256, 512, 1800, 0.7, ALL),
    "builder": Profile(True, 2 * GIB, 64 * MIB, True, 128, 512, 900, 0.5, ""),
    # A candidate and the profiler that looks at it, which starts it.
    "profiler": Profile(True, 2 * GIB, 256 * MIB, True, 512, 1024, 900, 0.7, ""),
}

# OpenMP keeps a pool of threads for each thread that ran a parallel region; so many find room.
POOLS = 4

SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")
KERNEL_PATHS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
DEVICES = ("null", "zero", "full", "random", "urandom")
# What every worker on a GPU opens, beside the node of that GPU.
GPU_DEVICES = ("nvidiactl", "nvidia-uvm")

# Parts of torch ask for GPUs when they are imported. On a machine that has one, the answer must not
# come from CUDA: what is forked from a process that has touched it may not use it any more.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

_CLONE_NEWNS, _CLONE_NEWCGROUP, _CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = (
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_NAMESPACES = {
    "mount namespace": _CLONE_NEWNS,
    "pid namespace": _CLONE_NEWPID,
    "network namespace": _CLONE_NEWNET,
    "ipc namespace": _CLONE_NEWIPC,
    "uts namespace": _CLONE_NEWUTS,
    "cgroup namespace": _CLONE_NEWCGROUP,
}

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_SET_CHILD_SUBREAPER = 38, 47, 36

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
_PIVOT_ROOT = (155, 41)
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
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
_ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # -> (column, AUDIT_ARCH)


@dataclass(frozen=True)
class Settings:
    """What one worker gets. ``limits`` overrides the profile's row: memory_bytes, processes,
    open_files, cpu_s, file_bytes, tmp_bytes.
    """

    profile: str
    mode: str = "strict"  # or "weak"
    read_only: Sequence[str] = ()  # further host paths, bound read-only at their own place
    threads: int = 1
    limits: dict[str, int] = field(default_factory=dict)
    gpu: int | None = None  # the minor number of the one NVIDIA GPU that it may use, and
    gpu_uuid: str = ""  # its name for the driver
    tools: bool = False  # NVIDIA's tools may look at what it starts

    def devices(self) -> tuple[str, ...]:
        """Returns the names below /dev that it may open."""
        return DEVICES if self.gpu is None else (*DEVICES, *GPU_DEVICES, f"nvidia{self.gpu}")


@dataclass
class Departure:
    """What ``leave_host`` achieved; ``confine`` goes on from it."""

    privileged: bool = False
    namespaces: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    scratch: str = ""  # a private folder on the host, where there is no mount namespace to hide one


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _prctl(option: int, *args: int) -> None:
    padded = [ctypes.c_ulong(a) for a in (*args, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(ctypes.c_int(option), *padded), f"prctl {option}")


def become_subreaper() -> None:
    """Makes orphans of this process' descendants its own children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent dies; a change of credentials undoes it."""
    _prctl(_PR_SET_PDEATHSIG, 9)


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

    Workers are stopped and let go on around every timed window (windows.py): whoever was woken by
    that would compute beside what is timed.
    """
    action = _Action()
    sigchld, nocldstop = 17, 1
    _check(_libc.sigaction(sigchld, None, ctypes.byref(action)), "sigaction")
    action.flags |= nocldstop
    _check(_libc.sigaction(sigchld, ctypes.byref(action), None), "sigaction")


def _unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encode = lambda s: None if s is None else os.fsencode(s)  # noqa: E731
    result = _libc.mount(
        encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), encode(data)
    )
    _check(result, f"mount {target}")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _capabilities() -> int:
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.startswith("CapEff:"):
                    return int(line.split()[1], 16)
    except OSError:
        pass
    return 0


def _privileged() -> bool:
    """Whether this process may make namespaces and change its user without a user namespace."""
    setgid, setuid, sys_admin = 1 << 6, 1 << 7, 1 << 21
    needed = setgid | setuid | sys_admin
    return os.geteuid() == 0 and _capabilities() & needed == needed


def python_paths() -> list[str]:
    """The folders that this Python, torch and the harness live in."""
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    found.append(os.path.dirname(os.path.realpath(sys.executable or sys.prefix)))
    found.append(paths.ROOT)
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        found.append(os.path.dirname(os.path.dirname(torch.__file__)))
    refused = {"/", "/home", "/root", "/tmp", "/var", os.path.expanduser("~")}
    return [p for p in dict.fromkeys(found) if p and os.path.isdir(p) and p not in refused]


def leave_host(settings: Settings) -> Departure:
    """Moves this process' next child into new namespaces. To be called in a process that then forks
    once.
    """
    d = Departure(privileged=_privileged())
    flags = 0
    for bit in _NAMESPACES.values():
        flags |= bit
    try:
        if d.privileged:
            try:
                _unshare(flags)
            except OSError:
                d.privileged = False
        if not d.privileged:
            uid, gid = os.geteuid(), os.getegid()
            _unshare(flags | _CLONE_NEWUSER)
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{uid} {uid} 1")
            _write("/proc/self/gid_map", f"{gid} {gid} 1")
        d.namespaces = list(_NAMESPACES)
    except OSError:
        d.missing = ["user namespace", *_NAMESPACES]
        if settings.mode == "weak":
            import tempfile

            d.scratch = tempfile.mkdtemp(prefix="kernelwright-worker-")
    _require(settings, d.missing)
    return d


def _require(settings: Settings, missing: Iterable[str]) -> None:
    if settings.mode == "weak":
        return
    absent = [m for m in missing if m in REQUIRED]
    if absent:
        raise SandboxError(
            f'this machine gives no {", no ".join(absent)}: sandbox = "weak" goes on without, '
            "for code that you would run yourself and not for a language model's"
        )


def confine(settings: Settings, d: Departure) -> tuple[list[str], int]:
    """Takes every right from this process that its profile lacks. Returns what could not be had,
    and the descriptor of its filter's listener (audit.py), -1 where there is none.

    Raises SandboxError where the mode forbids to go on.
    """
    listener = -1
    profile = PROFILES[settings.profile]
    missing = list(d.missing)
    _raise_oom_score()
    if "mount namespace" in d.namespaces:
        try:
            missing += _new_root(settings, profile)
        except OSError as e:
            if settings.mode != "weak":
                raise SandboxError(f"no private file system: {e}") from e
            missing.append("mount namespace")
    if d.privileged:
        os.setgroups([])
        os.setresgid(SANDBOX_ID, SANDBOX_ID, SANDBOX_ID)
        os.setresuid(SANDBOX_ID, SANDBOX_ID, SANDBOX_ID)
        _prctl(_PR_SET_DUMPABLE, 1)  # or its own /proc/self would be root's
        try:
            _unshare(_CLONE_NEWUSER)
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{SANDBOX_ID} {SANDBOX_ID} 1")
            _write("/proc/self/gid_map", f"{SANDBOX_ID} {SANDBOX_ID} 1")
        except OSError:
            missing.append("user namespace")
    _drop_capabilities()
    die_with_parent()
    _set_limits(settings, profile)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    try:
        _landlock(settings, d)
    except OSError:
        missing.append("landlock")
    try:
        # Without a network and a file system of its own, a local socket might be the host's.
        own = "network namespace" in d.namespaces and "mount namespace" in d.namespaces
        tools = settings.tools and own and "mount namespace" not in missing
        listener = _seccomp(profile, settings.gpu is not None, tools)
    except OSError:
        missing.append("seccomp")
    missing = list(dict.fromkeys(missing))
    _require(settings, missing)
    return missing, listener


def _raise_oom_score() -> None:
    # Where memory runs out in spite of the limits, this worker goes first.
    try:
        _write("/proc/self/oom_score_adj", "1000")
    except OSError:
        pass


def _new_root(settings: Settings, profile: Profile) -> list[str]:
    """Replaces the file system by a read-only one of our making. Returns what could not be had."""
    missing: list[str] = []
    # Where links lead is seen while the host's file system is in sight.
    shown = {p: os.path.realpath(p) for p in (*python_paths(), *settings.read_only) if p}
    tmp_bytes = settings.limits.get("tmp_bytes", profile.tmp_bytes)
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    # A tmpfs over /tmp holds both roots until the host's is let go; /tmp itself stays reachable
    # below oldroot.
    base = "/tmp" if os.path.isdir("/tmp") else "/usr"
    _mount("tmpfs", base, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=4m")
    os.mkdir(f"{base}/newroot", 0o755)
    os.mkdir(f"{base}/oldroot", 0o755)
    _mount(f"{base}/newroot", f"{base}/newroot", None, _MS_BIND | _MS_REC)
    os.chdir(base)
    _check(_pivot_root(b".", b"oldroot"), "pivot_root")
    os.chdir("/")

    tmp_flags = _MS_NOSUID | _MS_NODEV | (0 if profile.tmp_programs else _MS_NOEXEC)
    for name in ("tmp", "dev", "proc", "etc", "sys"):
        os.mkdir(f"/newroot/{name}", 0o755)
    _mount("tmpfs", "/newroot/tmp", "tmpfs", tmp_flags, f"mode=1777,size={tmp_bytes}")
    _mount("tmpfs", "/newroot/dev", "tmpfs", _MS_NOSUID | _MS_NOEXEC, "mode=0755,size=64k")
    os.mkdir("/newroot/dev/shm", 0o755)
    shm_flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _mount("tmpfs", "/newroot/dev/shm", "tmpfs", shm_flags, f"mode=1777,size={profile.shm_bytes}")
    for name in settings.devices():
        _bind(f"/dev/{name}", read_only=False)
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        os.symlink(target, f"/newroot/dev/{name}")
    try:
        _mount("proc", "/newroot/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError:
        missing.append("own /proc")
        if settings.mode == "weak":
            for name in ("cpuinfo", "meminfo", "stat"):
                _bind(f"/proc/{name}")

    for path in SYSTEM_PATHS:
        if os.path.islink(f"/oldroot{path}"):
            os.symlink(os.readlink(f"/oldroot{path}"), f"/newroot{path}")
        else:
            _bind(path)
    for path in (*SYSTEM_FILES, *KERNEL_PATHS):
        _bind(path)
    with open("/newroot/etc/passwd", "w", encoding="utf-8") as f:
        ids = {os.geteuid(), SANDBOX_ID}
        f.writelines(f"worker:x:{i}:{i}::/tmp:/bin/false\n" for i in sorted(ids))
    bound = [p for p in SYSTEM_PATHS if not os.path.islink(f"/newroot{p}")]
    for path in sorted(shown, key=len):
        # As it is named and as it really is: links in the host's tree must keep working.
        for place in dict.fromkeys((os.path.normpath(path), shown[path])):
            if not any(place == b or place.startswith(b + "/") for b in bound):
                _bind(place, shown[path])
                bound.append(place)

    _mount("/oldroot", "/oldroot", None, _MS_REC | _MS_PRIVATE)
    os.chdir("/newroot")
    _check(_pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")
    _mount("none", "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    _mount("none", "/dev", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NOEXEC)
    os.chdir("/tmp")
    return missing


def _pivot_root(new: bytes, old: bytes) -> int:
    column = _ARCHES.get(platform.machine(), (0, 0))[0]
    return _libc.syscall(ctypes.c_long(_PIVOT_ROOT[column]), new, old)


def _bind(path: str, real: str = "", read_only: bool = True) -> None:
    """Shows a path of the host, which is really ``real``, in the new root. What the host lacks is
    left out.
    """
    source, target = f"/oldroot{real or path}", f"/newroot{path}"
    if not os.path.exists(source):
        return
    if os.path.isdir(source):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(source, target, None, _MS_BIND | _MS_REC)
    if not read_only:
        return
    readonly_nosuid_nodev = 1 | 2 | 4
    attributes = struct.pack("=QQQQ", readonly_nosuid_nodev, 0, 0, 0)
    recursive = 0x8000
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        -100,
        os.fsencode(target),
        recursive,
        attributes,
        len(attributes),
    )
    if result < 0:  # before Linux 5.12: the top of the tree only
        if ctypes.get_errno() != errno.ENOSYS:
            _check(result, f"read-only {path}")
        _mount("none", target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _drop_capabilities() -> None:
    for capability in range(64):
        failed = _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0
        if failed and ctypes.get_errno() == errno.EINVAL:
            break  # past the last one this kernel knows
    _libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)  # clear all
    header = struct.pack("=Ii", 0x20080522, 0)  # version 3, this thread
    _check(_libc.capset(header, bytes(24)), "capset")


def _statm(key: str) -> int:
    with open("/proc/self/status", encoding="utf-8", errors="replace") as f:
        for line in f:
            if line.startswith(key + ":"):
                return int(line.split()[1]) << 10
    return 0


@dataclass(frozen=True)
class Limits:
    """What a worker may use."""

    memory_bytes: int = 1 << 62
    cpu_s: int = 1 << 62


def limits(settings: Settings) -> Limits:
    """Returns what the settings come to on this machine."""
    profile, wanted = PROFILES[settings.profile], settings.limits
    memory = wanted.get("memory_bytes") or profile.memory_share * machine_memory()
    return Limits(int(memory), int(wanted.get("cpu_s") or profile.cpu_s))


def machine_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _set_limits(settings: Settings, profile: Profile) -> None:
    wanted, memory = settings.limits, limits(settings).memory_bytes
    try:
        data, space = _statm("VmData"), _statm("VmSize")
    except OSError:
        data, space = GIB, 16 * GIB
    wants = {
        resource.RLIMIT_CORE: 0,
        # What the worker may add to what it was born with. Data counts private memory; the address
        # space also counts shared blocks and files, of which it may map as much again.
        resource.RLIMIT_DATA: data + memory,
        resource.RLIMIT_AS: space + 2 * memory + 8 * GIB,
        resource.RLIMIT_FSIZE: int(wanted.get("file_bytes") or memory),
        resource.RLIMIT_NPROC: int(
            wanted.get("processes") or profile.processes + POOLS * settings.threads
        ),
        resource.RLIMIT_NOFILE: int(wanted.get("open_files") or profile.open_files),
        resource.RLIMIT_CPU: limits(settings).cpu_s,
        resource.RLIMIT_MEMLOCK: 64 * MIB,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for which, value in wants.items():
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))


def landlock_abi() -> int:
    """The version of Landlock that this kernel enforces, 0 for none."""
    return max(0, _libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_size_t(0), 1))


def _landlock(settings: Settings, d: Departure) -> None:
    abi = landlock_abi()
    if abi < 1:
        raise OSError(errno.ENOSYS, "no Landlock")
    execute, write_file, read_file, read_dir = 1, 2, 4, 8
    everything = (1 << 13) - 1
    if abi >= 2:
        everything |= 1 << 13  # refer
    if abi >= 3:
        everything |= 1 << 14  # truncate
    if abi >= 5:
        everything |= 1 << 15  # ioctl on devices
    tcp = 3 if abi >= 4 else 0
    scoped = 3 if abi >= 6 else 0  # abstract sockets, signals
    fields = struct.pack("=QQQ", everything, tcp, scoped)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _libc.syscall(
        ctypes.c_long(_LANDLOCK_CREATE), fields[:size], ctypes.c_size_t(size), 0
    )
    _check(ruleset, "landlock")
    try:
        read = execute | read_file | read_dir
        rules: list[tuple[str, int]] = []
        own_root = "mount namespace" not in d.missing and not d.scratch
        if own_root:
            rules += [("/", read), ("/tmp", everything), ("/dev/shm", everything)]
        else:
            system = (
                *SYSTEM_PATHS,
                *SYSTEM_FILES,
                *KERNEL_PATHS,
                *python_paths(),
                *settings.read_only,
            )
            rules += [(p, read) for p in system]
            rules += [
                (p, read) for p in ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/etc/passwd")
            ]
            rules.append((d.scratch, everything))
        rules += [(f"/dev/{name}", read_file | write_file | (1 << 14)) for name in DEVICES]
        if settings.gpu is not None:
            nodes = settings.devices()[len(DEVICES) :]
            rules += [(f"/dev/{n}", read_file | write_file | (1 << 14) | (1 << 15)) for n in nodes]
            # CUDA names its threads, and does not start where it cannot; nor do the programs that a
            # profile may start, whose threads are below other numbers of its own /proc.
            own = "/proc" if own_root and PROFILES[settings.profile].execute else "/proc/self/task"
            rules.append((own, read_file | write_file | (1 << 14)))
        for path, access in rules:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                if not os.path.isdir(path):
                    access &= execute | write_file | read_file | (1 << 14) | (1 << 15)
                rule = struct.pack("=Qi", access & everything, fd)
                _check(
                    _libc.syscall(ctypes.c_long(_LANDLOCK_ADD), ruleset, 1, rule, 0),
                    f"landlock {path}",
                )
            finally:
                os.close(fd)
        _check(_libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ruleset, 0), "landlock")
    finally:
        os.close(ruleset)


def _filter(
    profile: Profile,
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
    if listened and profile.named == ALL:
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
    unclonable = _CLONE_NEWUSER | (0 if profile.execute else _CLONE_VFORK)
    for bit in _NAMESPACES.values():
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
    op(jeq, _PR_SET_PDEATHSIG, 1, 0)
    op(jeq, _PR_SET_DUMPABLE, 0, 1)  # nobody could look into it any more
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
        if profile.named == ALL:
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


def _seccomp(profile: Profile, cuda: bool, tools: bool = False) -> int:
    """Installs the filter. Returns the descriptor that hears what it denies, or -1."""
    known = _ARCHES.get(platform.machine())
    if known is None or struct.calcsize("P") != 8:
        raise OSError(errno.ENOSYS, f"no filter for {platform.machine()}")

    def install(listened: bool) -> int:
        code = _filter(profile, *known, cuda, listened, tools)
        buffer = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
        holder = ctypes.create_string_buffer(program, len(program))
        if not listened:
            _prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(holder))
            return -1
        call, at = ctypes.c_long(_SECCOMP[known[0]]), ctypes.c_ulong(ctypes.addressof(holder))
        fd = _libc.syscall(call, ctypes.c_long(1), ctypes.c_long(_NEW_LISTENER), at)
        _check(fd, "seccomp")
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
    column = _ARCHES[platform.machine()][0]
    tables = (_DENIED, _EXECUTE, _UNCOUNTED, NAMED, _OTHERS, _OPENS, CHANGING)
    names = {pair[column]: name for t in tables for name, pair in t.items()}
    paths = {pair[column]: name for t in (_OPENS, CHANGING) for name, pair in t.items()}
    if column == 0:
        for table in (_DENIED_X86, _FORK_X86, _OPENS_X86, CHANGING_X86):
            names |= {number: name for name, number in table.items()}
        paths |= {n: name for t in (_OPENS_X86, CHANGING_X86) for name, n in t.items()}
    usual = {True: ((1, 0),), False: ((0, -1),)}
    return names, {n: _PATHS.get(name, usual[name.endswith("at")]) for n, name in paths.items()}


def environment(settings: Settings, home: str, toolchain: Sequence[str] = ()) -> dict[str, str]:
    """The whole environment of a worker."""
    threads = str(max(1, settings.threads))
    path = [os.path.join(sys.prefix, "bin"), *toolchain, "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": ":".join(dict.fromkeys(path)),
        "HOME": home,
        "TMPDIR": home,
        "USER": "worker",
        "LOGNAME": "worker",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": f"{home}/extensions",
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/inductor",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        **(NO_GPU if settings.gpu is None else _gpu_environment(settings, home)),
    }


def one_gpu(uuid: str) -> dict[str, str]:
    """The environment of a process that sees this GPU alone."""
    return {"CUDA_VISIBLE_DEVICES": uuid, "PYTORCH_NVML_BASED_CUDA_CHECK": "0"}


def _gpu_environment(settings: Settings, home: str) -> dict[str, str]:
    # Triton asks the linker's path for the driver's library, and keeps what it builds in a folder.
    found = {"TRITON_CACHE_DIR": f"{home}/triton", "CUDA_CACHE_PATH": f"{home}/nv"}
    found["TRITON_CACHE_AUTOTUNING"] = "1"
    for name in ("LD_LIBRARY_PATH", "CUDA_HOME"):
        if os.environ.get(name):
            found[name] = os.environ[name]
    return one_gpu(settings.gpu_uuid) | found


def describe(mode: str, missing: Sequence[str]) -> dict[str, Any]:
    """The sandbox part of a verdict."""
    return {"mode": mode, "missing": list(missing)}
