"""What a model carries from one call to the next, and the inputs that it writes into.

A buffer, a parameter or a tensor attribute that a forward changes is an input and an output, and so
is an input that it writes into. To everybody else such a model is a function: what it carries comes
behind the tensors that forward takes, and what is there after a call behind those that it returns,
first the state, then the inputs that were written. ``Carried`` says which these are; a ``Carrier``
puts content into a model before a call and collects it afterwards, in either worker.

What is looked at are tensors by the place that holds them: in a module's buffers, parameters and
attributes, and in lists, tuples and dicts among these. A forward may replace any of them. A place
gets the tensor back that was in it when the model was made: content is copied into that one, so
that its address stays.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from kwharness.base.carried import Carried
from kwharness.base.tensors import specs_of
from kwharness.model.construction import SPREAD
from kwharness.model.slots import SEQUENCES, Slot, places, slots

# Calls from the first state, after each of which the state is one that a random draw may begin
# with; and how far one goes to see a position come round.
REACHED = (0, 1, 2, 3, 5, 8)
MOST_CALLS = 600
REACH_S = 1.0
BEFORE_THE_END = 3  # states that are kept before a whole number falls
REACHED_BYTES = 1 << 28  # of all that are kept


class Before:
    """A model as it was before some calls: what they have changed."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._slots = {n: (s, s.get()) for n, s in slots(model).items()}
        self._content = {n: t.detach().clone() for n, (_, t) in self._slots.items()}
        self._plain = _plain(model)
        self._touched: set[str] = set()  # tensors with other content
        self._shapes: dict[str, torch.Size] = {}  # of what was not there before
        # What no content can be put into: of another shape from call to call, or a number; and a
        # list of another length, with all that is in it.
        self.unkept: list[str] = []

    @property
    def changed(self) -> dict[str, torch.Tensor]:
        """The first content of what calls have changed, in the order of the model."""
        kept = (n for n in self._slots if n in self._touched and not self._is_unkept(n))
        return {n: self._content[n] for n in kept}

    def look(self) -> None:
        """Comes after a call."""
        plain = _plain(self._model)
        for name in {**self._plain, **plain}:
            before, value = self._plain.get(name), plain.get(name)
            if before != value and not (value != value and before != before):
                self._unkept(name)
        there = slots(self._model)
        for name, slot in there.items():
            now = slot.get()
            first = self._content.get(name)
            if first is None:
                if self._shapes.setdefault(name, now.shape) != now.shape or not slot.trained:
                    self._unkept(name)
            elif now.shape != first.shape or now.dtype != first.dtype:
                self._unkept(name)
            elif name not in self._touched and not same(now, first):
                self._touched.add(name)
        for name in self._slots:
            if name not in there:
                self._unkept(name)

    def _unkept(self, name: str) -> None:
        if not self._is_unkept(name):
            self.unkept.append(name)

    def _is_unkept(self, name: str) -> bool:
        return any(name == n or name.startswith(f"{n}.") for n in self.unkept)

    def put_back(self) -> None:
        """Has the model as it was, but for what was not there."""
        with torch.no_grad():
            for name, (slot, t) in self._slots.items():
                first = self._content[name]
                if (name in self._touched or self._is_unkept(name)) and t.shape == first.shape:
                    t.copy_(first)
                slot.put(t)

    def shared(self) -> list[str]:
        """Returns the names of changed tensors that lie in the memory of another one."""
        seen: dict[int, str] = {}
        twice: list[str] = []
        for name in self.changed:
            at = self._slots[name][1].untyped_storage().data_ptr()
            if at in seen:
                twice += [seen[at], name]
            seen[at] = name
        return list(dict.fromkeys(twice))


def _plain(model: torch.nn.Module) -> dict[str, float]:
    """Returns by name what is a Python number, and how long lists and tuples are. What holds others
    comes before these.
    """
    found: dict[str, float] = {}
    for name, value, _ in places(model):
        if isinstance(value, SEQUENCES):
            found[name] = len(value)
        elif isinstance(value, (int, float)):
            found[name] = value
    return found


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same, NaN in the same places."""
    if a.is_floating_point():
        return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
    return torch.equal(a, b)


class Carrier:
    """Puts into a model what it carries, and collects it."""

    def __init__(
        self,
        model: torch.nn.Module,
        carried: Carried,
        *,
        others: Sequence[str] = (),
        wide: bool = False,
    ) -> None:
        """Finds each entry by its name, else by shape, dtype and order among tensors that are no
        parameters, nor called like one of the ``others``. ``wide``: a model in float64.
        """
        self.carried = carried
        self._slots = _matched(model, carried, set(others), wide)
        self._own: list[torch.Tensor | None] = []  # what content is put into
        self._written: dict[int, torch.Tensor] = {}
        for slot in self._slots:
            t: torch.Tensor | None = None if slot is None else slot.get()
            if slot is not None and t is not None and wide and t.is_floating_point():
                slot.put(t.detach().double())
                t = slot.get()
            self._own.append(t)
        self._wide = wide
        self._first: list[torch.Tensor | None] = []
        self.begin_with_this()

    @property
    def lacks(self) -> list[str]:
        """Returns the names of what the model does not have."""
        return [n for n, s in zip(self.carried.names, self._slots, strict=True) if s is None]

    def begin_with_this(self) -> None:
        """What is in the model now is what ``put_back`` puts back."""
        self._first = [None if t is None else t.detach().clone() for t in self._own]

    @torch.no_grad()
    def prepare(
        self, tensors: Sequence[torch.Tensor], *, copies: bool = True, goes_on: bool = False
    ) -> list[torch.Tensor]:
        """Puts the content behind the inputs into the model, and returns what forward gets.

        ``copies``: of inputs that it writes into it gets copies, in memory that is used again.
        ``goes_on``: the model goes on with the state that the last call left.
        """
        args = list(tensors[: self.carried.given])
        if not goes_on:
            for i, t in enumerate(tensors[self.carried.given :]):
                self._fill(i, t)
        if copies:
            for i in self.carried.written:
                args[i] = self._copied(i, args[i])
        return args

    def _fill(self, i: int, content: torch.Tensor) -> None:
        slot, own = self._slots[i], self._own[i]
        if own is None:
            own = self._own[i] = torch.empty_like(content)
        if own.shape != content.shape:
            raise ValueError(f"state {self.carried.names[i]} of another shape")
        if slot is not None:
            slot.put(own)
        write(own, content)

    def _copied(self, i: int, t: torch.Tensor) -> torch.Tensor:
        dtype = torch.float64 if self._wide and t.is_floating_point() else t.dtype
        own = self._written.get(i)
        alike = own is not None and own.shape == t.shape and own.stride() == t.stride()
        if own is None or not alike or own.dtype is not dtype:
            own = self._written[i] = torch.empty_like(t, dtype=dtype)
        write(own, t)
        return own

    def collect(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the state after a call, as it lies in the model, and the inputs ``args`` that it
        writes into.
        """
        return self._state() + [args[i] for i in self.carried.written]

    def _state(self) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for slot, own in zip(self._slots, self._own, strict=True):
            t = own if slot is None else slot.get()
            if type(t) not in (torch.Tensor, torch.nn.Parameter):
                t = own
            assert t is not None
            found.append(t.detach())
        return found

    @torch.no_grad()
    def settle(self, args: Sequence[torch.Tensor]) -> None:
        """Comes after a call that another goes on from: state that lies in the memory of what
        forward was given moves out of it, for that will have other content.
        """
        given = {t.untyped_storage().data_ptr() for t in args}
        for slot, t in zip(self._slots, self._state(), strict=True):
            if slot is not None and t.untyped_storage().data_ptr() in given:
                slot.put(t.clone())

    @torch.no_grad()
    def put_back(self) -> None:
        """Has the model as it was made, or was when ``begin_with_this`` came last."""
        for slot, own, first in zip(self._slots, self._own, self._first, strict=True):
            if slot is not None and own is not None and first is not None:
                slot.put(own)
                own.copy_(first)

    def content(self) -> list[torch.Tensor]:
        """Returns copies of the state."""
        return [t.clone() for t in self._state()]


def write(own: torch.Tensor, content: torch.Tensor) -> None:
    """Copies content into a tensor, as an operation in place would, but with no other thread."""
    plain = own.is_cpu and content.is_cpu and own.dtype is content.dtype
    if plain and own.is_contiguous() and content.is_contiguous() and own.numel():
        ctypes.memmove(own.data_ptr(), content.data_ptr(), own.numel() * own.element_size())
        with suppress(Exception):
            torch.autograd.graph.increment_version(own)
    else:
        own.copy_(content)


def _matched(
    model: torch.nn.Module, carried: Carried, others: set[str], wide: bool
) -> list[Slot | None]:
    there = slots(model)
    fits = {n: specs_of([s.get()])[0] for n, s in there.items()}
    by_name = [
        n if n in there and (wide or fits[n] == spec) else None
        for n, spec in zip(carried.names, carried.specs, strict=True)
    ]
    free = [n for n, s in there.items() if n not in by_name and n not in others and not s.trained]
    found: list[Slot | None] = []
    for name, spec in zip(by_name, carried.specs, strict=True):
        if name is None and (name := next((n for n in free if fits[n] == spec), None)) is not None:
            free.remove(name)
        found.append(None if name is None else there[name])
    return found


# Content.


def reach(
    carrier: Carrier, call: Callable[[int], object], now: Callable[[], float]
) -> list[list[torch.Tensor]]:
    """Returns states that a model comes to from its first one, those last before which a whole
    number falls: a position that comes round.

    ``call(k)`` calls the model on the k-th draw, with the state that it has. It may raise where a
    state has come to its end: no state from which it does is among these.
    """
    carrier.put_back()
    whole = any(not s.dtype.startswith(("float", "bfloat", "bool")) for s in carrier.carried.specs)
    before = carrier.content()
    size = sum(t.numel() * t.element_size() for t in before)
    room = max(REACHED_BYTES // max(size, 1), 1)
    found: list[list[torch.Tensor]] = []
    last: list[list[torch.Tensor]] = []  # states, up to the one before this call
    ends: list[list[torch.Tensor]] = []  # the same when a whole number first fell
    begun = now()
    for k in range(MOST_CALLS if whole and room > 2 * BEFORE_THE_END else max(REACHED) + 1):
        try:
            call(k)
        except Exception:
            if not k:
                raise
            break
        after = carrier.content()
        if k in REACHED and len(found) < room - BEFORE_THE_END * whole:
            found.append(before)
        last = [*last[-BEFORE_THE_END + 1 :], before]
        if whole and not ends and any(map(_fell, before, after)):
            ends = last
        late = k >= REACHED[2] and now() - begun > REACH_S
        if late or (k >= max(REACHED) and (ends or not whole)):
            break
        before = after
    carrier.put_back()
    found = found or last[:1]
    known = {id(f) for f in found}
    more = [s for s in ends or last if whole and id(s) not in known]
    return found + more[: max(room - len(found), 0)]


def _fell(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.is_floating_point() or before.is_complex() or before.dtype is torch.bool:
        return False
    return bool((after < before).any())


def perturbed(content: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Returns a state with its floats moved by a part of their root mean square. Whole numbers
    stay, and so does what is not finite; what is nowhere negative stays so: a variance.
    """
    g = torch.Generator(content[0].device if content else "cpu").manual_seed(seed)
    return [_moved(t, g) if t.is_floating_point() and t.numel() else t for t in content]


def _moved(t: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    held = t[torch.isfinite(t) & (t != 0)].double()
    rms = float(held.square().mean().sqrt()) if held.numel() else 1.0
    if not math.isfinite(rms):
        rms = 1.0
    by = torch.randn(t.shape, generator=g, device=t.device).mul_(SPREAD * rms)
    out = by.to(t.dtype).add_(t)
    return out.abs_() if bool((t >= 0).all()) and bool(t.any()) else out
