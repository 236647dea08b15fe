"""Which tasks the next step takes: an order drawn by a seed, and a curriculum by level."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rl.errors import BadInput


@dataclass(frozen=True)
class Task:
    """``body`` is posted to start an episode."""

    name: str
    level: int
    body: dict[str, Any]
    split: str = "train"


@dataclass(frozen=True)
class Curriculum:
    """Levels open one after the other: the next when ``open_at`` of the episodes of the highest
    open level succeed, by a mean that forgets half in ``memory`` episodes. Off: all are open.
    """

    on: bool = False
    open_at: float = 0.6
    memory: float = 64.0


SPLITS = ("train", "val")  # of a set of tasks; the others are held out
ALL_SPLITS = (*SPLITS, "compositions", "kinds")


def read_tasks(path: Path, extra: dict[str, Any], splits: tuple[str, ...] = SPLITS) -> list[Task]:
    """Returns the tasks in a file of JSON lines, or in Parquet as ``train tasks export`` writes it:
    ``code`` or ``reference`` (the text), optionally ``id``, ``level`` and ``split``; ``request``
    holds more of what is posted. Tasks of other ``splits`` are refused.
    """
    mend = 'write lines of {"code": ..., "id": ..., "level": ...}'
    tasks: dict[str, Task] = {}
    for at, found in _rows(path, mend):
        where = f"{path}, line {at}"
        try:
            code = found["code"] if "code" in found else found["reference"]
            if not isinstance(code, str):
                raise TypeError("its code is no text")
            body = {"reference": code, **extra, **(found.get("request") or {})}
            split = found.get("split", "train")
            task = Task(str(found.get("id", at)), int(found.get("level", 0)), body, split)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{where} is no task: {error!r}", mend) from error
        if split not in splits:
            raise BadInput(
                f"{where} is held out: it is of the split {split}", "train on train or val alone"
            )
        if task.name in tasks:
            raise BadInput(f"{where} has the id {task.name}, as a task before it has", mend)
        tasks[task.name] = task
    if not tasks:
        raise BadInput(f"{path} holds no task", mend)
    return list(tasks.values())


def _rows(path: Path, mend: str) -> Iterator[tuple[int, Any]]:
    """Gives what stands in each line or row, and its number from 1."""
    try:
        if path.suffix == ".parquet":
            yield from enumerate(pq.read_table(path).to_pylist(), 1)
            return
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise BadInput(f"{path} cannot be read: {error}", mend) from error
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield at, json.loads(line)
        except ValueError as error:
            raise BadInput(f"{path}, line {at} is no task: {error!r}", mend) from error


@dataclass
class TaskOrder:
    """Draws tasks without putting back, epoch by epoch. What it is at goes into checkpoints."""

    tasks: list[Task]
    seed: int
    curriculum: Curriculum
    epoch: int = 0
    taken: int = 0
    success: dict[int, float] = field(default_factory=dict)
    level: int = 0

    def __post_init__(self) -> None:
        self.levels = sorted({t.level for t in self.tasks})

    def draw(self, n: int) -> list[Task]:
        """Returns the next n tasks of the open levels."""
        out: list[Task] = []
        while len(out) < n:
            order = self._order()
            if self.taken >= len(order):
                self.epoch, self.taken = self.epoch + 1, 0
                continue
            out.append(order[self.taken])
            self.taken += 1
        return out

    def heed(self, level: int, succeeded: bool) -> None:
        """Notes how an episode of a task of this level ended."""
        if not self.curriculum.on:
            return
        forget = 0.5 ** (1 / max(self.curriculum.memory, 1e-9))
        self.success[level] = forget * self.success.get(level, 0.0) + (1 - forget) * succeeded
        top = self.levels[self.level]
        higher = self.level + 1 < len(self.levels)
        if level == top and higher and self.success[level] >= self.curriculum.open_at:
            self.level += 1
            self.epoch, self.taken = self.epoch + 1, 0

    def state(self) -> dict[str, Any]:
        """Returns what load takes, of JSON."""
        success = {str(k): v for k, v in self.success.items()}
        return {"epoch": self.epoch, "taken": self.taken, "level": self.level, "success": success}

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.epoch, self.taken, self.level = state["epoch"], state["taken"], state["level"]
        self.success = {int(k): v for k, v in state["success"].items()}

    def _order(self) -> list[Task]:
        highest = self.levels[self.level] if self.curriculum.on else self.levels[-1]
        opened = [t for t in self.tasks if t.level <= highest]
        random.Random(f"{self.seed} {self.epoch}").shuffle(opened)
        return opened
