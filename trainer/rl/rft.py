"""Rejection fine-tuning: supervised training on trajectories that were rewarded.

    python -m rl.rft --config rft.json

Kept are episodes whose reward is above ``above``, in which no turn was invalid, looped, said what
an earlier turn had said, or was cut by a limit; of equal ones of a task one. Pairs of a prompt and
an answer are learnt from as they are: of models that give no token ids, or other ones.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl import policy, supervised, trajectories
from rl.batch import rows_of
from rl.errors import BadInput
from rl.metrics import answers, looping
from rl.pairs import read_pairs, rows_of_pairs
from rl.settings import Optimiser, require
from rl.stage import Stage
from rl.supervised import Supervised
from rl.trajectories import CUT, Episode


@dataclass(frozen=True)
class Settings(Supervised):
    """``policy``: the folder to train on; ``pairs``: files of JSON lines as rl.pairs reads
    them; ``per_task``: the most episodes of one task, the best rewarded first, 0 for all.
    ``may_be_none``: where there is nothing to learn from, the stage ends without a policy; else
    that is bad input.
    """

    policy: str = ""
    out: str = ""
    trajectories: list[str] = field(default_factory=list)
    pairs: list[str] = field(default_factory=list)
    above: float = 0.0
    per_task: int = 0
    may_be_none: bool = False
    epochs: int = 1
    optimiser: Optimiser = field(
        default_factory=lambda: Optimiser(lr=1e-5, warmup=10, schedule="cosine")
    )


def fault(episode: Episode, above: float) -> str:
    """Returns why an episode is not learnt from, empty where it is."""
    if episode.reward is None:
        return "infrastructure error"
    if episode.reward <= above:
        return "reward"
    samples = episode.samples
    if any(s.finish_reason in CUT for s in samples):
        return "cut by a limit"
    if any(s.invalid for s in samples):
        return "invalid turn"
    said = [tuple(s.response_ids) for s in samples]
    if len(set(said)) < len(said) or any(looping(ids) for ids in said):
        return "looping turn"
    return ""


def select(
    episodes: Sequence[Episode], above: float, per_task: int
) -> tuple[list[Episode], dict[str, int]]:
    """Returns the episodes to learn from, and how many were left out for each reason."""
    kept: list[Episode] = []
    why: Counter[str] = Counter()
    of_task: Counter[str] = Counter()
    seen = set()
    for e in sorted(episodes, key=lambda e: -(e.reward or 0.0)):
        reason = fault(e, above)
        if not reason and answers(e) in seen:
            reason = "said before"
        if not reason and 0 < per_task <= of_task[e.task]:
            reason = "task has enough"
        if reason:
            why[reason] += 1
            continue
        seen.add(answers(e))
        of_task[e.task] += 1
        kept.append(e)
    return kept, dict(why)


def run(settings: Settings, stage: Stage) -> dict[str, Any]:
    """Runs the stage."""
    require(bool(settings.policy), "policy is empty", "name the folder of a policy")
    base = policy.resolve(settings.policy, stage.out)
    tokenizer = policy.load_tokenizer(base)
    found = trajectories.read(settings.trajectories, len(tokenizer))
    kept, why = select(found, settings.above, settings.per_task)
    pairs = [p for path in settings.pairs for p in read_pairs(Path(path))]
    counts = {"episodes": len(found), "kept": len(kept), "left_out": why, "pairs": len(pairs)}
    stage.tell("start", stage="rft", **counts)
    if not kept and not pairs and settings.may_be_none:
        return {**counts, "steps": 0}
    if not kept and not pairs:
        raise BadInput(
            f"none of {len(found)} episodes can be learnt from: {why}",
            "collect more, or train the policy before that",
        )
    rows = [r for i, e in enumerate(kept) for r in rows_of(e, i)]
    done = supervised.train(rows + rows_of_pairs(pairs, tokenizer), base, settings, stage)
    return {**counts, **done}


if __name__ == "__main__":
    from rl.stage import main

    sys.exit(main(Settings, run))
