"""What every construction gives weights that a candidate makes something of at construction.

Nobody can change such weights later (weights.py). A candidate may then rely on what all initial
ones have: one value, orthogonal rows, zeros in fixed places, elements that repeat, an order, or the
content of another weight. Trained ones have none of it. What is found here is moved at construction
where both sides construct it alike (construction.Breaks); the rest is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch

from kwharness.model import weights
from kwharness.model.construction import digest_of
from kwharness.numerics import input_structure

SIDE = 256  # rows and columns of a larger weight that are looked at
CHECKED = 2  # random vectors of which an orthogonal matrix keeps the lengths
ORTHOGONAL = "is orthogonal"
# Relative errors of a product, in steps of the numbers; and of what a long random row is off
# being orthogonal to others, as there chance brings it near.
STEPS, LONG = 32, 0.05


@dataclass
class Shared:
    """What all constructions have in common: ``names`` of weights, by what is said of them. The
    ``constant`` ones hold one content. ``alike`` are groups of weights that hold the same.
    """

    constant: list[str] = field(default_factory=list)
    says: dict[str, list[str]] = field(default_factory=dict)
    alike: list[list[str]] = field(default_factory=list)

    def names(self) -> list[str]:
        """Returns the weights of which anything is said."""
        groups = (self.constant, *self.says.values(), *self.alike)
        return sorted({name for group in groups for name in group})

    def still(self, before: Look, now: Look) -> Shared:
        """Returns what is left of it where these are two constructions under one seed, ``now`` with
        contents moved.
        """

        def as_before(names: Sequence[str]) -> list[str]:
            return [n for n in names if now.digests[n] == before.digests[n]]

        says = {what: same for what, names in self.says.items() if (same := as_before(names))}
        alike = [g for group in self.alike for g in _groups(group, now) if len(g) > 1]
        return Shared(as_before(self.constant), says, alike)

    def told(self) -> list[str]:
        """Returns what a candidate takes for granted that may use it, one sentence each."""
        told = [weights.never_drawn(self.constant)] if self.constant else []
        told += [weights.always_so(names, what) for what, names in self.says.items()]
        return told + [weights.always_alike(names) for names in self.alike]


@dataclass
class Look:
    """What is kept of one construction: of each weight, by name, parts of it, which content it is,
    and whether it is orthogonal.
    """

    parts: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    orthogonal: set[str] = field(default_factory=set)


def look(names: Sequence[str], state: Sequence[torch.Tensor], left: Set[str]) -> Look:
    """Looks at the weights of one construction: those that are left, and others of their size.
    Empty ones tell nothing, nor do whole numbers.
    """
    seen = Look()
    known = [(n, t) for n, t in zip(names, state, strict=True) if t.is_floating_point()]
    sizes = {t.numel() for n, t in known if n in left} - {0}
    for name, t in known:
        if t.numel() in sizes:
            seen.digests[name] = digest_of(t)
            if t.dim() == 2:  # or as it is transposed
                seen.digests[name] = min(seen.digests[name], digest_of(t.t()))
        if name in left and t.numel():
            seen.parts[name] = [part.clone() for part in _parts(t)]
            if _orthogonal(t):
                seen.orthogonal.add(name)
    return seen


def found(looks: Sequence[Look], left: Set[str], tied: Mapping[str, str]) -> Shared:
    """Returns what constructions under different seeds have in common. ``left``: the weights that
    nobody can change later. ``tied``: by name, the first weight in the same memory.
    """
    shared, last = Shared(), looks[-1]
    for name, parts in last.parts.items():
        if len({one.digests[name] for one in looks}) == 1:
            shared.constant.append(name)
            continue
        says = [ORTHOGONAL] if all(name in one.orthogonal for one in looks) else []
        for k in range(len(parts)):
            says += input_structure.of([[one.parts[name][k]] for one in looks])[0].says
        for what in dict.fromkeys(says):
            shared.says.setdefault(what, []).append(name)
    varied = [n for n in last.digests if n not in shared.constant]
    for group in _groups(varied, last):
        if len({tied[n] for n in group}) > 1 and not left.isdisjoint(group):
            shared.alike.append(group)
    return shared


def _groups(names: Sequence[str], seen: Look) -> list[list[str]]:
    """Returns names by what they hold."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[seen.digests[name]].append(name)
    return list(groups.values())


def _parts(t: torch.Tensor) -> list[torch.Tensor]:
    """Returns a weight as it is, or of a large one some columns, some rows and a corner."""
    if t.dim() < 2:
        return [t.reshape(-1)[: SIDE * SIDE]]
    flat = t.flatten(1)
    if max(flat.shape) <= SIDE:
        return [t]
    most = SIDE * SIDE
    columns = max(most // len(flat), 1)
    rows = max(most // flat.shape[1], 1)
    return [flat[:most, :columns], flat[:rows, :most], flat[:SIDE, :SIDE]]


def _orthogonal(t: torch.Tensor) -> bool:
    """Whether the rows of a matrix, or its columns, are orthogonal and of one length."""
    if t.dim() < 2:
        return False
    m = t.detach().flatten(1).double()
    m = m if m.shape[0] <= m.shape[1] else m.t()
    if len(m) < 2:
        return False
    g = torch.Generator("cpu").manual_seed(len(m))
    v = torch.randn(len(m), CHECKED, generator=g, dtype=torch.float64).to(m.device)
    back = m @ (m.t() @ v)
    scale = (back * v).sum() / (v * v).sum()
    error = float((back - scale * v).norm() / back.norm().clamp_min(1e-300))
    near = LONG * (m.shape[0] / m.shape[1]) ** 0.5
    return error < min(STEPS * torch.finfo(t.dtype).eps, near)
