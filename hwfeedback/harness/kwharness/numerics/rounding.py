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

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from kwharness.base.torch_modes import uncompiled

aten = torch.ops.aten

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

# Results that are one of the arguments, or no rounding at all.
_EXACT = {
    "abs",
    "neg",
    "relu",
    "relu_",
    "clamp",
    "clamp_min",
    "clamp_max",
    "clamp_",
    "hardtanh",
    "hardtanh_",
    "maximum",
    "minimum",
    "max",
    "min",
    "amax",
    "amin",
    "where",
    "copy_",
    "clone",
    "fill_",
    "zero_",
    "sign",
    "masked_fill",
    "masked_fill_",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "floor",
    "ceil",
    "round",
    "trunc",
    "threshold",
    "threshold_",
    "leaky_relu",
    "gather",
    "index",
    "index_select",
    "embedding",
    "cat",
    "stack",
    "constant_pad_nd",
    "flip",
    "roll",
    "topk",
    "sort",
    "tril",
    "triu",
    "zeros",
    "ones",
    "full",
    "empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "arange",
    "scatter",
    "repeat",
    "_to_copy",
    "empty_like",
    "new_empty",
    "scalar_tensor",
    "lift_fresh",
    "lift_fresh_copy",
    "detach",
    "fmax",
    "fmin",
    "cummax",
    "cummin",
    "aminmax",
    "median",
    "kthvalue",
    "index_put",
    "index_put_",
    "alias",
    "scatter_",
    "masked_scatter",
    "reflection_pad1d",
    "reflection_pad2d",
    "replication_pad2d",
    "pixel_shuffle",
    "upsample_nearest2d",
    "eye",
    "select_scatter",
    "slice_scatter",
    "nonzero",
    "_unsafe_index",
    "pow_exact",
    "new_empty_strided",
    "empty_strided",
    "empty_permuted",
    "permute_copy",
    "slice_copy",
    "unfold",
    "im2col",
}

# Linear in the magnitudes of their arguments: the same operator over absolute values gives the sum
# of magnitudes.
_SUMS = {
    "sum",
    "mean",
    "cumsum",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "mv",
    "addmv",
    "dot",
    "convolution",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "mkldnn_convolution",
    "conv2d",
    "linear",
    "upsample_bilinear2d",
    "index_add",
    "scatter_add",
    "trace",
    "col2im",
    "slow_conv3d_forward",
    "_slow_conv2d_forward",
    "einsum",
    "matmul",
}
PRODUCTS_OF_MATRICES = {"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "addbmm"}
_ONE_AXIS = {"sum", "mean", "cumsum"}
# One rounding a factor, in whatever order.
_PRODUCTS = {"prod", "cumprod"}

_TAKEN_APART = {
    "_softmax",
    "_log_softmax",
    "_safe_softmax",
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_no_update",
    "_batch_norm_with_update",
    "var",
    "var_mean",
    "std",
    "std_mean",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "nll_loss_forward",
    "soft_margin_loss",
    "logsumexp",
    "_fused_rms_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "logaddexp",
    "linalg_vector_norm",
    "norm",
    "hinge_embedding_loss",
    "_scaled_dot_product_flash_attention_for_cpu",
    "silu",
    "mish",
    "softplus",
    "hardswish",
    "hardsigmoid",
    "elu",
    "log_sigmoid_forward",
    "glu",
    "addcmul",
    "addcdiv",
    "addmv",
    "lerp",
    "native_dropout",
    "gelu",
    "celu",
}


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    from torch._decomp import decomposition_table

    return {torch.ops.prims.var.default: _variance} | {
        op: f
        for op, f in decomposition_table.items()
        if isinstance(op, torch._ops.OpOverload) and _name(op) in _TAKEN_APART and not _mutates(op)
    }


def _variance(x: torch.Tensor, dims: Any, correction: float | None = 1, **_: Any) -> torch.Tensor:
    """Takes a variance apart, which torch's own decompositions leave whole."""
    dims = list(range(x.dim())) if dims is None else dims
    # A running mean, as Welford's, is rounded anew with every element. In place: x may be large.
    off = torch.ones_like(x).mul_(x.mean(dims, keepdim=True))
    total = off.sub_(x).square_().sum(dims)
    n = x.numel() / max(total.numel(), 1)
    return total / max(n - (1 if correction is None else correction), 1)


def _name(op: Any) -> str:
    return op._schema.name.partition("::")[2]


def _mutates(op: Any) -> bool:
    return op._schema.is_mutable


@uncompiled
class Float32Noise(TorchDispatchMode):
    """Run a float64 forward under this to see where float32 arithmetic may take it."""

    def __init__(self, seed: int, *, coherent: bool = False) -> None:
        """``coherent``: for inputs of one value, where every addition rounds the same way."""
        super().__init__()
        self._coherent = coherent
        self._g = torch.Generator().manual_seed(seed)
        self._pool = torch.randint(0, 2, (POOL,), generator=self._g).double().mul_(2).sub_(1)
        self._apart = _decompositions()

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
        name = _name(func)
        if func.is_view or name in _EXACT or not _any_float(out):
            return out
        sums = None
        if name in _SUMS:
            try:
                sums = func(*_magnitudes(args), **{k: _magnitudes(v) for k, v in kwargs.items()})
            except Exception:
                sums = None
        if sums is not None and isinstance(out, torch.Tensor) and isinstance(sums, torch.Tensor):
            unit = SUM_UNIT
            if name in _ONE_AXIS and isinstance(args[0], torch.Tensor):
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
        if name in _PRODUCTS:
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
        self._known: dict[int, tuple[torch.Tensor, dict[str, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = _name(func)
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
                entry = {
                    "kind": "index",
                    "values": source,
                    "dim": 0 if dim is None else dim,
                    "several": found.dim() == source.dim()
                    and dim is not None
                    and name not in self._RUNNING,
                }
                self._known[found.data_ptr()] = (found, entry)
        elif name in self._POOLED:
            source = args[0].flatten(-self._POOLED[name])
            entry = {"kind": "index", "values": source, "dim": source.dim() - 1, "several": False}
            self._known[out[1].data_ptr()] = (out[1], entry)
        elif name in self._COMPARISONS and isinstance(args[0], torch.Tensor):
            with _disable_current_modes():  # the difference itself is not rounded
                entry = {"kind": "margin", "values": (args[0] - args[1]).double()}
            self._known[out.data_ptr()] = (out, entry)
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

    def of(self, output: torch.Tensor) -> dict[str, Any] | None:
        """Returns the source of an output of the forward that ran under this mode, or None."""
        known = self._known.get(output.data_ptr())
        return None if known is None else known[1]
