"""Checkpoints: whole or not there, what is damaged is named, and a killed stage ends as if it had
not been.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from doubles import Toy, run, serving, tiny_policy

from rl import checkpoint, errors, ppo
from rl.errors import DiskFull

PACKAGE = Path(__file__).parents[2]


def write(folder: Path) -> None:
    (folder / "actor").mkdir()
    (folder / "actor" / "weights").write_bytes(b"w" * 1000)
    (folder / "random").write_bytes(b"r")


def silent(text: str) -> None:
    raise AssertionError(text)


def test_a_checkpoint_is_found_again_with_its_state(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path, silent) is None
    made = checkpoint.save(tmp_path, 7, {"at": 3}, write, keep=2)
    found = checkpoint.latest(tmp_path, silent)
    assert found == checkpoint.Checkpoint(made, 7, {"at": 3})
    assert checkpoint.damage(made) == ""


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10, 9):
        checkpoint.save(tmp_path, step, {}, write, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000009", "step-00000010"]


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut short": (
        lambda f: (f / "actor/weights").write_bytes(b"w"),
        "actor/weights has 1 bytes, not 1000",
    ),
    "changed by hand": (
        lambda f: (f / "actor/weights").write_bytes(b"v" * 1000),
        "actor/weights was changed since it was written",
    ),
    "a file gone": (lambda f: (f / "random").unlink(), "random is missing"),
    "a file added": (lambda f: (f / "more").write_text(""), "more was added by hand"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "it has no manifest.json"),
    "half a manifest": (
        lambda f: (f / "manifest.json").write_text('{"files"'),
        "its manifest.json cannot be read",
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_one_is_named_and_the_one_before_is_taken(tmp_path: Path, how: str) -> None:
    harm, said = DAMAGE[how]
    checkpoint.save(tmp_path, 1, {}, write, keep=3)
    newest = checkpoint.save(tmp_path, 2, {}, write, keep=3)
    harm(newest)
    notes: list[str] = []
    found = checkpoint.latest(tmp_path, notes.append)
    assert found is not None and found.step == 1
    assert notes == [f"the checkpoint {newest} is passed over: {said}"]
    # The step that is made again takes its place.
    checkpoint.save(tmp_path, 2, {}, write, keep=3)
    found = checkpoint.latest(tmp_path, silent)
    assert found is not None and found.step == 2


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("No space left")]
)
def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path, error: Exception) -> None:
    checkpoint.save(tmp_path, 1, {}, write, keep=1)

    def full(folder: Path) -> None:
        (folder / "part").write_bytes(b"p")
        raise error

    with pytest.raises(DiskFull, match=r"the disk is full: .*step-00000002 could not be written"):
        checkpoint.save(tmp_path, 2, {}, full, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoint.latest(tmp_path, silent) is not None


def test_an_error_of_any_kind_on_a_disk_without_room_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> None:  # as torch.save does, which does not say why
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    with pytest.raises(RuntimeError, match="PytorchStreamWriter"):
        checkpoint.save(tmp_path, 1, {}, fails, keep=1)
    monkeypatch.setattr(errors.shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(DiskFull, match="the disk is full"):
        checkpoint.save(tmp_path, 1, {}, fails, keep=1)


def test_what_was_never_finished_is_removed(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {}, write, keep=1)
    left = tmp_path / ".unfinished-step-00000002"
    left.mkdir()
    notes: list[str] = []
    found = checkpoint.latest(tmp_path, notes.append)
    assert found is not None and found.step == 1
    assert notes == [f"{left.name} in {tmp_path} was never finished and is removed"]
    assert not left.exists()


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    random.seed(1)
    numpy.random.seed(2)
    torch.manual_seed(3)
    random.gauss(0, 1)
    numpy.random.standard_normal()
    torch.save(checkpoint.random_state(), tmp_path / "random.pt")

    def draw() -> tuple[Any, ...]:
        return (
            random.gauss(0, 1),
            numpy.random.standard_normal(),
            float(numpy.random.rand()),
            torch.rand(3).tolist(),
        )

    expected = draw()
    state = torch.load(tmp_path / "random.pt", weights_only=True)
    checkpoint.set_random_state(state)
    assert draw() == expected


def hashed(out: Path) -> dict[str, str]:
    """The bytes of what a stage leaves: weights, optimisers, generators and state."""
    newest = max((out / "checkpoints").iterdir())
    paths = [*out.glob("policy/*.safetensors"), *out.glob("critic/*.safetensors")]
    paths += [*newest.glob("*/*.safetensors"), *newest.glob("*.pt")]
    return {
        str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(paths)
    }


def stage(folder: Path, url: str) -> tuple[list[str], Path]:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("\n".join(json.dumps({"id": c, "reference": c}) for c in "abcde"))
    settings = {
        "policy": str(folder.parent / "base"),
        "out": str(folder / "out"),
        "tasks": str(tasks),
        "environment": {"url": url, "patience": 5},
        "sampling": {"tokens": 5},
        "steps": 6,
        "tasks_per_step": 3,
        "samples_per_task": 2,
        "seed": 4,
        "estimator": {"truncated": "keep"},
        "ppo": {"minibatches": 2},
        "optimiser": {"lr": 1e-2, "warmup": 4},
        "critic_optimiser": {"lr": 1e-2},
        "curriculum": {"on": True},
        "machine": {"device": "cpu", "threads": 1},
        "saving": {"every": 2, "keep": 2},
        "bounds": {"kl_skip": 0, "kl_high": 0},
    }
    config = folder / "ppo.json"
    config.write_text(json.dumps(settings))
    return [sys.executable, "-m", "rl.ppo", "--config", str(config)], folder / "out"


def start(command: list[str]) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    )


def test_a_stage_that_is_killed_ends_in_the_same_bits(tmp_path: Path) -> None:
    """Killed after a step that was not saved, and inside one, when the environment has judged some
    of its episodes.
    """
    tiny_policy(tmp_path / "base", 8_000)
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    with serving(Toy(2)) as url:
        command, out = stage(tmp_path / "whole", url)
        code, _ = run(ppo.Settings, ppo.run, json.loads(Path(command[-1]).read_text()))
        assert code == 0
        expected = hashed(out)
    assert len(expected) == 7
    toy = Toy(2)
    with serving(toy) as url:
        command, out = stage(tmp_path / "killed", url)
        with start(command) as first:
            assert first.stdout is not None
            for line in first.stdout:
                if json.loads(line).get("step") == 3:
                    first.kill()
        assert first.returncode == -signal.SIGKILL
        judged: list[str] = []
        running: list[int] = []

        def inside(path: str, _: dict[str, Any]) -> None:
            judged.append(path)
            if len(judged) == 20:  # its second step
                os.kill(running.pop(), signal.SIGKILL)

        toy.fail = inside
        with start(command) as second:
            running.append(second.pid)
            second.communicate()
        assert second.returncode == -signal.SIGKILL
        toy.fail = lambda *_: None
        with start(command) as third:
            told = [json.loads(line) for line in third.communicate()[0].splitlines()]
        assert third.returncode == 0, told[-1]
    assert any("going on after step" in x.get("text", "") for x in told)
    assert hashed(out) == expected
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(x)["step"] for x in lines] == [1, 2, 3, 4, 5, 6]
