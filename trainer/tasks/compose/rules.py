"""How parameters of operators are drawn: by their names, for the tensor they are used on.

A rule is given a ``Place``, and returns a value that fits it, or raises ``NoFit``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class NoFit(Exception):
    """No value fits here. Its text says why, in a few words."""


@dataclass
class Place:
    """Where an operator is used: the shape before it, and what was drawn for it so far."""

    rng: random.Random
    shape: tuple[int, ...]
    kind: str = ""
    drawn: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def channels(self) -> int:
        if self.rank < 2:
            raise NoFit("no dimension of channels")
        return self.shape[1]

    @property
    def spatial(self) -> tuple[int, ...]:
        return self.shape[2:]

    def near(self, low: float, high: float) -> float:
        """Returns a number with at most two digits after the point."""
        return round(self.rng.uniform(low, high), self.rng.choice([1, 1, 2]))


Rule = Callable[[Place], Any]


def _dim(p: Place) -> int:
    if p.rank < 2:
        return -1
    return p.rng.choice([-1, -1, *range(1, p.rank)])


def _kernel(p: Place) -> int:
    fits = [k for k in (2, 3, 3, 4, 5, 7) if all(k <= s for s in p.spatial)]
    if not p.spatial or not fits:
        raise NoFit("no kernel fits")
    return p.rng.choice(fits)


def _padding(p: Place) -> int:
    kernel = p.drawn.get("kernel_size", 3)
    return p.rng.choice([0, kernel // 2 if isinstance(kernel, int) else 0])


def _divisor(p: Place) -> int:
    fits = [g for g in (2, 4, 8, 16, 32) if p.channels % g == 0 and g < p.channels]
    if not fits:
        raise NoFit("no number of groups divides the channels")
    return p.rng.choice(fits)


def _groups(p: Place) -> int:
    out = p.drawn.get("out_channels")
    fits = [g for g in (2, 4, 8) if p.channels % g == 0 and isinstance(out, int) and out % g == 0]
    return p.rng.choice([1, 1, *fits])


def _width(p: Place) -> int:
    return p.rng.choice([32, 64, 96, 128, 192, 256, 384, 512])


def _channels_out(p: Place) -> int:
    return p.rng.choice([8, 16, 24, 32, 48, 64, 96, 128])


def _output_size(p: Place) -> Any:
    n = len(p.spatial)
    if not n:
        raise NoFit("no dimension to pool")
    fits = [s for s in (1, 2, 4, 7, 8) if all(s <= d for d in p.spatial)]
    one = p.rng.choice(fits)
    return one if n == 1 or p.rng.random() < 0.6 else (one,) * n


def _heads(p: Place) -> int:
    fits = [h for h in (2, 4, 8) if p.shape[-1] % h == 0 and p.shape[-1] // h >= 8]
    if not fits:
        raise NoFit("no number of heads divides the width")
    return p.rng.choice(fits)


def _normalized(p: Place) -> Any:
    return (p.shape[-1],) if p.rank < 3 or p.rng.random() < 0.8 else tuple(p.shape[-2:])


def _last(p: Place) -> int:
    return p.shape[-1]


def _factor(p: Place) -> int:
    fits = [r for r in (2, 4) if p.rank == 4 and p.channels % (r * r) == 0]
    if not fits:
        raise NoFit("no factor divides the channels")
    return p.rng.choice(fits)


def _unshuffle(p: Place) -> int:
    fits = [r for r in (2, 4) if p.rank == 4 and all(s % r == 0 for s in p.spatial)]
    if not fits:
        raise NoFit("no factor divides height and width")
    return p.rng.choice(fits)


def _pads(p: Place) -> Any:
    if not p.spatial:
        raise NoFit("nothing to pad")
    return p.rng.choice([1, 1, 2])


# For those that have to be given. What stands in OPTIONAL is drawn now and then, too.
RULES: dict[str, Rule] = {
    "dim": _dim,
    "axis": _dim,
    "kernel_size": _kernel,
    "stride": lambda p: p.rng.choice([1, 1, 2]),
    "padding": _padding,
    "dilation": lambda p: p.rng.choice([1, 1, 2]),
    "groups": _groups,
    "num_groups": _divisor,
    "num_features": lambda p: p.channels,
    "num_channels": lambda p: p.channels,
    "in_channels": lambda p: p.channels,
    "out_channels": _channels_out,
    "in_features": _last,
    "out_features": _width,
    "in1_features": _last,
    "in2_features": _last,
    "input_size": _last,
    "hidden_size": lambda p: p.rng.choice([32, 64, 128]),
    "embed_dim": _last,
    "d_model": _last,
    "num_heads": _heads,
    "nhead": _heads,
    "dim_feedforward": lambda p: 2 * p.shape[-1],
    "normalized_shape": _normalized,
    "output_size": _output_size,
    "num_parameters": lambda p: 1,
    "lambd": lambda p: p.near(0.1, 0.9),
    "alpha": lambda p: p.near(0.2, 2.0),
    "beta": lambda p: p.near(0.5, 2.0),
    "negative_slope": lambda p: p.near(0.01, 0.3),
    "threshold": lambda p: p.near(0.0, 0.8),
    "value": lambda p: p.near(-1.0, 1.0),
    "min_val": lambda p: -p.near(0.4, 2.0),
    "max_val": lambda p: p.near(0.4, 3.0),
    "min": lambda p: -p.near(0.4, 2.0),
    "max": lambda p: p.near(0.4, 2.0),
    "norm_type": lambda p: p.rng.choice([1, 2, 2, 3]),
    "p": lambda p: p.rng.choice([1, 2, 2, 3]),
    "ord": lambda p: p.rng.choice([1, 2]),
    "size": lambda p: p.rng.choice([3, 5]),
    "upscale_factor": _factor,
    "downscale_factor": _unshuffle,
    "scale_factor": lambda p: p.rng.choice([2, 2, 3]) if p.spatial else _none("nothing to scale"),
    "margin": lambda p: p.near(0.2, 1.5),
    "delta": lambda p: p.near(0.3, 1.5),
    "exponent": lambda p: p.rng.choice([2, 2, 3, 0.5]),
    "shifts": lambda p: p.rng.choice([1, 2, 8]),
    "dims": lambda p: (p.rng.choice(range(1, p.rank)),) if p.rank > 1 else (0,),
    "pad": lambda p: (1, 1) * p.rng.choice([1, min(2, max(1, p.rank - 2))]),
    "approximate": lambda p: "tanh",
    "keepdim": lambda p: p.rng.random() < 0.5,
    "bias": lambda p: p.rng.random() < 0.6,
    "affine": lambda p: p.rng.random() < 0.7,
    "elementwise_affine": lambda p: p.rng.random() < 0.7,
    "unbiased": lambda p: False,
    "correction": lambda p: p.rng.choice([0, 1]),
    "reduction": lambda p: p.rng.choice(["mean", "sum", "none"]),
    "label_smoothing": lambda p: p.near(0.05, 0.2),
    "batch_first": lambda p: True,
    "bidirectional": lambda p: p.rng.random() < 0.3,
    "dropout": lambda p: 0.0,
    "dim0": lambda p: 1 if p.rank > 2 else 0,
    "dim1": lambda p: p.rank - 1,
    "n": lambda p: 1,
    "diagonal": lambda p: p.rng.choice([-1, 0, 1]),
    "eps": lambda p: p.rng.choice([1e-5, 1e-6, 1e-3]),
    "is_causal": lambda p: p.rng.random() < 0.4,
    "block_size": lambda p: 2,
    "start_dim": lambda p: 1,
    "decimals": lambda p: 1,
    "repeats": lambda p: 2,
    "padding_size": _pads,
}
RULES_OF: dict[tuple[str, str], Rule] = {
    ("pad", "value"): lambda p: 0.0,
    ("lppool1d", "norm_type"): lambda p: 2.0,
    ("lppool2d", "norm_type"): lambda p: 2.0,
    ("lppool3d", "norm_type"): lambda p: 2.0,
    ("threshold", "value"): lambda p: 0.0,
    ("celu", "alpha"): lambda p: p.near(0.5, 2.0),
    ("multimargin", "p"): lambda p: p.rng.choice([1, 2]),
    ("glu", "dim"): lambda p: p.rng.choice(
        [d for d in range(1, p.rank) if p.shape[d] % 2 == 0] or [-1]
    ),
    ("rmsnorm", "eps"): lambda p: p.rng.choice([1e-5, 1e-6]),
    ("add", "alpha"): lambda p: p.near(0.2, 2.0),
}
# May be given though there is a default. The number is how often.
OPTIONAL = {
    "dim": 1.0,
    "keepdim": 0.5,
    "negative_slope": 0.7,
    "alpha": 0.5,
    "beta": 0.4,
    "min": 0.7,
    "max": 0.7,
    "min_val": 0.7,
    "max_val": 0.7,
    "lambd": 0.7,
    "approximate": 0.4,
    "stride": 0.4,
    "padding": 0.7,
    "dilation": 0.15,
    "groups": 0.15,
    "bias": 0.4,
    "affine": 0.3,
    "elementwise_affine": 0.2,
    "correction": 0.3,
    "reduction": 0.5,
    "label_smoothing": 0.4,
    "batch_first": 1.0,
    "bidirectional": 0.5,
    "dropout": 1.0,
    "dim_feedforward": 1.0,
    "p": 0.3,
    "scale_factor": 1.0,
    "delta": 0.5,
    "margin": 0.4,
    "is_causal": 0.5,
    "diagonal": 0.5,
    "output_size": 1.0,
    "start_dim": 1.0,
}
# An optional parameter that is something else to these kinds, and stays what it is.
LEFT: dict[str, set[str]] = {
    "prelu": {"num_parameters"},
    "convtranspose1d": {"output_size"},
    "convtranspose2d": {"output_size"},
    "convtranspose3d": {"output_size"},
    "maxunpool1d": {"output_size"},
    "fold": {"output_size"},
    "addcmul": {"value"},
    "nantonum": {"posinf", "neginf"},
    "dropout": {"p"},
    "multiheadattention": {"bias"},
    "sum": set(),
}


def _none(why: str) -> Any:
    raise NoFit(why)


def rule_for(kind: str, name: str) -> Rule | None:
    """Returns the rule for a parameter of an operator kind, None where there is none."""
    return RULES_OF.get((kind, name)) or RULES.get(name)


# What is a tensor where it belongs to a function, and a switch where it belongs to a module.
TENSORS = {"bias", "weight"}
