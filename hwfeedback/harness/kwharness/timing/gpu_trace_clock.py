"""The clock of a trace, where the host's does not tell."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kwharness.attribution import trace
from kwharness.machine import cuda_driver
from kwharness.machine.device import Device
from kwharness.machine.gpu import Gpu, gpu

BACKLOG = 5_000_000  # cycles that a GPU waits before a traced forward: some milliseconds


class TraceClock(trace.Clock):
    """Tells the time of the GPU, by events: what a pair around nothing shows is taken off."""

    around_s = 0.0

    def __init__(self) -> None:
        self.begin()
        start, end = self.mark(), self.mark()
        self.wait()
        self._own = end.seconds_since(start)

    def mark(self) -> cuda_driver.Event:
        event = gpu().driver.event()
        event.record()
        return event

    def between(self, start: cuda_driver.Event, end: cuda_driver.Event) -> float:
        return max(end.seconds_since(start) - self._own, 0.0)

    def wait(self) -> None:
        gpu().synchronize()

    def begin(self) -> None:
        """Keeps the GPU busy for as long as the host needs to ask for a forward: what an event
        shows is then the GPU's time, and not the host's.
        """
        torch.cuda._sleep(BACKLOG)

    def working(
        self, forward: Callable[[], Any], hidden: list[tuple[list[str], float]]
    ) -> list[tuple[list[str], float]]:
        """What PyTorch's profiler shows of the kernels that each operator launched."""
        from torch.profiler import ProfilerActivity, profile

        both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=both, experimental_config=trace.everywhere()) as seen:
            forward()
            self.wait()
        took: dict[str, list[float]] = {}
        for e in seen.events() or ():
            took.setdefault(e.name.partition("::")[2], []).append(e.device_time_total / 1e6)
        if not any(t for times in took.values() for t in times):
            return hidden  # it may not look at this GPU: the host's time is all there is
        mean = {n: sum(times) / len(times) for n, times in took.items()}
        return [(names, mean.get(names[0], 0.0)) for names, _ in hidden]


@functools.singledispatch
def clock_of(_device: Device) -> trace.Clock | None:
    """Returns the clock of a trace on a device, None where the host's time is the device's."""
    return None


@clock_of.register
def _(_device: Gpu) -> trace.Clock:
    return TraceClock()
