"""The table of warm_eval.py for candidates that are files."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import warm_eval


@pytest.mark.parametrize(
    ("more", "heads", "cells"),
    [
        ([], "time | rest", "0.25 | 0.15"),
        (["--profile"], "time | profile | rest", "0.25 | 0.75 | -0.60"),
    ],
)
def test_a_row_for_each_candidate(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    heads: str,
    cells: str,
) -> None:
    seen: list[str] = []
    slept: list[float] = []
    clock = iter([0.0, 9.0, 10.0, 11.25, 20.0, 21.0, 30.0, 33.0])

    def ask(args: argparse.Namespace, *words: str) -> dict[str, Any]:
        seen.append(pathlib.Path(words[2]).read_text())
        assert words[:2] == ("eval", "the reference") and ("--profile" in words) == bool(more)
        cost = {"build": 0.5, "verify": 0.25, "verify waits": 0.1, "time": 0.25}
        cost |= {"profile": 0.5, "profile of eager": 0.25, "total": 1.1}
        return {"status": "correct", "baselines": {"eager": 0.0077}, "cost_s": cost}

    monkeypatch.setattr(warm_eval, "ask", ask)
    monkeypatch.setattr(warm_eval.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(warm_eval.time, "sleep", slept.append)
    candidate = tmp_path / "one.py"
    candidate.write_text('source=r"""x"""')
    words = ["--python", "P", "--reference", "the reference", "--candidate", str(candidate)]
    monkeypatch.setattr(sys, "argv", ["warm_eval.py", *words, "--pause", "2", *more])
    warm_eval.main()
    told = capsys.readouterr().out
    assert f"| {heads} |\n" in told
    whole = "| one.py | 0.0077 | 9.00 | **1.25** | 1.25, 1.00, 3.00 | 1.10 | "
    assert f"{whole}0.50 | 0.00 | 0.00 | 0.35 | 0.00 | 0.00 | {cells} |\n" in told
    assert slept == [2.0] * 3
    assert len(set(seen)) == 4 and all(s.startswith('source=r"""// ') for s in seen)
