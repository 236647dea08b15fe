"""About how long a forward takes, from its operators' bytes and operations on the meta device.

An estimate to choose sizes by, never a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Machine:
    """What the device reaches: bytes and operations a second, milliseconds an operator."""

    bytes_s: float
    operations_s: float
    call_ms: float


class Counting(TorchDispatchMode):
    """Counts what operators move and compute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            name = func.overloadpacket.__name__
            moved = sum(t.numel() * t.element_size() for t in _tensors([args, kwargs, out]))
            elements = max((t.numel() for t in _tensors(out)), default=0)
            operations = elements * (DEAR_OPERATIONS if name in DEAR else 1)
            counted = flop_registry.get(func.overloadpacket)
            if counted:
                operations = counted(*args, **(kwargs or {}), out_val=out)
            self.calls.append((moved, int(operations)))
        return out

    def ms(self, machine: Machine) -> float:
        """Returns the milliseconds of all that was counted."""
        return sum(
            machine.call_ms
            + 1e3
            * max(
                b / (BANDWIDTH_SHARE * machine.bytes_s), n / (PRODUCT_SHARE * machine.operations_s)
            )
            for b, n in self.calls
        )


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [t for v in tree for t in _tensors(v)] if isinstance(tree, list | tuple) else []
