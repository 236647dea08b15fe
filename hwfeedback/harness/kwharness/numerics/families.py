"""Input families: other inputs made from a base draw, which show what the draw itself hides.

Most are elementwise maps: only floating inputs are mapped, and each element by itself (or to one
value for all), as far as that keeps what all draws share (input_structure.py). ``permuted`` changes
the order along axes where it changes nothing, and is for those alone where a draw has no order;
``ordered`` along those that the reference reduces, sorts or scans (orders.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kwharness.base.calibration import Axis, Line
from kwharness.numerics import few_terms, norms, orders
from kwharness.numerics.input_structure import NONE, Structure

Map = Callable[[torch.Tensor, torch.Generator], torch.Tensor]

HUGE = 1e30  # sums of many hold, of products with codes of eight bits, too; squares do not
TINY = 1e-40  # a float32 denormal
UP, DOWN = 1e2, 1e-3
TAIL_POWER = 3.0
SHIFT = 30.0  # root mean squares
SPIKES = 128  # one element in so many is larger, by
SPIKE = 100.0
# Of each of NaN, +Inf and -Inf: few, so that most of a row or of a channel stays comparable.
PLANTS = 4


@dataclass(frozen=True)
class Family:
    """One family.

    ``planted``: non-finite values are put in, and where they come out is what is compared.
    """

    name: str
    map: Map
    says: str
    planted: bool = False
    # What sums err by adds up instead of cancelling: where one value is everywhere, or a running
    # mean follows a row that rises.
    coherent: bool = False
    exact: bool = False  # integers in, weights too: linear operators must be exact while sums are


def _plant(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    out = x.clone()
    n = out.numel()
    flat = out.view(-1)
    count = min(PLANTS, max(n // 256, 1))
    where = torch.randint(0, max(n, 1), (3 * count,), generator=g, device=g.device)
    for i, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        flat[where[i * count : (i + 1) * count]] = value
    return out


# In place where it can be: an input may be as large as memory allows.


def _heavy(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return x.abs().pow_(TAIL_POWER).copysign_(x)


def _near_overflow(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    top = norms.scale_of(x).max
    return x * (HUGE / top) if top > 0 else torch.full_like(x, HUGE)


def _equal(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    # A value that half precision cannot hold, so that computing in less than float32 shows
    # coherently.
    value = float(torch.rand((), generator=g, device=g.device)) + 1.0 / 3.0
    return torch.full_like(x, value)


def _shifted(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    sign = 1.0 if float(torch.rand((), generator=g, device=g.device)) < 0.5 else -1.0
    return x + sign * SHIFT * (norms.scale_of(x).rms or 1.0)


def _spikes(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    out = x.clone()
    flat = out.view(-1)
    n = flat.numel()
    flat[torch.randint(0, n, (max(n // SPIKES, 1),), generator=g, device=g.device)] *= SPIKE
    return out


def _denormal(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return x.abs().clamp_(max=100.0).add_(1.0).mul_(TINY).copysign_(x).masked_fill_(x == 0, 0.0)


# report/families.go explains each on a page. What is no map needs _changes and apply, too.
BASE = Family("base", lambda x, _: x, "the reference's own draw")
PERMUTED = Family("permuted", lambda x, _: x, "another order along a reduced axis")
ORDERED = Family(
    "ordered", lambda x, _: x, "in order, or large values together, line by line", coherent=True
)
# Not a map: the reference's process finds where it decides (decisions.py).
BOUNDARIES = Family("boundaries", lambda x, _: x, "moved to where the reference rounds or compares")
PLANTED = Family("planted", _plant, "a few NaN, +Inf and -Inf", planted=True)
FEW_TERMS = Family("few_terms", lambda x, _: x, "all but a few rows times 1e-6")
FEW_FACTORS = Family("few_factors", lambda x, _: x, "zeros, but for a few terms of each product")
REPEATED = Family("repeated", lambda x, _: x, "one row over and over", coherent=True)
FAMILIES: tuple[Family, ...] = (
    BASE,
    Family("scaled_up", lambda x, _: x * UP, f"times {UP:g}"),
    Family("scaled_down", lambda x, _: x * DOWN, f"times {DOWN:g}"),
    Family("negated", lambda x, _: -x, "negated"),
    Family("heavy_tails", _heavy, "sign(x)·|x|³"),
    Family("spikes", _spikes, f"one in {SPIKES} times {SPIKE:g}"),
    Family("shifted", _shifted, f"plus or minus {SHIFT:g} root mean squares"),
    Family("all_equal", _equal, "one value everywhere", coherent=True),
    Family("zeros", lambda x, _: torch.zeros_like(x), "zeros"),
    Family("denormals", _denormal, "around 1e-40"),
    Family("near_overflow", _near_overflow, f"up to {HUGE:g}"),
    PLANTED,
    PERMUTED,
    ORDERED,
    FEW_TERMS,
    FEW_FACTORS,
    REPEATED,
    Family("zero_one", lambda x, _: (x > 0).to(x.dtype), "zeros and ones", exact=True),
)
BY_NAME = {f.name: f for f in (*FAMILIES, BOUNDARIES)}


# Share of elements that are the same in two draws by chance, at most: among float32 numbers one in
# some million is. The diagonal of a large matrix is more.
CHANCE = 1e-5

# Below this length an order drawn at random may well be the old one: of two, every second is.
SMALL = 8


@dataclass(frozen=True)
class Traits:
    """What is known of a task's inputs, all draws of them."""

    axes: Sequence[Axis] = ()  # that ``permuted`` permutes
    lines: Sequence[Line] = ()  # along which ``ordered`` puts in order
    factors: Sequence[Line] = ()  # along which products of matrices are added up
    structures: Sequence[Structure] = ()  # one an input
    given: int | None = None  # tensors that forward takes: the state behind them stays as it is

    def structure(self, i: int) -> Structure:
        return self.structures[i] if self.structures else NONE


PLAIN = Traits()


def apply(
    family: Family, tensors: Sequence[torch.Tensor], seed: int, traits: Traits = PLAIN
) -> list[torch.Tensor]:
    """Returns the family's version of a base draw, which keeps the structure of each input. Inputs
    that are not floating stay the same, but for those that are repeated with the others.
    """
    g = torch.Generator(tensors[0].device if tensors else "cpu").manual_seed(seed)
    if family is PERMUTED:
        return permuted(tensors, traits.axes, g)
    state = [] if traits.given is None else tensors[traits.given :]
    tensors = tensors[: traits.given]
    shaped = family in (ORDERED, FEW_TERMS, FEW_FACTORS, REPEATED)
    change = _changes(family, tensors, seed, traits)
    out: list[torch.Tensor] = []
    for i, t in enumerate(tensors):
        if t.numel() and (t.is_floating_point() or family is REPEATED):
            by = partial(_with, change(i), g)
            kept = traits.structure(i)
            t = kept.mapped(t, by, ordered=not family.planted, flat=not shaped)
        out.append(t)
    return [*out, *state]


def _changes(
    family: Family, tensors: Sequence[torch.Tensor], seed: int, traits: Traits
) -> Callable[[int], Map]:
    """Returns by the number of an input what a family makes of it."""
    if family is ORDERED:
        return orders.along(traits.lines, seed)
    if family is FEW_TERMS:
        return few_terms.few(tensors, seed)
    if family is FEW_FACTORS:
        return few_terms.few_along(traits.factors, seed)
    if family is REPEATED:
        return few_terms.repeated(tensors, seed)
    return lambda _: family.map


def _with(change: Map, g: torch.Generator, x: torch.Tensor) -> torch.Tensor:
    return change(x, g)


def permuted(
    tensors: Sequence[torch.Tensor], axes: Sequence[Axis], g: torch.Generator
) -> list[torch.Tensor]:
    """Returns the tensors in another order along each axis."""
    out = list(tensors)
    for axis in axes:
        i, dim = axis[0]
        order = torch.randperm(out[i].shape[dim], generator=g, device=g.device)
        if len(order) < SMALL and order.tolist() == list(range(len(order))):
            order = order.flip(0)
        for i, dim in axis:
            out[i] = out[i].index_select(dim, order)
    return out


def axes_of(draws: Sequence[Sequence[torch.Tensor]], known: Sequence[Structure] = ()) -> list[Axis]:
    """Returns the axes along which the draws have no order:

    of one floating input, of two that have the same size, and of all that have it once each.
    An input that is symmetric, sorted or partly always the same is left alone, and so is one with
    a structure that is known: a candidate may rely on that.
    """
    first = draws[0]
    free = [
        i
        for i in range(len(first))
        if unstructured([d[i] for d in draws]) and not (known and known[i])
    ]
    pairs = [
        (i, d)
        for i in free
        for d, n in enumerate(first[i].shape)
        if n > 1 and not _sorted(first[i], d)
    ]
    size = {(i, d): first[i].shape[d] for i, d in pairs}
    axes: list[Axis] = [(p,) for p in pairs]
    axes += [(p, q) for p in pairs for q in pairs if p[0] < q[0] and size[p] == size[q]]
    for n in sorted(set(size.values())):
        alike = tuple(p for p in pairs if size[p] == n)
        if len(alike) > 2 and len({i for i, _ in alike}) == len(alike):
            axes.append(alike)
    return axes


def unstructured(draws: Sequence[torch.Tensor]) -> bool:
    """Whether nothing is known of an input's content before it is drawn."""
    first = draws[0]
    return (
        first.is_floating_point()
        and first.numel() > 0
        and not symmetric(first)
        and fixed_share(draws) <= CHANCE
    )


def fixed_share(draws: Sequence[torch.Tensor]) -> float:
    """Returns the share of elements that no draw changes: a mask, a band, padding."""
    first = draws[0]
    if len(draws) < 2 or not first.numel():
        return 1.0
    same = torch.ones(first.shape, dtype=torch.bool, device=first.device)
    for t in draws[1:]:
        if t.shape != first.shape:
            return 1.0
        same &= t == first
    return norms.count(same) / first.numel()


def symmetric(t: torch.Tensor) -> bool:
    """Whether two dimensions can be exchanged."""
    return any(
        t.shape[a] == t.shape[b] > 1 and torch.equal(t, t.transpose(a, b))
        for a in range(t.dim())
        for b in range(a)
    )


def _sorted(t: torch.Tensor, dim: int) -> bool:
    n = t.shape[dim]
    low, high = t.narrow(dim, 0, n - 1), t.narrow(dim, 1, n - 1)
    return bool((low <= high).all()) or bool((low >= high).all())


# Other shapes.

# Above this share of elements that no draw changes, an input has a structure that another shape
# would not have.
FIXED = 0.1
SMALL_BYTES = 1 << 20  # of inputs on which something slow is done


@dataclass(frozen=True)
class Shape:
    """One change of shape: which dimensions get which size."""

    dims: Axis
    size: int


def shapes_of(draws: Sequence[Sequence[torch.Tensor]], growth: float = 2.0) -> list[list[Shape]]:
    """Returns changes of shape to try:

    half and double batch, the next prime as batch and as last dimension. The changes in one list
    are ways to do the same; the first that the reference can compute will do. None makes the
    inputs larger than ``growth`` times what they are.
    """
    first, plain = draws[0], _all_plain(draws)
    if not plain:
        return []
    total = sum(_nbytes(t) for t in first)
    tried: list[list[Shape]] = []

    def add(size: int, *ways: Axis) -> None:
        shapes = [Shape(w, size) for w in dict.fromkeys(ways) if all(i in plain for i, _ in w)]
        shapes = [s for s in shapes if s.dims and _bytes_of(first, s) <= growth * total]
        if shapes and size > 0 and shapes not in tried:
            tried.append(shapes)

    one = plain[0]
    batch = first[one].shape[0]
    leading = _leading(first, batch)
    for size in (batch // 2, 2 * batch, _next_prime(batch)):
        add(size, leading, ((one, 0),))
    last = first[max(plain, key=lambda i: first[i].dim())].shape[-1]
    if last > 1:
        everywhere = tuple(
            (i, d) for i, t in enumerate(first) for d, n in enumerate(t.shape) if n == last
        )
        ends = tuple(
            (i, d) for i, d in everywhere if d == first[i].dim() - 1 and (d or last != batch)
        )
        add(_next_prime(last), ends, everywhere)
    return tried


def small(draws: Sequence[Sequence[torch.Tensor]]) -> list[Shape]:
    """Returns ways to have so few of a batch that the inputs take about SMALL_BYTES: none where
    they take no more, or cannot be made smaller so. A batch that tiles divide is halved, so that
    they divide it still.
    """
    first, plain = draws[0], _all_plain(draws)
    total = sum(_nbytes(t) for t in first)
    if not plain:
        return []
    batch = size = first[plain[0]].shape[0]
    while size % 2 == 0 and total * size >= 2 * SMALL_BYTES * batch:
        size //= 2
    ways = dict.fromkeys((_leading(first, batch), ((plain[0], 0),)))
    return [Shape(w, size) for w in ways if all(i in plain for i, _ in w)] if size < batch else []


def _all_plain(draws: Sequence[Sequence[torch.Tensor]]) -> list[int]:
    """Returns which inputs have no structure that another shape would not have."""
    return [i for i in range(len(draws[0])) if _plain([d[i] for d in draws])]


def _leading(first: Sequence[torch.Tensor], batch: int) -> Axis:
    return tuple((i, 0) for i, t in enumerate(first) if t.dim() and t.shape[0] == batch)


def _plain(draws: Sequence[torch.Tensor]) -> bool:
    t = draws[0]
    if not t.dim() or not t.numel() or symmetric(t) or fixed_share(draws) > FIXED:
        return False
    return t.shape[0] < 4 or not _sorted(t, 0)  # offsets are sorted; a few numbers may be by chance


def _nbytes(t: torch.Tensor) -> int:
    return t.numel() * t.element_size()


def _bytes_of(tensors: Sequence[torch.Tensor], shape: Shape) -> float:
    sizes = [float(_nbytes(t)) for t in tensors]
    for i, dim in shape.dims:
        sizes[i] *= shape.size / tensors[i].shape[dim]
    return sum(sizes)


def reshaped(draws: Sequence[Sequence[torch.Tensor]], shape: Shape) -> list[torch.Tensor]:
    """Returns inputs of another shape, cut out of two draws that are laid side by side."""
    out = list(draws[0])
    for i in dict.fromkeys(i for i, _ in shape.dims):
        a, b = draws[0][i], draws[1][i]
        for dim in (d for j, d in shape.dims if j == i):
            a, b = (_resized(x, y, dim, shape.size) for x, y in ((a, b), (b, a)))
        out[i] = a
    return out


def _resized(a: torch.Tensor, b: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    have = a.shape[dim]
    if size > have:
        return torch.cat([a, b.narrow(dim, 0, size - have)], dim)
    return a.narrow(dim, 0, size).contiguous()


def _next_prime(n: int) -> int:
    """Returns the next prime, which is at most twice as large."""
    n += 1
    while n < 2 or any(n % k == 0 for k in range(2, int(n**0.5) + 1)):
        n += 1
    return n
