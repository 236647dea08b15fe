"""What ncu wrote, and what a worker says of its launches: a profile that holds, or none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from kwharness.base.configs import ProfilerConfig
from kwharness.base.requests import Ceilings
from kwharness.base.verdicts import Kernel
from kwharness.machine import device
from kwharness.process.policy import Limits
from kwharness.profile import kernel_kinds, kernel_work, ncu, profile_forward, under_ncu

_KERNELS = [Kernel("rows<4>(float const*)", registers=32)]
_CSV = """==PROF== Connected to process 1
==WARNING== Note: Running with unmodified GPU clocks.
"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum"
"","","","","ns","Mbyte"
"0","void rows<4>(const float *)","(256, 1, 1)","(65,536, 1, 1)","56,704","1.5"
"1","rows(const float *)","(32, 8, 1)","(4, 1, 1)","nan","n/a"
==ERROR== ERR_NVGPUCTRPERM - no permission
"""


def seeds() -> list[bytes]:
    launches = [
        ["void rows<4>(float const*)", [4, 1, 1], [256, 1, 1], 3],
        ["Memcpy HtoD", [0] * 3, [0] * 3, 1],
    ]
    return [
        json.dumps({"report": _CSV, "launches": launches}).encode(),
        json.dumps({"report": _CSV.replace(",", ""), "launches": None}).encode(),
        json.dumps({"report": _CSV, "launches": launches[:1] * 3, "more": 7}).encode(),
        json.dumps({"report": '"ID"\n""\n"0"', "launches": [[]]}).encode(),
        _CSV.encode(),
    ]


def _finite(value: Any) -> None:
    if isinstance(value, dict):
        for inner in value.values():
            _finite(inner)
    elif isinstance(value, list):
        for inner in value:
            _finite(inner)
    elif isinstance(value, (int, float)):
        assert math.isfinite(value) and abs(value) < 1e300, value


def one(data: bytes) -> None:
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        given = {"report": data.decode("utf-8", "replace"), "launches": None}
    report = ncu.read(str(given.get("report")))
    assert len(report.rows) <= ncu.MAX_ROWS
    assert all(len(r.name) <= ncu.MAX_NAME for r in report.rows)
    told, _ = ncu.complaint(report)
    assert len(told) < 3 * ncu.MAX_WORDS
    kinds = kernel_kinds.kinds_of(given.get("launches"))
    subject = under_ncu.Subject(lambda _: None, {}, [], lambda: _KERNELS, True)
    profiler = profile_forward.Profiler(None, device.CPU, ProfilerConfig(), Limits(), (), 90)
    assert set(ncu.unknown(report, ["dram__bytes_read.sum"])) <= {"dram__bytes_read.sum"}
    more = kernel_kinds.count_of(given.get("more"))
    for listed in (kinds, kernel_kinds.kinds_in(report.rows)):
        seen = kernel_kinds.Seen(listed, report, more=more)
        kernel_kinds.fill_in(seen, kernel_kinds.Seen([replace(k, ms=1.0) for k in kinds]))
        assert len(seen.kinds) == len(listed) and not (seen.more_ms and not more)
        profile = profiler._told(subject, seen, "ncu", "")
        kernels = profile.kernels or []
        assert len(kernels) <= kernel_work.MAX_KERNELS
        assert all(0 <= k.share <= 1 + 1e-9 for k in kernels)
        assert all(len(k.grid) == len(k.block) == 3 for k in kernels)
        profile.position = kernel_work.position(profile, Ceilings(memory_gbs=4000.0), 1 << 20)
        _finite(profile.to_json())
        json.dumps(profile.to_json(), allow_nan=False)
