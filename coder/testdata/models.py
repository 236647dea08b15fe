"""Small reference modules for the built-in Coder: each operator kind, odd sizes, fusions.

Every case is ``name: (module, inputs)``; inputs are drawn from a fixed seed. Imported by
generate.py and check.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

Case = tuple[nn.Module, list[Any]]


class Fn(nn.Module):
    """A module around a function of the inputs."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *inputs: Any) -> Any:
        return self.f(*inputs)


class Wrapped(nn.Module):
    """A layer with something after it."""

    def __init__(self, layer: nn.Module, after: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer = layer
        self.after = after

    def forward(self, x: torch.Tensor) -> Any:
        return self.after(self.layer(x))


class Block(nn.Module):
    """Parameters at several depths, in-place operators, constants outside the state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleList([nn.BatchNorm2d(8), nn.GroupNorm(2, 8)])
        self.bias = nn.Parameter(torch.randn(8, 1, 1))
        self.register_buffer("shift", torch.randn(9), persistent=False)
        self.scale = torch.tensor(1.7)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layers[0](self.conv(x))
        y += self.bias
        y = F.relu(y, inplace=True) * self.scale
        z = self.layers[1](y)
        return {"z": z, "pooled": F.max_pool2d(z, 2), "mean": y.mean((2, 3)), "row": z + self.shift}


class Masked(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x * 0.3).masked_fill(mask, float("-inf")), -1)


class RMS(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Exclusive(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1), 1)


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "mish": F.mish,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.3),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "softplus": F.softplus,
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": lambda x: torch.log(x.abs()),
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.1),
    "pow": lambda x: x.abs().pow(1.7) + x.pow(3) - x.pow(-1),
    "erf": torch.erf,
    "abs_clamp": lambda x: x.abs().clamp(0.1, 2.0) - torch.clamp_min(x, -0.5),
    "arithmetic": lambda x: (2.0 - x) / (x * x + 1.5) + torch.rsub(x, 3.0, alpha=0.5) - x * 0.25,
    "where": lambda x: (
        torch.where(x > 0.3, x, -x) + torch.maximum(x, 0.5 - x) - torch.minimum(x, x * 2)
    ),
    "compare": lambda x: ((x > 0) & (x < 1)) | ~(x >= -1),
    "round": lambda x: torch.floor(x) + torch.ceil(x * 1.3) + torch.round(x * 3) + torch.trunc(x),
    "views": lambda x: (x.t() * 2).reshape(-1)[3:].flip(0) + 1,
}


def cases() -> dict[str, Case]:
    """Returns all cases, the same ones each time."""
    torch.manual_seed(20)
    out: dict[str, Case] = {}
    for name, f in UNARY.items():
        out[f"unary_{name}"] = (Fn(f), [torch.randn(37, 53) * 2])
    x = torch.randn(6, 5, 7, 11)
    m = torch.randn(33, 129) * 3
    rows = {
        "sum": lambda x: x.sum(-1),
        "mean_keep": lambda x: x.mean(-1, keepdim=True),
        "amax": lambda x: x.amax(-1),
        "min_dim": lambda x: x.min(1)[0],
        "prod": lambda x: (x * 0.3).prod(-1),
        "var": lambda x: x.var(-1),
        "std": lambda x: x.std(1, unbiased=False),
        "norm": lambda x: torch.norm(x, dim=1),
        "norm1": lambda x: torch.norm(x, p=1, dim=0),
        "logsumexp": lambda x: torch.logsumexp(x, -1),
        "column_sum": lambda x: x.sum(0),
        "column_max": lambda x: x.amax(0),
        "column_var": lambda x: x.var(0),
        "all_mean": lambda x: (x * x).mean(),
        "all_max": lambda x: x.max(),
        "frobenius": lambda x: x / torch.norm(x, p="fro"),
        "l1_normalise": lambda x: x / x.abs().sum(1, keepdim=True),
        "l2_normalise": lambda x: F.normalize(x, dim=1),
        "softmax": lambda x: torch.softmax(x, -1),
        "softmax_0": lambda x: torch.softmax(x, 0),
        # Large: where a product is rounded once and once not, the two differ by far more than 1.
        "softmax_of_large": lambda x: torch.softmax(x * 3.3e30, 1),
        "softmax_of_large_columns": lambda x: torch.softmax(x * 3.3e30, 0),
        "log_softmax": lambda x: F.log_softmax(x, 1),
        "argmax": lambda x: torch.argmax(x, 1),
        "argmin_0": lambda x: torch.argmin(x, 0),
        "argmax_all": lambda x: torch.argmax(x),
        "max_with_index": lambda x: x.max(1),
        "cumsum": lambda x: torch.cumsum(x, 1),
        "cumsum_0": lambda x: torch.cumsum(x, 0) * 2,
        "cumprod": lambda x: torch.cumprod(x * 0.4, 1),
        "reverse_cumsum": lambda x: torch.cumsum(x.flip(1), 1).flip(1),
        "chain": lambda x: (
            (F.gelu(x) + 1).sum(1, keepdim=True).sqrt().abs() + x.mean(1, keepdim=True)
        ),
        "two_outputs": lambda x: (F.relu(x), F.relu(x).sum(1)),
        "softmax_of_softmax": lambda x: torch.softmax(torch.softmax(x, 1) * 3, 1).sum(0),
        "transposed_softmax": lambda x: torch.softmax(x.t(), 1),
        "matrix_vector": lambda x: torch.matmul(x, x[:1].t()) + 1,
        "padded": lambda x: torch.cat(
            (torch.zeros_like(x[:, :3]), x * 2, torch.ones_like(x[:, :1])), 1
        ),
        "exclusive_sum": lambda x: torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1].cumsum(1)), 1),
        "exclusive_from_end": lambda x: torch.cat(
            (x[:, 1:].flip(1).cumsum(1).flip(1), torch.zeros_like(x[:, :1])), 1
        ),
        "matmul_epilogue": lambda x: F.gelu(torch.matmul(x, x.t()) * 0.1).amax(1),
    }
    for name, f in rows.items():
        out[name] = (Fn(f), [m.clone()])
    middle = {
        "middle_sum": lambda x: x.sum(1),
        "middle_pair": lambda x: x.mean((1, 3)),
        "outer_pair": lambda x: x.var((0, 2, 3)),
        "middle_softmax": lambda x: torch.softmax(x, 1),
        "middle_argmax": lambda x: x.argmax(2),
        "middle_cumsum": lambda x: x.cumsum(2),
        "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max_pool_dilated": lambda x: F.max_pool2d(F.relu(x), 2, 1, 1, dilation=2) + 1,
        "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
        "avg_pool_inside": lambda x: (
            F.avg_pool2d(x, (2, 3), (1, 2), 1, count_include_pad=False) * 2
        ),
        "max_pool_long": lambda x: F.max_pool2d(x.flatten(2)[:, None], (2, 11), (1, 4), (1, 5)),
        "avg_pool_long": lambda x: F.avg_pool1d(torch.sin(x.flatten(1)), 71, 1, 35) - 1,
        "max_pool_apart": lambda x: F.max_pool2d(F.gelu(x), (1, 2), (3, 4), dilation=(1, 2)),
        "max_pool1d": lambda x: F.max_pool1d(x[:, :, 0], 4, 3, 1),
        "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
        "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
        "global_max": lambda x: F.adaptive_max_pool2d(x, 1),
        "permuted": lambda x: x.permute(0, 2, 3, 1).softmax(-1) + x.permute(0, 2, 3, 1),
    }
    for name, f in middle.items():
        out[name] = (Fn(f), [x.clone()])
    layers: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "layer_norm": (nn.LayerNorm(129), m),
        "layer_norm_3d": (nn.LayerNorm((5, 7, 11)), x),
        "rms_norm": (RMS(129), m),
        "rms_layer": (nn.RMSNorm(129, eps=1e-5), m),
        "group_norm": (nn.GroupNorm(3, 9), torch.randn(4, 9, 5, 6)),
        "group_norm_mish": (
            Wrapped(nn.GroupNorm(2, 8), lambda y: F.mish(y).mean((2, 3))),
            torch.randn(4, 8, 5, 6),
        ),
        "batch_norm": (Wrapped(nn.BatchNorm2d(5), F.relu), x),
        "batch_norm_1d": (nn.BatchNorm1d(129), m),
        "instance_norm": (nn.InstanceNorm2d(5, affine=True), x),
        "prelu": (nn.PReLU(5), x),
        "linear_softmax": (Wrapped(nn.Linear(129, 31), lambda y: torch.softmax(F.silu(y), 1)), m),
        "conv_pool": (Wrapped(nn.Conv2d(5, 4, 3), lambda y: F.max_pool2d(F.relu(y), 2).tanh()), x),
        "conv_group_norm": (
            Wrapped(
                nn.Sequential(nn.Conv2d(5, 4, 3), nn.GroupNorm(2, 4)),
                lambda y: F.hardswish(y).mean((1, 2, 3)),
            ),
            x,
        ),
        "block": (Block(), torch.randn(4, 3, 9, 9)),
    }
    for name, (layer, data) in layers.items():
        for p in [*layer.parameters(), *layer.buffers()]:
            if p.is_floating_point():
                p.data = torch.rand_like(p) + 0.3
        out[name] = (layer, [data.clone()])
    y = torch.randn(33, 129)
    out["masked_softmax"] = (
        Masked(),
        [m.clone(), (torch.rand(1, 129) < 0.3) & (torch.arange(129) > 0)],
    )
    out["masked_cumsum"] = (
        Fn(lambda a, b: torch.cumsum(a * b, 1)),
        [m.clone(), torch.rand(33, 129) > 0.5],
    )
    out["exclusive_cumsum"] = (Exclusive(), [m.clone()])
    pairs: dict[str, Callable[..., Any]] = {
        "broadcast": lambda a, b: (a + b[:1]) * b[:, :1] - a.mean(0),
        "mse": F.mse_loss,
        "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b, beta=0.7),
        "huber": lambda a, b: F.huber_loss(a, b, delta=0.4, reduction="sum"),
        "kl_div": lambda a, b: F.kl_div(
            F.log_softmax(a, 1), F.softmax(b, 1), reduction="batchmean"
        ),
        "hinge": lambda a, b: torch.mean(torch.clamp(1 - a * b, min=0)),
        "cosine": lambda a, b: 1 - F.cosine_similarity(a, b, dim=1).mean(),
        "triplet": lambda a, b: F.triplet_margin_loss(a, b, a.flip(0)),
        "bce": lambda a, b: F.binary_cross_entropy_with_logits(a, torch.sigmoid(b)),
    }
    for name, f in pairs.items():
        out[name] = (Fn(f), [m.clone(), y.clone()])
    target = torch.randint(0, 129, (33,))
    target[3] = -100
    out["cross_entropy"] = (Fn(F.cross_entropy), [m.clone(), target])
    out["nll"] = (
        Fn(lambda a, t: F.nll_loss(F.log_softmax(a, 1), t, reduction="sum")),
        [m.clone(), target],
    )
    out["cross_entropy_2d"] = (Fn(F.cross_entropy), [x.clone(), torch.randint(0, 5, (6, 7, 11))])
    wide = torch.randn(3, 70001)
    out["wide_rows"] = (Fn(lambda a: (torch.softmax(a[0], 0), a.sum(1), a.std())), [wide])
    out["wide_columns"] = (Fn(lambda a: (a.mean(0), a.amax(0))), [torch.randn(30011, 5)])
    out["large_map"] = (Fn(lambda a: F.gelu(a) * 2), [torch.randn(611, 701)])
    out["large_waves"] = (
        Fn(lambda a, b: F.gelu(a) * b),
        [torch.randn(1451, 1453), torch.randn(1453)],
    )
    out["large_softmax"] = (Fn(lambda a: torch.softmax(F.gelu(a), -1)), [torch.randn(611, 701)])
    out["long_softmax"] = (Fn(lambda a: torch.softmax(a, -1)), [torch.randn(5, 40009)])
    row = torch.randn(3, 9001)
    out["long_softmax_of_gelu"] = (Fn(lambda a: torch.softmax(F.gelu(a), 1)), [row])
    out["long_softmax_twice"] = (
        Fn(lambda a: (torch.softmax(a, 1), torch.exp(a - a.amax(1, keepdim=True)))),
        [row],
    )
    beyond = torch.randn(2, 160003)  # what 12 blocks hold, and some more
    out["wide_softmax_beyond"] = (Fn(lambda a: torch.softmax(a, 1)), [beyond])
    # One row that is written by more blocks than it is added up by.
    out["wide_norm_whole"] = (Fn(lambda a: a / torch.norm(a)), [torch.randn(1024, 1025)])
    out["large_columns"] = (Fn(lambda a: torch.log_softmax(a, 1)), [torch.randn(5, 61, 1003)])
    flat = torch.randn(1, 71, 512)
    out["held_columns"] = (Fn(lambda a: torch.softmax(a, 1)), [torch.randn(3, 701, 50)])
    out["held_columns_odd"] = (
        Fn(lambda a, b: (a - a.mean(1, keepdim=True)) / (a * b).std(1, keepdim=True)),
        [torch.randn(4, 1100, 37) + 3, torch.randn(1100, 37)],
    )
    out["large_columns_narrow"] = (Fn(lambda a: (a.mean(1), a.argmax(1), F.softmax(a, 1))), [flat])
    out["large_pool"] = (
        Fn(lambda a: F.max_pool2d(F.relu(a + 0.5), 3, 2, 1)),
        [torch.randn(4, 3, 41, 1501)],
    )
    spoiled = torch.randn(3, 4, 20, 31)
    spoiled[0, 0, 5, 7] = float("nan")
    spoiled[1, 2, 0, 0], spoiled[1, 2, 3] = float("inf"), -float("inf")
    out["spoiled_pool"] = (
        Fn(lambda a: (F.max_pool2d(a, 3, 2, 1), F.avg_pool2d(a, 3, 2, 1))),
        [spoiled],
    )
    lines = torch.randn(2, 3, 4096)
    lines[0, 1, 7], lines[1, 2, 4090], lines[1, 0, 90:] = float("nan"), float("inf"), -float("inf")
    out["wide_max_pool1d"] = (Fn(lambda a: F.max_pool1d(a, 8, 1, 4, dilation=3)), [lines])
    out["wide_avg_pool1d"] = (Fn(lambda a: F.avg_pool1d(a, 8, 1, 4) * 2), [lines])
    out["wide_max_pool3d"] = (
        Fn(lambda a: F.max_pool3d(torch.sin(a), 3, 2, 1, 3)),
        [torch.randn(1, 2, 20, 24, 128)],
    )
    # Long rows in blocks, rows side by side, and what their running results must survive.
    rough = torch.randn(9, 9001)
    rough[0], rough[1], rough[2], rough[3] = 1.1, 1e36, rough[2] * 1e-41, rough[3] + 3e4
    rough[4, 4000:], rough[5, :5000], rough[6] = -float("inf"), -float("inf"), -float("inf")
    rough[7, 7000], rough[8, 2500] = float("nan"), float("inf")
    softs: dict[str, Callable[..., Any]] = {
        "softmax": torch.softmax,
        "log_softmax": torch.log_softmax,
    }
    for name, f in softs.items():
        out[f"large_rough_{name}"] = (Fn(lambda a, f=f: f(a, 1)), [rough.clone()])
        out[f"large_rough_{name}_0"] = (Fn(lambda a, f=f: f(a, 0)), [rough.t().contiguous()])
    # The same in vectors.
    even = rough[:, :9000].contiguous()
    out["large_even_softmax"] = (Fn(lambda a: torch.softmax(a, 1)), [even.clone()])
    sums = Fn(lambda a: (a.sum(1), a.mean(1), a.cumsum(1)))
    out["large_even_sums"] = (sums, [even[[0, 2, 3, 4, 5, 7, 8]]])
    out["large_even_layer_norm"] = (nn.LayerNorm(9000), [even[[0, 2, 3, 7, 8]]])
    out["large_layer_norm"] = (nn.LayerNorm(9001), [rough[[0, 1, 2, 3, 7, 8]]])
    out["large_columns_norm"] = (
        Fn(lambda a: (a - a.mean(0)) / torch.sqrt(a.var(0, unbiased=False) + 1e-5)),
        [rough[[0, 2, 3, 7, 8]].t().contiguous()],
    )
    out["large_var"] = (Fn(lambda a: (a.var(1), a.std(0))), [torch.randn(40, 9001) + 50])
    out["large_instance_norm"] = (nn.InstanceNorm2d(3), [torch.randn(2, 3, 97, 101) * 2 + 9])
    out["large_group_norm"] = (nn.GroupNorm(2, 6), [torch.randn(2, 6, 31, 33) * 3 - 20])
    marked = torch.randn(3, 40007)
    marked[1, 20000], marked[2, 30000] = float("nan"), float("inf")
    scans: dict[str, Callable[..., Any]] = {
        "wide_cumsum": lambda a: torch.cumsum(a, 1),
        "wide_cumsum_one": lambda a: torch.cumsum(F.relu(a[0]), 0) * 2,
        "wide_cumsum_back": lambda a: torch.cumsum(a.flip(1), 1).flip(1) - a,
        "wide_cumsum_whole": lambda a: torch.cumsum((a * 9).nan_to_num().long(), 1),
        "wide_cumprod": lambda a: torch.cumprod(a * 0.01 + 1, 1),
        "cumsum_of_cumsum": lambda a: torch.cumsum(torch.cumsum(a[:, :99], 1), 1),
    }
    for name, f in scans.items():
        out[name] = (Fn(f), [marked.clone()])
    tied = torch.randint(0, 50, (3, 70001)).float()
    tied[1, 60000], tied[1, 69000] = float("nan"), float("nan")
    tied[2] = -float("inf")
    places: dict[str, Callable[..., Any]] = {
        "wide_argmax": lambda a: (a.argmax(1), a.argmin(1)),
        "wide_argmax_all": lambda a: (a[0].argmax(), (a[0] - 1).abs().argmin(), a.argmax()),
        "wide_max_with_index": lambda a: (a.max(1), a[:, 5:].min(1)),
        "wide_argmax_columns": lambda a: (a.t().contiguous() * 2).argmax(0),
        "wide_whole": lambda a: (a[:2].sum(), a[0].amax(), a.min(), a[0].std(), (a[0] / 60).prod()),
    }
    for name, f in places.items():
        out[name] = (Fn(f), [tied.clone()])
    out["wide_argmin_columns"] = (Fn(lambda a: a.argmin(0)), [tied.t().contiguous()])
    out["large_cumsum"] = (
        Fn(lambda a: (torch.cumsum(a, 1), torch.cumsum(a, 0))),
        [torch.randn(131, 777)],
    )
    out["double"] = (
        Fn(lambda a: torch.softmax(F.gelu(a) + a.log1p(), 1)),
        [torch.rand(9, 17, dtype=torch.float64)],
    )
    out["nested_inputs"] = (
        Fn(lambda pair, n: [pair[0] * n + pair[1]]),
        [[m.clone(), y.clone()], 3],
    )
    for module, _ in out.values():
        module.eval()
    return out
