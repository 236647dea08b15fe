"""A react episode that a stand-in of a policy plays, by its script, and that a tiny policy is
trained on by one step of PPO; and what has to hold of that. The server may be the real one:

    python react.py --url URL --reference FILE --scripts FILE --out FOLDER

Scripts are a list in JSON: of each episode the texts that are said, one a call.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from doubles import run
from torch import Tensor

from rl import policy, ppo, tiny, trajectories
from rl.batch import Batch, Row, collate, number, rows_of
from rl.chat import Chat
from rl.learner import Learner
from rl.policy import Actor
from rl.sampler import Completion
from rl.settings import Lora
from rl.stage import Stage
from rl.trajectories import Episode
from rl.update import Prepared

CPU = torch.device("cpu")


class StandIn:
    """Says what its scripts have, with the log-probabilities that a policy gives that. All scripts
    are of as many calls, so that the episodes stay side by side.
    """

    def __init__(self, actor: Any, chat: Chat, end: int, scripts: Sequence[Sequence[str]]) -> None:
        self.actor, self.chat, self.end, self.scripts = actor, chat, end, scripts
        self.call = 0

    def sample(self, prompts: Sequence[list[int]], seed: int) -> list[Completion]:
        out = []
        for prompt, script in zip(prompts, self.scripts, strict=True):
            ids = [*self.chat.encode(script[self.call]), self.end]
            row = Row(prompt + ids, len(prompt), [1] * len(ids), [0.0] * len(ids), [0] * len(ids))
            number([row])
            with torch.no_grad():
                logs, _ = self.actor(collate([row], CPU))
            out.append(Completion(ids, logs.tolist(), "stop"))
        self.call += 1
        return out


class Watched:
    """What a step of PPO did: what it computed before its update, the gradients that it made, and
    each micro-batch with the gradient of its last hidden states.
    """

    def __init__(self) -> None:
        self.prepared: list[Prepared] = []
        self.gradients: dict[str, Tensor] = {}
        self.batches: list[Batch] = []
        self.states: list[Tensor] = []

    def run(self, settings: ppo.Settings, stage: Stage, scripts: Any) -> dict[str, Any]:
        trainer = ppo.Trainer(settings, stage)
        actor: Any = trainer.actor.module
        end = trainer.tokenizer.eos_token_id
        stand_in = StandIn(actor, trainer.chat, end, scripts)

        def note(_: Any, __: Any, states: Tensor) -> None:
            if states.requires_grad:
                states.retain_grad()
                self.states.append(states)

        def batch(_: Any, given: tuple[Batch]) -> None:
            if torch.is_grad_enabled():
                self.batches.append(given[0])

        apply, prepare = Learner.apply, ppo.prepare

        def applied(learner: Learner, guard: Any) -> tuple[float, bool]:
            if learner.name == "actor":
                named = learner.module.named_parameters()
                self.gradients = {n: p.grad.clone() for n, p in named if p.grad is not None}
            return apply(learner, guard)

        def prepared(*given: Any) -> Prepared:
            self.prepared.append(prepare(*given))
            return self.prepared[-1]

        actor.model.model.norm.register_forward_hook(note)
        actor.register_forward_pre_hook(batch)
        with (
            patch.object(trainer, "_sampler", lambda _: stand_in),
            patch.object(Learner, "apply", applied),
            patch.object(ppo, "prepare", prepared),
        ):
            return trainer.run()


def train(folder: Path, url: str, reference: str, scripts: Any, request: Any) -> dict[str, Any]:
    """Plays an episode by each script and trains on them. Returns what came of each, once it was
    held against what has to be.
    """
    base, tasks = folder / "base", folder / "tasks.jsonl"
    tiny.make(base, [reference, *(t for s in scripts for t in s)], 20_000, 700, 1, 1 << 14)
    tasks.write_text(json.dumps({"id": "task", "code": reference}))
    settings = {
        "policy": str(base),
        "out": str(folder / "out"),
        "tasks": str(tasks),
        "environment": {"url": url, "request": {"strategy": "react", **request}},
        "steps": 1,
        "tasks_per_step": 1,
        "samples_per_task": len(scripts),
        "optimiser": {"lr": 1e-2},
        "ppo": {"critic_updates": 1},
        "bounds": {"kl_skip": 0, "kl_high": 0, "norm_skip": 0},
        "machine": {"device": "cpu", "threads": 1},
        "saving": {"every": 1, "tensorboard": False},
    }
    seen = Watched()
    code, lines = run(ppo.Settings, lambda s, stage: seen.run(s, stage, scripts), settings)
    assert code == 0, lines[-1]
    told = next(x["metrics"] for x in lines if x["event"] == "step")
    played = trajectories.read([folder / "out" / "trajectories"])
    assert told["reward"] == sum(e.reward or 0.0 for e in played) / len(played)
    check_what_was_said(played, scripts, base)
    check_rows(played)
    check_gradients(played, seen, base)
    before, after = (policy.load_actor(f, Lora()) for f in (base, folder / "out" / "policy"))
    assert any(
        not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)
    )
    return {
        "episodes": [
            {
                "id": e.name,
                "reward": e.reward,
                "status": (e.samples[-1].verdict or {}).get("status"),
                "contexts": contexts(e),
                "tokens": e.tokens,
            }
            for e in played
        ]
    }


def contexts(episode: Episode) -> list[str]:
    """Returns how each prompt goes with what was before it."""
    out = ["replace"]
    for a, b in zip(episode.samples, episode.samples[1:], strict=False):
        before = a.prompt_ids + a.response_ids
        out.append("append" if b.prompt_ids[: len(before)] == before else "replace")
    return out


def check_what_was_said(played: Sequence[Episode], scripts: Any, base: Path) -> None:
    """The trajectories hold what the policy said, all of it its own, and nothing else."""
    chat = Chat(policy.load_tokenizer(base))
    for episode, script in zip(played, scripts, strict=True):
        assert [chat.text(s.response_ids) for s in episode.samples] == list(script)
        assert all(set(s.response_mask) == {1} for s in episode.samples)
        assert [s.reward for s in episode.samples[:-1]] == [None] * (len(script) - 1)


def check_rows(played: Sequence[Episode]) -> None:
    """Each piece of context is a sequence of its own, which has its turns in their order."""
    for episode in played:
        rows = rows_of(episode)
        assert len(rows) == contexts(episode).count("replace") > 1
        own = [i for r in rows for i, m in zip(r.ids[r.start :], r.mask, strict=True) if m]
        assert own == [i for s in episode.samples for i in s.response_ids]
        assert any(0 in r.mask for r in rows)  # there is something of the environment between


def check_gradients(played: Sequence[Episode], seen: Watched, base: Path) -> None:
    """The loss sees the policy's tokens alone, each with its episode's reward, and its gradient is
    that of each call gone through by itself.
    """
    [p] = seen.prepared
    assert len(seen.batches) == len(seen.states) > 0
    for batch, states in zip(seen.batches, seen.states, strict=True):
        own = torch.zeros(states.shape[:2], dtype=torch.bool)
        own[batch.at[0], batch.at[1]] = True
        assert states.grad is not None
        reached = states.grad.abs().sum(-1) > 0
        assert reached.any() and not (reached & ~own).any()
    model = policy.load_actor(base, Lora())
    loss, at = torch.zeros(()), 0
    for episode in played:
        for s in episode.samples:
            n = len(s.response_ids)
            here = slice(at, at + n)
            assert torch.equal(p.returns[here], torch.full((n,), episode.reward))
            logits = model(input_ids=torch.tensor([s.prompt_ids + s.response_ids])).logits[0]
            logs = torch.log_softmax(logits[len(s.prompt_ids) - 1 : -1].float(), -1)
            said = logs.gather(-1, torch.tensor(s.response_ids)[:, None])[:, 0]
            # The ratio of a policy to itself is 1: nothing is clipped.
            loss = loss - (said * p.advantages[here] * p.weights[here] * p.mask[here]).sum()
            at += n
    assert at == len(p.advantages)
    (loss / at).backward()
    for name, q in Actor(model).named_parameters():
        assert q.grad is not None
        limit = 1e-3 * float(q.grad.abs().max()) + 1e-7
        assert torch.allclose(seen.gradients[name], q.grad, rtol=1e-3, atol=limit), name


def main() -> int:
    """Does it with a server that is there, and prints what came of it."""
    parser = argparse.ArgumentParser()
    for name in ("url", "reference", "scripts", "out"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    scripts = json.loads(Path(given.scripts).read_text())
    request = {"context_tokens": 16_000, "rounds": 5, "turns": 20, "judge": "none"}
    torch.set_num_threads(1)
    out = Path(given.out)
    found = train(out, given.url, Path(given.reference).read_text(), scripts, request)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
