"""How Linux is made to enforce what a worker may do (policy.py).

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
import resource
import struct
import sys
from collections.abc import Iterable, Sequence

from kwharness.process import linux, policy, seccomp

_PIVOT_ROOT = (155, 41)
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def leave_host(settings: policy.Settings) -> policy.Departure:
    """Moves this process' next child into new namespaces. To be called in a process that then forks
    once.
    """
    d = policy.Departure(privileged=linux.privileged())
    flags = 0
    for bit in linux.NAMESPACES.values():
        flags |= bit
    try:
        if d.privileged:
            try:
                linux.unshare(flags)
            except OSError:
                d.privileged = False
        if not d.privileged:
            uid, gid = os.geteuid(), os.getegid()
            linux.unshare(flags | linux.CLONE_NEWUSER)
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{uid} {uid} 1")
            _write("/proc/self/gid_map", f"{gid} {gid} 1")
        d.namespaces = list(linux.NAMESPACES)
    except OSError:
        d.missing = ["user namespace", *linux.NAMESPACES]
        if settings.mode == "weak":
            import tempfile

            d.scratch = tempfile.mkdtemp(prefix="kernelwright-worker-")
    _require(settings, d.missing)
    return d


def _require(settings: policy.Settings, missing: Iterable[str]) -> None:
    if settings.mode == "weak":
        return
    absent = [m for m in missing if m in policy.REQUIRED]
    if absent:
        raise policy.SandboxError(
            f'this machine gives no {", no ".join(absent)}: sandbox = "weak" goes on without, '
            "for code that you would run yourself and not for a language model's"
        )


def confine(settings: policy.Settings, d: policy.Departure) -> tuple[list[str], int]:
    """Takes every right from this process that its profile lacks. Returns what could not be had,
    and the descriptor of its filter's listener (audit.py), -1 where there is none.

    Raises SandboxError where the mode forbids to go on.
    """
    listener = -1
    profile = policy.PROFILES[settings.profile]
    missing = list(d.missing)
    _raise_oom_score()
    if "mount namespace" in d.namespaces:
        try:
            missing += _new_root(settings, profile)
        except OSError as e:
            if settings.mode != "weak":
                raise policy.SandboxError(f"no private file system: {e}") from e
            missing.append("mount namespace")
    if d.privileged:
        os.setgroups([])
        os.setresgid(policy.SANDBOX_ID, policy.SANDBOX_ID, policy.SANDBOX_ID)
        os.setresuid(policy.SANDBOX_ID, policy.SANDBOX_ID, policy.SANDBOX_ID)
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # or its own /proc/self would be root's
        try:
            linux.unshare(linux.CLONE_NEWUSER)
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{policy.SANDBOX_ID} {policy.SANDBOX_ID} 1")
            _write("/proc/self/gid_map", f"{policy.SANDBOX_ID} {policy.SANDBOX_ID} 1")
        except OSError:
            missing.append("user namespace")
    _drop_capabilities()
    linux.die_with_parent()
    _set_limits(settings, profile)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    try:
        _landlock(settings, d)
    except OSError:
        missing.append("landlock")
    try:
        # Without a network and a file system of its own, a local socket might be the host's.
        own = "network namespace" in d.namespaces and "mount namespace" in d.namespaces
        tools = settings.tools and own and "mount namespace" not in missing
        listener = seccomp.install_filter(profile, settings.gpu is not None, tools)
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


def _new_root(settings: policy.Settings, profile: policy.Profile) -> list[str]:
    """Replaces the file system by a read-only one of our making. Returns what could not be had."""
    missing: list[str] = []
    # Where links lead is seen while the host's file system is in sight.
    shown = {p: os.path.realpath(p) for p in (*policy.python_paths(), *settings.read_only) if p}
    tmp_bytes = settings.limits.tmp_bytes or profile.tmp_bytes
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    # A tmpfs over /tmp holds both roots until the host's is let go; /tmp itself stays reachable
    # below oldroot.
    base = "/tmp" if os.path.isdir("/tmp") else "/usr"
    linux.mount("tmpfs", base, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755,size=4m")
    os.mkdir(f"{base}/newroot", 0o755)
    os.mkdir(f"{base}/oldroot", 0o755)
    linux.mount(f"{base}/newroot", f"{base}/newroot", None, linux.MS_BIND | linux.MS_REC)
    os.chdir(base)
    linux.check(_pivot_root(b".", b"oldroot"), "pivot_root")
    os.chdir("/")

    tmp_flags = linux.MS_NOSUID | linux.MS_NODEV | (0 if profile.tmp_programs else linux.MS_NOEXEC)
    for name in ("tmp", "dev", "proc", "etc", "sys"):
        os.mkdir(f"/newroot/{name}", 0o755)
    linux.mount("tmpfs", "/newroot/tmp", "tmpfs", tmp_flags, f"mode=1777,size={tmp_bytes}")
    linux.mount(
        "tmpfs", "/newroot/dev", "tmpfs", linux.MS_NOSUID | linux.MS_NOEXEC, "mode=0755,size=64k"
    )
    os.mkdir("/newroot/dev/shm", 0o755)
    shm_flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount(
        "tmpfs", "/newroot/dev/shm", "tmpfs", shm_flags, f"mode=1777,size={profile.shm_bytes}"
    )
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
        linux.mount(
            "proc", "/newroot/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        )
    except OSError:
        missing.append("own /proc")
        if settings.mode == "weak":
            for name in ("cpuinfo", "meminfo", "stat"):
                _bind(f"/proc/{name}")

    for path in policy.SYSTEM_PATHS:
        if os.path.islink(f"/oldroot{path}"):
            os.symlink(os.readlink(f"/oldroot{path}"), f"/newroot{path}")
        else:
            _bind(path)
    for path in (*policy.SYSTEM_FILES, *policy.KERNEL_PATHS):
        _bind(path)
    with open("/newroot/etc/passwd", "w", encoding="utf-8") as f:
        ids = {os.geteuid(), policy.SANDBOX_ID}
        f.writelines(f"worker:x:{i}:{i}::/tmp:/bin/false\n" for i in sorted(ids))
    bound = [p for p in policy.SYSTEM_PATHS if not os.path.islink(f"/newroot{p}")]
    for path in sorted(shown, key=len):
        # As it is named and as it really is: links in the host's tree must keep working.
        for place in dict.fromkeys((os.path.normpath(path), shown[path])):
            if not any(place == b or place.startswith(b + "/") for b in bound):
                _bind(place, shown[path])
                bound.append(place)

    linux.mount("/oldroot", "/oldroot", None, linux.MS_REC | linux.MS_PRIVATE)
    os.chdir("/newroot")
    linux.check(_pivot_root(b".", b"."), "pivot_root")
    linux.check(linux.libc.umount2(b".", linux.MNT_DETACH), "umount")
    os.chdir("/")
    linux.mount(
        "none",
        "/",
        None,
        linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV,
    )
    linux.mount(
        "none",
        "/dev",
        None,
        linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NOEXEC,
    )
    os.chdir("/tmp")
    return missing


def _pivot_root(new: bytes, old: bytes) -> int:
    column = linux.ARCHES.get(platform.machine(), (0, 0))[0]
    return linux.libc.syscall(ctypes.c_long(_PIVOT_ROOT[column]), new, old)


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
    linux.mount(source, target, None, linux.MS_BIND | linux.MS_REC)
    if not read_only:
        return
    readonly_nosuid_nodev = 1 | 2 | 4
    attributes = struct.pack("=QQQQ", readonly_nosuid_nodev, 0, 0, 0)
    recursive = 0x8000
    result = linux.libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        -100,
        os.fsencode(target),
        recursive,
        attributes,
        len(attributes),
    )
    if result < 0:  # before Linux 5.12: the top of the tree only
        if ctypes.get_errno() != errno.ENOSYS:
            linux.check(result, f"read-only {path}")
        linux.mount(
            "none",
            target,
            None,
            linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV,
        )


def _drop_capabilities() -> None:
    for capability in range(64):
        failed = linux.libc.prctl(linux.PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0
        if failed and ctypes.get_errno() == errno.EINVAL:
            break  # past the last one this kernel knows
    linux.libc.prctl(linux.PR_CAP_AMBIENT, 4, 0, 0, 0)  # clear all
    header = struct.pack("=Ii", 0x20080522, 0)  # version 3, this thread
    linux.check(linux.libc.capset(header, bytes(24)), "capset")


def _set_limits(settings: policy.Settings, profile: policy.Profile) -> None:
    wanted = policy.limits(settings)
    memory = wanted.memory_bytes
    try:
        data, space = policy.statm("VmData"), policy.statm("VmSize")
    except OSError:
        data, space = policy.GIB, 16 * policy.GIB
    wants = {
        resource.RLIMIT_CORE: 0,
        # What the worker may add to what it was born with. Data counts private memory; the address
        # space also counts shared blocks and files, of which it may map as much again.
        resource.RLIMIT_DATA: data + memory,
        resource.RLIMIT_AS: space + 2 * memory + 8 * policy.GIB,
        resource.RLIMIT_FSIZE: wanted.file_bytes or memory,
        resource.RLIMIT_NPROC: (
            wanted.processes or profile.processes + policy.POOLS * settings.threads
        ),
        resource.RLIMIT_NOFILE: wanted.open_files or profile.open_files,
        resource.RLIMIT_CPU: wanted.cpu_s,
        resource.RLIMIT_MEMLOCK: 64 * policy.MIB,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for which, value in wants.items():
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))


def landlock_abi() -> int:
    """The version of Landlock that this kernel enforces, 0 for none."""
    return max(0, linux.libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_size_t(0), 1))


def _landlock(settings: policy.Settings, d: policy.Departure) -> None:
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
    ruleset = linux.libc.syscall(
        ctypes.c_long(_LANDLOCK_CREATE), fields[:size], ctypes.c_size_t(size), 0
    )
    linux.check(ruleset, "landlock")
    try:
        read = execute | read_file | read_dir
        rules: list[tuple[str, int]] = []
        own_root = "mount namespace" not in d.missing and not d.scratch
        if own_root:
            rules += [("/", read), ("/tmp", everything), ("/dev/shm", everything)]
        else:
            system = (
                *policy.SYSTEM_PATHS,
                *policy.SYSTEM_FILES,
                *policy.KERNEL_PATHS,
                *policy.python_paths(),
                *settings.read_only,
            )
            rules += [(p, read) for p in system]
            rules += [
                (p, read) for p in ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/etc/passwd")
            ]
            rules.append((d.scratch, everything))
        rules += [(f"/dev/{name}", read_file | write_file | (1 << 14)) for name in policy.DEVICES]
        if settings.gpu is not None:
            nodes = settings.devices()[len(policy.DEVICES) :]
            rules += [(f"/dev/{n}", read_file | write_file | (1 << 14) | (1 << 15)) for n in nodes]
            # CUDA names its threads, and does not start where it cannot; nor do the programs that a
            # profile may start, whose threads are below other numbers of its own /proc.
            own = (
                "/proc"
                if own_root and policy.PROFILES[settings.profile].execute
                else "/proc/self/task"
            )
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
                linux.check(
                    linux.libc.syscall(ctypes.c_long(_LANDLOCK_ADD), ruleset, 1, rule, 0),
                    f"landlock {path}",
                )
            finally:
                os.close(fd)
        linux.check(linux.libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ruleset, 0), "landlock")
    finally:
        os.close(ruleset)


def environment(
    settings: policy.Settings, home: str, toolchain: Sequence[str] = ()
) -> dict[str, str]:
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
        **(policy.NO_GPU if settings.gpu is None else _gpu_environment(settings, home)),
    }


def one_gpu(uuid: str) -> dict[str, str]:
    """The environment of a process that sees this GPU alone."""
    return {"CUDA_VISIBLE_DEVICES": uuid, "PYTORCH_NVML_BASED_CUDA_CHECK": "0"}


def _gpu_environment(settings: policy.Settings, home: str) -> dict[str, str]:
    # Triton asks the linker's path for the driver's library, and keeps what it builds in a folder.
    found = {"TRITON_CACHE_DIR": f"{home}/triton", "CUDA_CACHE_PATH": f"{home}/nv"}
    found["TRITON_CACHE_AUTOTUNING"] = "1"
    for name in ("LD_LIBRARY_PATH", "CUDA_HOME"):
        if os.environ.get(name):
            found[name] = os.environ[name]
    return one_gpu(settings.gpu_uuid) | found
