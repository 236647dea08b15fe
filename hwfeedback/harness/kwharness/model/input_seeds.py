"""Seeds that a reference's get_inputs() sets by itself, replaced by ours.

A file that seeds its inputs gives the same ones in every draw. What else they have in common, all
inputs of this kind, shows only where the seeds that it asks for lead elsewhere.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch


@contextmanager
def ours(seed: int) -> Iterator[None]:
    """Within this a seed that is asked for is mixed with ``seed``: the same two give the same."""

    def mixed(asked: Any) -> int:
        return hash((seed, asked)) % (1 << 62) if isinstance(asked, int) else seed % (1 << 62)

    def by(real: Callable[..., Any], limit: int = 1 << 62) -> Callable[..., Any]:
        def seeded(asked: Any = None, *more: Any, **named: Any) -> Any:
            return real(mixed(asked) % limit, *more, **named)

        return seeded

    class Generator(torch.Generator):
        def manual_seed(self, asked: int) -> torch.Generator:
            super().manual_seed(mixed(asked))
            return self

    numpy: Any = sys.modules.get("numpy")
    with ExitStack() as stack:

        def replace(where: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, value))

        seeded = by(torch.random.manual_seed)
        for where in (torch, torch.random):
            replace(where, "manual_seed", seeded)
        for name in ("manual_seed", "manual_seed_all"):
            replace(torch.cuda, name, by(getattr(torch.cuda, name)))
        replace(torch, "Generator", Generator)
        replace(random, "seed", by(random.seed))
        if numpy is not None:
            replace(numpy.random, "seed", by(numpy.random.seed, 1 << 32))
            replace(numpy.random, "default_rng", by(numpy.random.default_rng))

            class RandomState(numpy.random.RandomState):
                def __init__(self, asked: Any = None) -> None:
                    super().__init__(mixed(asked) % (1 << 32))

            replace(numpy.random, "RandomState", RandomState)
        yield
