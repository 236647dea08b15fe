"""What the answers of workers say, read: the modes of a forward, and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kwharness.base import operations
from kwharness.base.tensors import DTYPES, Spec
from kwharness.clients import client, errors
from kwharness.model import weights
from kwharness.numerics.rounding import Source


@dataclass
class ModeAnswer:
    """What a forward gives in one mode: an error, or tensors."""

    mode: str
    error: errors.WorkerError | None = None
    tensors: list[torch.Tensor] = field(default_factory=list)
    sources: list[Source | None] = field(default_factory=list)  # one a tensor
    tree: Any = None
    aliases: list[int] = field(default_factory=list)  # the input that each lies in, or -1
    decisions: int | None = None

    def copied(self) -> ModeAnswer:
        """Returns it with tensors that are the caller's."""
        sources = [None if s is None else s.copied() for s in self.sources]
        return replace(self, tensors=[t.clone() for t in self.tensors], sources=sources)


def weight_entries(
    names: Sequence[str], state: Sequence[torch.Tensor], constants: Sequence[Any]
) -> list[weights.Entry]:
    def number(c: Any) -> float | None:
        whole = isinstance(c, int) and abs(c) < 1 << 53
        return float(c) if whole or isinstance(c, float) else None

    found = zip(names, state, constants, strict=True)
    return [weights.Entry(n, t, number(c)) for n, t, c in found]


def like_spec(spec: Spec) -> torch.Tensor:
    """Returns a tensor without content, of which a worker has said what it is."""
    if len(spec.shape) > client.MAX_DIMS or spec.numel > client.MAX_OUTPUT:
        raise ValueError("a weight that no memory holds")
    try:
        return torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device="meta")
    except RuntimeError as e:
        raise ValueError("a weight of no shape") from e


def reshaped(
    tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> errors.WorkerError | None:
    """Returns what is wrong with a reference that gives tensors of other shapes another time."""
    message = ""
    if len(tensors) != len(others):
        message = (
            f"has a number of outputs that depends on values: {len(tensors)}, then {len(others)}"
        )
    for i, (a, b) in enumerate(zip(tensors, others, strict=False)):
        if a.shape != b.shape and not message:
            found = f"output {i} has {list(a.shape)}, then {list(b.shape)}"
            message = f"has a shape that depends on values: {found}"
    if not message:
        return None
    return errors.WorkerError(operations.Failure("ValueError", message, stage="output_shape"))
