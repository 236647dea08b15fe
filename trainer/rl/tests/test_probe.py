"""A base is looked at before hours are spent on it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from doubles import run, tiny_policy
from safetensors.torch import load_file, save_file

from rl import probe


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "base")


def looked(policy: Path, out: Path, **more: Any) -> tuple[int, dict[str, Any]]:
    given = {"policy": str(policy), "out": str(out), "machine": {"device": "cpu", "threads": 1}}
    code, lines = run(probe.Settings, probe.run, given | more)
    return code, lines[-1]


@pytest.mark.parametrize("rank", [0, 4])
def test_how_large_and_how_fast_it_is(base: Path, tmp_path: Path, rank: int) -> None:
    code, said = looked(base, tmp_path, lora={"rank": rank})
    assert code == 0, said
    assert said["vocabulary"] == 260 and said["context"] == 256
    assert said["parameters"] > 10_000
    assert said["sampled_per_second"] > 0 and said["trained_per_second"] > 0


def test_weights_that_are_no_numbers_are_named(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "nan"
    shutil.copytree(base, folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] *= float("nan")
    save_file(weights, path, {"format": "pt"})
    code, said = looked(folder, tmp_path / "out")
    assert code == 2
    assert "does not compute: what it says of a text is no number" in said["reason"]
