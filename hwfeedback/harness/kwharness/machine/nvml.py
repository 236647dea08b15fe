"""What a GPU's sensors say while it is timed: its clock, its temperature, whether it has slowed
itself down, and who has a context on it. By NVML (docs.nvidia.com/deploy/nvml-api), which comes
with the driver.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

# Reasons for which clocks are lower than was asked for, nvmlClocksEventReasons: those that come and
# go with heat and power supply, by no doing of what is timed. A cap on power is another matter: who
# draws much runs into it every time, and so does its baseline.
SLOWED = {
    0x08: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
_GPU_TEMPERATURE, _SM_CLOCK = 0, 1
_PROCESSES = 128  # of a kind, at most
_NAME = 40  # characters of a process'


@dataclass(frozen=True)
class Reading:
    """What one look showed. 0 and no reason where the driver does not say."""

    reasons: int = 0  # bits of nvmlClocksEventReasons
    sm_mhz: int = 0
    celsius: int = 0

    @property
    def slowed(self) -> list[str]:
        """Why it has slowed itself down."""
        return [why for bit, why in SLOWED.items() if self.reasons & bit]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def _ours(pid: int, proc: str) -> bool:
    """Whether it is a process of kernelwright's, as doctor.go tells them: those take turns."""
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as f:
            server = b"/forkserver.py\0" in f.read()
        return server and os.getuid() in (0, os.stat(f"{proc}/{pid}").st_uid)
    except OSError:
        return False


class Sensors:
    """Those of one GPU, by its UUID. Where there is no NVML, or it says no, they show nothing."""

    def __init__(self, uuid: str, library: str = "libnvidia-ml.so.1") -> None:
        self._device = ctypes.c_void_p()
        self._lib: ctypes.CDLL | None = None
        try:
            lib = ctypes.CDLL(library)
            device = ctypes.byref(self._device)
            if not lib.nvmlInit_v2() and not lib.nvmlDeviceGetHandleByUUID(uuid.encode(), device):
                self._lib = lib
        except (OSError, AttributeError):
            pass

    def read(self) -> Reading:
        """Takes some microseconds."""
        return Reading(self._reasons(), self._asked("ClockInfo", _SM_CLOCK), self._celsius())

    def slowed(self) -> list[str]:
        """Returns why it has slowed itself down. Asks nothing else: after each window, from a
        driver that answers late while it has much to do for others.
        """
        return Reading(self._reasons()).slowed

    def strangers(self, proc: str = "/proc") -> list[str]:
        """Returns who has a context on it and is none of ours, each as "4711 (python3)"."""
        found = self._running("Compute") | self._running("Graphics")
        return [self._named(pid) for pid in sorted(found) if not _ours(pid, proc)]

    def _running(self, kind: str) -> set[int]:
        for version in ("_v3", "_v2"):  # the latter before driver 510
            ask = getattr(self._lib, f"nvmlDeviceGet{kind}RunningProcesses{version}", None)
            if ask is not None:
                count, found = ctypes.c_uint(_PROCESSES), (_Process * _PROCESSES)()
                if ask(self._device, ctypes.byref(count), found):
                    return set()
                return {p.pid for p in found[: count.value]}
        return set()

    def _named(self, pid: int) -> str:
        name = ctypes.create_string_buffer(1024)
        ask = getattr(self._lib, "nvmlSystemGetProcessName", None)
        if ask is None or ask(ctypes.c_uint(pid), name, ctypes.c_uint(len(name) - 1)):
            return str(pid)
        said = os.path.basename(name.value.decode(errors="replace"))[:_NAME]
        shown = "".join(c for c in said if c.isprintable())
        return f"{pid} ({shown})" if shown else str(pid)

    def _reasons(self) -> int:
        bits = ctypes.c_ulonglong()
        for name in ("ClocksEvent", "ClocksThrottle"):  # the latter before driver 535
            ask = getattr(self._lib, f"nvmlDeviceGetCurrent{name}Reasons", None)
            if ask is not None:
                return bits.value if not ask(self._device, ctypes.byref(bits)) else 0
        return 0

    def _celsius(self) -> int:
        return self._asked("Temperature", _GPU_TEMPERATURE)

    def _asked(self, what: str, which: int) -> int:
        value = ctypes.c_uint()
        ask = getattr(self._lib, f"nvmlDeviceGet{what}", None)
        if ask is None or ask(self._device, which, ctypes.byref(value)):
            return 0
        return int(value.value)
