from __future__ import annotations

import time
from pathlib import Path

import pytest

import ceilings


def test_ceilings_of_this_machine(tmp_path: Path) -> None:
    built = ceilings.build(str(tmp_path))
    start = time.monotonic()
    found = ceilings.measure(1, str(tmp_path))
    assert time.monotonic() - start < 10  # under three seconds on a machine of its own
    assert list(tmp_path.iterdir()) == [built]
    rates, specs = found["ceilings"], found["specs"]
    assert 0.5 < rates["memory_gbs"] < 5000
    assert rates["cache_gbs"] > 0.5 * rates["memory_gbs"]
    assert 1 < rates["fp32_gflops"] < 100_000
    assert 0.01 < rates["call_us"] < 100
    assert rates["threads"] == 1
    assert specs["memory_bytes"] > 1 << 28 and specs["threads"] >= 1 and specs["model"]
    assert specs["vector_bits"] in (128, 256, 512)


def test_a_compiler_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ceilings.CeilingsFailed, match="no compiler"):
        ceilings.build(str(tmp_path), compiler="no-such-compiler")


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "bad.cpp"
    bad.write_text("this is no C++\n")
    monkeypatch.setattr(ceilings, "SOURCE", bad)
    with pytest.raises(ceilings.CeilingsFailed, match="error"):
        ceilings.build(str(tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []
