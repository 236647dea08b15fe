"""When checkpoints are made, what is in them, and what a stage leaves at its end."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rl import checkpoint
from rl.errors import writing
from rl.guards import Guard
from rl.learner import Learner
from rl.settings import Saving
from rl.stage import Stage

FOLDER = "checkpoints"


class Saver:
    """The checkpoints of a stage's run."""

    def __init__(
        self,
        stage: Stage,
        settings: Saving,
        learners: Sequence[Learner],
        tokenizer: Any,
        guard: Guard,
    ) -> None:
        self.stage = stage
        self.settings = settings
        self.learners = learners
        self.tokenizer = tokenizer
        self.guard = guard
        self.state: dict[str, Any] = {}

    def resume(self, at: checkpoint.Checkpoint | None) -> int:
        """Puts back all but the weights, which were loaded from the checkpoint, and returns how
        many steps are done.
        """
        if at is not None:
            for learner in self.learners:
                learner.read(at.folder)
            self.guard.load(at.state["guard"])
            self.state = at.state["stage"]
            states = torch.load(at.folder / "random.pt", map_location="cpu", weights_only=True)
            checkpoint.set_random_state(states[min(self.stage.world.rank, len(states) - 1)])
            self.stage.note(f"going on after step {at.step}")
        step = at.step if at else 0
        self.stage.begin(step, self.settings.tensorboard)
        return step

    def after(self, step: int, steps: int, state: dict[str, Any]) -> None:
        """Saves where it is time to, and ends the stage where it was asked to. ``state`` is what
        the stage needs to go on, of JSON. A policy that is out of bounds is not saved.
        """
        asked = self.stage.asked_to_stop()
        due = step % max(self.settings.every, 1) == 0 or step == steps or asked
        if due and self.guard.strikes == 0:
            self.save(step, state)
        if asked and step < steps:
            self.stage.interrupt(step)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Makes a checkpoint. All processes must call it."""
        randoms = self.stage.world.gather(checkpoint.random_state())
        whole = {"guard": self.guard.state(), "stage": state}

        def write(folder: Path) -> None:
            for learner in self.learners:
                learner.write(folder, self.tokenizer)
            if self.stage.first:
                torch.save(randoms, folder / "random.pt")

        root = self.stage.out / FOLDER
        if self.stage.first:
            made = checkpoint.save(root, step, whole, write, self.settings.keep)
            self.stage.tell("checkpoint", step=step, folder=str(made))
        elif self.stage.world.spreads:
            write(root)  # its part of what the first process writes
        self.stage.world.any(False)  # wait for each other

    def finish(self, names: dict[str, str]) -> dict[str, str]:
        """Writes the weights of learners, by name, into folders of ``out``, and returns these."""
        made = {}
        for learner in self.learners:
            if learner.name not in names:
                continue
            target = self.stage.out / names[learner.name]
            beside = target.with_name(f".{target.name}.unfinished")
            with writing(target):
                if self.stage.first:
                    shutil.rmtree(beside, ignore_errors=True)
                learner.write_weights(beside, self.tokenizer)
                if self.stage.first:
                    shutil.rmtree(target, ignore_errors=True)
                    beside.rename(target)
            made[names[learner.name]] = str(target)
        return made
