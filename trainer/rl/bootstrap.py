"""Supervised training on pairs of a prompt and an answer, from a base or from nothing.

    python -m rl.bootstrap --config bootstrap.json

pairs.py says what pairs are.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl import policy, supervised, tiny
from rl.errors import BadInput
from rl.pairs import read_pairs, rows_of_pairs, texts_of
from rl.stage import Stage
from rl.supervised import Supervised


@dataclass(frozen=True)
class Settings(Supervised):
    """``pairs``: files of JSON lines. ``base``: a policy's folder or a GGUF file; empty makes a
    tiny one of ``parameters`` from nothing, whose tokenizer is trained on the pairs.
    """

    pairs: list[str] = field(default_factory=list)
    out: str = ""
    base: str = ""
    parameters: int = 1_000_000
    vocabulary: int = 1024
    layers: int = 4
    context: int = 4096


def run(settings: Settings, stage: Stage) -> dict[str, Any]:
    """Trains on the pairs. Returns what the end event says."""
    if not settings.pairs:
        raise BadInput("there are no pairs to train on", "name files of JSON lines as pairs")
    pairs = [p for path in settings.pairs for p in read_pairs(Path(path))]
    if settings.base:
        base = policy.resolve(settings.base, stage.out)
    else:
        base = stage.out / "base"
        if stage.first and not (base / "tokenizer_config.json").exists():
            made = tiny.make(
                base,
                texts_of(pairs),
                settings.parameters,
                settings.vocabulary,
                settings.layers,
                settings.context,
                settings.seed,
            )
            stage.note(f"made a policy of {made} parameters from nothing")
        stage.world.any(False)  # wait until it is there
    tokenizer = policy.load_tokenizer(base)
    stage.tell("start", stage="bootstrap", pairs=len(pairs), base=str(base))
    rows = rows_of_pairs(pairs, tokenizer, whole=not settings.base)
    return supervised.train(rows, base, settings, stage)


if __name__ == "__main__":
    from rl.stage import main

    sys.exit(main(Settings, run))
