"""Empties the last-level cache of a CPU, and each core's own with it, before a window."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kwharness.timing import window_base


class Evictor:
    """Reads twice the last-level cache, on all processors that may be used: what a core has in a
    cache of its own, or a group of cores, nobody else drives out. Reading leaves no dirty lines
    behind, writing would.
    """

    def __init__(self, llc_bytes: int, processors: Sequence[int]) -> None:
        self.size = max(2 * llc_bytes, 1)
        self._block = mmap.mmap(-1, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # in pages of 4 KiB it takes up to four times as long
            self._block.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_byte.from_buffer(self._block))
        # Untouched pages would all be the one zero page.
        ctypes.memset(address, 2, self.size)
        self._parts: list[tuple[ThreadPoolExecutor, int, int]] = []
        for group in sharing(processors):
            share = -(-self.size // len(group))
            for i, processor in enumerate(group):
                pool = ThreadPoolExecutor(1, initializer=_stay, initargs=(processor,))
                begin = min(i * share, self.size)
                self._parts.append((pool, address + begin, min(share, self.size - begin)))

    def __call__(self) -> None:
        for done in [pool.submit(window_base.libc.memchr, at, 1, n) for pool, at, n in self._parts]:
            done.result()


def _stay(processor: int) -> None:
    """Has this thread run on one processor, where that is allowed."""
    with suppress(OSError):
        os.sched_setaffinity(0, [processor])


def sharing(processors: Sequence[int]) -> list[list[int]]:
    """Returns the processors in groups that share a last-level cache, as the system shows it."""
    groups: dict[str, list[int]] = {}
    for p in processors:
        name = ""
        with suppress(OSError, ValueError):
            base = f"/sys/devices/system/cpu/cpu{p}/cache"
            last = max(i for i in os.listdir(base) if i.startswith("index"))
            with open(f"{base}/{last}/shared_cpu_list") as f:
                name = f.read()
        groups.setdefault(name, []).append(p)
    return list(groups.values())


@functools.cache
def evictor(llc_bytes: int, processors: tuple[int, ...]) -> Evictor:
    """Returns the one of this process: its memory takes longer to come by than to read."""
    return Evictor(llc_bytes, processors)


def last_level_cache() -> int:
    """Returns the bytes of the largest cache of core 0, or 32 MiB where the system is silent."""
    base = "/sys/devices/system/cpu/cpu0/cache"
    largest = 0
    try:
        for index in os.listdir(base):
            if not index.startswith("index"):
                continue
            with open(f"{base}/{index}/size") as f:
                text = f.read().strip()
            unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
            largest = max(largest, int(text.rstrip("KM")) * unit)
    except (OSError, ValueError):
        pass  # no such folder in some virtual machines
    return largest or 32 << 20
