"""A policy plays episodes and is not trained: trajectories to learn from, or a measurement.

    python -m rl.collect --config collect.json

Each lot of episodes is a Parquet file in ``out/trajectories``. A lot that is there is not played
again, and one that was cut short is sampled by the same seed.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl import metrics, policy, trajectories
from rl.chat import Chat
from rl.episodes import Environment, Limits, play
from rl.errors import BadInput, Unreachable, writing
from rl.http import Client
from rl.ppo import VERSION, Sampling, Served, token
from rl.sampler import LocalSampler, ServerSampler
from rl.settings import Lora, Machine, require
from rl.stage import Stage
from rl.tasks import ALL_SPLITS, SPLITS, Task, read_tasks
from rl.trajectories import Episode, Sample

OUTCOMES = "outcomes.jsonl"
TRIES = 2  # of an episode that met an infrastructure error


@dataclass(frozen=True)
class Settings:
    """``samples_per_task`` episodes are played of each task; ``lot``: those of a file, of each
    process. ``held_out`` lets tasks of every split be played: what comes of it is a measurement,
    and nothing may be trained on it.
    """

    policy: str
    out: str
    tasks: str
    environment: Served = field(default_factory=Served)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    samples_per_task: int = 1
    lot: int = 64
    held_out: bool = False
    seed: int = 0
    name: str = "policy"
    machine: Machine = field(default_factory=Machine)

    def check(self) -> None:
        """Raises BadInput where settings do not go together."""
        require(bool(self.environment.url), "environment.url is empty")
        require(self.environment.parallel > 0, "environment.parallel must be above 0")
        require(self.samples_per_task > 0, "samples_per_task must be above 0")
        require(self.lot > 0, "lot must be above 0")
        require(VERSION.fullmatch(self.name) is not None, f"name is {self.name!r}: no version")


class Collector:
    """A run of the stage."""

    def __init__(self, settings: Settings, stage: Stage) -> None:
        settings.check()
        self.settings = s = settings
        self.stage = stage
        self.chat, self.sampler = opened(s.policy, s.sampling, s.seed, stage)
        self.vocabulary = len(self.chat.tokenizer)
        splits = ALL_SPLITS if s.held_out else SPLITS
        self.tasks = read_tasks(Path(s.tasks), s.environment.request, splits)
        client = Client(s.environment.url, token(s.environment.token_env))
        self.environment = Environment(client, s.environment.patience, stage.note)

    def lots(self) -> list[list[Task]]:
        """Returns the tasks of each lot of this process; all processes have as many lots."""
        s, world = self.settings, self.stage.world
        every = [t for _ in range(s.samples_per_task) for t in self.tasks]
        n = math.ceil(len(every) / (s.lot * world.size))
        mine = every[world.rank :: world.size]
        return [mine[i * s.lot : (i + 1) * s.lot] for i in range(n)]

    def run(self) -> dict[str, Any]:
        """Plays all lots and returns what the end event says."""
        world = self.stage.world
        lots = self.lots()
        self.stage.tell("start", stage="collect", tasks=len(self.tasks), lots=len(lots))
        self.stage.begin(0, False)
        kept: list[Episode] = []
        lost = 0
        for i, lot in enumerate(lots, 1):
            began = time.monotonic()
            with world.away():
                samples, never = self.lot(i, lot)
            played = trajectories.group(samples)
            found = [e for e in played if ended(e)]
            failed = len(played) - len(found)
            every = [e for part in world.gather(found) for e in part]
            missed = sum(world.gather(failed + never))
            kept, lost = kept + every, lost + missed
            said = metrics.of_episodes(every, 0, missed)
            said["sampling_seconds"] = time.monotonic() - began
            self.stage.step(i, len(lots), said)
            if self.stage.asked_to_stop() and i < len(lots):
                self.stage.interrupt(i)
        if not kept:
            raise Unreachable(
                f"none of {lost} episodes came to a reward", "look at the environment's log"
            )
        split = {t.name: t.split for t in self.tasks}
        named = sorted({split[e.task] for e in kept})
        if self.stage.first:
            self.write_outcomes(kept, split)
        return {
            "episodes": len(kept),
            "lost": lost,
            "all": rates(kept),
            "splits": {x: rates([e for e in kept if split[e.task] == x]) for x in named},
            "trajectories": str(self.stage.out / "trajectories"),
            "outcomes": str(self.stage.out / OUTCOMES),
            **self.length(kept),
        }

    def lot(self, number: int, tasks: Sequence[Task]) -> tuple[list[Sample], int]:
        """Returns the samples of a lot, played or read, and how many episodes never began."""
        world = self.stage.world
        name = f"step-{number:08d}-{world.rank}of{world.size}.parquet"
        path = self.stage.out / "trajectories" / name
        if path.exists():
            try:
                samples = trajectories.read_file(path, self.vocabulary)
                return samples, trajectories.never_of(path)
            except BadInput as error:
                self.stage.note(f"{error.reason}: sampled again")
        samples, never = self.play(number, tasks)
        trajectories.write(path, samples, never)
        return trajectories.read_file(path), never

    def play(self, number: int, tasks: Sequence[Task]) -> tuple[list[Sample], int]:
        """Plays an episode of each task; one that met an infrastructure error once more."""
        s, world = self.settings, self.stage.world
        left, kept, never = list(tasks), list[Sample](), 0
        for attempt in range(TRIES):
            seed = random.Random(f"{s.seed} {number} {world.rank} {attempt}").getrandbits(62)
            jobs = [(t.name, t.body) for t in left]
            parallel = s.environment.parallel
            samples, never = play(
                jobs, self.environment, self.chat, self.sampler, s.limits, s.name, seed, parallel
            )
            done = {e.name for e in trajectories.group(samples) if ended(e)}
            last = attempt == TRIES - 1
            kept += [x for x in samples if last or x.episode in done]
            had = Counter(x.task for x in samples if x.call == 0 and x.episode in done)
            left = [t for t in left if not _take(had, t.name)]
            if not left:
                break
        return kept, never

    def write_outcomes(self, episodes: Sequence[Episode], split: dict[str, str]) -> None:
        """Writes what came of each episode, a line of JSON each, whole or not at all."""
        path = self.stage.out / OUTCOMES
        beside = path.with_name(f".{OUTCOMES}.{os.getpid()}")
        try:
            with writing(path):
                with open(beside, "w") as f:
                    for e in episodes:
                        last = e.samples[-1]
                        line: dict[str, Any] = {"task": e.task, "split": split[e.task]}
                        line |= {"reward": e.reward, "finish_reason": last.finish_reason}
                        line |= {"verdict": last.verdict}
                        f.write(json.dumps(line) + "\n")
                    f.flush()
                    os.fsync(f.fileno())
                os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)

    def length(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        """Returns the tokens of a last answer, and the characters of a token, of correct ones."""
        right = [e.samples[-1].response_ids for e in episodes if (e.reward or 0.0) > 0]
        tokens = sum(map(len, right))
        if not tokens:
            return {}
        characters = sum(len(self.chat.text(ids)) for ids in right)
        return {"tokens": tokens / len(right), "characters_per_token": characters / tokens}


def opened(
    folder: str, settings: Sampling, seed: int, stage: Stage
) -> tuple[Chat, LocalSampler | ServerSampler]:
    """Returns what speaks with a policy, and what it is sampled by."""
    base = policy.resolve(folder, stage.out)
    tokenizer = policy.load_tokenizer(base)
    chat, s = Chat(tokenizer), settings
    if s.kind == "server":
        return chat, ServerSampler(s.url, s.model, s.tokens, token(s.token_env), s.batch)
    model = policy.load_actor(base, Lora(), seed)
    policy.check_fit(model, tokenizer, base)
    model.to(stage.world.device)
    lease = stage.world.lease
    return chat, LocalSampler(model, tokenizer, s.tokens, s.batch, stage.note, lease, s.engine)


def ended(episode: Episode) -> bool:
    """Reports whether an episode counts: one that a limit cut does, also without a reward."""
    return episode.cut or episode.reward is not None


def _take(counts: Counter[str], name: str) -> bool:
    """Takes one of a name, and reports whether there was one."""
    there = counts[name] > 0
    counts[name] -= there
    return there


def rates(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Returns how many episodes there are, the share of those built, correct, faster than eager and
    than torch.compile as well, and the mean reward. One without a reward was cut by a limit here:
    it left nothing.
    """
    rewards = [-1.0 if e.reward is None else e.reward for e in episodes]
    n = max(len(rewards), 1)
    status = [(e.samples[-1].verdict or {}).get("status") for e in episodes]
    return {
        "n": len(rewards),
        "built": sum(x in metrics.BUILT for x in status) / n,
        "correct": sum(r >= 1 for r in rewards) / n,
        "faster_eager": sum(r >= 2 for r in rewards) / n,
        "faster_compile": sum(r >= 3 for r in rewards) / n,
        "reward": math.fsum(rewards) / n,
    }


def run(settings: Settings, stage: Stage) -> dict[str, Any]:
    """Runs the stage."""
    return Collector(settings, stage).run()


if __name__ == "__main__":
    from rl.stage import main

    sys.exit(main(Settings, run))
