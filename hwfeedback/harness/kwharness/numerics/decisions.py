"""Where a forward decides: what float64, moved by the bound before it, may give instead.

A decision is an operator whose result jumps: it rounds, converts to whole numbers, compares,
searches, counts or orders. Float32 may come to either side of a jump. How far it may be off there
is measured: the reference runs with rounding simulated (rounding.py) and every decision as float64
has it, so that what comes before each is seen by itself. Values of one size share a bound
(decision_margins.py). ``Lanes`` then runs float64 with what is decided on moved by it: all up, all
down, and each element at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from kwharness.base.torch_modes import uncompiled
from kwharness.numerics.correctness import C1
from kwharness.numerics.decision_margins import Margins, size
from kwharness.numerics.operator_sets import EXACT, mutates, name_of
from kwharness.numerics.rounding import ULP, Float32Noise

# Patterns of simulated rounding, from which the bound of what is decided on comes: of many elements
# one shows how far the worst is off, if they were moved independently.
PATTERNS, FEW = 3, 4096
# What an honest kernel may add before it rounds, that codes are positive: the sum is rounded, too.
CODES = 128.0
SPREAD = 0.25  # of a rounding's size, at random
APART = 2.0**-10  # by so much two operators round otherwise, at random
TIE = 1e-12  # of the largest value: orders equal values at random, and no others
TINY = 1e-300  # where all are zero
ROUNDINGS = frozenset(["round", "floor", "ceil", "trunc", "sign", "signbit", "_to_copy"])
STEPS = ROUNDINGS - {"sign", "signbit"}  # to whole numbers
DIVISIONS = frozenset(["floor_divide", "div", "remainder", "fmod"])  # div: where it rounds
COMPARISONS = frozenset(["gt", "lt", "ge", "le", "eq", "ne"])
SEARCHES = frozenset(["bucketize", "searchsorted"])
COUNTS = frozenset(["histc"])
ORDERS = frozenset(["topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue"])
NAMES = ROUNDINGS | DIVISIONS | COMPARISONS | SEARCHES | COUNTS | ORDERS
AIMED = 8  # one element in so many is moved to a boundary, where there are FEW or more
AWAY = 2.0  # bounds from the boundary
STEP = 1e-6  # root mean squares, to see how fast a value moves with an input
NEWTON = 3  # steps


class Unaligned(RuntimeError):
    """A forward decided in another order than the one before it."""


@dataclass
class Decision:
    """One call of an operator that decides."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    value: torch.Tensor  # what is decided on
    out: Any = None
    rounded: torch.Tensor | None = field(default=None, repr=False)  # where rounding moved the value
    margins: Margins = field(default_factory=Margins, repr=False)
    _bound: torch.Tensor | None = field(default=None, repr=False)
    _sizes: torch.Tensor | None = field(default=None, repr=False)

    def bound(self) -> torch.Tensor | float:
        """Returns the bound of each element of the value: none where nothing before it rounds."""
        if self.rounded is None:
            return 0.0
        if self._bound is None:
            self._bound = self.bound_of(self)
        return self._bound

    def bound_of(self, other: Decision) -> torch.Tensor:
        """Returns the bound of the same decision's values on other inputs."""
        if self.rounded is None:
            return torch.zeros_like(self.value)
        found = self.margins.of(other.sizes(), self._least())
        return found.to(self.value.dtype).mul_(C1).mul_(self.rounded)

    def measure(self, off: torch.Tensor) -> None:
        """Takes in how far simulated rounding took the value, and in which direction."""
        moved = off != 0
        if not bool(moved.any()):
            return
        self.rounded = moved if self.rounded is None else self.rounded | moved
        self._bound = None
        self.margins.add(self.sizes(), off, moved)

    def few(self) -> bool:
        """Whether one pattern of rounding tells too little of the bound."""
        return self.value.numel() < FEW or self.margins.few()

    def sizes(self) -> torch.Tensor:
        """Returns the sizes of these, as margins go by them."""
        if self._sizes is None:
            self._sizes = size(self.large())
        return self._sizes

    def large(self) -> torch.Tensor:
        """Returns how large the numbers are whose rounding an element has."""
        if self.name in COMPARISONS:
            return torch.maximum(
                self.args[0].abs(), torch.as_tensor(self.args[1], device=self.value.device).abs()
            )
        return self.value

    def _least(self) -> float:
        """Returns what the decision's own arithmetic may round, whatever the size of a value."""
        if self.name in STEPS or self.name in DIVISIONS:
            return ULP * CODES
        if self.name in COUNTS:  # histc(x, bins, min, max)
            low, high = (*self.args[2:], 0, 0)[:2]
            low, high = self.kwargs.get("min", low), self.kwargs.get("max", high)
            ends = (
                self.value.nan_to_num(0.0, 0.0, 0.0) if low == high else torch.tensor([low, high])
            )
            return ULP * float(ends.abs().max())
        return 0.0

    def moved(self, by: Any) -> Any:
        """Returns what the operator gives once what it decides on is moved."""
        args, kwargs = list(self.args), dict(self.kwargs)
        at = 1 if self.name == "searchsorted" else 0
        if self.name in DIVISIONS:
            by = by * torch.as_tensor(args[1]).abs()
        args[at] = args[at] + by
        if self.name not in ORDERS:
            return _called(self.func, args, kwargs)
        out = self.func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return out
        _, index = out  # the values are as they were
        dim = _dim(self.func, args, kwargs)
        flat = index.dim() < self.args[0].dim()
        picked = self.args[0].gather(dim, index.unsqueeze(dim) if flat else index)
        return picked.squeeze(dim) if flat else picked, index


def _called(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if mutates(func):
        return func(args[0].clone(), *args[1:], **kwargs)
    return func(*args, **kwargs)


def _dim(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    names = [a.name for a in func._schema.arguments]
    at = names.index("dim")
    return int(args[at] if at < len(args) else kwargs.get("dim", -1))


def _float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def decision(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Decision | None:
    """Returns what a call of an operator decides on, None where it decides nothing."""
    if "out" in kwargs:
        return None
    name = name_of(func).removesuffix("_")
    value = args[1] if name == "searchsorted" and len(args) > 1 else args[0] if args else None
    if not _float(value):
        return None
    if name == "_to_copy":
        to = kwargs.get("dtype")
        if to is None or to.is_floating_point or to.is_complex:
            return None
    elif name in COMPARISONS:
        value = value - args[1]
    elif name in DIVISIONS:
        if name == "div" and kwargs.get("rounding_mode") is None:
            return None
        value = value / args[1]
    elif name in ("max", "min") and func._overloadname != "dim":
        return None
    return Decision(func, args, kwargs, name, value)


@uncompiled
class Pass(TorchDispatchMode):
    """One forward, whose decisions come to ``decide`` in the order in which they are made.

    It is entered after simulated rounding, so that it sees what the forward itself asks for.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view or name_of(func).removesuffix("_") not in NAMES:
            return func(*args, **kwargs)
        with _disable_current_modes():  # nothing is rounded here
            found = decision(func, args, kwargs)
            if found is not None:
                out = self.decide(found)
                return args[0].copy_(out) if mutates(func) else out
        return func(*args, **kwargs)

    def decide(self, d: Decision) -> Any:
        raise NotImplementedError


class Record(Pass):
    """Remembers each decision."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Decision] = []

    def decide(self, d: Decision) -> Any:
        d.args = tuple(a.clone() if _float(a) else a for a in d.args)  # none is written to later
        d.out = _called(d.func, d.args, d.kwargs)
        self.made.append(d)
        return _copied(d.out)


class _Again(Pass):
    def __init__(self, made: Sequence[Decision]) -> None:
        super().__init__()
        self._left = iter(made)

    def next(self, d: Decision) -> Decision:
        known = next(self._left, None)
        if known is None or known.name != d.name or known.value.shape != d.value.shape:
            raise Unaligned(d.name)
        return known


class Forced(_Again):
    """Decides as float64 did, and measures how far off what it decides on is."""

    def __init__(self, made: Sequence[Decision], *, measure: bool = False) -> None:
        super().__init__(made)
        self._measure = measure

    def decide(self, d: Decision) -> Any:
        known = self.next(d)
        if self._measure:
            off = d.value - known.value
            if d.name in DIVISIONS:  # which rounds by itself, unless by a power of two
                off += off.sign() * ULP * known.value.abs()
            off.nan_to_num_(0.0, 0.0, 0.0)
            if d.name in SEARCHES:  # the boundaries are off, too
                at = 0 if d.name == "searchsorted" else 1
                more = (d.args[at] - known.args[at]).abs().nan_to_num(0.0, 0.0, 0.0).amax()
                off += torch.where(off < 0, -more, more)
            known.measure(off)
        return _copied(known.out)


class Lane(_Again):
    """Decides on values that are moved by their bounds: by ``sign`` of them, at random for 0."""

    def __init__(self, made: Sequence[Decision], sign: int, seed: int) -> None:
        super().__init__(made)
        self._sign = sign
        self._seed = seed

    def decide(self, d: Decision) -> Any:
        known = self.next(d)
        bound = known.bound()
        self._seed += 1
        if d.name in ORDERS:
            stable = d.name == "sort" and bool(d.kwargs.get("stable"))
            finite = d.value[torch.isfinite(d.value)] if not stable else d.value[:0]
            tie = max(TIE * float(finite.abs().max()), TINY) if finite.numel() else 0.0
            return d.moved(self._signs(d.value) * bound + self._shuffle(d.value) * tie)
        if not isinstance(bound, torch.Tensor):
            return _called(d.func, d.args, d.kwargs)
        signs = self._sign or self._signs(d.value)
        return d.moved(bound * signs)

    def _generator(self, like: torch.Tensor) -> torch.Generator:
        """Returns one that each decision of each lane has for itself."""
        return torch.Generator(like.device).manual_seed(3 * self._seed + self._sign)

    def _shuffle(self, like: torch.Tensor) -> torch.Tensor:
        """Returns numbers between -1 and 1: every order of equal values is as likely."""
        g = self._generator(like)
        return torch.rand(like.shape, generator=g, device=like.device, dtype=like.dtype) * 2 - 1

    def _signs(self, like: torch.Tensor) -> torch.Tensor:
        g = self._generator(like)
        signs = torch.randint(0, 2, like.shape, generator=g, device=like.device, dtype=torch.int8)
        return signs.to(like.dtype).mul_(2).sub_(1)


@uncompiled
class ExactNoise(Float32Noise):
    """Simulated rounding that leaves exact what is: products with powers of two, and quotients.

    What it moves has no fixed size, and each operator another, so that two never cancel: what is
    not moved is exact.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        sizes = torch.rand(self._pool.shape, generator=self._g, dtype=torch.float64)
        self._pool.mul_(1.0 - SPREAD * sizes)
        self._share = 1.0

    def _parts(self, t: torch.Tensor, amount: torch.Tensor) -> Iterator[Any]:
        share = 1.0 - APART * float(torch.rand((), generator=self._g, dtype=torch.float64))
        self._pool.mul_(share / self._share)
        self._share = share
        return super()._parts(t, amount)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func).removesuffix("_")
        if name in EXACT:
            return func(*args, **kwargs)
        if name in ("mul", "div") and len(args) == 2 and not kwargs:
            exact = _power_of_two(args[1])
            if name == "mul" and not exact:
                exact = _power_of_two(args[0])
            if exact:
                return func(*args)
        return super().__torch_dispatch__(func, types, args, kwargs)


def _power_of_two(value: Any) -> bool:
    if isinstance(value, (int, float)):
        value = torch.tensor(float(value), dtype=torch.float64)
    if not _float(value) or not value.numel():
        return False
    return bool((torch.frexp(value)[0].abs() == 0.5).all())


def _copied(out: Any) -> Any:
    return out.clone() if isinstance(out, torch.Tensor) else tuple(t.clone() for t in out)


class Lanes:
    """A forward in float64 and its decisions, on one draw.

    ``run(*modes)`` runs it under these modes and returns tree and tensors of its output.
    """

    def __init__(self, run: Callable[..., tuple[Any, list[torch.Tensor]]]) -> None:
        self._run = run
        record = Record()
        self.plain = run(record)
        self.made = record.made
        self._near: int | None = None

    def forced(self) -> Forced:
        """Returns a mode in which each decision is float64's."""
        return Forced(self.made)

    def near(self) -> int:
        """Returns how many decisions the bound would change."""
        if self._near is None:
            for seed in range(PATTERNS if self.made else 0):
                self._run(ExactNoise(seed), Forced(self.made, measure=True))
                if not any(d.few() for d in self.made):
                    break
            self._near = sum(_changed(d) for d in self.made)
        return self._near

    def lane(self, sign: int, seed: int) -> tuple[Any, list[torch.Tensor]]:
        """Returns what the forward gives where what it decides on is moved."""
        if not self.near():
            return self.plain
        return self._run(Lane(self.made, sign, seed))


def _changed(d: Decision) -> int:
    """Returns how many of a decision's results another value within the bound changes."""
    if d.name in ORDERS:
        return _disordered(d)
    bound = d.bound()
    if not isinstance(bound, torch.Tensor) or not bool((bound > 0).any()):
        return 0
    up, down = d.moved(bound), d.moved(-bound)
    return int(((up != d.out) | (down != d.out)).sum())


def _disordered(d: Decision) -> int:
    """Returns how many neighbours in order may change places."""
    x = d.args[0]
    dim: int | None = -1
    if "dim" in [a.name for a in d.func._schema.arguments]:
        dim = _dim(d.func, d.args, d.kwargs) if d.args[1:] or "dim" in d.kwargs else None
        x = x.reshape(-1) if dim is None else x.movedim(dim, -1)
    if x.shape[-1] < 2:
        return 0
    values, at = x.sort(-1)
    bound = torch.as_tensor(d.bound(), device=x.device).expand(d.args[0].shape)
    bound = (bound.reshape(-1) if dim is None else bound.movedim(dim, -1)).gather(-1, at)
    return int((values.diff(dim=-1) <= bound[..., 1:] + bound[..., :-1]).sum())


# Draws on boundaries.


def aim(
    run: Callable[..., tuple[Any, list[torch.Tensor]]],
    inputs: Sequence[torch.Tensor],
    free: Sequence[int],
    seed: int,
) -> list[torch.Tensor] | None:
    """Returns inputs some elements of which are moved so that what is decided on, made of them one
    by one, lies AWAY bounds to either side of a boundary, or on it where nothing before it rounds.
    None where no decision has as many elements as an input among ``free``.

    ``run(inputs, *modes)`` runs the forward in float64 on such inputs.
    """
    g = torch.Generator().manual_seed(seed)
    lanes = Lanes(lambda *modes: run(inputs, *modes))
    pairs = [
        (k, j)
        for k, d in enumerate(lanes.made)
        for j in free
        if _boundary(d) is not None and d.value.numel() == inputs[j].numel() > 0
    ]
    if not pairs:
        return None
    lanes.near()
    k, j = pairs[int(torch.randint(0, len(pairs), (), generator=g))]
    d, x = lanes.made[k], inputs[j].double()
    n = x.numel()
    chosen = torch.rand(n, generator=g).to(x.device) < (1.0 / AIMED if n >= FEW else 0.5)
    boundary = _boundary(d)
    assert boundary is not None
    side = torch.randint(-1, 2, (n,), generator=g).to(x.device)
    coin = torch.randint(0, 2, (n,), generator=g).to(x.device) * 2 - 1
    rounds = (torch.as_tensor(d.bound(), device=x.device) > 0).expand(d.value.shape).reshape(-1)
    side = torch.where(rounds & (side == 0), coin, side)  # there both are right

    def away(of: Decision) -> torch.Tensor:
        bound = d.bound_of(of)
        return AWAY * torch.where(rounds, bound.reshape(-1), ULP * boundary.abs())

    def made(at: torch.Tensor) -> Decision:
        record = Record()
        run([t if i != j else at.view(x.shape) for i, t in enumerate(inputs)], record)
        return record.made[k]

    flat = x.reshape(-1)
    step = STEP * float(flat.square().mean().sqrt() or 1.0) * coin
    before = d.value.reshape(-1)
    slope = (made(torch.where(chosen, flat + step, flat)).value.reshape(-1) - before) / step
    able = chosen & torch.isfinite(slope) & (slope != 0) & torch.isfinite(boundary)
    now, at, off = before, flat, away(d)
    for i in range(NEWTON):
        at = torch.where(able, at + (boundary + side * off - now) / slope, at)
        at = torch.where(torch.isfinite(at), at, flat).to(inputs[j].dtype).double()
        there = made(at)
        now = there.value.reshape(-1)
        if not i:
            off = away(there)  # which is that of values as large as the boundary
    # What did not come near, as where one element is the scale of others, stays.
    missed = able & ~((now - boundary).abs() <= 2 * off.clamp_min(1e-30))
    at = torch.where(missed, flat, at)
    out = list(inputs)
    out[j] = at.view(x.shape).to(inputs[j].dtype)
    return out


def _boundary(d: Decision) -> torch.Tensor | None:
    """Returns the boundary nearest to each value, None where there is none to come near to."""
    v = d.value.reshape(-1)
    if d.name == "_to_copy" and bool((v == v.round()).all()):
        return None  # it was rounded before
    if d.name == "round" and not d.kwargs.get("decimals"):
        return v.floor() + 0.5
    if d.name in COMPARISONS or d.name in ("sign", "signbit"):
        return torch.zeros_like(v)
    if d.name in SEARCHES:
        edges = d.args[0 if d.name == "searchsorted" else 1]
        if not isinstance(edges, torch.Tensor) or edges.dim() != 1 or not edges.numel():
            return None
        edges = edges.to(v.dtype)
        after = torch.searchsorted(edges, v).clamp(0, edges.numel() - 1)
        before = (after - 1).clamp_min(0)
        nearer = (v - edges[before]).abs() < (v - edges[after]).abs()
        return torch.where(nearer, edges[before], edges[after])
    if d.name in ("floor", "ceil", "trunc", "_to_copy", "floor_divide"):
        return v.round()
    return None
