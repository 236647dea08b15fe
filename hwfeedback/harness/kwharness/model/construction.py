"""How a model is constructed: under one seed, and with what it fills with a constant drawn.

KernelBench constructs reference and candidate under one seed, so that whoever makes its weights in
the same order has the reference's. Zeros and ones tell nothing then: a bias that is left out, or a
norm's statistics. So where a parameter or a norm's statistics are filled with a constant, numbers
near it are drawn instead, from generators of their own: what is drawn otherwise stays as it was.
Each is keyed by what is filled (a parameter or statistics), its shape, the constant, and how many
such tensors came before it, so that both sides get the same. Used by both workers, and by the
script that runs an exported file by itself.

What every construction gives a weight beside constants (orthogonal rows, an identity, a copy of
another layer) tells as little. Where that is known (initial_weights.py), the content is moved, on
both sides, wherever a parameter or a copy comes to hold it: see ``Breaks``.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from kwharness.base.breaks import Break

# The seed under which models are constructed where no secret one is asked for.
CONSTRUCTION_SEED = 0
# Numbers that are drawn for one tensor; a larger one has them over and over: each process that
# constructs a model draws them again. A prime, so that rows differ.
DRAWN = (1 << 20) - 3
SPREAD = 0.1  # by which drawn constants, moved weights (secret_draws.py) and state differ
PARAMETER, STATISTIC = "parameter", "statistic"
LOOKS = 512  # at contents of one construction, as large as one that is moved
PRINTS, NEAR = 2, 1e-4  # products that tell a content, and how near they are, of their spread
IN_PLACE = ("copy_", "mul_")  # after which a tensor may hold it: orthogonal_ ends with both
FILLS = ("eye_", "dirac_")  # of torch.nn.init, which fill by other ways


def seed_everything(seed: int) -> None:
    """Seeds what a constructor, or get_inputs(), draws from."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


def constant_of(t: torch.Tensor) -> float | None:
    """Returns the one finite number that a floating tensor holds, None where it holds others."""
    if not _is_plain(t) or not t.numel():
        return None
    first, last = (t.detach()[(at,) * t.dim()] for at in (0, -1))
    c = float(first)
    alike = math.isfinite(c) and bool(first == last)  # mostly enough
    return c if alike and bool((t.detach() == first).all()) else None


def _is_plain(t: torch.Tensor) -> bool:
    """Whether it is floating, and has memory that can be looked at."""
    mro = type(t).__mro__  # isinstance asks a fake tensor, too, whether it is a parameter
    plain = type(t) is torch.Tensor or torch.nn.Parameter in mro
    return plain and t.is_floating_point() and t.layout is torch.strided and not t.is_meta


class Constants:
    """What was drawn in place of constants while one model was constructed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._count: Counter[tuple[str, float, tuple[int, ...]]] = Counter()
        # By address, so the memory must stay theirs.
        self._drawn: dict[tuple[int, tuple[int, ...]], dict[tuple[str, float], int]] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}

    def of(self, t: torch.Tensor) -> float | None:
        """Returns the constant in whose place a tensor's content was drawn, or that it holds; None
        where it has other content.
        """
        for (kind, c), n in self._drawn.get(self._at(t), {}).items():
            if torch.equal(t.detach(), self._values(kind, c, n, t)):
                return c
        return constant_of(t)

    def know(self, t: torch.Tensor) -> None:
        """From here on this is a parameter's memory."""
        if _is_plain(t):
            self._storages[t.untyped_storage().data_ptr()] = t.untyped_storage()

    def is_parameter(self, t: torch.Tensor) -> bool:
        """Whether this lies in a parameter's memory."""
        return _is_plain(t) and t.untyped_storage().data_ptr() in self._storages

    def draw(self, t: torch.Tensor, kind: str) -> None:
        """Draws what a tensor holds that holds one number."""
        c = constant_of(t)
        if c is None or any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True)):
            return  # an expanded one cannot be written into
        self.know(t)
        shape = tuple(t.shape)
        numbers = self._drawn.setdefault(self._at(t), {})
        if (kind, c) not in numbers:  # who fills it once more gets the same
            numbers[kind, c] = self._count[kind, c, shape]
            self._count[kind, c, shape] += 1
        with torch.no_grad():
            t.copy_(self._values(kind, c, numbers[kind, c], t))

    def finish(self, model: torch.nn.Module) -> None:
        """Draws what was never filled, as where there are zeros by chance."""
        parameters = {n for n, _ in model.named_parameters(remove_duplicate=False)}
        for name, t in model.state_dict().items():
            if isinstance(t, torch.Tensor) and _is_plain(t) and t.numel() and bool(t.isnan().all()):
                with torch.no_grad():
                    t.zero_()
                if name in parameters:
                    self.draw(t, PARAMETER)

    @staticmethod
    def _at(t: torch.Tensor) -> tuple[int, tuple[int, ...]]:
        return t.data_ptr(), tuple(t.shape)

    def _values(self, kind: str, c: float, number: int, like: torch.Tensor) -> torch.Tensor:
        count = like.numel()
        moves = _moves(f"{self._seed} {kind} {c!r} {tuple(like.shape)} {number}", count)
        if c:
            moves.add_(1).abs_().mul_(c)  # a variance stays positive
        moves = moves.to(device=like.device, dtype=like.dtype)
        return _repeated(moves, count).view(like.shape)


def _moves(key: str, count: int) -> torch.Tensor:
    """Returns as many numbers as are drawn for ``count`` elements, the same for the same key."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    g = torch.Generator("cpu").manual_seed(int.from_bytes(digest, "big") >> 1)
    moves = torch.randn(min(count, DRAWN), generator=g, device="cpu", dtype=torch.float32)
    return moves.mul_(SPREAD)


def _repeated(moves: torch.Tensor, count: int) -> torch.Tensor:
    return moves.repeat(-(-count // DRAWN))[:count] if count > DRAWN else moves


def digest_of(t: torch.Tensor) -> str:
    """Returns what tells the content of a tensor from any other, in the order of its elements."""
    t = t.detach().cpu().contiguous()
    size = t.numel() * t.element_size()
    content = (ctypes.c_char * size).from_address(t.data_ptr()) if size else b""
    return hashlib.blake2b(content, digest_size=16, salt=str(t.dtype)[-16:].encode()).hexdigest()


def _prints_of(t: torch.Tensor) -> list[float]:
    """Returns products with random numbers, by which a content is known again: a factorisation may
    give other bits in another process.
    """
    x = t.detach().cpu().reshape(-1).double()
    n = x.numel()
    return [float(x @ _repeated(_moves(f"print {k}", n), n).double()) for k in range(PRINTS)]


def to_break(t: torch.Tensor) -> Break:
    """Returns what ``Breaks`` takes to move a content: what it is, and its root mean square."""
    rms = float(t.detach().double().square().mean().sqrt())
    scale = rms if math.isfinite(rms) and rms else 1.0
    return Break(digest_of(t), _prints_of(t), t.numel() * t.element_size(), scale)


class Breaks:
    """Moves contents by a tenth of their root mean square, wherever one comes to be in the memory
    of a parameter, of what is copied into, or of what an initialiser fills. Each time it is another
    move, so copies differ. Where the same code makes them both sides get the same.

    ``known``: of ``to_break``, with ``times``, how often at most. ``times``: how often it was.
    """

    def __init__(self, known: Sequence[Break] = ()) -> None:
        self._known = known
        self.times = [0] * len(known)
        self._prints: list[tuple[list[float], int]] = [(k.prints, i) for i, k in enumerate(known)]
        self._bytes = {k.bytes for k in known}
        self._looks = 0
        self.within = False  # of a call after which somebody looks

    def look(self, t: torch.Tensor) -> None:
        """Moves what the memory of a tensor holds, where that is known."""
        if self.within or not self._known or not _is_plain(t):
            return
        storage = t.untyped_storage()
        if storage.nbytes() not in self._bytes or self._looks == LOOKS:
            return
        self._looks += 1
        self.within = True
        try:
            with torch.no_grad():
                self._move(torch.empty(0, dtype=t.dtype, device=t.device).set_(storage))
        finally:
            self.within = False

    def _move(self, whole: torch.Tensor) -> None:
        held = whole.cpu()
        i = self._known_as(held)
        if i is None or self.times[i] == self._known[i].times:
            return
        count, known = held.numel(), self._known[i]
        moves = _moves(f"{known.digest} {self.times[i]}", count).mul_(known.scale)
        moved = held + _repeated(moves.to(held.dtype), count)
        if bool((held >= 0).all()):
            moved.abs_()  # a variance stays positive
        self.times[i] += 1
        self._prints.append((_prints_of(moved), i))  # a copy of it is one of the content's, too
        whole.copy_(moved)

    def _known_as(self, held: torch.Tensor) -> int | None:
        prints = _prints_of(held)
        for known, i in self._prints:
            near = NEAR * SPREAD * self._known[i].scale * held.numel() ** 0.5
            if all(abs(a - b) <= near for a, b in zip(prints, known, strict=True)):
                return i
        return None


@contextmanager
def under(seed: int, breaks: Breaks | None = None) -> Iterator[Constants]:
    """Within this a model is constructed: see the module."""
    drawn, moving = Constants(seed), breaks or Breaks()
    norm = torch.nn.modules.batchnorm._NormBase
    make, reset = torch.nn.Parameter.__new__, norm.reset_running_stats

    def new(cls: Any, *args: Any, **named: Any) -> Any:
        made = make(cls, *args, **named)
        if isinstance(made, torch.Tensor):
            drawn.know(made)
            drawn.draw(made, PARAMETER)
            moving.look(made)
        return made

    def filling(real: Callable[..., Any]) -> Callable[..., Any]:
        def fill(self: torch.Tensor, *args: Any, **named: Any) -> Any:
            out = real(self, *args, **named)
            if drawn.is_parameter(self):
                drawn.draw(self, PARAMETER)
            return out

        return fill

    def looking(real: Callable[..., Any]) -> Callable[..., Any]:
        def changed(t: torch.Tensor, *args: Any, **named: Any) -> Any:
            # A mode like that of torch.device calls the same once more, within.
            outer, moving.within = not moving.within, True
            try:
                out = real(t, *args, **named)
            finally:
                moving.within = not outer
            if outer:
                moving.look(t)
            return out

        return changed

    def reset_running_stats(self: Any) -> None:
        reset(self)
        for t in (self.running_mean, self.running_var):
            if isinstance(t, torch.Tensor):
                drawn.draw(t, STATISTIC)

    with ExitStack() as stack, _marking_what_is_not_filled():

        def replace(where: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, value))

        replace(torch.nn.Parameter, "__new__", staticmethod(new))
        for name in ("fill_", "zero_"):
            replace(torch.Tensor, name, filling(getattr(torch.Tensor, name)))
        replace(norm, "reset_running_stats", reset_running_stats)
        if breaks is not None:
            for name in IN_PLACE:
                replace(torch.Tensor, name, looking(getattr(torch.Tensor, name)))
            for name in FILLS:
                replace(torch.nn.init, name, looking(getattr(torch.nn.init, name)))
        seed_everything(seed)
        yield drawn


@contextmanager
def _marking_what_is_not_filled() -> Iterator[None]:
    """Has memory that is not filled hold NaN: it often holds zeros, which nobody asked for."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    ours = True, True
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        now = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        if now == ours:  # else the constructor asked for it
            torch._C._set_deterministic_algorithms(before, warn_only=warns)
