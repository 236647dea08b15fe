"""How calls are timed on each kind of device: where the ways differ, this has both."""

from __future__ import annotations

import functools
import os
from typing import Protocol

from kwharness.machine.device import Device
from kwharness.machine.gpu import Gpu
from kwharness.timing import measurement, window_samples, windows_cuda
from kwharness.timing.budgets import Budget, Plan
from kwharness.timing.cache_flush import Evictor, evictor, last_level_cache
from kwharness.timing.window_base import Slots
from kwharness.timing.window_session import Session

BUDGETS = {
    "quick": Budget(0.4, 0.15, 0.8, 32 << 20, 512 << 20, 0.25, 0.1),
    "certify": Budget(3.0, 0.25, 1.0, 128 << 20, 1 << 30, 1.0, 0.3),
}
MAX_CONTENTS = 8192
QUICK_COLD = 8  # contents of a task with large outputs at quick: each costs several milliseconds
# A GPU draws and moves a hundred times as much in the same time.
GPU_BUDGETS = {
    "quick": Budget(0.4, 0.0, 0.6, 2 << 30, 6 << 30, 1.0, 0.05),
    "certify": Budget(2.0, 0.2, 0.6, 2 << 30, 32 << 30, 2.0, 0.2),
}
# On a GPU each call costs a third of a millisecond beside what it takes.
GPU_CONTENTS = {"quick": 128, "certify": 1024}
GPU_WINDOWS = 12
GPU_PLAN = Plan(32, 4)  # at most


class DeviceTiming(Protocol):
    """How calls are timed on one kind of device."""

    @property
    def session(self) -> type[Session]:
        """The referee's side of a worker's windows."""

    turns: bool  # a worker waits for a turn of the device, and not for its message
    first_windows: int  # of eager, until a call takes what it takes
    windows: int  # of a visit, at least

    def budget(self, level: str) -> Budget:
        """Returns the seconds and bytes of a level."""

    def flush(self, slots: Slots, llc_bytes: int | None) -> tuple[Evictor | None, bool]:
        """Returns what empties the caches before a window, None where its worker does, and whether
        the memory of outputs is cold, too. ``llc_bytes``: None reads it from the system.
        """

    def bounded(self, plan: Plan) -> Plan:
        """Returns a plan with no more calls a window than can be."""

    def most_contents(self, level: str, *, cold: bool) -> int:
        """Returns how many contents there may be. ``cold``: as ``flush`` says."""

    def sensed(self, fresh: list[window_samples.Sample]) -> dict[str, float]:
        """Returns what the device's sensors show when it has been timed."""


class OnCores:
    """On the machine's cores: the referee empties their caches."""

    session = Session
    turns = False
    first_windows = 3
    windows = window_samples.MIN_FRESH

    def budget(self, level: str) -> Budget:
        return BUDGETS[level]

    def flush(self, slots: Slots, llc_bytes: int | None) -> tuple[Evictor | None, bool]:
        llc = last_level_cache() if llc_bytes is None else llc_bytes
        return evictor(llc, tuple(sorted(os.sched_getaffinity(0)))), slots.large(llc)

    def bounded(self, plan: Plan) -> Plan:
        return plan

    def most_contents(self, level: str, *, cold: bool) -> int:
        return QUICK_COLD if cold and level == "quick" else MAX_CONTENTS

    def sensed(self, fresh: list[window_samples.Sample]) -> dict[str, float]:
        return {}


class OnGpu:
    """On a GPU: a worker empties its caches before each call."""

    session = windows_cuda.GpuSession
    turns = True
    first_windows = 6
    windows = GPU_WINDOWS

    def budget(self, level: str) -> Budget:
        return GPU_BUDGETS[level]

    def flush(self, slots: Slots, llc_bytes: int | None) -> tuple[Evictor | None, bool]:
        return None, False

    def bounded(self, plan: Plan) -> Plan:
        return Plan(min(plan.fresh, GPU_PLAN.fresh), min(plan.other, GPU_PLAN.other))

    def most_contents(self, level: str, *, cold: bool) -> int:
        return GPU_CONTENTS[level]

    def sensed(self, fresh: list[window_samples.Sample]) -> dict[str, float]:
        return measurement.felt(windows_cuda.sensors().read(), fresh)


@functools.singledispatch
def of(_device: Device) -> DeviceTiming:
    """Returns how calls are timed on a device."""
    return OnCores()


@of.register
def _(_device: Gpu) -> DeviceTiming:
    return OnGpu()
