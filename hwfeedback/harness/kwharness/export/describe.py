"""What is known of a file that is handed out, as annotate.py writes it down: the referee's side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kwharness.base.for_reference import Constructed
from kwharness.base.requests import Request
from kwharness.export.file_facts import About, Tensor, signature
from kwharness.machine import device as devices
from kwharness.model import weights
from kwharness.numerics import families

Call = tuple[Any, Sequence[torch.Tensor]]  # a tree, and its tensors


@dataclass(frozen=True)
class Free:
    """Inputs' dimensions that have one size together, which may be another than the reference's:
    one of ``right``, or ``any``.
    """

    name: str
    dims: families.Axis
    right: list[int]
    any: bool


def about(
    request: Request,
    reference: Constructed,
    plan: weights.Plan,
    inputs: Call,
    outputs: Sequence[torch.Tensor],
    tried: Mapping[families.Shape, bool] | None,
    orders: Sequence[Sequence[int]] = (),
    *,
    made: bool = True,
) -> About:
    """``request``: to evaluate. ``reference``: what its worker says of it. ``tried``: other
    shapes of the inputs, and whether the candidate is right there; None: that is not known yet.
    ``orders``: strides of the inputs that are not contiguous (tensors.orders_of).
    ``made``: whether it has the reference's weights once it is constructed.
    """
    task, (tree, tensors), told = request.task, inputs, reference.weights
    sizes = free(tried or {})
    name = {axis: f.name for f in sizes for axis in f.dims}
    listed = [
        Tensor(
            argument=argument,
            path=path,
            dtype=_dtype(tensors[i]),
            shape=list(tensors[i].shape),
            free=[name.get((i, d)) for d in range(tensors[i].dim())],
            order=_order(tensors[i], orders[i] if i < len(orders) else ()),
        )
        for i, argument, path in _places(tree)
    ]
    return About(
        task=task.name or "task",
        reference=task.source,
        operators=task.operators,
        inputs=listed,
        arguments=len(tree["list"]),
        forward=signature(told.forward),
        init=reference.init["list"],
        constructor=signature(told.constructor),
        weights=list(told.names),
        outputs=[f"{_dtype(t)} {tuple(t.shape)}" for t in outputs],
        device=devices.class_of(request.workplace.kind).torch.type,
        machine=request.specs.model,
        tried={f.name: f.right for f in sizes},
        only=[f.name for f in sizes if not f.any],
        rebuilds=made and plan.to_rebuild,
        takes=plan.itself,
        made=made,
        loads=plan.loads,
        open=tried is None,
        version=request.kernelwright_version,
    )


def free(tried: Mapping[families.Shape, bool]) -> list[Free]:
    """Returns the dimensions that may have other sizes: any where all that were tried are right,
    else those among them that are.
    """
    sizes: dict[families.Axis, dict[int, bool]] = {}
    for shape, right in tried.items():
        sizes.setdefault(shape.dims, {})[shape.size] = right
    found: list[Free] = []
    taken: set[tuple[int, int]] = set()
    for dims, of in sizes.items():
        if not any(of.values()) or taken & set(dims):
            continue
        taken |= set(dims)
        name = "batch" if all(d == 0 for _, d in dims) else "width"
        name += str(len(found)) if name in [f.name for f in found] else ""
        found.append(Free(name, dims, sorted(n for n in of if of[n]), all(of.values())))
    return found


def _places(tree: Any) -> Iterator[tuple[int, int, list[str | int]]]:
    """Gives of each tensor of a call its number, its argument, and where in that it lies."""
    for argument, part in enumerate(tree["list"]):
        yield from ((i, argument, path) for i, path in _within(part, []))


def _within(tree: Any, path: list[str | int]) -> Iterator[tuple[int, list[str | int]]]:
    kind, v = next(iter(tree.items()))
    if kind == "t":
        yield v, path
    elif kind in ("list", "tuple"):
        for k, part in enumerate(v):
            yield from _within(part, [*path, k])
    elif kind == "dict":
        for k, part in v:
            yield from _within(part, [*path, k])


def _order(t: torch.Tensor, strides: Sequence[int]) -> list[int]:
    """Returns its dimensions, the one that varies slowest first; [] where it is contiguous."""
    if not strides or len(strides) != t.dim():
        return []
    return sorted(range(t.dim()), key=lambda d: (-strides[d], d))


def _dtype(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")
