"""A policy answers prompts; nothing is judged, and nothing trained.

    python -m rl.answers --config answers.json

Each lot of answers is a file in ``out/lots``: one that is there is not sampled again, and one that
was cut short is sampled by the same seed. ``out/answers.jsonl`` has all, once all are there.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl.collect import opened
from rl.errors import BadInput, disk_error
from rl.ppo import Sampling
from rl.settings import Machine, require
from rl.stage import Stage, finite

ANSWERS = "answers.jsonl"


@dataclass(frozen=True)
class Settings:
    """``prompts``: a file with a line of JSON each, ``task`` (a name) and ``messages``. Each gets
    ``samples`` answers; ``lot``: those of a file, of each process.
    """

    policy: str
    out: str
    prompts: str
    sampling: Sampling = field(default_factory=Sampling)
    samples: int = 1
    lot: int = 64
    seed: int = 0
    machine: Machine = field(default_factory=Machine)


@dataclass(frozen=True)
class Job:
    """An answer that is to be written: the number ``sample`` of a task, to ``ids``."""

    task: str
    sample: int
    ids: list[int]


def run(settings: Settings, stage: Stage) -> dict[str, Any]:
    """Runs the stage. Answers are in the order of samples, then prompts."""
    s, world = settings, stage.world
    require(s.samples > 0 and s.lot > 0, "samples and lot must be above 0")
    chat, sampler = opened(s.policy, s.sampling, s.seed, stage)
    prompts = [(name, chat.prompt(messages)) for name, messages in read(Path(s.prompts))]
    jobs = [Job(name, i, ids) for i in range(s.samples) for name, ids in prompts]
    lots = math.ceil(len(jobs) / (s.lot * world.size))
    stage.tell("start", stage="answers", prompts=len(prompts), lots=lots)
    stage.begin(0, False)
    every: list[str] = []
    for number in range(1, lots + 1):
        part = jobs[(number - 1) * s.lot * world.size : number * s.lot * world.size]
        path = stage.out / "lots" / f"{number:08d}-{world.rank}of{world.size}.jsonl"
        if not path.exists():
            mine = part[world.rank :: world.size]
            seed = random.Random(f"{s.seed} {number} {world.rank}").getrandbits(62)
            done = sampler.sample([j.ids for j in mine], seed)
            write(path, [line(j, c, chat.text(c.ids)) for j, c in zip(mine, done, strict=True)])
        every += [x for lot in world.gather(path.read_text().splitlines()) for x in lot]
        stage.step(number, lots, {"answers": len(every)})
        if stage.asked_to_stop() and number < lots:
            stage.interrupt(number)
    out = stage.out / ANSWERS
    if stage.first:
        write(out, every)
    return {"answers": str(out)}


def read(path: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Returns tasks with the messages of their prompts. It raises BadInput."""
    try:
        found = [json.loads(x) for x in path.read_text().splitlines()]
        prompts = [(str(x["task"]), list(x["messages"])) for x in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} holds no prompts: {error}", "name a file of prompts") from error
    require(bool(prompts), f"{path} holds no prompts", "name a file of prompts")
    return prompts


def line(job: Job, completion: Any, text: str) -> str:
    """Returns an answer as its file has it. One without ids had no room."""
    return json.dumps(
        {
            "task": job.task,
            "sample": job.sample,
            "text": text,
            "prompt_ids": job.ids,
            "token_ids": completion.ids,
            "logprobs": finite(completion.logprobs),
            "finish_reason": completion.finish_reason,
        }
    )


def write(path: Path, lines: Sequence[str]) -> None:
    """Writes lines whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "w") as f:
            f.writelines(f"{x}\n" for x in lines)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        beside.unlink(missing_ok=True)


if __name__ == "__main__":
    from rl.stage import main

    sys.exit(main(Settings, run))
