"""What a worker may do: one row for each role."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace

from kwharness.base import paths
from kwharness.base.records import INSIDE, Message, Natural

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


@dataclass(frozen=True)
class Limits(Message):
    """What a worker may use. 0 stands for what the row of its role says."""

    memory_bytes: Natural = 0
    processes: Natural = 0  # and threads, together
    open_files: Natural = 0
    cpu_s: Natural = 0  # seconds of processor time, all threads together
    file_bytes: Natural = 0  # of the largest file that it writes
    tmp_bytes: Natural = 0  # of its private /tmp


@dataclass(frozen=True)
class Settings(Message):
    """What one worker gets."""

    profile: str = field(default="", metadata=INSIDE)  # its role, a row of PROFILES
    mode: str = "strict"  # or "weak"
    # Further host paths, bound read-only at their own place.
    read_only: list[str] = field(default_factory=list)
    threads: Natural = 1
    limits: Limits = Limits()
    gpu: Natural | None = None  # the minor number of the one NVIDIA GPU that it may use, and
    gpu_uuid: str = ""  # its name for the driver
    tools: bool = False  # NVIDIA's tools may look at what it starts
    # Names in spawn_request.PREIMPORTS, of what the server imports before.
    preimport: list[str] = field(default_factory=list)

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


def statm(key: str) -> int:
    with open("/proc/self/status", encoding="utf-8", errors="replace") as f:
        for line in f:
            if line.startswith(key + ":"):
                return int(line.split()[1]) << 10
    return 0


def limits(settings: Settings) -> Limits:
    """Returns the limits with what memory and processor time come to on this machine."""
    profile, wanted = PROFILES[settings.profile], settings.limits
    memory = wanted.memory_bytes or int(profile.memory_share * machine_memory())
    return replace(wanted, memory_bytes=memory, cpu_s=wanted.cpu_s or profile.cpu_s)


def machine_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
