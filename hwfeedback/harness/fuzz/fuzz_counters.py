"""What the kernel gives for its counters: figures, or none."""

from __future__ import annotations

import math
import os
import struct

from kwharness.machine import perf_counters

_NAMES = tuple(perf_counters.EVENTS)


def seeds() -> list[bytes]:
    return [
        struct.pack("QQQ", 1000, 10, 10) * 7,
        struct.pack("QQQ", 1 << 63, 1 << 63, 1) * 7,
        struct.pack("QQQ", 5, 5, 0),
        b"",
        b"short",
    ]


def one(data: bytes) -> None:
    c = perf_counters.Counters([])
    for i, name in enumerate(_NAMES):
        r, w = os.pipe()
        os.write(w, data[24 * i : 24 * i + 24])
        os.close(w)
        c._fds[name] = [r]
    try:
        found = c.read()
    finally:
        c.close()
    assert set(found) <= set(_NAMES)
    for value in perf_counters.metrics(found, 1.5).values():
        assert value >= 0 and math.isfinite(value), value
