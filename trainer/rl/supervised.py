"""Supervised training on rows: what bootstrap and rejection fine-tuning share."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl import checkpoint, losses, policy, saving
from rl.batch import Batch, Row, number
from rl.errors import BadInput
from rl.guards import Bounds, Guard
from rl.learner import Learner
from rl.settings import Lora, Machine, Optimiser, Saving, require
from rl.stage import Stage


@dataclass(frozen=True)
class Supervised:
    """``batch`` counts rows of an update, over all processes; ``longest``: rows of more tokens are
    left out, which is said; 0 leaves out none.
    """

    epochs: int = 2
    batch: int = 64
    longest: int = 0
    seed: int = 0
    lora: Lora = field(default_factory=Lora)
    optimiser: Optimiser = field(
        default_factory=lambda: Optimiser(lr=5e-4, warmup=20, schedule="cosine", weight_decay=0.01)
    )
    machine: Machine = field(default_factory=Machine)
    saving: Saving = field(default_factory=lambda: Saving(every=100))
    bounds: Bounds = field(default_factory=lambda: Bounds(entropy_low=0.0, length_low=0.0))


def plan(rows: Sequence[Row], epochs: int, batch: int, seed: int) -> list[list[int]]:
    """Returns the rows of each update: every epoch has all of them once, rows of like lengths
    together, in an order drawn by the seed.
    """
    rng = random.Random(seed)
    out: list[list[int]] = []
    for _ in range(epochs):
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids) * rng.uniform(0.9, 1.1))
        lots = [order[i : i + batch] for i in range(0, len(order), batch)]
        rng.shuffle(lots)
        out += lots
    return out


def train(rows: Sequence[Row], base: Path, settings: Supervised, stage: Stage) -> dict[str, Any]:
    """Trains a policy on rows and writes it to ``out/policy``. Returns what the end event says."""
    require(settings.epochs > 0 and settings.batch > 0, "epochs and batch must be above 0")
    rows = _short_enough(rows, settings.longest, stage)
    updates = plan(rows, settings.epochs, settings.batch, settings.seed)
    at = checkpoint.latest(stage.out / saving.FOLDER, stage.note)
    folder = at.folder / "actor" if at else base
    tokenizer = policy.load_tokenizer(folder)
    model = policy.load_actor(folder, settings.lora, settings.seed)
    policy.check_fit(model, tokenizer, folder)
    learner = Learner(
        "actor", policy.Actor(model), settings.optimiser, settings.machine, stage, len(updates)
    )
    guard = Guard(settings.bounds)
    saver = saving.Saver(stage, settings.saving, [learner], tokenizer, guard)
    begin = saver.resume(at)
    metrics: dict[str, Any] = {}
    for step in range(begin, len(updates)):
        metrics = _update(learner, [rows[i] for i in updates[step]], guard, step + 1)
        stage.step(step + 1, len(updates), metrics)
        guard.check(metrics, step + 1)
        saver.after(step + 1, len(updates), {})
    out = saver.finish({"actor": "policy"})
    return {"steps": len(updates), "rows": len(rows), "metrics": metrics, **out}


def _short_enough(rows: Sequence[Row], longest: int, stage: Stage) -> list[Row]:
    kept = [r for r in rows if not longest or len(r.ids) <= longest]
    if len(kept) < len(rows):
        stage.note(
            f"{len(rows) - len(kept)} of {len(rows)} rows have over {longest} tokens: left out"
        )
    if not kept:
        raise BadInput("there is nothing to train on", "give data, or raise longest")
    return kept


def _update(learner: Learner, rows: list[Row], guard: Guard, step: int) -> dict[str, Any]:
    began = time.monotonic()
    world = learner.world
    tokens = number(rows)
    mine = rows[world.rank :: world.size]
    entropy = torch.zeros(1, dtype=torch.float64)

    def loss_of(batch: Batch, got: tuple[Tensor, Tensor]) -> Tensor:
        logs, entropies = got
        every = torch.ones_like(logs, dtype=torch.bool)
        entropy.add_(float(entropies.detach().double().sum()))
        return losses.masked_mean(-logs, every, tokens)

    share = learner.accumulate(mine, loss_of)
    loss, summed = world.sum(torch.tensor([share, float(entropy)], dtype=torch.float64)).tolist()
    guard.check_loss(loss, step, "policy")
    rate = learner.rate()
    norm, applied = learner.apply(guard)
    took = time.monotonic() - began
    return {
        "loss": loss,
        "entropy": summed / max(tokens, 1),
        "gradient_norm": norm,
        "skipped": 0 if applied else 1,
        "lr": rate,
        "length": tokens / len(rows),
        "tokens_per_second": sum(len(r.ids) for r in rows) / max(took, 1e-9),
    }
