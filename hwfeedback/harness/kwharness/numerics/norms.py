"""The norms that errors are held to: the largest magnitude and the root mean square, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kwharness.base.calibration import Scale

# Elements compared at once: what is made of them stays in a core's cache. A GPU has others to keep
# busy, and memory for as many in float64.
CHUNK = 1 << 17
GPU_CHUNK = 1 << 25
# Squares of what lies between these hold in float64.
_SMALL, _LARGE = 1e-140, 1e140


def scale_of(t: torch.Tensor) -> Scale:
    """Returns maximum and root mean square of the finite elements."""
    if not t.numel():
        return Scale()
    s = _over_chunks([t], lambda chunk, _: chunk[0].double())
    if math.isfinite(s.max):
        return s
    finite = sum(int(torch.isfinite(c).sum()) for c in chunks(t))
    if not finite:
        return Scale()
    return _over_chunks(
        [t],
        lambda chunk, _: torch.where(torch.isfinite(chunk[0]), chunk[0].double(), 0.0),
        t.numel() - finite,
    )


def error_of(got: torch.Tensor, wide: torch.Tensor, skip: torch.Tensor | None) -> Scale:
    """Returns the error, taken in float64, over all elements but the skipped ones.

    Infinite where a value is not finite and should be.
    """
    if got.shape != wide.shape:
        raise ValueError(f"{list(got.shape)} against {list(wide.shape)}")
    if not got.numel():
        return Scale()

    def difference(chunk: list[torch.Tensor], scratch: torch.Tensor) -> torch.Tensor:
        a, b = chunk[:2]
        if torch.float64 in (a.dtype, b.dtype):
            d = torch.sub(a, b, out=scratch)
        else:
            d = scratch.copy_(a).sub_(b)
        return d if skip is None else d.masked_fill_(chunk[2], 0.0)

    given = [got, wide] if skip is None else [got, wide, skip]
    s = _over_chunks(given, difference, 0 if skip is None else count(skip))
    return s if math.isfinite(s.max) else Scale(math.inf, math.inf)


def error_where_finite(
    got: torch.Tensor, wide: torch.Tensor, skip: torch.Tensor | None = None
) -> Scale:
    """Returns the error over the elements that are finite in both, but the skipped ones."""
    s = error_of(got, wide, skip)
    if math.isfinite(s.max):  # as most are: then all are
        return s
    lost = not_finite(got, wide)
    return error_of(got, wide, lost if skip is None else skip | lost)


def chunks(*tensors: torch.Tensor, step: int = 0) -> Iterator[Any]:
    """Gives a tensor, or several side by side, in flat pieces that stay in a core's cache."""
    flats = [t.reshape(-1) for t in tensors]
    step = step or chunk_of(tensors[0])
    for start in range(0, flats[0].numel(), step):
        pieces = [f[start : start + step] for f in flats]
        yield pieces[0] if len(pieces) == 1 else pieces


def count(mask: torch.Tensor) -> int:
    """Returns how many elements of a mask are true. A sum of all at once makes whole numbers of
    them first, of eight bytes each.
    """
    return sum(int(c.sum()) for c in chunks(mask))


def first(mask: torch.Tensor) -> int:
    """Returns the number of the first element that is true, -1 where none is."""
    for k, c in enumerate(chunks(mask)):
        if bool(c.any()):
            return k * chunk_of(mask) + int(c.view(torch.uint8).argmax())
    return -1


def chunk_of(t: torch.Tensor) -> int:
    """Returns how many elements of a tensor are compared at once."""
    return GPU_CHUNK if t.is_cuda else CHUNK


def _over_chunks(
    tensors: Sequence[torch.Tensor],
    values: Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor],
    skipped: int = 0,
) -> Scale:
    """Returns maximum and root mean square of what ``values`` makes of each chunk; NaN spreads.

    In chunks that stay in the cache: one pass over memory, and nothing as large as an output is
    allocated beside it, however large it is.
    """
    if tensors[0].is_cuda:
        found = _asked_once(tensors, values, skipped)
        if found is not None:
            return found
    n = tensors[0].numel()
    room = min(n, chunk_of(tensors[0]))
    scratch = torch.empty(room, dtype=torch.float64, device=tensors[0].device)
    tops: list[float] = []
    norms: list[float] = []
    for pieces in chunks(*tensors):
        chunk = pieces if len(tensors) > 1 else [pieces]
        v = values(chunk, scratch[: chunk[0].numel()])
        low, high = (float(x) for x in torch.aminmax(v))
        top = math.nan if math.isnan(low) or math.isnan(high) else max(abs(low), abs(high))
        if not math.isfinite(top):
            return Scale(top, top)
        tops.append(top)
        norms.append(_norm(v, top))
    top = max(tops)
    # hypot scales: squares of what float64 holds may not fit in it.
    return Scale(top, math.hypot(*norms) / math.sqrt(max(n - skipped, 1)))


def _asked_once(
    tensors: Sequence[torch.Tensor],
    values: Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor],
    skipped: int = 0,
) -> Scale | None:
    """The same on a GPU, which would stand still at each number that it is asked for: it is asked
    at the end, and after the first chunk, which tells of most that is not finite.

    Returns None where squares may not fit in float64.
    """
    n = tensors[0].numel()
    scratch = torch.empty(min(n, GPU_CHUNK), dtype=torch.float64, device=tensors[0].device)
    found: list[torch.Tensor] = []
    for pieces in chunks(*tensors, step=GPU_CHUNK):
        chunk = pieces if len(tensors) > 1 else [pieces]
        v = values(chunk, scratch[: chunk[0].numel()])
        found.append(torch.stack((*torch.aminmax(v), torch.linalg.vector_norm(v))))
        if len(found) == 1 and n > GPU_CHUNK and not bool(torch.isfinite(found[0]).all()):
            break
    rows = torch.stack(found).tolist()
    tops = [math.nan if low != low else max(abs(low), abs(high)) for low, high, _ in rows]
    for top in tops:
        if not math.isfinite(top):
            return Scale(top, top)
    if not all(top == 0.0 or _SMALL < top < _LARGE for top in tops):
        return None
    norms = [norm for _, _, norm in rows]
    return Scale(max(tops), math.hypot(*norms) / math.sqrt(max(n - skipped, 1)))


def _norm(t: torch.Tensor, top: float) -> float:
    if top == 0.0:
        return 0.0
    if _SMALL < top < _LARGE:
        return float(torch.linalg.vector_norm(t, dtype=torch.float64))
    return top * float(torch.linalg.vector_norm(t / top, dtype=torch.float64))


def not_finite(*tensors: torch.Tensor) -> torch.Tensor:
    """Returns the mask of elements that are not finite in one of these tensors of one shape."""
    mask = torch.empty(tensors[0].shape, dtype=torch.bool, device=tensors[0].device)
    for bad, *parts in chunks(mask, *tensors):
        bad.fill_(False)
        for part in parts:
            bad |= (part - part) != 0.0  # NaN minus it, and Inf: in half of the time of isfinite
    return mask
