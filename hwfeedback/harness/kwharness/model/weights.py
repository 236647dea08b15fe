"""Which of the reference's weights a candidate's own parameters and buffers are.

By name, as ``load_state_dict`` has it; where names differ by value: both sides are constructed
under one seed (construction.py), and what agrees there is the same, also transposed, reshaped, or
several in one. What is made of weights at construction agrees with nothing: then a candidate is
judged by the seed, as it is constructed under secret ones. What its process says of its own tensors
decides only what it is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

LOAD_REFERENCE_STATE, LOAD_STATE_DICT = "load_reference_state", "load_state_dict"
BY_NAME, BY_VALUE, BY_SEED = "by name", "by value", "by seed"
SHOWN = 6  # names in a sentence
# Bytes of weights that are looked at where all names and shapes are the reference's; and of others,
# times what the reference has.
LOOKED_AT, TIMES = 1 << 26, 4
PARTS = 64  # that are joined in one
AS_IS, TRANSPOSED, REVERSED, RESHAPED = "as it is", "transposed", "reversed", "reshaped"


@dataclass(frozen=True)
class Entry:
    """One tensor of a model's state, as it is constructed; on the meta device where nobody has
    looked at it. ``constant``: the number in whose place its content was drawn, or that it holds.
    """

    name: str
    value: torch.Tensor
    constant: float | None = None


@dataclass(frozen=True)
class Reference:
    """The reference's state: which entries are weights, and of each the first that is the same
    memory. ``carried``: the names of those that a forward changes, which get content before each
    call (state.py).
    """

    entries: Sequence[Entry]
    moved: Sequence[bool]
    tied: Sequence[int]
    carried: Collection[str] = ()


@dataclass(frozen=True)
class Taken:
    """What one of a candidate's own entries takes: entries of the reference, one behind the other
    along dimension 0, and how they lie in it.
    """

    name: str
    shape: tuple[int, ...]
    of: tuple[int, ...]
    how: str = AS_IS
    by: str = BY_NAME

    def value(self, state: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = [state[i] for i in self.of]
        t = parts[0] if len(parts) == 1 else torch.cat(parts)
        return _laid(t, self.how, self.shape)


def _laid(t: torch.Tensor, how: str, shape: tuple[int, ...]) -> torch.Tensor:
    if how == TRANSPOSED:
        return t.transpose(-1, -2)
    if how == REVERSED:
        return t.permute(*reversed(range(t.dim())))
    return t.reshape(shape) if how == RESHAPED else t


@dataclass(frozen=True)
class Plan:
    """How a candidate gets the reference's weights.

    ``whole``: it takes the state_dict as it is. ``left``: weights of the reference that nothing of
    its own takes; ``unknown``: own tensors that take nothing; ``in_order``: weights that only their
    order tells from others; ``unlike``: own tensors with a name of the reference's which, as both
    are constructed under one seed, do not hold the same, as far as that was looked at; ``way``:
    the method of its own that takes them, if it has one; ``other``: the plan where names decide
    that values contradict.
    """

    mode: str
    whole: bool
    taken: Sequence[Taken] = ()
    covered: Sequence[bool] = ()  # of the reference's entries
    left: Sequence[str] = ()
    unknown: Sequence[str] = ()
    in_order: Sequence[str] = ()
    unlike: Sequence[str] = ()
    way: str = ""
    other: Plan | None = None

    @property
    def by_seed(self) -> bool:
        return self.mode == BY_SEED

    @property
    def itself(self) -> bool:
        return bool(self.way)

    @property
    def loads(self) -> str:
        """The method that takes the reference's state_dict, "" where none does."""
        return self.way or (LOAD_STATE_DICT if self.whole else "")

    @property
    def to_rebuild(self) -> bool:
        """Whether its constructor makes other weights than the reference's, which then have to be
        made in an exported file.
        """
        return bool(self.unlike) and not self.by_seed

    def given(
        self, names: Sequence[str], state: Sequence[torch.Tensor]
    ) -> tuple[Sequence[str], list[torch.Tensor]]:
        """Returns the names and the tensors that the candidate gets of the reference's."""
        if self.whole:
            return names, list(state)
        return [t.name for t in self.taken], [t.value(state) for t in self.taken]

    def as_constructed(self) -> list[tuple[str, int]]:
        """Returns which of its own tensors hold, as they are constructed, what the reference's do
        that have the same name: in an exported file, which mends those that are ``unlike``.
        """
        if self.itself:
            return []
        unlike = self.unlike if self.by_seed else ()
        alike = [t for t in self.taken if t.by == BY_NAME and t.how == AS_IS]
        return [(t.name, t.of[0]) for t in alike if t.name not in unlike]

    def may_move(self, moved: Sequence[bool]) -> list[bool]:
        """Returns which weights may be moved once both sides are constructed."""
        if not self.by_seed:
            return list(moved)
        return [m and c for m, c in zip(moved, self.covered, strict=True)]

    def evidence(self) -> list[str]:
        """Says what it does not know of the candidate's weights."""
        said = []
        if self.by_seed:
            said.append(
                f"evaluated as it is constructed under secret seeds: no tensor of its own is the "
                f"reference's {_listed(self.left)}, and a change after construction is not followed"
            )
        if self.unknown:
            of = "agree" if len(self.unknown) > 1 else "agrees"
            said.append(
                f"its own {_listed(self.unknown)} {of} with no weight of the reference's, and so "
                "stays as constructed; what does agree changes afterwards"
            )
        return said

    def stale(self, failed: str) -> tuple[str, str]:
        """Returns what to say of a candidate that is right as it is constructed alone, and what to
        do. ``failed``: how it is wrong with other weights.
        """
        follow = "do not follow" if len(self.unknown) > 1 else "does not follow"
        return (
            f"right with the weights that it is constructed with, wrong with others: its own "
            f"{_listed(self.unknown)} {follow} them: {failed}",
            "keep a weight or what is computed of it, not both, or compute it in forward",
        )

    def told(self) -> list[str]:
        """Returns what a candidate that is right takes for granted of its weights."""
        said = []
        if self.in_order:
            said.append(
                f"takes for granted that weights which nothing else tells apart come in the order "
                f"of the reference's: {_listed(self.in_order)}"
            )
        return said


def whole(reference: Reference, way: str = LOAD_STATE_DICT) -> Plan:
    """The plan of a candidate that takes the state_dict as it is, by this method of its own."""
    names = [e.name for e in reference.entries]
    return Plan(BY_NAME, True, covered=[True] * len(names), unlike=names, way=way)


def to_look_at(reference: Reference, own: Sequence[Entry]) -> list[int]:
    """Returns which of a candidate's entries, of which only the form is known, may be weights of
    the reference by what they hold.
    """
    theirs = [e.value for e in reference.entries]
    size = sum(t.numel() * t.element_size() for t in theirs)
    named = {e.name: e.value.shape for e in reference.entries}
    if size > LOOKED_AT and named == {e.name: e.value.shape for e in own}:
        return []
    counts = {t.numel() for t in theirs}
    rows = {t.shape[1:] for t in theirs if t.dim()}
    room, found = TIMES * size, []
    for i, e in enumerate(own):
        t = e.value
        joined = t.dim() > 0 and (t.shape[1:] in rows or t.shape[:-1] in rows)
        took = t.numel() * t.element_size()
        if 0 < took <= room and (t.numel() in counts or joined):
            found.append(i)
            room -= took
    return found


def plan(reference: Reference, own: Sequence[Entry]) -> Plan:
    """Returns how a candidate with these entries gets the reference's weights."""
    matching = _Matching(reference, own)
    found = matching.plan()
    if found.by_seed and matching.unfounded:  # a norm may be folded into what keeps its name
        return _Matching(reference, own, values_decide=True).plan()
    if matching.contradicts:
        return replace(found, other=_Matching(reference, own, names_decide=True).plan())
    return found


class _Matching:
    """``contradicts``: whether a value was another's than its name. ``unfounded``: whether one with
    a name of the reference's had a value that is nobody's.
    """

    def __init__(
        self,
        reference: Reference,
        own: Sequence[Entry],
        *,
        names_decide: bool = False,
        values_decide: bool = False,
    ) -> None:
        self._ref, self._own = reference, own
        self._names_decide, self._values_decide = names_decide, values_decide
        self.contradicts = self.unfounded = False
        self._index = {e.name: i for i, e in enumerate(reference.entries)}
        self._alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        self._heads: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i, e in enumerate(reference.entries):
            if e.value.numel() and e.name not in reference.carried:
                self._alike[_key(e.value)].append(i)
                if e.value.dim() and reference.moved[i]:
                    self._heads[_head(e.value)].append(i)
        self._taken: dict[str, Taken] = {}
        self._used: set[int] = set()
        self._in_order: list[str] = []
        self._unlike: list[str] = []

    def plan(self) -> Plan:
        for match in (self._by_name, self._by_value, self._several):
            for e in self._own:
                if e.name not in self._taken:
                    self._take(e, match(e))
        self._constants()
        own = self._own
        covered = self._covered()
        carried = self._ref.carried
        moved = [i for i, m in enumerate(self._ref.moved) if m and self._name(i) not in carried]
        left = [self._name(i) for i in moved if not covered[i]]
        by_value = any(
            t.by == BY_VALUE and any(self._ref.moved[i] for i in t.of) for t in self._taken.values()
        )
        mode = BY_SEED if left else BY_VALUE if by_value else BY_NAME
        plain = all(t.by == BY_NAME and t.how == AS_IS for t in self._taken.values())
        whole = plain and {e.name for e in own} == self._taken.keys() == self._index.keys()
        taken = [self._taken[e.name] for e in own if e.name in self._taken]
        unknown = [e.name for e in own if e.name not in self._taken and e.constant is None]
        in_order = list(dict.fromkeys(self._in_order))
        unlike = [n for n in self._unlike if n in self._taken]
        return Plan(mode, whole, taken, covered, left, unknown, in_order, unlike)

    def _name(self, i: int) -> str:
        return self._ref.entries[i].name

    def _take(self, e: Entry, found: Taken | None) -> None:
        if found is not None:
            self._taken[e.name] = found
            self._used.update(found.of)

    def _covered(self) -> list[bool]:
        used = {self._ref.tied[i] for i in self._used}
        return [self._ref.tied[i] in used for i in range(len(self._ref.entries))]

    def _by_name(self, e: Entry) -> Taken | None:
        i = self._index.get(e.name)
        if i is None:
            return None
        same = self._ref.entries[i].value.shape == e.value.shape
        by_name = _taken(e, (i,), AS_IS, BY_NAME) if same else None
        # What was drawn for a constant goes by its number among others: a name tells more.
        if e.name in self._ref.carried:
            if not (_seen(e) and _agrees(self._ref.entries[i].value, e.value) == AS_IS):
                self._unlike.append(e.name)
            return by_name
        if not _seen(e) or (same and (e.constant is not None or self._names_decide)):
            if e.constant is None or e.constant != self._ref.entries[i].constant:
                self._unlike.append(e.name)
            return by_name
        for j in (i, *self._alike.get(_key(e.value), ())):
            how = _agrees(self._ref.entries[j].value, e.value)
            if how == AS_IS and j == i:
                return by_name
            if how:
                self.contradicts = self.contradicts or same
                return _taken(e, (j,), how, BY_VALUE)
        self.unfounded = self.unfounded or same
        self._unlike.append(e.name)
        return None if self._values_decide else by_name

    def _by_value(self, e: Entry) -> Taken | None:
        if not _seen(e):
            return None
        found: list[tuple[int, str]] = []
        for i in self._alike.get(_key(e.value), ()):
            how = _agrees(self._ref.entries[i].value, e.value)
            if how:
                found.append((i, how))
        if not found:
            return None
        free = [f for f in found if not self._used & {f[0], self._ref.tied[f[0]]}]
        i, how = (free or found)[0]
        several = {self._ref.tied[i] for i, _ in found}
        if len(several) > 1 and self._ref.moved[i]:
            self._in_order += [self._name(j) for j in sorted(several)]
        return _taken(e, (i,), how, BY_VALUE)

    def _several(self, e: Entry) -> Taken | None:
        """Finds weights that lie one behind the other in one: queries, keys and values."""
        for how in (AS_IS, TRANSPOSED):
            if not _seen(e) or (how == TRANSPOSED and e.value.dim() != 2):
                continue
            rest = _laid(e.value, how, ())
            of: list[int] = []
            while rest.dim() and len(rest):
                i = self._begins(rest)
                if i is None or len(of) == PARTS:
                    break
                of.append(i)
                rest = rest[len(self._ref.entries[i].value) :]
            else:
                if len(of) > 1:
                    return _taken(e, tuple(of), how, BY_VALUE)
        return None

    def _begins(self, t: torch.Tensor) -> int | None:
        """Returns the entry with which a tensor begins."""
        if not t.numel():
            return None
        for i in self._heads.get(_head(t), ()):
            part = self._ref.entries[i].value
            if len(part) <= len(t) and torch.equal(t[: len(part)], part):
                return i
        return None

    def _constants(self) -> None:
        """Has own constants take the reference's of the same number and shape, in order, where all
        that is left of the reference is taken by that: one may be filled in another order, or be a
        buffer there and a parameter here.
        """
        covered = self._covered()
        left: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i, e in enumerate(self._ref.entries):
            if self._ref.moved[i] and not covered[i] and self._ref.tied[i] == i:
                left[e.constant, tuple(e.value.shape), e.value.dtype].append(i)
        pairs: list[tuple[Entry, int]] = []
        for e in self._own:
            same = left.get((e.constant, tuple(e.value.shape), e.value.dtype))
            if e.name not in self._taken and e.constant is not None and same:
                pairs.append((e, same.pop(0)))
        if any(left.values()):
            return
        for e, i in pairs:
            self._take(e, _taken(e, (i,), AS_IS, BY_VALUE))
            self._in_order.append(self._name(i))


def _taken(e: Entry, of: tuple[int, ...], how: str, by: str) -> Taken:
    return Taken(e.name, tuple(e.value.shape), of, how, by)


def _seen(e: Entry) -> bool:
    return not e.value.is_meta and e.value.numel() > 0


def _key(t: torch.Tensor) -> tuple[object, ...]:
    """What is the same however a tensor is transposed or reshaped."""
    return t.dtype, t.numel(), t[(0,) * t.dim()].item()


def _head(t: torch.Tensor) -> tuple[object, ...]:
    return t.dtype, t.shape[1:], t[(0,) * t.dim()].item()


def _agrees(theirs: torch.Tensor, own: torch.Tensor) -> str:
    """Returns how the reference's tensor lies in a candidate's, "" where it does not."""
    if theirs.dtype != own.dtype or theirs.numel() != own.numel():
        return ""
    for how in (AS_IS, TRANSPOSED, REVERSED, RESHAPED):
        if how == TRANSPOSED and theirs.dim() < 2:
            continue
        if how == RESHAPED and theirs.shape == own.shape:
            continue
        laid = _laid(theirs, how, tuple(own.shape))
        if laid.shape == own.shape and torch.equal(laid, own):
            return how
    return ""


NOT_FOLLOWED = (
    "takes for granted that weights stay as they are once it has run: what it made of them then "
    "does not follow a change"
)


def never_drawn(names: Sequence[str]) -> str:
    """Says which weights have one value, whatever the seed."""
    return f"takes {_listed(names)} for granted, which every construction gives the same values"


def always_so(names: Sequence[str], what: str) -> str:
    """Says what weights have in common with themselves under any seed."""
    each = "each of " if len(names) > 1 else ""
    return f"takes for granted what every construction gives: that {each}{_listed(names)} {what}"


def always_alike(names: Sequence[str]) -> str:
    """Says which weights hold the same, as they are constructed."""
    return f"takes for granted what every construction gives: that {_listed(names)} are the same"


def moved_at_construction(names: Sequence[str]) -> str:
    return (
        f"what every construction gives its {_listed(names)} was moved by a tenth, as both sides "
        "were constructed"
    )


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:SHOWN])
    if len(names) > SHOWN:
        shown.append(f"{len(names) - SHOWN} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
