"""What a GPU's sensors say while it is timed: its clock, its temperature, and whether it has slowed
itself down. By NVML (docs.nvidia.com/deploy/nvml-api), which comes with the driver.
"""

from __future__ import annotations

import ctypes
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
