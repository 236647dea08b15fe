"""What all draws of an input share: content that no draw changes, equal elements, an order, few
values.

A kernel may rely on that: a triangular product skips the zeros, a lookup trusts sorted bounds. So
input families keep a structure, and what breaks it is asked by assumptions.py alone. A structure is
claimed only where it comes by chance less than once in a million times (``CHANCE``), and only of
draws that differ. Sign, range and distribution are none, and neither is one value throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from kwharness.numerics import norms

CHANCE = 1e-6  # of a structure that is none, at most
FEW = 16  # distinct values, of labels, of one-hot rows, of masks
DRAWS = 8  # of inputs that are small, and
SMALL = 1 << 20  # of how many elements that is, all inputs together; else
DRAWS_OF_MANY = 4
MANY = 1 << 26  # elements of one input past which nobody looks which of them are equal
FAR_BELOW = -1e4  # what is added to a score that is to count for nothing
LOOKED_AT = 4096  # elements that show that there are more than a few values
# Past so many elements equal ones are looked for in parts: a sort takes six times what it sorts.
WHOLE, PARTS = 1 << 20, 16

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Structure:
    """What is known of one input before it is drawn. Nothing, by default."""

    constant: bool = False  # a mask that is the same in every draw
    few: bool = False  # at most FEW values in all draws
    fixed: torch.Tensor | None = None  # bool, of its shape: places that no draw changes
    # int64, one for each element: the flat number of the first one that it equals in every draw.
    same: torch.Tensor | None = None
    orders: list[tuple[int, bool]] = field(default_factory=list)  # dimension, falling
    says: list[str] = field(default_factory=list)  # "is lower triangular"

    def __bool__(self) -> bool:
        return bool(self.says)

    def kinds(self) -> list[str]:
        """Returns what there is of it, for ``again``."""
        there = {
            "constant": self.constant,
            "few": self.few,
            "fixed": self.fixed is not None,
            "same": self.same is not None,
            "orders": bool(self.orders),
        }
        return [kind for kind, is_there in there.items() if is_there]

    @property
    def stays(self) -> bool:
        """Whether nothing of it may be mapped: its few values say all that there is."""
        return self.constant or self.few

    def mapped(
        self, t: torch.Tensor, change: Change, *, ordered: bool = True, flat: bool = True
    ) -> torch.Tensor:
        """Returns what ``change`` makes of a draw's tensor, as far as that keeps the structure.

        ``ordered``: whether the result can be put back in order, as NaN cannot. ``flat``: whether
        ``change`` may be given the elements that are not fixed, without their shape.
        """
        if self.stays or (self.orders and not ordered):
            return t
        if self.fixed is None or not flat:
            out = change(t)
        else:
            free = ~self.fixed
            out = t.clone()
            out[free] = change(t[free])
        if self.same is not None:
            out = out.reshape(-1)[self.same].view(t.shape)
        for dim, falling in self.orders:
            out = out.sort(dim, descending=falling).values
        return out if self.fixed is None else torch.where(self.fixed, t, out)

    def broken(self, t: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        """Returns a draw's tensor without the structure, from values of its own."""
        if self.constant:
            return shuffled(t, g)
        if self.few:
            noise = torch.randn(t.shape, generator=g, device=t.device).to(t.dtype)
            return noise.mul_(norms.scale_of(t).rms or 1.0)
        free = t.reshape(-1) if self.fixed is None else t[~self.fixed]
        if self.fixed is not None or self.same is not None:
            at = torch.randint(0, free.numel(), t.shape, generator=g, device=t.device)
            drawn = free[at]
            out = drawn if self.same is not None else torch.where(self.fixed, drawn, t)
        else:
            out = t
        for dim, _ in self.orders:
            order = torch.randperm(t.shape[dim], generator=g, device=t.device)
            out = out.index_select(dim, order)
        return out

    def picked(self, t: torch.Tensor, number: int) -> torch.Tensor | None:
        """Returns the flat numbers of one element, drawn by a number, and of all that equal it in
        every draw; None where none may be changed.
        """
        if self.stays or self.orders:
            return None
        at = number % t.numel()
        if self.fixed is not None:
            free = (~self.fixed).reshape(-1).nonzero().view(-1)
            at = int(free[number % len(free)])
        if self.same is None:
            return torch.tensor([at], device=t.device)
        return (self.same == self.same[at]).nonzero().view(-1)


NONE = Structure()


def count_of(draw: Sequence[torch.Tensor]) -> int:
    """Returns how many draws are looked at, of which this is one."""
    total = sum(t.numel() for t in draw if t.is_floating_point())
    return DRAWS if total <= SMALL else DRAWS_OF_MANY


def of(draws: Sequence[Sequence[torch.Tensor]]) -> list[Structure]:
    """Returns the structure of each input, from draws under different seeds."""
    return [_of_one([d[i] for d in draws]) for i in range(len(draws[0]))]


def again(
    draws: Sequence[Sequence[torch.Tensor]],
    kinds: Sequence[Sequence[str]],
    says: Sequence[Sequence[str]],
) -> list[Structure]:
    """Returns the structure of each input as far as it is of kinds that other draws have shown, in
    the words for these. What is not there in these draws is left out; of one draw, all.
    """
    if len(draws) < 2:
        return [Structure() for _ in draws[0]]
    return [
        _of_kinds([d[i] for d in draws], kind, words)
        for i, (kind, words) in enumerate(zip(kinds, says, strict=True))
    ]


def _of_kinds(
    draws: Sequence[torch.Tensor], kinds: Sequence[str], says: Sequence[str]
) -> Structure:
    s = Structure(constant="constant" in kinds, few="few" in kinds)
    s.fixed = _fixed(draws) if "fixed" in kinds else None
    s.same = _same(draws, s.fixed) if "same" in kinds else None
    s.orders = _orders(draws) if "orders" in kinds else []
    s.says = list(says) if s.kinds() else []
    return s


def _of_one(draws: Sequence[torch.Tensor]) -> Structure:
    first = draws[0]
    plain = first.is_floating_point() and first.numel() > 1 and len(draws) > 1
    if not plain or any(t.shape != first.shape for t in draws):
        return Structure()
    if all(torch.equal(t, first) for t in draws[1:]):
        return _of_a_constant(first)
    if values := _few(draws):
        return Structure(few=True, says=[_told_of_few(first, values)])
    s = Structure(fixed=_fixed(draws))
    if s.fixed is not None:
        s.says.append(_told_of_places(s.fixed))
    if first.numel() <= MANY and (found := _same(draws, s.fixed)) is not None:
        s.same = found
        s.says.append(_told_of_equals(first))
    s.orders = _orders(draws)
    s.says += [
        f"is sorted along dimension {dim}" + (", falling" if falling else "")
        for dim, falling in s.orders
    ]
    return s


def _of_a_constant(t: torch.Tensor) -> Structure:
    """A mask is made once, of two values: one lets through, and 0, -inf or a number far below
    does not. Other constants are weights, and varied.
    """
    values = torch.unique(t)
    stops = bool((values == 0).any()) or bool((values <= FAR_BELOW).any())
    if len(values) == 2 and stops:
        return Structure(constant=True, says=["is the same in every draw"])
    return Structure()


def _few(draws: Sequence[torch.Tensor]) -> int:
    """Returns how many values there are, 0 where they are not few."""
    n = draws[0].numel()
    if len(torch.unique(draws[0].reshape(-1)[:LOOKED_AT])) > FEW:
        return 0
    values = len(torch.unique(torch.cat([torch.unique(t) for t in draws])))
    return values if 1 < values <= FEW and 2 * values <= n * len(draws) and n > values else 0


def _fixed(draws: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Returns the places that no draw changes, None where there are none or chance may have made
    them: zeros that a ReLU leaves are elsewhere in every draw.
    """
    first, k = draws[0], len(draws)
    fixed = torch.ones(first.shape, dtype=torch.bool, device=first.device)
    met = 0  # elements that are as in the first draw
    for t in draws[1:]:
        same = t == first
        met += norms.count(same)
        fixed &= same
    count = norms.count(fixed)
    others = first.numel() - count
    if not count or not others:
        return None
    by_chance = (met - count * (k - 1) + 1) / (others * (k - 1) + 1)
    return fixed if first.numel() * by_chance ** (k - 1) < CHANCE else None


def _same(draws: Sequence[torch.Tensor], fixed: torch.Tensor | None) -> torch.Tensor | None:
    """Returns for each element the first one that it equals in every draw, None where each is its
    own, or where as many would be by chance.
    """
    hashed = _hashed(draws)
    if fixed is not None:  # these are what they are: each its own
        at = 0
        for some, stays in norms.chunks(hashed, fixed):
            own = torch.arange(at, at + len(some), device=some.device)
            some.copy_(torch.where(stays, own, some))
            at += len(some)
    found = _firsts(hashed)
    if found is None:
        return None
    del hashed
    n = draws[0].numel()
    by_chance = _equal_by_chance(*(t if fixed is None else t[~fixed] for t in draws[:2]))
    if n * n / 2 * by_chance ** len(draws) >= CHANCE:
        # Of few values, or of short numbers: many are equal by chance. What is left is symmetry.
        if all(_symmetric(t) for t in draws):
            return _transposed(draws[0])
        return None
    return found


def _hashed(draws: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns a word for each element, of what it is in all draws."""
    first = draws[0]
    hashed = torch.zeros(first.numel(), dtype=torch.int64, device=first.device)
    for t in draws:
        for some, values in norms.chunks(hashed, t):
            bits = (values.double() + 0.0).view(torch.int64)  # -0 is 0
            some.copy_(_mixed(some * 0x100000001B3 + _mixed(bits)))
    return hashed


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """Has each bit of a word change all of them: the finaliser of MurmurHash3 (Appleby, public
    domain), whose constants wrap as signed words here. Short numbers have zeros for most of theirs.
    """
    for factor in (-49064778989728563, -4265267296055464877):
        bits = (bits ^ (bits >> 33)) * factor
    return bits ^ (bits >> 33)


def _parted(hashed: torch.Tensor) -> Iterator[torch.Tensor]:
    """Gives the flat numbers of some words after the other, rising. Equal words come together: what
    looks for them needs the memory of a part alone.
    """
    if hashed.numel() <= WHOLE:
        yield torch.arange(hashed.numel(), device=hashed.device)
        return
    part = torch.empty(hashed.numel(), dtype=torch.uint8, device=hashed.device)
    for of, some in norms.chunks(part, hashed):
        of.copy_(some & (PARTS - 1))
    for i in range(PARTS):
        yield (part == i).nonzero().view(-1)


def _firsts(hashed: torch.Tensor) -> torch.Tensor | None:
    """Returns for each word the number of the first that equals it, None where each is its own."""
    found: torch.Tensor | None = None
    for at in _parted(hashed):
        words = hashed[at]
        in_order = words.sort().values
        if not bool((in_order[1:] == in_order[:-1]).any()):
            continue
        del in_order
        _, group, counts = torch.unique(words, return_inverse=True, return_counts=True)
        order = torch.argsort(group, stable=True)
        starts = torch.cumsum(counts, 0) - counts
        if found is None:
            found = torch.arange(hashed.numel(), device=hashed.device)
        found[at] = at[order[starts][group]]
    return found


def _equal_by_chance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Returns how likely an element of one draw equals any one of another draw."""
    x, y = _hashed([a]), _hashed([b])
    met = 0
    for i, j in zip(_parted(x), _parted(y), strict=True):
        (mine, many), (others, of_these) = (
            torch.unique(words, return_counts=True) for words in (x[i], y[j])
        )
        if len(mine):
            at = torch.searchsorted(mine, others).clamp_(max=len(mine) - 1)
            met += int(torch.where(mine[at] == others, many[at] * of_these, 0).sum())
    return (met + 1) / (a.numel() * b.numel())


def _symmetric(t: torch.Tensor) -> bool:
    square = t.dim() >= 2 and t.shape[-1] == t.shape[-2] > 1
    return square and torch.equal(t, t.transpose(-1, -2))


def _transposed(t: torch.Tensor) -> torch.Tensor:
    at = torch.arange(t.numel(), device=t.device).view(t.shape)
    return torch.minimum(at, at.transpose(-1, -2)).reshape(-1)


def _orders(draws: Sequence[torch.Tensor]) -> list[tuple[int, bool]]:
    """Returns the dimensions along which every line of every draw is in order. An axis of two is
    that by chance in every second line.
    """
    first = draws[0]
    found: list[tuple[int, bool]] = []
    for dim, n in enumerate(first.shape):
        lines = first.numel() // n
        if n < 2 or lines * len(draws) * math.lgamma(n + 1) < -math.log(CHANCE):
            continue
        pairs = [(t.narrow(dim, 0, n - 1), t.narrow(dim, 1, n - 1)) for t in draws]
        rising = all(bool((a <= b).all()) for a, b in pairs)
        falling = all(bool((a >= b).all()) for a, b in pairs)
        if rising != falling:  # both: its elements are equal along it
            found.append((dim, falling))
    return found


def shuffled(t: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """Returns the same elements in another order."""
    order = torch.randperm(t.numel(), generator=g, device=t.device)
    return t.reshape(-1)[order].view(t.shape)


# In words.


def _told_of_few(t: torch.Tensor, values: int) -> str:
    ones = (t != 0).sum(-1) if t.dim() > 1 else torch.zeros(1)
    if values == 2 and t.dim() > 1 and bool((ones == 1).all()):
        across = (t != 0).sum(-2)
        if t.shape[-1] == t.shape[-2] and bool((across == 1).all()):
            return "is a permutation matrix"
        return "has rows of which one element is not zero"
    return f"holds only {values} values"


def _told_of_places(fixed: torch.Tensor) -> str:
    """Names a pattern of places that are the same in every draw."""
    if fixed.dim() >= 2 and bool((fixed == fixed.reshape(-1, *fixed.shape[-2:])[0]).all()):
        free = ~fixed.reshape(-1, *fixed.shape[-2:])[0]
        rows, columns = free.nonzero(as_tuple=True)
        n, m = free.shape
        above, below = int((columns - rows).max()), int((rows - columns).max())
        if above <= 0 and below <= 0:
            return "is diagonal"
        if above <= 0:
            return "is lower triangular"
        if below <= 0:
            return "is upper triangular"
        if size := _block(free):
            return f"has blocks of {size} on its diagonal"
        if max(above, below) < min(n, m) // 2:
            return f"has a band of {below + above + 1} diagonals"
    return "has elements that are the same in every draw"


def _block(free: torch.Tensor) -> int:
    """Returns the size of the blocks outside which nothing is free, 0 where there are none."""
    n, m = free.shape
    if n != m:
        return 0
    at = torch.arange(n, device=free.device)
    for size in (s for s in range(2, n // 2 + 1) if n % s == 0):
        apart = (at[:, None] // size) != (at[None, :] // size)
        if not bool((free & apart).any()):
            return size
    return 0


def _told_of_equals(t: torch.Tensor) -> str:
    if _symmetric(t):
        return "is symmetric"
    for dim, n in enumerate(t.shape):
        if n > 1 and torch.equal(t.narrow(dim, 0, n - 1), t.narrow(dim, 1, n - 1)):
            return f"repeats itself along dimension {dim}"
        if n % 2 == 0 and torch.equal(
            t.unflatten(dim, (n // 2, 2)).select(dim + 1, 0),
            t.unflatten(dim, (n // 2, 2)).select(dim + 1, 1),
        ):
            return f"has neighbours that are equal along dimension {dim}"
    return "has elements that are equal in every draw"
