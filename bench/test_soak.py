"""The long tests: each has a share of CI's, or is said to have none."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def loaded(name: str) -> Any:
    """Returns a module of .ci, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


soak, check = loaded("soak"), loaded("check")


def test_every_piece_comes_round() -> None:
    pieces, start = soak.pieces(), datetime(2026, 11, 28, tzinfo=UTC)
    dealt = soak.rounds(pieces)
    fit = [p.name for p in pieces if p.seconds <= soak.SHARE_S[p.weekly]]
    assert sorted(p.name for d in dealt for share in d for p in share) == sorted(fit)
    for k, shares in enumerate(dealt):
        turns = (start + timedelta(days=n) for n in range(4 * len(shares) * max(map(len, shares))))
        own = [day for day in turns if soak.today(dealt, day)[0].weekly == (k == 0)]
        shown = Counter(p.name for day in own[: len(shares)] for p in soak.today(dealt, day))
        assert shown == Counter(p.name for share in shares for p in share), "each once in a round"
        most = soak.SHARE_S[k == 0]
        assert all(sum(p.seconds for p in share) <= most for share in shares)
        # Of whichever there is time for, each is the first at some time.
        assert {soak.today(dealt, day)[0].name for day in own} == set(shown)
    assert 2 * len(dealt[0]) <= 28, "what make test ran has its turn within four weeks"


def test_the_list_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    assert soak.table(soak.listed()) in text, "print it anew: .ci/soak.py --list"


def test_every_slow_file_has_a_piece() -> None:
    runs = " ".join(p.run for p in soak.pieces())
    for path in (ROOT / "hwfeedback/harness/tests").rglob("test_*.py"):
        if re.search(r"mark\.slow|rarely\(", path.read_text()):
            assert path.name in runs, path.name


@pytest.mark.parametrize("name", ["weekly", "turns"])
def test_every_row_names_a_test(name: str) -> None:
    rows = tomllib.loads((ROOT / ".ci" / f"{name}.toml").read_text())[name]
    for row in rows:
        file, _, test = row["tests"].partition("::")
        name = re.split(r"[\[*]", test)[0]
        found = [*ROOT.glob(f"hwfeedback/harness/tests/**/{file}"), *ROOT.glob(file)]
        assert len(found) == 1 and f"def {name}" in found[0].read_text(), row["tests"]
        assert row["why"]


def test_every_case_runs_within_the_days(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".ci").mkdir()
    for name, text in (("weekly", "weekly = []"), ("turns", TURNS)):
        (tmp_path / ".ci" / f"{name}.toml").write_text(text)
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = later")
    (tmp_path / "test_it.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "not later"]
    ran: list[str] = []
    for day in range(900, 903):
        env = os.environ | {"KERNELWRIGHT_TEST_DAY": str(day)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0 and f"those of day {day}" in done.stdout, done.stdout
        ran += re.findall(r"test_case\[(\w+)\] PASSED", done.stdout)
    assert sorted(ran) == sorted([*map(str, range(1, 12)), *3 * ["0"]])


TURNS = """
[[turns]]
tests = "test_it.py::test_case"
days = 3
daily = ["0"]
"""
CASES = """
import pytest

@pytest.mark.parametrize("k", range(12))
def test_case(k):
    pass
"""


@pytest.mark.parametrize(("script", "good"), [("true", True), ("exit 3", False)])
def test_what_comes_of_a_piece(script: str, good: bool, capfd: pytest.CaptureFixture[str]) -> None:
    assert soak.run(soak.Piece("it", "what", script, 0.1)) == good
    said = capfd.readouterr().out
    assert ("good" in said) == good and "== soak: it" in said


def test_a_piece_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "PATIENCE", -1)  # two seconds
    assert not soak.run(soak.Piece("it", "what", "sleep 600 & wait", 118 / 60))


def test_which_tests_are_of_a_change() -> None:
    tests = check.tests_of(["hwfeedback/harness/kwharness/base/stats.py"])
    assert tests[0].endswith("test_stats.py") and len(tests) > 1
    assert check.tests_of(["hwfeedback/harness/tests/build/test_sass.py"]) == [
        "hwfeedback/harness/tests/build/test_sass.py"
    ]
    assert check.packages(["score/x.go", "cli/testdata/x.txtar"]) == ["./cli", "./score"]
    assert check.packages(["docs/cli.md", ".ci/run"]) == []
