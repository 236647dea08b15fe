"""Looks at a base before hours are spent on it: it is loaded, its tokenizer fits, and it samples
and trains, so fast on this machine.

    python -m rl.probe --config probe.json
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from rl import losses, policy
from rl.batch import Batch, Row, number
from rl.draw import Work
from rl.errors import BadInput
from rl.generation import Generator, generator
from rl.learner import Learner
from rl.sampler import sampling
from rl.settings import Lora, Machine, Optimiser
from rl.stage import Stage

PROMPT = 64  # tokens
ANSWER = 8
ROW = 256  # tokens that are trained on


@dataclass(frozen=True)
class Settings:
    """``policy``: a folder or a GGUF file. ``batch``: answers that are sampled at once."""

    policy: str
    out: str
    batch: int = 16
    seed: int = 0
    lora: Lora = field(default_factory=Lora)
    machine: Machine = field(default_factory=Machine)


def run(settings: Settings, stage: Stage) -> dict[str, Any]:
    """Returns how large the base is, and how many tokens a second it samples and trains on."""
    base = policy.resolve(settings.policy, stage.out)
    tokenizer = policy.load_tokenizer(base)
    model = policy.load_actor(base, settings.lora, settings.seed)
    policy.check_fit(model, tokenizer, base)
    config = policy.unwrapped(model).config
    context = int(getattr(config, "max_position_embeddings", 0) or 0)
    stage.tell("start", stage="probe", policy=str(base))
    parameters = sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n)
    learner = Learner("actor", policy.Actor(model), Optimiser(lr=0.0), settings.machine, stage)
    inside = [i % min(len(tokenizer), 256) for i in range(ROW)]
    try:
        trained = _speed(lambda: _train(learner, inside))
        by = generator(model, settings.batch, int(tokenizer.eos_token_id), stage.note)
        sampled = _speed(lambda: _sample(by, learner, settings.batch, inside[:PROMPT]))
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(
            f"the model in {base} does not compute: {policy.first_line(error)}",
            "see that its weights and its config.json belong together",
        ) from error
    return {
        "parameters": parameters,
        "vocabulary": len(tokenizer),
        "context": context,
        "sampled_per_second": sampled,
        "trained_per_second": trained,
    }


def _speed(go: Callable[[], int]) -> float:
    """Returns tokens a second, the first time apart."""
    go()
    began = time.monotonic()
    return go() / max(time.monotonic() - began, 1e-9)


def _sample(by: Generator, learner: Learner, batch: int, prompt: list[int]) -> int:
    lot = [Work(prompt, ANSWER, seed=i) for i in range(batch)]
    with sampling(learner.module.model):
        by.answer(lot, -1)
    return batch * ANSWER


def _train(learner: Learner, ids: list[int]) -> int:
    n = len(ids) - 1
    row = Row(ids, 1, [1] * n, [0.0] * n, [0] * n)
    number([row])

    def loss_of(_: Batch, got: Any) -> torch.Tensor:
        return losses.masked_mean(-got[0], torch.ones_like(got[0], dtype=torch.bool), n)

    loss = learner.accumulate([row], loss_of)
    if not math.isfinite(loss):
        raise ValueError("what it says of a text is no number: its weights hold some that are none")
    learner.optimiser.zero_grad(set_to_none=True)
    return len(ids)


if __name__ == "__main__":
    from rl.stage import main

    sys.exit(main(Settings, run))
