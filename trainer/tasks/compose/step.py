"""One use of an operator: its parameters drawn, callable on tensors, written as source."""

from __future__ import annotations

import importlib
import inspect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import rules
from rules import NoFit, Place

# How often a boundary of a sequence of features is another tensor's, by role: see ROLES.
WIDTHS = (32, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class Role:
    """What a further tensor of an operator is: its shape from the first one's, and its content."""

    shape: Callable[[tuple[int, ...], int], tuple[int, ...]]  # of x's shape and a drawn width
    draw: str = "randn"  # "randn", "rand", "labels", "mask", "signs"
    weight: bool = False  # may be a parameter of the model


def _labels(s: tuple[int, ...], _: int) -> tuple[int, ...]:
    if len(s) < 2:
        raise NoFit("no classes")
    return (s[0], *s[2:])


def _row(s: tuple[int, ...], _: int) -> tuple[int, ...]:
    if s[-1] < 2:
        raise NoFit("no row")
    return (s[-1],)


def _rows(s: tuple[int, ...], _: int) -> tuple[int, ...]:
    return s[:-1]


def _matrix(s: tuple[int, ...], n: int) -> tuple[int, ...]:
    if len(s) < 2:
        raise NoFit("no matrix")
    return (s[-1], n)


def _linear(s: tuple[int, ...], n: int) -> tuple[int, ...]:
    if len(s) < 2:
        raise NoFit("no matrix")
    return (n, s[-1])


def _batched(s: tuple[int, ...], n: int) -> tuple[int, ...]:
    if len(s) < 3:
        raise NoFit("no batch of matrices")
    return (*s[:-2], s[-1], n)


def _channel(s: tuple[int, ...], _: int) -> tuple[int, ...]:
    if len(s) < 3:
        raise NoFit("no channels")
    return (s[1], *(1 for _ in s[2:]))


ROLES: dict[str, Role] = {
    "same": Role(lambda s, _: s),
    "row": Role(_row, weight=True),
    "channel": Role(_channel, weight=True),
    "matrix": Role(_matrix, weight=True),
    "linear": Role(_linear, weight=True),
    "batched": Role(_batched),
    "positive": Role(lambda s, _: s, "rand"),
    "unit": Role(lambda s, _: s, "rand"),
    "mask": Role(lambda s, _: s, "mask"),
    "labels": Role(_labels, "labels"),
    "signs": Role(lambda s, _: s, "signs"),
    "sign_rows": Role(_rows, "signs"),
    "sign_batch": Role(lambda s, _: (s[0],), "signs"),
}
# Which roles are tried for a tensor parameter of that name, in this order; else OTHERS.
ROLES_OF: dict[str, tuple[str, ...]] = {
    "target": ("same", "labels", "signs", "sign_rows", "sign_batch", "positive", "unit"),
    "condition": ("mask",),
    "mask": ("mask",),
    "weight": ("row", "linear", "same"),
    "mat2": ("matrix", "batched"),
    "batch2": ("batched",),
    "vec": ("row",),
    "vec2": ("row",),
    "var": ("positive",),
    "key": ("same",),
    "value": ("same",),
}
# The same of one kind.
ROLES_OF_KIND: dict[str, tuple[str, ...]] = {
    "linear": ("linear",),
    "matmul": ("batched", "matrix"),
    "div": ("positive",),
}
OTHERS = ("same", "matrix", "batched", "row", "channel")
X_NAMES = ("input", "self", "x", "tensor", "src", "query", "input1", "x1", "anchor", "mat1")
AGAIN = {"key", "value"}  # of attention as a module: the same tensor once more


def roles_of(kind: str, name: str) -> tuple[str, ...]:
    """Returns what a tensor parameter may be, in the order in which it is tried."""
    return ROLES_OF_KIND.get(kind) or ROLES_OF.get(name, OTHERS)


# Kinds whose second operand is as often a number, or a row or channel that is broadcast.
BROADCAST = {"add", "sub", "mul", "div", "maximum", "minimum"}
NUMBERS = {"add", "sub", "mul", "div"}


@dataclass
class Tensor:
    """A further tensor of a step."""

    role: str
    width: int
    classes: bool = False
    weight: bool = False  # a parameter of the model, not an input

    def shape(self, x: tuple[int, ...]) -> tuple[int, ...]:
        return ROLES[self.role].shape(x, self.width)

    def make(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        shape, draw = self.shape(tuple(x.shape)), ROLES[self.role].draw
        if x.is_meta:
            kinds = {"labels": torch.int64, "mask": torch.bool}
            return torch.empty(shape, dtype=kinds.get(draw, dtype), device="meta")
        if draw == "labels":
            return torch.randint(0, max(1, x.shape[1]), shape)
        if draw == "mask":
            return torch.rand(shape) > 0.5
        if draw == "signs":
            return torch.sign(torch.randn(shape)).to(dtype)
        if self.weight:
            return (torch.randn(shape) / math.sqrt(shape[-1])).to(dtype)
        return (torch.rand(shape) + 0.1 if draw == "rand" else torch.randn(shape)).to(dtype)


@dataclass
class Step:
    """An operator with all that is needed to call it."""

    path: str  # "torch.nn.GELU", "torch.nn.functional.gelu", "torch.cumsum"
    kind: str
    form: str  # "module" or "function"
    arguments: dict[str, Any] = field(default_factory=dict)  # what is no tensor
    tensors: dict[str, Tensor] = field(default_factory=dict)  # further ones, by parameter
    again: tuple[str, ...] = ()  # parameters that are the first tensor once more
    first: bool = False  # the result is a tuple, of which the first counts
    listed: bool = False  # tensors are handed over as a list
    leading: tuple[
        str, ...
    ] = ()  # tensors that come right after the first, in a function's signature

    def bind(self, dtype: torch.dtype, device: str) -> Callable[..., Any]:
        """Returns what is called with the tensors. A module's is made here."""
        target = resolve(self.path)
        if self.form == "module":
            return target(**self.arguments).to(device=device, dtype=dtype).eval()

        def call(x: torch.Tensor, **tensors: torch.Tensor) -> Any:
            if self.listed:
                return target([x, *tensors.values()], **self.arguments)
            rest = {n: t for n, t in tensors.items() if n not in self.leading}
            return target(x, *(tensors[n] for n in self.leading), **rest, **self.arguments)

        return call

    def run(self, x: torch.Tensor, extra: dict[str, torch.Tensor], bound: Any) -> torch.Tensor:
        given = dict(extra) | dict.fromkeys(self.again, x)
        if self.form == "module":
            out = bound(*self.positional(x, given))
        else:
            out = bound(x, **given)
        return out[0] if self.first else out

    def positional(self, x: Any, given: dict[str, Any]) -> Sequence[Any]:
        """Returns a module's arguments in the order of its forward."""
        names = [n for n in forward_names(resolve(self.path))[1:] if n in given]
        return [x, *(given[n] for n in names)]


def seeded(seed: int) -> None:
    """Has what is random on the CPU begin anew. ``torch.manual_seed`` prepares every other device,
    too, with a look at who asks: most of what probing operators would take.
    """
    torch.default_generator.manual_seed(seed)


def resolve(path: str) -> Any:
    """Returns what a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def forward_names(cls: type) -> list[str]:
    """Returns the names of a module's tensors: those of forward that must be given."""
    found = inspect.signature(cls.forward).parameters  # type: ignore[attr-defined]
    return [
        n
        for n, q in found.items()
        if n != "self"
        and q.default is q.empty
        and q.kind in (q.POSITIONAL_ONLY, q.POSITIONAL_OR_KEYWORD)
    ]


def draw_arguments(
    entry: dict[str, Any], shape: tuple[int, ...], rng: random.Random
) -> dict[str, Any]:
    """Returns values for an operator's parameters on a shape. Raises NoFit."""
    place = Place(rng, shape, entry["kind"])
    left = rules.LEFT.get(entry["kind"], set())
    for p in entry["parameters"]:
        name, needed = p["name"], p["needed"]
        rule = rules.rule_for(entry["kind"], name)
        if rule is None:
            if needed:
                raise NoFit(f"parameter {name} has no rule")
            continue
        if entry["form"] == "function" and name in rules.TENSORS:
            continue
        if not needed and (name in left or rng.random() >= rules.OPTIONAL.get(name, 0.0)):
            continue
        place.drawn[name] = rule(place)
    return place.drawn


def draw_step(
    entry: dict[str, Any], shape: tuple[int, ...], rng: random.Random, width: int = 0
) -> Step:
    """Returns a use of a catalogue entry on a tensor of that shape. Raises NoFit."""
    arguments = draw_arguments(entry, shape, rng)
    tensors = {}
    kind, leading = entry["kind"], list(entry.get("leading", ()))
    for name, role in entry["roles"].items():
        if kind in NUMBERS and len(entry["roles"]) == 1 and rng.random() < 0.4:
            arguments = {name: _number(kind, rng)}
            leading.remove(name)
            continue
        if kind in BROADCAST and role == "same" and rng.random() < 0.6:
            role = "channel" if len(shape) > 3 else "row"
        may = ROLES[role].weight
        tensors[name] = Tensor(
            role,
            width or rng.choice(WIDTHS),
            weight=may and (role == "linear" or rng.random() < 0.7),
        )
        tensors[name].shape(shape)
    return Step(
        entry["path"],
        entry["kind"],
        entry["form"],
        arguments,
        tensors,
        tuple(entry["again"]),
        entry["first"],
        entry["listed"],
        tuple(leading),
    )


def _number(kind: str, rng: random.Random) -> float:
    if kind in ("mul", "div"):
        return rng.choice([0.5, 2.0, round(rng.uniform(0.1, 4.0), 2)])
    return round(rng.uniform(-2.0, 2.0), 2) or 1.0
