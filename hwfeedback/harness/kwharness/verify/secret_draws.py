"""Inputs under secret seeds, and the memory that they take."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch

from kwharness.base.calibration import FamilyCalibration
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import WorkerError, ran_out
from kwharness.clients.reference_client import ReferenceClient
from kwharness.machine.device import Device
from kwharness.model.construction import SPREAD
from kwharness.numerics import (
    families,
    input_structure,
    norms,
)
from kwharness.numerics.families import (
    Family,
    Traits,
)

KEPT_BYTES = 1 << 30  # of all draws of an evaluation; past this they are drawn again at each use
# A reference may take so many times what a call has, and a candidate keeps nothing of the last one
# where there is less, or where that was not enough.
ROOM_TO_COMPUTE = 4
# There is so much, in calls, when a candidate is called: else the reference keeps nothing.
ROOM_TO_CALL = 2
# Where so many times what a call has are free, blocks can stay for the next call, and where so many
# are, still stay: what comes and goes takes tens of ms, and longer while other GPUs' does the same.
ROOMY = 8, 4
SEEDS_PER_FAMILY = {"quick": 1, "certify": 3}
AGAIN = 16  # times that one wrong in a timed call is asked: a race would show
Fresh = Callable[[], CandidateClient]


def secret() -> int:
    """A seed from the operating system that no worker can predict."""
    return int.from_bytes(os.urandom(6), "big")


@dataclass
class Job:
    """One comparison: a family's inputs, made from a draw."""

    family: Family
    known: FamilyCalibration
    tree: Any
    inputs: Sequence[torch.Tensor]
    again: Remade | None = None  # the inputs, in no memory

    def remade(self) -> Job:
        """Returns the job with inputs that lie in memory."""
        return replace(self, inputs=list(self.inputs))


class Room:
    """Whether there is room for a reference's blocks to stay from one request to the next."""

    def __init__(self) -> None:
        self._least: float = ROOMY[0]
        self.stays = False  # there was, when somebody looked last

    def there(self, device: Device, call_bytes: int) -> bool:
        """Looks. Where there was too little once there is none any more."""
        self.stays = device.room()[0] > self._least * call_bytes
        self._least = ROOMY[1] if self.stays else math.inf
        return self.stays

    def close(self) -> None:
        """Somebody needs it."""
        self._least, self.stays = math.inf, False


class Draw:
    """One draw of inputs, in the referee's private memory or made anew whenever it is needed."""

    def __init__(self, reference: ReferenceClient, seed: int, *, kept: bool) -> None:
        """One that is not ``kept`` asks the reference, which must not be at work then."""
        self._reference = reference
        self._seed = seed
        self._kept: tuple[Any, list[torch.Tensor]] | None = None
        self._like: tuple[Any, int] | None = None  # its tree, and how many tensors
        if kept:
            self._kept = reference.draw(seed)

    @property
    def kept(self) -> bool:
        return self._kept is not None

    def get(self) -> tuple[Any, list[torch.Tensor]]:
        tree, tensors = self._kept or self._reference.draw(self._seed)
        self._like = tree, len(tensors)
        return tree, tensors

    def __len__(self) -> int:
        return self._like[1] if self._like is not None else len(self.tensors)

    @property
    def tree(self) -> Any:
        return self._like[0] if self._like is not None else self.get()[0]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return self.get()[1]


class Remade(Sequence[torch.Tensor]):
    """A family's inputs, made from a draw whenever they are needed, all of them at once."""

    def __init__(self, draw: Draw, family: Family, seed: int, traits: Traits) -> None:
        self._draw, self._family, self._seed, self._traits = draw, family, seed, traits

    @property
    def base(self) -> list[torch.Tensor]:
        """The draw that they are made from."""
        return self._draw.tensors

    def made(self) -> list[torch.Tensor]:
        """Makes them."""
        return families.apply(self._family, self._draw.tensors, self._seed, self._traits)

    def other(self) -> Remade:
        """Returns others, made from the same draw."""
        return Remade(self._draw, self._family, secret(), self._traits)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.made())

    def __len__(self) -> int:
        return len(self._draw)

    @overload
    def __getitem__(self, i: int) -> torch.Tensor: ...

    @overload
    def __getitem__(self, i: slice) -> list[torch.Tensor]: ...

    def __getitem__(self, i: int | slice) -> torch.Tensor | list[torch.Tensor]:
        return self.made()[i]


def draw_many(reference: ReferenceClient, count: int) -> list[Draw]:
    """Returns draws under secret seeds. The first, which is used most, is kept where memory is not
    spared.
    """
    first = Draw(reference, secret(), kept=not reference.sparing)
    if reference.sparing:
        kept = False
    else:
        size = sum(t.numel() * t.element_size() for t in first.tensors)
        kept = count * size <= KEPT_BYTES
    return [first, *(Draw(reference, secret(), kept=kept) for _ in range(count - 1))]


def some_draws(reference: ReferenceClient) -> list[list[torch.Tensor]]:
    """Returns draws under secret seeds, which what the file seeds by itself gets, too: as many as
    show what all share, one where there is no room for so many, or where other seeds make it raise.
    """
    try:
        return _reseeded(reference)
    except WorkerError as e:
        if ran_out(e) or e.ill:
            raise
        return [reference.draw(secret())[1]]


def _reseeded(reference: ReferenceClient) -> list[list[torch.Tensor]]:
    first = reference.draw(secret(), reseeded=True)[1]
    count = input_structure.count_of(first)
    needs = 2 * count * sum(t.numel() * t.element_size() for t in first)
    if not any(t.is_floating_point() for t in first):
        return [first]
    if not reference.sparing:
        return [first, *reference.draws([secret() for _ in range(count - 1)], reseeded=True)[1]]
    if reference.device.room()[0] < needs:
        return [first]
    return [first, *(reference.draw(secret(), reseeded=True)[1] for _ in range(count - 1))]


def perturbed(
    state: Sequence[torch.Tensor], moved: Sequence[bool], tied: Sequence[int], seed: int
) -> list[torch.Tensor]:
    """Returns weights that nothing baked in at construction can know.

    What is not ``moved`` stays: a buffer that is a mask is no weight. What is nowhere negative
    stays so: a variance. What is ``tied`` to an earlier one is moved with it.
    """
    g = torch.Generator(state[0].device if state else "cpu").manual_seed(seed)
    out: list[torch.Tensor] = []
    for i, (t, may) in enumerate(zip(state, moved, strict=True)):
        if tied[i] < i:
            out.append(out[tied[i]])
            continue
        if not may or not t.is_floating_point() or not t.numel():
            out.append(t)
            continue
        rms = norms.scale_of(t).rms or 1.0
        moves = torch.randn(t.shape, generator=g, device=t.device).mul_(SPREAD * rms)
        now = moves.to(t.dtype).add_(t)
        out.append(now.abs_() if bool((t >= 0).all()) and bool(t.any()) else now)
    return out


def zero_one(state: Sequence[torch.Tensor], trainable: Sequence[bool]) -> list[torch.Tensor]:
    return [
        (t > 0).to(t.dtype) if may and t.is_floating_point() else t
        for t, may in zip(state, trainable, strict=True)
    ]
