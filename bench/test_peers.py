"""The tables of peers.py: what was measured is read back, and what is left is measured then."""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import peers
from kwharness.export import file_loader, inline_loader

INLINE = next(c for c in peers.CANDIDATES if c.name == "softmax_cuda_load_inline.py")
COST = {"build": 0.5, "verify": 0.25, "time": 0.125, "worker": 1.0, "total": 2.0}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has nobody measured. Returns what was asked for, in order."""
    said: list[str] = []

    def ours(args: Any, reference: str, path: str, *more: str) -> dict[str, Any]:
        said.append(" ".join(more) or "ours")
        return {
            "seconds": float(len(said)),
            "status": "wrong" if "certify" in more else "correct",
            "reason": "off by more" if "certify" in more else "",
            "eager_ms": 4.0,
            "build_s": 0.75,
            "cost_s": COST,
        }

    def peer(script: str, checkout: str, *words: str) -> dict[str, Any]:
        said.append(checkout)
        if script == peers.CUDAFORGE:
            return {"fails": "ModuleNotFoundError"}
        return {"seconds": 66.0, "within": 60.6, "says": "correct"}

    monkeypatch.setattr(peers, "ours", ours)
    monkeypatch.setattr(peers, "peer", peer)
    return said


def run(
    monkeypatch: pytest.MonkeyPatch, results: pathlib.Path, candidate: pathlib.Path, *more: str
) -> int:
    """Returns the exit code."""
    words = ["--kernelbench", "KB", "--cudaforge", "CF", "--repeats", "2"]
    words += ["--results", str(results), "--candidate", str(candidate), *more]
    monkeypatch.setattr(sys, "argv", ["peers.py", *words])
    with pytest.raises(SystemExit) as e:
        peers.main()
    return int(e.value.code or 0)


def test_what_was_measured_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    asked: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    results, another = tmp_path / "peers.jsonl", tmp_path / "another.py"
    another.touch()
    task = ("--reference", str(another))
    assert run(monkeypatch, results, INLINE, *task) == 0
    names = [pathlib.Path(a).name for a in asked]
    once = ["ours", "ours", "ours", "KB", "CF", "CF", "--profile", "--profile", "--level certify"]
    assert names == once
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(rows) == len(once) and {r["task"] for r in rows} == {"another"}
    told = capsys.readouterr().out
    line = (
        f"| another | 4 | {INLINE.name} | 66.0 (60.6), correct | fails: ModuleNotFoundError "
        "| 66.0 (60.6), correct | **2.5** (first 1.0) | 0.8 | 8.0 (first 7.0) "
        "| 9.0, wrong: off by more |\n"
    )
    assert line in told
    assert f"| another | {INLINE.name} | quick | 0.50 | 0.25 | 0.12 | 1.12 | 2.00 |\n" in told
    assert run(monkeypatch, results, INLINE, *task) == 0
    assert asked[len(once) :] == [] and capsys.readouterr().out == told


def test_no_time_left_is_another_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, asked: list[str]
) -> None:
    results = tmp_path / "peers.jsonl"
    assert run(monkeypatch, results, INLINE, "--seconds", "0") == os.EX_TEMPFAIL
    assert not asked and not results.exists()
    row = {"task": "softmax", "candidate": INLINE.name, "what": "first", "seconds": 9.0}
    row |= {"status": "correct", "reason": "", "eager_ms": 1.0, "build_s": 0.0, "cost_s": {}}
    results.write_text(json.dumps(row) + "\n")
    assert run(monkeypatch, results, INLINE) == 0
    # One that is not counted has a process begun; the first is in the file.
    assert asked.count("ours") == 1 + 2
    assert len(results.read_text().splitlines()) == 1 + 2 + 3 + 2 + 1


@pytest.mark.parametrize("candidate", peers.CANDIDATES, ids=lambda c: c.stem)
def test_a_peer_gets_a_file_that_needs_no_kernelwright(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    asked: list[str],
    candidate: pathlib.Path,
) -> None:
    given: list[str] = []

    def peer(script: str, checkout: str, reference: str, file: str, *more: str) -> dict[str, Any]:
        given.append(pathlib.Path(file).read_text())
        return {"seconds": 7.0, "within": 2.0, "says": "correct"}

    monkeypatch.setattr(peers, "peer", peer)
    assert run(monkeypatch, tmp_path / "peers.jsonl", candidate) == 0
    assert len(given) == len(set(given)) == len(peers.PEERS)
    native = "from kernelwright import" in candidate.read_text()
    for text in given:
        compile(text, candidate.name, "exec")
        assert "class ModelNew" in text and "from kernelwright import" not in text
        assert (f"def {inline_loader.LOADER}()" in text or file_loader.FRONT in text) == native
