"""PPO on episodes of one turn or many: the one code path of warm-up and agentic stage.

    python -m rl.ppo --config ppo.json
    torchrun --nproc-per-node 2 -m rl.ppo --config ppo.json

Episodes come from the episode API, played by the policy as it is, or from Parquet files. A step
samples, judges, computes advantages, updates critic and policy, and tells its metrics. What a step
sampled is written to ``out/trajectories`` before it is trained on: a stage that was killed in the
step trains on it, and nothing is judged twice.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl import checkpoint, estimate, metrics, policy, saving, trajectories
from rl.chat import Chat
from rl.episodes import Environment, Limits, play
from rl.errors import BadInput, Unreachable
from rl.estimate import Estimator
from rl.generation import ENGINES
from rl.guards import Bounds, Guard
from rl.http import Client
from rl.learner import Learner
from rl.sampler import LocalSampler, ServerSampler
from rl.settings import Lora, Machine, Optimiser, Saving, require
from rl.stage import Stage
from rl.tasks import Curriculum, TaskOrder, read_tasks
from rl.trajectories import Episode, Sample
from rl.update import Ppo, Prepared, gap_of, prepare, update_critic, update_policy

# What the episode API takes as a policy's version.
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Served:
    """A server of the episode API. ``request`` is posted with each task's reference; the token is
    in the environment variable ``token_env``. ``patience``: the seconds of pauses between the tries
    of one request. ``parallel``: the episodes that each process has open at once.
    """

    url: str = ""
    token_env: str = ""
    patience: float = 120.0
    parallel: int = 64
    request: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """``kind``: "local", or "server", an OpenAI-compatible one at ``url``. ``tokens``: the most of
    an answer. ``batch``: prompts that are sampled at once. ``engine``: "auto", or "transformers",
    which samples by transformers' generate whatever the model.
    """

    kind: str = "local"
    tokens: int = 512
    batch: int = 64
    engine: str = "auto"
    url: str = ""
    model: str = ""
    token_env: str = ""


@dataclass(frozen=True)
class Settings:
    """``policy``: a folder or a GGUF file. ``critic``: a folder, "head" for a value head on the
    policy, empty for one with the policy's layers. A step has ``tasks_per_step`` tasks with
    ``samples_per_task`` episodes each; of ``trajectories`` their product.
    """

    policy: str
    out: str
    critic: str = ""
    tasks: str = ""
    trajectories: list[str] = field(default_factory=list)
    environment: Served = field(default_factory=Served)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    steps: int = 150
    tasks_per_step: int = 128
    samples_per_task: int = 8
    seed: int = 0
    name: str = "policy"
    estimator: Estimator = field(default_factory=Estimator)
    ppo: Ppo = field(default_factory=Ppo)
    curriculum: Curriculum = field(default_factory=Curriculum)
    lora: Lora = field(default_factory=Lora)
    optimiser: Optimiser = field(default_factory=Optimiser)
    critic_optimiser: Optimiser = field(default_factory=lambda: Optimiser(lr=6e-6))
    machine: Machine = field(default_factory=Machine)
    saving: Saving = field(default_factory=Saving)
    bounds: Bounds = field(default_factory=Bounds)

    def check(self) -> None:
        """Raises BadInput where settings do not go together."""
        self.estimator.check()
        require(
            bool(self.tasks) != bool(self.trajectories),
            "exactly one of tasks and trajectories must be named",
            "name tasks to sample, or trajectories to read",
        )
        require(not self.tasks or bool(self.environment.url), "environment.url is empty")
        for name in ("steps", "tasks_per_step", "samples_per_task"):
            require(getattr(self, name) > 0, f"{name} must be above 0")
        require(self.environment.parallel > 0, "environment.parallel must be above 0")
        require(
            VERSION.fullmatch(f"{self.name}-{self.steps}") is not None,
            f"name is {self.name!r}: with a step's number it must be at most 64 characters",
            "make it of letters, digits and . _ -, the first a letter or a digit",
        )
        require(min(self.ppo.epochs, self.ppo.minibatches) > 0, "epochs and minibatches: above 0")
        known = self.sampling.kind in ("local", "server")
        require(known, f"sampling.kind cannot be {self.sampling.kind}", "say local or server")
        known = self.sampling.engine in ENGINES
        said = " or ".join(ENGINES)
        require(known, f"sampling.engine cannot be {self.sampling.engine}", f"say {said}")


def token(name: str) -> str:
    """Returns the secret in an environment variable, without space at its ends."""
    if name and name not in os.environ:
        raise BadInput(f"the environment variable {name} is not set", "set it, or clear token_env")
    found = os.environ.get(name, "").strip()
    if not re.fullmatch(r"[!-~]*", found):
        raise BadInput(
            f"the environment variable {name} holds what no token has: a space, a line's end or a "
            "letter beyond ASCII",
            "set it to the token alone",
        )
    return found


class Trainer:
    """A run of the stage: models, what samples, and what is at which step."""

    def __init__(self, settings: Settings, stage: Stage) -> None:
        settings.check()
        self.settings = s = settings
        self.stage = stage
        self.at = checkpoint.latest(stage.out / saving.FOLDER, stage.note)
        self.base = policy.resolve(s.policy, stage.out)
        self.tokenizer = policy.load_tokenizer(self.base)
        self.chat = Chat(self.tokenizer)
        self.guard = Guard(s.bounds)
        folder = self.at.folder / "actor" if self.at else self.base
        model = policy.load_actor(folder, s.lora, s.seed)
        policy.check_fit(model, self.tokenizer, folder)
        self.vocabulary = policy.unwrapped(model).get_input_embeddings().weight.shape[0]
        self.actor = Learner("actor", policy.Actor(model), s.optimiser, s.machine, stage)
        self.critic = self._critic() if s.estimator.kind == "gae" else None
        self.reference = self._reference() if s.ppo.kl else None
        self._plain: Any = None
        self._local: LocalSampler | None = None
        learners = [self.actor] + ([self.critic] if self.critic else [])
        self.saver = saving.Saver(stage, s.saving, learners, self.tokenizer, self.guard)
        self._source()

    def _critic(self) -> Learner:
        s = self.settings
        module: Any
        if s.critic == "head":
            module = policy.HeadCritic(self.actor.module)  # type: ignore[arg-type]
            if self.at:
                policy.load_head(module, self.at.folder / "critic")
        else:
            own = policy.resolve(s.critic, self.stage.out) if s.critic else self.base
            own = self.at.folder / "critic" if self.at else own
            module = policy.Critic(policy.load_critic(own, s.lora, s.seed))
        return Learner("critic", module, s.critic_optimiser, s.machine, self.stage)

    def _reference(self) -> Learner:
        s = self.settings
        model = policy.load_actor(self.base, Lora(), s.seed)
        return Learner("reference", policy.Actor(model), Optimiser(), s.machine, self.stage)

    def _source(self) -> None:
        """Opens what episodes come from."""
        s = self.settings
        self.episodes: list[Episode] = []
        if s.trajectories:
            found = trajectories.read(s.trajectories, self.vocabulary)
            self.episodes, dropped, lost = estimate.usable(found, s.estimator.truncated)
            if dropped or lost:
                self.stage.note(f"of {len(found)} episodes {dropped} were cut, {lost} met an error")
            require(bool(self.episodes), "the trajectories hold no episode to train on")
            return
        self.order = TaskOrder(
            read_tasks(Path(s.tasks), s.environment.request), s.seed, s.curriculum
        )
        client = Client(s.environment.url, token(s.environment.token_env))
        self.environment = Environment(client, s.environment.patience, self.stage.note)
        c = s.sampling
        self.server: ServerSampler | None = None
        if c.kind == "server":
            self.server = ServerSampler(c.url, c.model, c.tokens, token(c.token_env), c.batch)
            if not s.lora.rank:
                self.stage.note(
                    "the sampler's server keeps the weights that it has: only adapters are sent to "
                    "it, and capped importance weights make up for the difference"
                )

    def run(self) -> dict[str, Any]:
        """Trains to the last step and returns what the end event says."""
        s = self.settings
        self.stage.tell("start", stage="ppo", policy=str(self.base), steps=s.steps)
        step = self.saver.resume(self.at)
        if self.at and s.tasks:
            self.order.load(self.saver.state["tasks"])
        said: dict[str, Any] = {}
        while step < s.steps:
            step += 1
            said = self.step(step)
            self.stage.step(step, s.steps, said)
            self.guard.check(said, step)
            state = {"tasks": self.order.state()} if s.tasks else {}
            self.saver.after(step, s.steps, state)
        return {
            "steps": step,
            "metrics": said,
            **self.saver.finish({"actor": "policy", "critic": "critic"}),
        }

    def step(self, step: int) -> dict[str, Any]:
        """Makes one step and returns its metrics. All processes must call it."""
        s, world = self.settings, self.stage.world
        began = time.monotonic()
        with world.away():
            kept, dropped, lost = self.sample(step)
        sampled = time.monotonic()
        every = [e for part in world.gather(kept) for e in part]
        dropped, lost = sum(world.gather(dropped)), sum(world.gather(lost))
        if not every:
            raise Unreachable(
                f"no episode of step {step} can be trained on: {dropped} were cut by a limit, "
                f"{lost} met an infrastructure error",
                "look at the environment's log, raise the limits, or keep what was cut",
            )
        rng = random.Random(f"{s.seed} {step}")
        p = prepare(kept, self.actor, self.critic, self.reference, s.estimator, s.ppo)
        said = metrics.of_episodes(every, dropped, lost)
        if s.tasks and self.server is None:
            self.guard.check_gap(*gap_of(p, world), step)
        if self.critic is not None:
            said |= update_critic(p, self.critic, s.ppo, self.guard, step, rng)
            pairs = [x for part in world.gather(valued(p, kept)) for x in part]
            said["value_speedup_correlation"] = metrics.rank_correlation(pairs)
        said |= update_policy(p, self.actor, s.ppo, self.guard, step, rng)
        for e in every:
            self._heed(e)
        done = time.monotonic()
        said["sampling_seconds"], said["training_seconds"] = sampled - began, done - sampled
        said["tokens_per_second"] = said.get("tokens", 0) / max(done - began, 1e-9)
        return said

    def _heed(self, episode: Episode) -> None:
        if self.settings.tasks:
            levels = {t.name: t.level for t in self.order.tasks}
            self.order.heed(levels.get(episode.task, 0), (episode.reward or 0.0) > 0)

    def sample(self, step: int) -> tuple[list[Episode], int, int]:
        """Returns this process's episodes of a step, and how many were dropped and lost. It is away
        from the device but while it samples.
        """
        s, world = self.settings, self.stage.world
        lot = s.tasks_per_step * s.samples_per_task
        if not s.tasks:
            n = len(self.episodes)
            first = (step - 1) * lot
            mine = range(first + world.rank, first + lot, world.size)
            return [self._stored(i // n, i % n) for i in mine], 0, 0
        version = f"{s.name}-{step - 1}"
        drawn = self.order.draw(s.tasks_per_step)[world.rank :: world.size]
        name = f"step-{step:08d}-{world.rank}of{world.size}.parquet"
        path = self.stage.out / "trajectories" / name
        before = self._sampled_before(path, version)
        if before is not None:
            return before
        jobs = [(t.name, t.body) for t in drawn for _ in range(s.samples_per_task)]
        samples, never = self._play(jobs, version, step)
        found = self._usable(samples, never)
        if not found[0]:  # to be sampled again, should the stage end here
            return found
        trajectories.write(path, samples, never)
        # As they are read: a stage that is killed now goes on with the same.
        return self._usable(trajectories.read_file(path), never)

    def _usable(self, samples: Sequence[Sample], never: int) -> tuple[list[Episode], int, int]:
        found = trajectories.group(samples)
        kept, dropped, lost = estimate.usable(found, self.settings.estimator.truncated)
        return kept, dropped, lost + never

    def _stored(self, epoch: int, i: int) -> Episode:
        order = list(range(len(self.episodes)))
        random.Random(f"{self.settings.seed} {epoch}").shuffle(order)
        return self.episodes[order[i]]

    def _sampled_before(self, path: Path, version: str) -> tuple[list[Episode], int, int] | None:
        """Returns what this step sampled before the stage was killed in it, as sample does. None
        where that is nothing to train on.
        """
        if not path.exists():
            return None
        try:
            samples = trajectories.read_file(path, self.vocabulary)
            found = self._usable(samples, trajectories.never_of(path))
        except BadInput as error:
            self.stage.note(f"{error.reason}: sampled again")
            return None
        same = all(x.policy_version == version for x in samples)
        return found if same and found[0] else None

    def _play(
        self, jobs: Sequence[tuple[str, Any]], version: str, step: int
    ) -> tuple[list[Sample], int]:
        s = self.settings
        seed = random.Random(f"{s.seed} {step} {self.stage.world.rank}").getrandbits(62)
        with self.stage.world.lease.held():
            sampler = self._sampler(step)
        parallel = s.environment.parallel
        try:
            return play(
                jobs, self.environment, self.chat, sampler, s.limits, version, seed, parallel
            )
        finally:
            if self._local is not None:
                self._local.release()

    def _sampler(self, step: int) -> LocalSampler | ServerSampler:
        c = self.settings.sampling
        if self.server is not None:
            if self.settings.lora.rank:
                name = f"kw-{self.settings.name}-{step - 1}"
                folder = self.stage.out / "served" / name
                self.actor.write_weights(folder, self.tokenizer)
                if self.stage.first:
                    self.server.load_adapter(name, str(folder.resolve()))
                self.server.model = name
                self.stage.world.any(False)  # wait until it is served
            return self.server
        if self._local is None:
            lease, note = self.stage.world.lease, self.stage.note
            self._local = LocalSampler(
                self._whole(), self.tokenizer, c.tokens, c.batch, note, lease, c.engine
            )
        else:
            self._local.renew(self._whole())
        return self._local

    def _whole(self) -> Any:
        """Returns a model to sample from: the one in training, or a copy where that is spread."""
        model = self.actor.module.model
        if not self.stage.world.spreads:
            return model
        if self._plain is None:
            self._plain = policy.load_actor(self.base, self.settings.lora, self.settings.seed)
            self._plain.to(self.stage.world.device)
        state = self.stage.world.model_state(self.actor.module) or {}
        self._plain.load_state_dict({k.removeprefix("model."): v for k, v in state.items()})
        return self._plain


def valued(p: Prepared, episodes: Sequence[Episode]) -> list[tuple[float, float]]:
    """Returns the critic's value before the last token, and the speedup, of episodes that have
    one.
    """
    last = {row.episode: row.first + row.count - 1 for row in p.rows}
    speedups = {i: metrics.speedup_of(episodes[i]) for i in last}
    return [(float(p.values[last[i]]), x) for i, x in speedups.items() if x is not None]


def run(settings: Settings, stage: Stage) -> dict[str, Any]:
    """Runs the stage."""
    return Trainer(settings, stage).run()


if __name__ == "__main__":
    from rl.stage import main

    sys.exit(main(Settings, run))
