"""Orders of a draw along what the reference reduces, sorts or scans.

A top-k that keeps too few of each part of a row, or a queue that is too short, is right on random
rows alone. Each line of elements gets an order of its own, drawn among six.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy
import torch

from kwharness.base.calibration import Line

SHORTEST = 8  # elements of a line that has an order worth asking about
LINES = 6  # that one task is asked about, at most
LONGEST_RUN = 8  # of equal elements
# Elements that are put in order, at most: of larger inputs some lines, drawn at random, but ALWAYS
# of them.
ARRANGED = {"cpu": 1 << 17, "cuda": 1 << 27}
ALWAYS = 12
KINDS = 6  # orders of a row

# Operators that reduce, sort or scan along the dimensions in their argument of this number; without
# one along all of them, or the last.
ALONG = {
    "sum": 1, "mean": 1, "amax": 1, "amin": 1, "argmax": 1, "argmin": 1, "prod": 1, "var": 1,
    "std": 1, "var_mean": 1, "std_mean": 1, "max": 1, "min": 1, "aminmax": 1, "all": 1, "any": 1,
    "logsumexp": 1, "linalg_vector_norm": 2, "norm": 2, "median": 1, "nanmedian": 1, "mode": 1,
    "kthvalue": 2, "topk": 2, "sort": 1, "argsort": 1, "cumsum": 1, "cumprod": 1, "cummax": 1,
    "cummin": 1, "logcumsumexp": 1, "_softmax": 1, "_log_softmax": 1, "_safe_softmax": 1,
}  # fmt: skip
DEFAULT_LAST = {"topk", "sort", "argsort", "kthvalue", "mode"}
WHOLE = {"histc", "bincount", "unique", "_unique2", "unique_dim", "mse_loss", "smooth_l1_loss"}


def length_of(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Returns how many elements an operator reduces, sorts or scans to or as one, 0 for none."""
    x = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if x is None or not x.is_floating_point() or not x.dim():
        return 0
    if name == "native_layer_norm":
        return math.prod(args[1])
    if name in WHOLE:
        return x.numel()
    at = ALONG.get(name)
    if at is None:
        return 0
    dims = kwargs.get("dim", args[at] if len(args) > at else None)
    if dims is None or dims == [] or isinstance(dims, bool):
        return x.shape[-1] if name in DEFAULT_LAST else x.numel()
    if isinstance(dims, torch.Tensor):
        return 0
    return math.prod(x.shape[d] for d in (dims if isinstance(dims, (list, tuple)) else [dims]))


def lines_of(tensors: Sequence[torch.Tensor], lengths: Collection[int]) -> list[Line]:
    """Returns the lines of floating inputs that are as long as what is reduced, sorted or scanned:
    dimensions that follow each other, as few as do.
    """
    found: list[Line] = []
    for i, t in enumerate(tensors):
        if not t.is_floating_point():
            continue
        for start in range(t.dim()):
            for stop in range(start + 1, t.dim() + 1):
                n = math.prod(t.shape[start:stop])
                if n >= SHORTEST and n in lengths:
                    found.append(Line(i, start, stop))
                    break
    return found[:LINES]


def along(
    lines: Sequence[Line], seed: int
) -> Callable[[int], Callable[[torch.Tensor, torch.Generator], torch.Tensor]]:
    """Returns by the number of an input how it is put in order: along one of the lines, in turn by
    the seed; the others stay as they are.
    """
    line = lines[seed % len(lines)] if lines else None

    def change(i: int) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
        if line is None or line.input != i:
            return lambda x, _: x
        return lambda x, g: arranged(x, line.start, line.stop, g)

    return change


def arranged(x: torch.Tensor, start: int, stop: int, g: torch.Generator) -> torch.Tensor:
    """Returns a tensor with each line of dimensions ``start`` to ``stop`` in one of six orders."""
    inner = x.flatten(start, stop - 1).movedim(start, -1)
    shape = inner.shape
    rows = inner.reshape(-1, shape[-1])
    most = max(ARRANGED[x.device.type] // rows.shape[1], ALWAYS)
    if len(rows) <= most:
        done = _in_order(rows, g)
    else:
        done = rows.clone()
        chosen = torch.randperm(len(rows), generator=g, device=x.device)[:most]
        done[chosen] = _in_order(rows[chosen], g)
    return done.view(shape).movedim(-1, start).reshape(x.shape)


def _in_order(rows: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """Puts each row into an order of its own: rising, falling, large values together somewhere,
    large values at one residue modulo a power of two, runs of equal values, or the largest at one
    residue modulo every power of two that leaves room for them.
    """
    count, n = rows.shape
    device = rows.device
    kind = torch.randint(0, KINDS, (count,), generator=g, device=device)
    if count >= KINDS:
        kind[:KINDS] = torch.randperm(KINDS, generator=g, device=device)
    at = torch.arange(n, device=device)
    shift = torch.randint(0, n, (count, 1), generator=g, device=device)
    most = max(int(math.log2(n)), 1)
    steps = 2 ** torch.randint(1, most + 1, (count, 1), generator=g, device=device)
    rank = at.expand(count, n).clone()  # of the value that comes to each place, from below
    rank[kind == 1] = n - 1 - at
    rank[kind == 2] = (at + shift[kind == 2]) % n
    residue = kind == 3
    key = (at - shift[residue]) % steps[residue] * n + at  # the largest come first
    rank[residue] = n - 1 - key.argsort(-1).argsort(-1)
    nested = kind == 5
    key = _reversed_bits((at - shift[nested]) % n, max((n - 1).bit_length(), 1))
    rank[nested] = n - 1 - key.argsort(-1).argsort(-1)
    out = _sorted(rows).gather(-1, rank)
    runs = kind == 4
    length = torch.randint(2, LONGEST_RUN + 1, (count, 1), generator=g, device=device)[runs]
    out[runs] = rows[runs].gather(-1, at // length * length)
    return out


def _sorted(rows: torch.Tensor) -> torch.Tensor:
    """Returns each row from its lowest value up. NumPy's sort is vectorised: it takes a third of
    the time of PyTorch's on a CPU, and a sixth for short rows.
    """
    if rows.is_cpu and rows.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(numpy.sort(rows.numpy(), -1))
    return rows.sort(-1).values


def _reversed_bits(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns whole numbers with their lowest ``bits`` bits in the other order."""
    out = torch.zeros_like(x)
    for k in range(bits):
        out |= (x >> k & 1) << (bits - 1 - k)
    return out
