"""Who did the work of a forward: custom code, vendor libraries, or PyTorch.

``observe`` runs in the candidate's process, so what it gives explains and never convicts by
itself; ``report`` is the referee's reading of it.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from dispatch import uncompiled

RUNS = 2  # the first one warms up
MAX_OPERATORS = 40

# Matrix products, convolutions and recurrent layers: on a CPU, MKL's and oneDNN's.
VENDOR = {
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "mv",
    "addmv",
    "dot",
    "convolution",
    "mkldnn_convolution",
    "linear",
    "mkldnn_rnn_layer",
    "_scaled_dot_product_flash_attention_for_cpu",
    "mkldnn_linear",
    "_mkl_linear",
    "convolution_overrideable",
    "_slow_conv2d_forward",
    "slow_conv3d_forward",
    "_convolution",
}
# What makes room or looks at it: no operator of a task is covered by it, and none is left to
# PyTorch by it.
HOUSEKEEPING = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "detach",
    "alias",
    "new_empty_strided",
}


@uncompiled
class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.times: dict[str, list[float]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        out = func(*args, **(kwargs or {}))
        took = time.perf_counter() - start
        self.times.setdefault(func._schema.name.partition("::")[2], []).append(took)
        return out


def observe(
    forward: Callable[[], Any], module: types.ModuleType, found: dict[str, Any]
) -> dict[str, Any]:
    """Runs a forward and returns seconds by operator and by custom function.

    ``found`` is the custom functions by name; they are looked for among the globals of ``module``
    and the attributes of what lies there, and stand-ins count and time them meanwhile.
    """
    native: dict[str, list[float]] = {}
    mode = _Operators()

    def counting(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = sum(sum(t) for t in mode.times.values())
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - start
                inner = sum(sum(t) for t in mode.times.values()) - before
                native.setdefault(name, []).append(max(took - inner, 0.0))

        return call

    replaced: list[tuple[Any, str, Any]] = []
    stand_ins = {id(f): counting(n, f) for n, f in found.items()}
    holders = [module, *(v for v in list(vars(module).values()) if hasattr(v, "__dict__"))]
    for holder in holders:
        for name, value in list(vars(holder).items()):
            if id(value) in stand_ins:
                try:
                    setattr(holder, name, stand_ins[id(value)])
                    replaced.append((holder, name, value))
                except (AttributeError, TypeError):
                    pass  # a holder that cannot be written to: its calls count as unseen
    total = 0.0
    try:
        for _ in range(RUNS):
            native.clear()
            mode.times.clear()
            start = time.perf_counter()
            with mode:
                forward()
            total = time.perf_counter() - start
    finally:
        for holder, name, value in replaced:
            setattr(holder, name, value)
    summed = {n: [sum(t), len(t)] for n, t in mode.times.items()}
    return {
        "total": total,
        "operators": summed,
        "native": {n: [sum(t), len(t)] for n, t in native.items()},
    }


def report(seen: Any, custom_code: bool) -> tuple[dict[str, Any], int]:
    """Returns the WorkReport and how many custom calls a forward made.

    ``custom_code`` says whether the candidate brought any; time that nobody claims is put down to
    it only then.
    """
    seen = seen if isinstance(seen, dict) else {}
    rows: list[tuple[str, str, float, int]] = []
    for name, kind in (("operators", ""), ("native", "custom")):
        table = seen.get(name)
        for op, value in list(table.items())[:1000] if isinstance(table, dict) else []:
            try:
                seconds, calls = float(value[0]), int(value[1])
            except (TypeError, ValueError, IndexError, KeyError):
                continue
            if not 0 <= seconds < 1e6 or calls < 0:
                continue
            said = kind or ("vendor" if op in VENDOR else "pytorch")
            rows.append((str(op)[:80] if kind else f"aten.{str(op)[:80]}", said, seconds, calls))
    whole = sum(s for _, _, s, _ in rows)
    if whole <= 0:
        none = {
            "custom": 1.0 if custom_code else 0.0,
            "vendor": 0.0,
            "pytorch": 0.0 if custom_code else 1.0,
        }
        return {**none, "operators": []}, 0
    shares = {
        k: sum(s for _, kind, s, _ in rows if kind == k) / whole
        for k in ("custom", "vendor", "pytorch")
    }
    rows.sort(key=lambda r: -r[2])
    operators = [
        {"name": n, "kind": k, "share": s / whole, "calls": c}
        for n, k, s, c in rows[:MAX_OPERATORS]
    ]
    return {**shares, "operators": operators}, sum(c for _, k, _, c in rows if k == "custom")


def computes(work: dict[str, Any]) -> list[str]:
    """Returns the names of PyTorch's and vendors' operators that compute something."""
    names = [o["name"] for o in work["operators"] if o["kind"] != "custom"]
    return [n for n in names if n.removeprefix("aten.") not in HOUSEKEEPING]
