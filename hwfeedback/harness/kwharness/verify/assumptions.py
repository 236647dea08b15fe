"""What a candidate takes for granted of what get_inputs() never varies.

Families map floating inputs and keep their structure. What is left (whole numbers, booleans,
scalars, constant buffers, the structures themselves) a candidate may have baked in, and be right on
all that was drawn. Here it is changed, and what a candidate is wrong on then is told in words. It
convicts nobody, unless ``strict_inputs`` asks for that (docs/verdict.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kwharness.base.calibration import Calibration
from kwharness.base.for_reference import Weights
from kwharness.clients.reference_client import ReferenceClient
from kwharness.numerics import correctness, norms
from kwharness.numerics.correctness import Expected
from kwharness.numerics.input_structure import FEW, Structure, shuffled
from kwharness.verify import calibration

NO_NAN = (
    "takes for granted that no input is NaN: where one is, it gives what a number far away would "
    "give in its place"
)
NO_INFINITY = (
    "takes for granted that no input is infinite: where one is, it gives NaN in the place of "
    "infinity"
)
# Times a number that is drawn once and for all; the first that the output shows.
FACTORS = (0.5, 2.0, 1000.0)
STEPS = (1, -1)  # likewise, of a whole number


@dataclass(frozen=True)
class Case:
    """What a reference is asked: containers, tensors, and its weights and buffers."""

    tree: Any
    tensors: list[torch.Tensor]
    state: list[torch.Tensor]


@dataclass(frozen=True)
class Change:
    """One thing that is made otherwise than it is always drawn."""

    key: str  # the same in each evaluation of a task
    name: str  # of the input, the scalar or the buffer
    takes: str  # what a candidate takes for granted that is wrong then
    ways: Sequence[Callable[[Case, torch.Generator], Case]] = field(compare=False, default=())
    buffer: bool = False
    ignorable: bool = False  # it may be that the candidate does not look at it at all

    def told(self, ignored: bool) -> str:
        if ignored and self.ignorable:
            return f"takes {self.name} for granted: what it gives does not depend on it"
        return self.takes


def changes_of(
    case: Case,
    arguments: Sequence[str],
    structures: Sequence[Structure],
    names: Sequence[str],
    fixed: Sequence[bool],
) -> list[Change]:
    """Returns what can be changed of a case. ``names`` and ``fixed`` are of its state: what is no
    weight and no statistic of a norm.
    """
    found: list[Change] = []
    for path, name, leaf in _leaves(case.tree, arguments):
        if "value" in leaf:
            found += _of_a_scalar(path, name, leaf["value"])
        elif "t" in leaf:
            i = leaf["t"]
            found += _of_a_tensor(i, name, case.tensors[i], structures[i] if structures else None)
    for i, (name, may) in enumerate(zip(names, fixed, strict=True)):
        if may and case.state[i].numel():
            takes = f"takes buffer {name} for granted"
            way = _at_state(i, _otherwise)
            found.append(Change(f"buffer:{i}", f"buffer {name}", takes, [way], buffer=True))
    return found


def _of_a_scalar(path: tuple[int, ...], name: str, value: Any) -> list[Change]:
    others: list[Any] = []
    if isinstance(value, bool):
        others = [not value]
    elif isinstance(value, int):
        others = [value + step for step in STEPS]
    elif isinstance(value, float):
        others = [value * f for f in FACTORS] if value else [0.5]
    ways = [_with_value(path, other) for other in others]
    key = "scalar:" + ".".join(map(str, path))
    return [Change(key, name, f"takes {name} = {value} for granted", ways)] if ways else []


def _of_a_tensor(i: int, name: str, t: torch.Tensor, s: Structure | None) -> list[Change]:
    if not t.numel() or t.is_complex():
        return []
    if t.is_floating_point():
        if not s:
            return []
        takes = "takes for granted that " + " and ".join(f"{name} {says}" for says in s.says)
        way = _at(i, s.broken)
        return [Change(f"structure:{i}", name, takes, [way], ignorable=s.stays)]
    takes = f"is right only for {name} like those drawn: with other values of its range it is wrong"
    ways = [_at(i, _otherwise), _at(i, shuffled), _at(i, _rows)]
    return [Change(f"values:{i}", name, takes, ways, ignorable=True)]


def _leaves(
    tree: Any, arguments: Sequence[str]
) -> Iterator[tuple[tuple[int, ...], str, dict[str, Any]]]:
    """Yields all that is no container, by its path: (where, its name, its node)."""
    top = next(iter(tree.values()))
    for i, node in enumerate(top):
        name = arguments[i] if i < len(arguments) else f"input {i}"
        yield from _below((i,), name, node)


def _below(
    path: tuple[int, ...], name: str, node: Any
) -> Iterator[tuple[tuple[int, ...], str, dict[str, Any]]]:
    kind, value = next(iter(node.items()))
    if kind in ("list", "tuple"):
        for i, x in enumerate(value):
            yield from _below((*path, i), f"{name}[{i}]", x)
    elif kind == "dict":
        for i, (key, x) in enumerate(value):
            yield from _below((*path, i), f"{name}[{key!r}]", x)
    else:
        yield path, name, node


# Ways to make a case otherwise.


def _with_value(path: tuple[int, ...], value: Any) -> Callable[[Case, torch.Generator], Case]:
    return lambda case, _: replace(case, tree=_put(case.tree, path, value))


def _put(node: Any, path: tuple[int, ...], value: Any) -> Any:
    if not path:
        return {"value": value}
    kind, parts = next(iter(node.items()))
    parts = list(parts)
    at, rest = path[0], path[1:]
    if kind == "dict":
        parts[at] = [parts[at][0], _put(parts[at][1], rest, value)]
    else:
        parts[at] = _put(parts[at], rest, value)
    return {kind: parts}


Make = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def _at(i: int, make: Make) -> Callable[[Case, torch.Generator], Case]:
    def change(case: Case, g: torch.Generator) -> Case:
        tensors = list(case.tensors)
        tensors[i] = make(tensors[i], g)
        return replace(case, tensors=tensors)

    return change


def _at_state(i: int, make: Make) -> Callable[[Case, torch.Generator], Case]:
    def change(case: Case, g: torch.Generator) -> Case:
        state = list(case.state)
        state[i] = make(state[i], g)
        return replace(case, state=state)

    return change


def _otherwise(t: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """Returns other content of the same range: numbers moved by up to a half; where there are few
    values, or only whole ones, these drawn anew among themselves, so that some come twice.
    """
    n = t.numel()
    if t.dtype is torch.bool or (t.is_floating_point() and len(torch.unique(t)) <= FEW):
        if bool((t == t.reshape(-1)[0]).all()):
            if t.is_floating_point():
                return t * 0.5 + 0.25
            if n == 1:
                return ~t
            return torch.rand(t.shape, generator=g, device=t.device) < 0.5
        return shuffled(t, g)
    if t.is_floating_point():
        moved = torch.rand(t.shape, generator=g, device=t.device, dtype=torch.float32) + 0.5
        return t * moved.to(t.dtype)
    low, high = int(t.min()), int(t.max())
    if low == high:  # lengths that are equal: shorter ones are there, too
        low, high = min(high // 2, high), max(high // 2, high)
        drawn = torch.randint(low, high + 1, t.shape, generator=g, device=t.device)
        return drawn.to(t.dtype)
    at = torch.randint(0, n, (n,), generator=g, device=t.device)
    out = t.reshape(-1)[at].view(t.shape)
    rows = t.narrow(-1, 0, t.shape[-1] - 1), t.narrow(-1, 1, t.shape[-1] - 1)
    if t.dim() == 1 and bool((rows[0] <= rows[1]).all()):  # offsets: their ends stay
        out = out.sort().values
        out[0], out[-1] = t[0], t[-1]
    return out


def _rows(t: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """Returns whole numbers with their rows in another order: columns may have ranges of their
    own.
    """
    order = torch.randperm(t.shape[0] if t.dim() else 1, generator=g, device=t.device)
    return t.index_select(0, order) if t.dim() else t


# Asking.


@dataclass
class Borne:
    """What the reference gives on a case that it bears."""

    expected: Expected
    tree: Any  # of its output
    aliases: list[int]


def bear(reference: ReferenceClient, c: Calibration, case: Case) -> Borne | None:
    """Returns what the reference, which has the case's state, gives on it; None where it raises or
    where float32 and float64 do not agree.
    """
    modes = ["wide", "eager"] if c.wide else ["eager"]
    answered = reference.forward(case.tree, case.tensors, modes, sources=True)
    results = {r.mode: r for r in answered}
    if any(r.error is not None for r in results.values()):
        return None
    eager = results["eager"]
    wide = results.get("wide", eager)
    tensors = [t.double() if t.is_floating_point() else t for t in wide.tensors]
    same = [t.shape for t in tensors] == [t.shape for t in eager.tensors]
    if not same or len(tensors) != len(c.base.outputs):
        return None
    decides = c.decides and not reference.sparing
    e = Expected(tensors, eager.tensors, wide.sources, decides=decides)
    correctness.complete(e)
    if wrong_on(c, e, eager.tensors) or any(_mostly(s) for s in e.skips):
        return None
    return Borne(e, eager.tree, eager.aliases)


def _mostly(skip: torch.Tensor | None) -> bool:
    return skip is not None and norms.count(skip) * 2 > skip.numel()


def wrong_on(c: Calibration, e: Expected, outputs: Sequence[torch.Tensor]) -> bool:
    """Whether outputs are not those that are expected."""
    if [t.shape for t in outputs] != [t.shape for t in e.wide]:
        return True
    known = c.base.outputs
    return not all(
        correctness.compare(t, e, i, known[i], calibration.floor(c, i).max).passed
        for i, t in enumerate(outputs)
    )


def probe(
    reference: ReferenceClient, c: Calibration, base: Case, changes: Sequence[Change], seed: int
) -> dict[str, int]:
    """Returns by key the first way to make each change that the reference, which has the base
    case's state, bears, and shows. Raises what the reference's client raises.
    """
    first = bear(reference, c, base)
    borne: dict[str, int] = {}
    if first is None:
        return borne
    for change in changes:
        for k, way in enumerate(change.ways):
            case = way(base, generator(base, seed))
            if change.buffer:
                reference.set_state(case.state)
            other = bear(reference, c, case)
            if other is not None and wrong_on(c, first.expected, other.expected.eager or []):
                borne[change.key] = k
                break
    if any(change.buffer for change in changes):
        reference.set_state(base.state)
    return borne


def constant(info: Weights, carried: Sequence[str] = ()) -> list[bool]:
    """Returns which entries of a reference's state no forward and no training changes. ``carried``
    are the names of what a forward does change.
    """
    entries = zip(info.names, info.trainable, info.moved, strict=True)
    return [not (trained or moved or name in carried) for name, trained, moved in entries]


def generator(case: Case, seed: int) -> torch.Generator:
    """Returns a generator on the device of a case's tensors."""
    tensors = [*case.tensors, *case.state]
    return torch.Generator(tensors[0].device if tensors else "cpu").manual_seed(seed)
