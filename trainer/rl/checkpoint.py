"""Checkpoints: folders that are there whole or not at all, and prove it.

A checkpoint is written into a folder beside, each file reaches the disk, then it is renamed. Its
manifest holds the size and SHA-256 of each file. One that was cut short, or changed by hand, is
named and passed over, and the one before it is taken.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from rl.errors import writing

MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{8})")
UNFINISHED = ".unfinished-"


@dataclass
class Checkpoint:
    """``state`` is what save was given, of JSON."""

    folder: Path
    step: int
    state: dict[str, Any]


def save(
    root: Path, step: int, state: dict[str, Any], write: Callable[[Path], None], keep: int
) -> Path:
    """Writes checkpoint ``step`` and returns its folder; the newest ``keep`` stay. ``write`` puts
    files into the folder that it is given. It raises DiskFull, and what is there stays.
    """
    folder = root / f"step-{step:08d}"
    beside = root / f"{UNFINISHED}{folder.name}"
    try:
        with writing(folder):
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            write(beside)
            files = {p.relative_to(beside).as_posix(): _described(p) for p in _files(beside)}
            manifest = {"version": 1, "step": step, "state": state, "files": files}
            (beside / MANIFEST).write_text(json.dumps(manifest, indent=1))
            for path in [*_files(beside), *_folders(beside)]:
                _flush(path)
            if folder.exists():  # a damaged one that was passed over
                shutil.rmtree(folder)
            beside.rename(folder)
            _flush(root)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in _all(root)[: -max(keep, 1)]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def latest(root: Path, note: Callable[[str], None]) -> Checkpoint | None:
    """Returns the newest checkpoint that is whole, None where there is none. What is wrong with a
    newer one is told to ``note``.
    """
    for left in root.glob(UNFINISHED + "*"):
        note(f"{left.name} in {root} was never finished and is removed")
        shutil.rmtree(left, ignore_errors=True)
    for folder in reversed(_all(root)):
        wrong = damage(folder)
        if not wrong:
            manifest = json.loads((folder / MANIFEST).read_text())
            return Checkpoint(folder, manifest["step"], manifest["state"])
        note(f"the checkpoint {folder} is passed over: {wrong}")
    return None


def damage(folder: Path) -> str:
    """Returns what is wrong with a checkpoint, empty where nothing is."""
    try:
        files: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text())["files"]
    except OSError:
        return f"it has no {MANIFEST}"
    except (ValueError, KeyError, TypeError):
        return f"its {MANIFEST} cannot be read"
    there = {p.relative_to(folder).as_posix(): p for p in _files(folder)}
    there.pop(MANIFEST, None)
    for name in sorted(files.keys() | there.keys()):
        if name not in there:
            return f"{name} is missing"
        if name not in files:
            return f"{name} was added by hand"
        if there[name].stat().st_size != files[name]["bytes"]:
            return f"{name} has {there[name].stat().st_size} bytes, not {files[name]['bytes']}"
        if _described(there[name]) != files[name]:
            return f"{name} was changed since it was written"
    return ""


def random_state() -> dict[str, Any]:
    """Returns the state of the generators of python, numpy and PyTorch, as torch.load reads it."""
    version, numbers, gauss = random.getstate()
    name, keys, *rest = numpy.random.get_state(legacy=True)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, [int(k) for k in keys], *rest],  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Puts back what random_state returned."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def _all(root: Path) -> list[Path]:
    found = root.iterdir() if root.is_dir() else []
    return sorted(p for p in found if NAME.fullmatch(p.name))


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def _folders(folder: Path) -> list[Path]:
    return [folder, *sorted(p for p in folder.rglob("*") if p.is_dir())]


def _described(path: Path) -> dict[str, Any]:
    with open(path, "rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
