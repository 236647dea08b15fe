"""What compute-sanitizer says, read: reports as release 2025.3 wrote them on an H100."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from kwharness.numerics import families
from kwharness.standalone import sanitizers

OUTSIDE = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at k+0x130
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x7fa008840000 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7fa008820000 of size 131,072 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: wrapper in <kernelwright native>:13
=========         Host Frame: forward in out_of_bounds.py:9
=========
========= Invalid __global__ write of size 4 bytes
=========     at k+0x130
=========     by thread (1,0,0) in block (0,0,0)
=========     Access to 0x7fa008840004 is out of bounds
=========
========= Target application returned an error
========= ERROR SUMMARY: 11 errors
========= ERROR SUMMARY: 6 errors were not printed. Use --print-limit option to adjust the number
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at k+0x160
=========     and Read access at k+0x170 [140672 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
BARRIER = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in warp.
=========     at k+0x60
=========     by thread (96,0,0) in block (15,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
UNWRITTEN = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at {}+0xf0
=========     by thread (96,0,0) in block (8,0,0)
=========     Address 0x7f07d8822180
=========
"""
OWN = ["k", "void ns::softmax<float>(float const*)"]  # as our tools name kernels
CLEAN = """========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""


@pytest.mark.parametrize(
    ("tool", "code", "report", "convicts", "says"),
    [
        (
            "memcheck", 86, OUTSIDE, True,
            "Invalid __global__ write of size 4 bytes at k+0x130, 2 times",
        ),
        (
            "racecheck", 86, RACE, True,
            "Race reported between Write access at k+0x160 and Read access at k+0x170",
        ),
        ("synccheck", 86, BARRIER, True,
         "Barrier error detected. Divergent thread(s) in warp at k+0x60"),
        ("initcheck", 86, UNWRITTEN.format("k"), False,
         "Uninitialized __global__ memory read of size 4 bytes at k+0xf0"),
        ("initcheck", 86, UNWRITTEN.format("nvjet_tst_128x64"), False, ""),
        ("racecheck", 86, RACE.replace("k+", "at::native::foo+"), False, ""),
        ("memcheck", 86, OUTSIDE.replace("k+", "at::native::foo+"), False, ""),
        ("memcheck", 86, OUTSIDE.replace("k+", "void ns::softmax<float>(int *)+"), True,
         "Invalid __global__ write of size 4 bytes at void ns::softmax<float>(int *)+0x130, "
         "2 times"),
        ("racecheck", 0, RACE.replace("Error: Race", "Warning: Race"), False, ""),
        ("memcheck", 0, CLEAN, False, ""),
        ("memcheck", 0, "", False, ""),
    ],
)  # fmt: skip
def test_a_report_is_read(tool: str, code: int, report: str, convicts: bool, says: str) -> None:
    c = sanitizers.check(tool, code, report, "", OWN)
    assert (c.convicts, c.failed) == (convicts, "")
    assert [str(f) for f in c.findings] == ([says] if says else [])


@pytest.mark.parametrize(
    ("code", "report", "said", "why"),
    [
        (sanitizers.LATE, "", "", "it took too long"),
        (1, "", "", "it ended with exit code 1"),
        (1, "", "Traceback\nRuntimeError: no\n", "RuntimeError: no"),
        (
            2, "========= Error: process didn't terminate successfully\n", "",
            "Error: process didn't terminate successfully",
        ),
    ],
)  # fmt: skip
def test_a_tool_that_cannot_be_run_is_named(code: int, report: str, said: str, why: str) -> None:
    c = sanitizers.check("memcheck", code, report, said, OWN)
    assert (c.failed, list(c.findings), c.convicts) == (why, [], False)
    assert why in sanitizers.told([c], "[4, 8]")[0]


def test_what_is_told() -> None:
    checks = [
        sanitizers.check("memcheck", 0, CLEAN, "", OWN),
        sanitizers.check("racecheck", 0, CLEAN, "", OWN),
        sanitizers.check("synccheck", sanitizers.LATE, "", "", OWN),
        sanitizers.check("initcheck", 86, UNWRITTEN.format("k"), "", OWN),
    ]
    assert sanitizers.told(checks, "[4, 8]") == [
        "compute-sanitizer finds nothing on inputs of [4, 8]: memcheck, racecheck",
        "compute-sanitizer's synccheck could not be run: it took too long",
        "compute-sanitizer's initcheck says on inputs of [4, 8]: Uninitialized __global__ memory "
        "read of size 4 bytes at k+0xf0",
    ]


def test_what_is_found_elsewhere_convicts_nobody() -> None:
    others = sanitizers.check("racecheck", 86, RACE.replace("k+", "cub::foo+"), "", OWN)
    assert sanitizers.told([others], "[4]") == [
        "compute-sanitizer's racecheck says of a kernel that is not its own: Race reported between "
        "Write access at cub::foo+0x160 and Read access at cub::foo+0x170"
    ]
    unread = sanitizers.check("memcheck", 86, "", "", OWN)
    assert unread.failed == "what it found could not be read"
    found = sanitizers.check("memcheck", 86, OUTSIDE, "", OWN)
    fewer = dataclasses.replace(found, fewer="nothing")
    assert found.convicts and not fewer.convicts
    assert "(on the task's own nothing): Invalid" in sanitizers.told([fewer], "[4]")[0]


def test_any_text_is_read() -> None:
    """A candidate may have written the report itself."""
    rng = random.Random(3)
    pieces = [*OUTSIDE.splitlines(), *RACE.splitlines(), "=========     at", "\x00", "é" * 500, ""]
    for _ in range(300):
        report = "\n".join(rng.choice(pieces)[: rng.randrange(120)] for _ in range(30))
        c = sanitizers.check(
            rng.choice(sanitizers.TOOLS), rng.choice((0, 1, 86)), report, report, OWN
        )
        assert all(len(str(f)) < 700 for f in c.findings)


def test_few_inputs() -> None:
    for rows, few in ((4096, 256), (4096 * 3, 384), (4098, 2049)):
        draws = [[torch.randn(rows, 1024), torch.randn(1024)] for _ in range(3)]
        (way,) = families.small(draws)
        assert [list(t.shape) for t in families.reshaped(draws, way)] == [[few, 1024], [1024]]
    assert families.small([[torch.randn(64, 64)] for _ in range(3)]) == []
    assert families.small([[torch.randn(1, 1 << 20)] for _ in range(3)]) == []
