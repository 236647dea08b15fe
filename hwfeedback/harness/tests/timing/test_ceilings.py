from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kwharness.machine import toolchain
from kwharness.timing import ceilings
from kwharness.timing.ceilings import Rate


@pytest.mark.alone
def test_ceilings_of_this_machine(tmp_path: Path) -> None:
    built = ceilings.build(str(tmp_path))
    found = ceilings.measure(1, str(tmp_path))
    assert list(tmp_path.iterdir()) == [built]
    rates = found.ceilings
    assert 0.5 < rates.memory_gbs < 5000
    assert rates.cache_gbs > 0.5 * rates.memory_gbs
    assert 1 < rates.fp32_gflops < 100_000
    assert 0.01 < rates.call_us < 100
    assert rates.threads == 1
    assert re.search(r"multiply-adds of (4|8|16) floats", rates.note)
    assert 0 < found.spread < 1


def test_the_spread_is_that_of_the_quietest_round() -> None:
    quiet = {"fma": Rate(100.0, 99.0, 1.0), "memory": Rate(20.0, 19.0, 0.98)}
    slow = {"fma": Rate(90.0, 50.0, 1.0), "memory": Rate(21.0, 20.0, 1.0)}
    waiting = {"fma": Rate(100.0, 99.0, 0.5), "memory": Rate(20.0, 19.9, 1.0)}
    assert ceilings.spread([quiet]) == pytest.approx(0.05)
    # The best of all rounds is what a pass is held against.
    assert ceilings.spread([quiet, slow]) == pytest.approx(1 - 19 / 21)
    assert ceilings.spread([slow]) == pytest.approx(1 - 50 / 90)
    # A machine that is busy all the time has a low best and a median near it.
    assert ceilings.spread([waiting]) == pytest.approx(0.5)
    assert ceilings.best([quiet, slow], "memory") == 21


def test_a_busy_machine_shows(tmp_path: Path) -> None:
    """Two busy processes on the processor that is measured, of whose others nobody is to wait."""
    ceilings.build(str(tmp_path))
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [max(allowed)])
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(2)]
    try:
        found = ceilings.measure(1, str(tmp_path))
    finally:
        os.sched_setaffinity(0, allowed)
        for p in others:
            p.kill()
            p.wait()
    assert found.spread > ceilings.QUIET


def test_a_compiler_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(toolchain.Missing, match=r"no C\+\+ compiler"):
        ceilings.build(str(tmp_path), compiler="no-such-compiler")


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "bad.cpp"
    bad.write_text("this is no C++\n")
    monkeypatch.setattr(ceilings, "SOURCE", bad)
    with pytest.raises(ceilings.CeilingsFailed, match="error"):
        ceilings.build(str(tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []
