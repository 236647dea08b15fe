"""What any float32 algorithm may do to a result, estimated from the reference itself.

The reference runs in float64 while every operator's result is moved by what float32 rounding may
do to it: by one unit in the last place (2^-23 relative), at random up or down, for what is
computed element by element; for sums by a unit of the sum of magnitudes, which is what another
order of summation may cost. Composite operators (norms, softmax, losses) are taken apart first, so
that cancellation inside them shows.

Why not the error of eager alone: it may be small by luck. A scalar mean over 4096 elements has an
honest error of over 16 times eager's own in 2.5 % of draws; signs drawn at random never make all
errors small together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from kwharness.base.torch_modes import uncompiled
from kwharness.numerics.operator_sets import (
    EXACT,
    ONE_AXIS,
    PRODUCTS,
    PRODUCTS_OF_MATRICES,
    SUMS,
    decompositions,
    name_of,
)

ULP = 2.0**-23  # of float32, relative, for a value just above a power of two
SUM_UNIT = 2.0**-24  # half a unit: what one rounding costs at most
# A sum in 32 lanes of n/32 additions each errs by about sqrt(n)/32 half units of the sum of
# magnitudes once n is over a thousand, by less than one below.
LANES = 32
MANTISSAS = tuple(1.0 + k / 8.0 for k in range(8))
POOL = 65_537  # signs; a prime, so that rows of a tensor never meet the same ones
LARGE = 1 << 28  # elements of which not all is done at once
# Elements moved at once: what a core's cache holds, and on a GPU what is worth a launch.
SLABS = {"cpu": 2 * POOL, "cuda": 256 * POOL}


@uncompiled
class Float32Noise(TorchDispatchMode):
    """Run a float64 forward under this to see where float32 arithmetic may take it."""

    def __init__(self, seed: int, *, coherent: bool = False) -> None:
        """``coherent``: for inputs of one value, where every addition rounds the same way."""
        super().__init__()
        self._coherent = coherent
        self._g = torch.Generator().manual_seed(seed)
        self._pool = torch.randint(0, 2, (POOL,), generator=self._g).double().mul_(2).sub_(1)
        self._apart = decompositions()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        apart = self._apart.get(func)
        if apart is not None:
            try:
                with self:
                    out = apart(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            except Exception:
                # a decomposition that does not fit these arguments: the operator as a whole, then
                pass
        out = func(*args, **kwargs)
        name = name_of(func)
        if func.is_view or name in EXACT or not _any_float(out):
            return out
        sums = None
        if name in SUMS:
            try:
                sums = func(*_magnitudes(args), **{k: _magnitudes(v) for k, v in kwargs.items()})
            except Exception:
                sums = None
        if sums is not None and isinstance(out, torch.Tensor) and isinstance(sums, torch.Tensor):
            unit = SUM_UNIT
            if name in ONE_AXIS and isinstance(args[0], torch.Tensor):
                n = (
                    args[0].numel() / max(out.numel(), 1)
                    if name != "cumsum"
                    else args[0].shape[args[1]]
                )
                unit *= max(1.0, (n / 2 if self._coherent else math.sqrt(n)) / LANES)
            amount = sums.mul_(unit)
            if name in ("sum", "mean"):
                lost = _lost_in_lanes(args, out, name == "mean", self._coherent)
                amount = amount if lost is None else torch.maximum(amount, lost)
            chain = terms_of(name, args) / 2 / LANES if self._coherent else 1.0
            for part, by, signs in self._parts(out, amount.expand_as(out)):
                # What is added up where all are equal is off by a share of what comes out.
                more = torch.maximum(by, part.abs().mul_(SUM_UNIT * chain)) if chain > 1 else by
                part.addcmul_(signs, more)
            return out
        unit = ULP
        if name in PRODUCTS:
            n = args[0].numel() // max(out.numel(), 1)
            if name == "cumprod" and args[0].dim():
                n = args[0].shape[args[1]]
            unit *= max(1.0, n / 2 if self._coherent else math.sqrt(n))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.is_floating_point():
                for part, _, signs in self._parts(t, t):
                    part.addcmul_(part, signs, value=unit)
        return out

    def _parts(
        self, t: torch.Tensor, amount: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yields a tensor in slabs, each with its part of ``amount`` and with random signs.

        Signs are dealt from a pool at a random place: drawing anew costs more than all else here.
        """
        at = int(torch.randint(0, POOL, (), generator=self._g))
        if self._pool.device != t.device:
            self._pool = self._pool.to(t.device)
        dealt = self._pool.roll(-at).to(t.dtype)
        n, slab = t.numel(), SLABS[t.device.type]
        if n > POOL:
            dealt = dealt.repeat(-(-min(n, slab) // POOL))
        if not (t.is_contiguous() and amount.is_contiguous()):
            yield t, amount, dealt.repeat(-(-n // len(dealt)))[:n].view(t.shape)
            return
        flat, amounts = t.view(-1), amount.view(-1)
        for i in range(0, n, slab):
            j = min(i + slab, n)
            yield flat[i:j], amounts[i:j], dealt[: j - i]


def terms_of(name: str, args: Any) -> int:
    """Returns how many products are added up for one element of a product of matrices or a
    convolution, 1 for all else.
    """
    if name in PRODUCTS_OF_MATRICES:
        a = args[1 if name in ("addmm", "baddbmm", "addmv", "addbmm") else 0]
        return a.shape[-1] * (a.shape[0] if name == "addbmm" else 1)
    if name == "convolution":
        weight, transposed = args[1], args[6]
        return weight.numel() // max(weight.shape[1 if transposed else 0], 1)
    return 1


def _lost_in_lanes(args: Any, out: torch.Tensor, mean: bool, coherent: bool) -> torch.Tensor | None:
    """Returns how far a float32 product with ones is off a sum or mean, None for what is no sum.

    The vendor's products add in a few lanes, or in one, from one end to the other: over many
    elements, small ones are lost beside what has been added up. That is no random walk, so it is
    measured. Where all are equal it is their mantissa that says how much is lost, and the next draw
    has another: then the most that is lost over several.
    """
    x = args[0]
    dims = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else None
    if x.dtype is not torch.float64 or not out.numel() or not x.numel():
        return None
    kept = [] if not dims else [d for d in range(x.dim()) if d not in {e % x.dim() for e in dims}]
    n = x.numel() // out.numel()
    rows = x.permute(*kept, *(d for d in range(x.dim()) if d not in kept)).reshape(-1, n)
    ones = torch.ones(n, dtype=torch.float32, device=x.device)
    lost = torch.zeros(len(rows), dtype=torch.float64, device=x.device)
    # What is made of all rows takes several times their memory.
    step = len(rows) if x.numel() < LARGE else max(SLABS[x.device.type] // n, 1)
    for i in range(0, len(rows), step):
        part, most = rows[i : i + step], lost[i : i + step]
        column = ones.reshape(1, n, 1).expand(len(part), n, 1)
        for factor in MANTISSAS if coherent else (1.0,):
            moved = (part if factor == 1.0 else part * factor).float()
            added = [torch.dot(moved[0], ones).reshape(1) if len(rows) == 1 else moved @ ones]
            added.append(torch.bmm(moved.unsqueeze(1), column).reshape(-1))
            exact = moved.sum(-1, dtype=torch.float64)
            for a in added:
                torch.fmax(most, (a.double() - exact).abs_().div_(factor), out=most)
    if mean:
        lost /= n
    lost = torch.where(torch.isfinite(lost), lost, 0.0)
    return lost.reshape(out.shape)


def _any_float(out: Any) -> bool:
    if isinstance(out, torch.Tensor):
        return out.is_floating_point()
    return isinstance(out, (tuple, list)) and any(_any_float(o) for o in out)


def _magnitudes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.abs() if value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return type(value)(_magnitudes(v) for v in value)
    return value


def one_ulp(tensors: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Returns the inputs in float64, every element moved by one unit in float32's last place, and
    in memory in the same order.
    """
    g = torch.Generator(tensors[0].device if tensors else "cpu").manual_seed(seed)
    moved = []
    for t in tensors:
        if not t.is_floating_point():
            moved.append(t)
            continue
        eps = torch.finfo(t.dtype).eps
        signs = torch.randint(0, 2, t.shape, generator=g, dtype=torch.int8, device=t.device)
        signs = torch.empty_like(t, dtype=torch.float64).copy_(signs).mul_(2).sub_(1)
        moved.append(signs.mul_(eps).add_(1.0).mul_(t))
    return moved


@dataclass(frozen=True)
class Source:
    """What is behind an output of indices or booleans.

    ``kind`` is "index": ``values`` are what it points into along ``dim``, in which an index counts
    once if ``several``; or "margin": ``values`` are the difference whose sign it is.
    """

    kind: str
    values: torch.Tensor
    dim: int = 0
    several: bool = False

    def copied(self) -> Source:
        """Returns it with values that nobody else has."""
        return replace(self, values=self.values.clone())


@uncompiled
class Sources(TorchDispatchMode):
    """Remembers where indices and booleans came from, to tell ties and margins from mistakes.

    ``of(output)`` gives the values that an index output points into and along which dimension
    (``several``: an index counts once there), or the difference whose sign a boolean output is.
    """

    _INDICES = frozenset(
        [
            "argmax",
            "argmin",
            "max",
            "min",
            "topk",
            "sort",
            "argsort",
            "kthvalue",
            "median",
            "mode",
            "cummax",
            "cummin",
        ]
    )
    _RUNNING = frozenset(["cummax", "cummin"])  # the same index again and again
    # How many dimensions, laid flat, the indices of a pooling point into.
    _POOLED: ClassVar[dict[str, int]] = {
        "max_pool2d_with_indices": 2,
        "max_pool3d_with_indices": 3,
        "adaptive_max_pool2d": 2,
        "adaptive_max_pool3d": 3,
    }
    _COMPARISONS = frozenset(["gt", "lt", "ge", "le"])

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[torch.Tensor, Source]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = name_of(func)
        if (
            name in self._INDICES
            and isinstance(args[0], torch.Tensor)
            and args[0].is_floating_point()
        ):
            values = args[0]
            found = out if isinstance(out, torch.Tensor) else out[-1]
            if found.dtype is torch.int64:
                dim = self._dim(func, args, kwargs, values)
                source = values.reshape(-1) if dim is None else values
                each = dim is not None and name not in self._RUNNING
                several = found.dim() == source.dim() and each
                entry = Source("index", source, dim or 0, several)
                self._known[found.data_ptr()] = (found, entry)
        elif name in self._POOLED:
            source = args[0].flatten(-self._POOLED[name])
            self._known[out[1].data_ptr()] = (out[1], Source("index", source, source.dim() - 1))
        elif name in self._COMPARISONS and isinstance(args[0], torch.Tensor):
            with _disable_current_modes():  # the difference itself is not rounded
                margin = (args[0] - args[1]).double()
            self._known[out.data_ptr()] = (out, Source("margin", margin))
        elif (
            (func.is_view or name in ("clone", "_to_copy"))
            and args
            and isinstance(args[0], torch.Tensor)
        ):
            before = self._known.get(args[0].data_ptr())
            if before is not None and isinstance(out, torch.Tensor):
                self._known[out.data_ptr()] = (out, before[1])
        return out

    @staticmethod
    def _dim(func: Any, args: Any, kwargs: Any, values: torch.Tensor) -> int | None:
        names = [a.name for a in func._schema.arguments]
        if "dim" not in names:
            return None
        at = names.index("dim")
        default = func._schema.arguments[at].default_value
        dim = args[at] if at < len(args) else kwargs.get("dim", default)
        return None if dim is None else int(dim) % max(values.dim(), 1)

    def of(self, output: torch.Tensor) -> Source | None:
        """Returns the source of an output of the forward that ran under this mode, or None."""
        known = self._known.get(output.data_ptr())
        return None if known is None else known[1]
