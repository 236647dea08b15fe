"""About how long a forward takes, from its operators' bytes and operations on the meta device.

An estimate to choose sizes by, never a measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Eager's elementwise kernels next to a copy, and its products next to the ceiling.
BANDWIDTH_SHARE, PRODUCT_SHARE = 0.6, 0.4
# What evaluates a transcendental function, in arithmetic operations an element.
DEAR = {
    "exp",
    "log",
    "tanh",
    "erf",
    "gelu",
    "silu",
    "sigmoid",
    "mish",
    "softplus",
    "sin",
    "cos",
    "pow",
    "_softmax",
    "_log_softmax",
    "elu",
    "celu",
    "log1p",
    "expm1",
    "log_sigmoid_forward",
    "logsumexp",
    "erfinv",
    "lgamma",
    "digamma",
    "atan",
    "asin",
    "acos",
    "sinh",
    "cosh",
    "logit",
    "xlogy",
    "logaddexp",
    "cumsum",
    "cumprod",
    "sort",
    "topk",
}
DEAR_OPERATIONS = 25
# Of each operator that is measured: calls, of which the quickest counts; what a call takes beside
# its work, in seconds; the least work that tells anything.
CALLS, CALL_S, LEAST_WORK = 7, 3e-6, 4096


@dataclass(frozen=True)
class Machine:
    """What the device reaches: bytes and operations a second, milliseconds an operator."""

    bytes_s: float
    operations_s: float
    call_ms: float
    rates: Mapping[str, float] = field(default_factory=dict)  # see Timing.rates
    threads: int = 1  # among which work is shared

    def rate(self, key: str) -> float:
        """Returns nanoseconds a unit of work; 0 where it was not measured."""
        return self.rates.get(key, self.rates.get(key.split()[0], 0.0))


@dataclass(frozen=True)
class Call:
    """One call of an ATen operator."""

    key: str  # its name, with what makes it another kernel
    moved: int  # bytes
    operations: int
    work: int  # what its time grows with: operations of products, elements of all else


class Counting(TorchDispatchMode):
    """Counts what operators move and compute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.calls.append(_call(func, args, kwargs or {}, out))
        return out

    def ms(self, machine: Machine) -> float:
        """Returns the milliseconds of all that was counted."""
        return sum(
            machine.call_ms
            + max(
                1e3 * c.moved / (BANDWIDTH_SHARE * machine.bytes_s),
                1e3 * c.operations / (PRODUCT_SHARE * machine.operations_s),
                1e-6 * c.work * machine.rate(c.key) / machine.threads,
            )
            for c in self.calls
        )


def _call(func: Any, args: Any, kwargs: Any, out: Any) -> Call:
    name = func.overloadpacket.__name__
    read, written = _tensors([args, kwargs]), _tensors(out)
    moved = sum(t.numel() * t.element_size() for t in [*read, *written])
    elements = max((t.numel() for t in written), default=0)
    operations = elements * (DEAR_OPERATIONS if name in DEAR else 1)
    work = max((t.numel() for t in [*read, *written]), default=0)
    if counted := flop_registry.get(func.overloadpacket):
        work = operations = int(counted(*args, **kwargs, out_val=out))
    return Call(name + _way(func, args), moved, operations, work)


def _way(func: Any, args: Any) -> str:
    """Returns what has an operator be another kernel: " across" where it goes over another
    dimension than the last, " back" for a transposed convolution.
    """
    given = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)}
    if given.get("transposed"):
        return " back"
    dims = given.get("dim")
    over = [dims] if isinstance(dims, int) else dims
    if not isinstance(over, list | tuple) or not over or not isinstance(args[0], torch.Tensor):
        return ""
    return "" if {-1, args[0].dim() - 1} & set(over) else " across"


class Timing(TorchDispatchMode):
    """Measures what operators take on this machine's CPU, by one thread, from its caches."""

    def __init__(self) -> None:
        super().__init__()
        self.took: dict[str, list[float]] = {}  # nanoseconds a unit of work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        best = float("inf")
        for _ in range(CALLS):
            start = time.perf_counter()
            out = func(*args, **(kwargs or {}))
            best = min(best, time.perf_counter() - start)
        call = _call(func, args, kwargs or {}, out)
        if not func.is_view and call.work >= LEAST_WORK and not func._schema.is_mutable:
            self.took.setdefault(call.key, []).append(1e9 * max(best - CALL_S, 0) / call.work)
        return out

    def rates(self) -> dict[str, float]:
        """Returns nanoseconds an element, of products an operation, by operator: the geometric mean
        of its uses.
        """
        return {
            key: float(f"{math.exp(sum(map(math.log, seen)) / len(seen)):.3g}")
            for key, all_of in sorted(self.took.items())
            if (seen := [t for t in all_of if t > 0])
        }


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [t for v in tree for t in _tensors(v)] if isinstance(tree, list | tuple) else []
