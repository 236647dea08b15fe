"""Verification: calibrates what an honest error is on a task, then holds a candidate to it.

Calibration runs the reference alone and is kept per task. Verification draws under secret seeds,
has the reference compute the expected values while the candidate computes its own, and compares
private copies of both.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, overload

import torch

from kwharness.clients.candidate_client import Answer, CandidateClient, digest, same_bytes
from kwharness.clients.errors import WorkerError, WorkerFailure, WorkerGone, ran_out
from kwharness.clients.reference_client import Parts, ReferenceClient, reshaped
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import Device, give_back
from kwharness.model import weights
from kwharness.model.construction import SPREAD
from kwharness.model.state import NOTHING, Carried
from kwharness.numerics import (
    correctness,
    decision_sides,
    families,
    few_terms,
    input_structure,
    orders,
    planted_nan,
)
from kwharness.numerics.correctness import Expected, Noise, Outcome, Scale
from kwharness.numerics.families import (
    BASE,
    BOUNDARIES,
    FAMILIES,
    FEW_FACTORS,
    FEW_TERMS,
    ORDERED,
    PERMUTED,
    REPEATED,
    Axis,
    Family,
    Traits,
)
from kwharness.numerics.input_structure import Structure
from kwharness.numerics.orders import Line
from kwharness.numerics.rounding import LANES
from kwharness.verify import assumptions

CALIBRATION = 18  # version of what is kept: part of its check
CALIBRATION_SEEDS = 4
FAMILY_SEEDS = 2
CALIBRATION_S = 30.0  # past this a family is calibrated on one seed
# Of outputs, from which half of the seeds tell as much where each of them takes long: what the
# largest of so many errors is varies little from one draw to the next.
MANY_ELEMENTS = 1 << 18
BASE_SEEDS = {"quick": 5, "certify": 10}
# Under which models are constructed where what is made of weights at construction is judged.
CONSTRUCTIONS = {"quick": 2, "certify": 4}
SEEDS_PER_FAMILY = {"quick": 1, "certify": 3}
ELEMENTS = {"quick": 2, "certify": 4}  # one-element perturbations
BOUNDARIES_IN_TURN = 3  # quick evaluations, of which nobody knows the one that asks about them
AXES = 16  # tried, of those that may be reduced, for at most
AXES_S = 3.0
PROBE_S = 20.0  # of one forward of the reference on what get_inputs() never gives
KEPT_BYTES = 1 << 30  # of all draws of an evaluation; past this they are drawn again at each use
VARIED_BYTES = {"quick": 96 << 20, "certify": 256 << 20}  # of what comes among the timed calls
VARIED_ON_A_GPU = 4 << 30  # likewise: it moves them a hundred times as fast
PATTERNS = 8  # of signs, before a timed call is wrong
# A reference may take so many times what a call has, and a candidate keeps nothing of the last one
# where there is less, or where that was not enough.
ROOM_TO_COMPUTE = 4
# There is so much, in calls, when a candidate is called: else the reference keeps nothing.
ROOM_TO_CALL = 2
# Where so many times what a call has are free, blocks can stay for the next call, and where so many
# are, still stay: what comes and goes takes tens of ms, and longer while other GPUs' does the same.
ROOMY = 8, 4
# Of an output's scale: what float64 computes in parts is the same but for this, or it is not
# computed in parts.
SAME_IN_PARTS = 1e-9
# Times the bound within which one more look may tell: who is further off is wrong.
NEAR = 3.0
ELSEWHERE = 2  # more draws on which nobody may take NaN for Inf who did on one
REDRAWN = 8  # draws on which somebody is wrong by what decisions may do, before it is wrong
NEVER_SETTLED = "advisory: decisions on each draw of it fall either way within the bound"
AGAIN = 16  # times that one wrong in a timed call is asked: a race would show
ELEMENT = "one_element"
IN_A_ROW = "in_a_row"
IN_A_ROW_SAYS = "after calls in a row, its state not put back"
# Rows of calls, of so many each.
ROWS = {"quick": 2, "certify": 4}
CALLS_IN_A_ROW = (2, 5)
# By how many root mean squares the element is moved, until float64 shows it.
STEPS = (8.0, 1e3, 1e5)

Note = Callable[[str], None]
Fresh = Callable[[], CandidateClient]


def secret() -> int:
    """A seed from the operating system that no worker can predict."""
    return int.from_bytes(os.urandom(6), "big")


@dataclass
class FamilyCalibration:
    """One family on one task."""

    name: str
    gates: bool
    note: str
    exact: bool
    outputs: list[Noise]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "gates": self.gates,
            "note": self.note,
            "exact": self.exact,
            "outputs": [n.to_json() for n in self.outputs],
        }


@dataclass
class Calibration:
    """What an honest error is on a task. Plain numbers, kept in the cache."""

    families: dict[str, FamilyCalibration] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    wide: bool = True  # the expected value is float64's
    linear: bool = False
    compiled: bool = True
    axes: list[Axis] = field(default_factory=list)  # whose order changes nothing
    lines: list[Line] = field(default_factory=list)  # that are reduced, sorted or scanned
    factors: list[Line] = field(default_factory=list)  # that products are added up along
    structures: list[list[str]] = field(default_factory=list)  # of each input, in words,
    kinds: list[list[str]] = field(default_factory=list)  # and of which kinds
    many_terms: bool = False  # to each output
    decides: bool = False  # the reference rounds, compares, searches, counts or orders
    aimed: bool = False  # and inputs can be moved to where it does, on which the honest are right
    # By key the way in which the reference bears a change of what is never varied (assumptions.py).
    assumptions: dict[str, int] = field(default_factory=dict)
    spent: bool = False  # the reference's process is of no more use
    outputs: list[torch.Tensor] = field(default_factory=list, compare=False)  # while calibrated
    by_rows: bool = False  # float64 is the same on each family when a batch is computed in parts
    carried: Carried = NOTHING  # from call to call

    def floor(self, i: int, family: str = "base") -> Scale:
        """The absolute part of the bound of output i: that of the reference's own draws, but where
        few terms are left, and it is that much smaller.
        """
        of = family if family == FEW_TERMS.name and family in self.families else "base"
        scale = self.families[of].outputs[i].scale
        return Scale(correctness.FLOOR * scale.rms, correctness.FLOOR * scale.rms)

    def traits(self, found: Sequence[Structure]) -> Traits:
        """What families go by, with the structures of the inputs as they were found just now."""
        return Traits(self.axes, self.lines, self.factors, found, self.given)

    @property
    def given(self) -> int | None:
        """How many tensors forward takes, None where all that is drawn are."""
        return self.carried.given if self.carried else None

    def to_json(self) -> dict[str, Any]:
        return {
            "version": CALIBRATION,
            "families": [f.to_json() for f in self.families.values()],
            "notes": self.notes,
            "wide": self.wide,
            "linear": self.linear,
            "compiled": self.compiled,
            "axes": self.axes,
            "lines": [[at.input, at.start, at.stop] for at in self.lines],
            "factors": [[at.input, at.start, at.stop] for at in self.factors],
            "structures": self.structures,
            "kinds": self.kinds,
            "many_terms": self.many_terms,
            "decides": self.decides,
            "aimed": self.aimed,
            "assumptions": self.assumptions,
            "by_rows": self.by_rows,
            "carried": self.carried.to_json(),
        }

    @classmethod
    def from_json(cls, d: Any) -> Calibration | None:
        """Returns a calibration from the cache, or None where it is another version's."""
        if not isinstance(d, dict) or d.get("version") != CALIBRATION:
            return None
        found = {
            f["name"]: FamilyCalibration(
                f["name"],
                f["gates"],
                f["note"],
                f["exact"],
                [Noise.from_json(n) for n in f["outputs"]],
            )
            for f in d["families"]
        }
        return cls(
            found,
            list(d["notes"]),
            d["wide"],
            d["linear"],
            d["compiled"],
            axes=[tuple((i, dim) for i, dim in axis) for axis in d["axes"]],
            lines=[Line(*at) for at in d["lines"]],
            factors=[Line(*at) for at in d["factors"]],
            structures=[list(says) for says in d["structures"]],
            kinds=[list(kinds) for kinds in d["kinds"]],
            many_terms=bool(d["many_terms"]),
            decides=bool(d["decides"]),
            aimed=bool(d["aimed"]),
            assumptions={str(k): int(way) for k, way in d["assumptions"].items()},
            by_rows=bool(d["by_rows"]),
            carried=Carried.from_json(d["carried"]),
        )


class ReferenceBroken(Exception):
    """The reference fails on its own base draw: the task is not to be judged."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Job:
    """One comparison: a family's inputs, made from a draw."""

    family: Family
    known: FamilyCalibration
    tree: Any
    inputs: Sequence[torch.Tensor]
    again: _Remade | None = None  # the inputs, in no memory

    def remade(self) -> Job:
        """Returns the job with inputs that lie in memory."""
        return replace(self, inputs=list(self.inputs))


class Room:
    """Whether there is room for a reference's blocks to stay from one request to the next."""

    def __init__(self) -> None:
        self._least: float = ROOMY[0]
        self.stays = False  # there was, when somebody looked last

    def there(self, device: Device, call_bytes: int) -> bool:
        """Looks. Where there was too little once there is none any more."""
        self.stays = device.room()[0] > self._least * call_bytes
        self._least = ROOMY[1] if self.stays else math.inf
        return self.stays

    def close(self) -> None:
        """Somebody needs it."""
        self._least, self.stays = math.inf, False


class Draw:
    """One draw of inputs, in the referee's private memory or made anew whenever it is needed."""

    def __init__(self, reference: ReferenceClient, seed: int, *, kept: bool) -> None:
        """One that is not ``kept`` asks the reference, which must not be at work then."""
        self._reference = reference
        self._seed = seed
        self._kept: tuple[Any, list[torch.Tensor]] | None = None
        self._like: tuple[Any, int] | None = None  # its tree, and how many tensors
        if kept:
            self._kept = reference.draw(seed)

    @property
    def kept(self) -> bool:
        return self._kept is not None

    def get(self) -> tuple[Any, list[torch.Tensor]]:
        tree, tensors = self._kept or self._reference.draw(self._seed)
        self._like = tree, len(tensors)
        return tree, tensors

    def __len__(self) -> int:
        return self._like[1] if self._like is not None else len(self.tensors)

    @property
    def tree(self) -> Any:
        return self._like[0] if self._like is not None else self.get()[0]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return self.get()[1]


class _Remade(Sequence[torch.Tensor]):
    """A family's inputs, made from a draw whenever they are needed, all of them at once."""

    def __init__(self, draw: Draw, family: Family, seed: int, traits: Traits) -> None:
        self._draw, self._family, self._seed, self._traits = draw, family, seed, traits

    @property
    def base(self) -> list[torch.Tensor]:
        """The draw that they are made from."""
        return self._draw.tensors

    def made(self) -> list[torch.Tensor]:
        """Makes them."""
        return families.apply(self._family, self._draw.tensors, self._seed, self._traits)

    def other(self) -> _Remade:
        """Returns others, made from the same draw."""
        return _Remade(self._draw, self._family, secret(), self._traits)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.made())

    def __len__(self) -> int:
        return len(self._draw)

    @overload
    def __getitem__(self, i: int) -> torch.Tensor: ...

    @overload
    def __getitem__(self, i: slice) -> list[torch.Tensor]: ...

    def __getitem__(self, i: int | slice) -> torch.Tensor | list[torch.Tensor]:
        return self.made()[i]


def draw_many(reference: ReferenceClient, count: int) -> list[Draw]:
    """Returns draws under secret seeds. The first, which is used most, is kept where memory is not
    spared.
    """
    first = Draw(reference, secret(), kept=not reference.sparing)
    if reference.sparing:
        kept = False
    else:
        size = sum(t.numel() * t.element_size() for t in first.tensors)
        kept = count * size <= KEPT_BYTES
    return [first, *(Draw(reference, secret(), kept=kept) for _ in range(count - 1))]


def some_draws(reference: ReferenceClient) -> list[list[torch.Tensor]]:
    """Returns draws under secret seeds, which what the file seeds by itself gets, too: as many as
    show what all share, one where there is no room for so many, or where other seeds make it raise.
    """
    try:
        return _reseeded(reference)
    except WorkerError as e:
        if ran_out(e) or e.ill:
            raise
        return [reference.draw(secret())[1]]


def _reseeded(reference: ReferenceClient) -> list[list[torch.Tensor]]:
    first = reference.draw(secret(), reseeded=True)[1]
    count = input_structure.count_of(first)
    needs = 2 * count * sum(t.numel() * t.element_size() for t in first)
    if not any(t.is_floating_point() for t in first):
        return [first]
    if not reference.sparing:
        return [first, *reference.draws([secret() for _ in range(count - 1)], reseeded=True)[1]]
    if reference.device.room()[0] < needs:
        return [first]
    return [first, *(reference.draw(secret(), reseeded=True)[1] for _ in range(count - 1))]


def perturbed(
    state: Sequence[torch.Tensor], moved: Sequence[bool], tied: Sequence[int], seed: int
) -> list[torch.Tensor]:
    """Returns weights that nothing baked in at construction can know.

    What is not ``moved`` stays: a buffer that is a mask is no weight. What is nowhere negative
    stays so: a variance. What is ``tied`` to an earlier one is moved with it.
    """
    g = torch.Generator(state[0].device if state else "cpu").manual_seed(seed)
    out: list[torch.Tensor] = []
    for i, (t, may) in enumerate(zip(state, moved, strict=True)):
        if tied[i] < i:
            out.append(out[tied[i]])
            continue
        if not may or not t.is_floating_point() or not t.numel():
            out.append(t)
            continue
        rms = correctness.scale_of(t).rms or 1.0
        moves = torch.randn(t.shape, generator=g, device=t.device).mul_(SPREAD * rms)
        now = moves.to(t.dtype).add_(t)
        out.append(now.abs_() if bool((t >= 0).all()) and bool(t.any()) else now)
    return out


def zero_one(state: Sequence[torch.Tensor], trainable: Sequence[bool]) -> list[torch.Tensor]:
    return [
        (t > 0).to(t.dtype) if may and t.is_floating_point() else t
        for t, may in zip(state, trainable, strict=True)
    ]


# Calibration.


def calibrate(
    reference: ReferenceClient,
    *,
    want_compile: bool = True,
    parts: bool = True,
    note: Note = lambda _: None,
) -> Calibration:
    """Runs the reference on all families and returns what honest errors are.

    ``parts``: whether float64 may take a large batch in parts. A forward that must not see fewer
    rows may end its process by that: then it is to be calibrated again without.

    Raises ReferenceBroken, and what a worker raises that has ended.
    """
    c = Calibration()
    seen = reference.inspect(secret())
    c.carried = seen["carried"]
    if c.carried:
        reference.carry(c.carried)
    c.linear = seen["linear"]
    sizes = [math.prod(o["shape"]) for o in seen["outputs"] if o["dtype"].startswith("float")]
    c.by_rows = parts and reference.sparing
    few = 2 if reference.sparing and min(sizes, default=0) >= MANY_ELEMENTS else 1
    state = reference.state()
    trainable = reference.info["trainable"]
    draws = draw_many(reference, CALIBRATION_SEEDS // few)
    inputs = draws[0].tensors[: c.given]
    floating = any(t.is_floating_point() for t in inputs)
    found = input_structure.of(some_draws(reference))
    c.structures, c.kinds = [s.says for s in found], [s.kinds() for s in found]
    c.lines = orders.lines_of(inputs, seen["lengths"])
    c.factors = [at for at in orders.lines_of(inputs, seen["products"]) if not found[at.input]]
    elements = sum(math.prod(o["shape"]) for o in seen["outputs"])
    c.many_terms = few_terms.many(inputs, elements)
    del inputs
    if not reference.sparing:
        c.decides = reference.decides(*draws[0].get()) > 0
    moved, tied = reference.info["moved"], reference.info["tied"]
    reference.set_state(perturbed(state, moved, tied, secret()))
    start = time.monotonic()
    for family in FAMILIES:
        if family is not BASE and not floating:
            c.notes.append("no input is floating: only base draws are compared")
            break
        note(f"calibrating {family.name}")
        if family is PERMUTED:
            c.axes = _reduced_axes(reference, c, draws, found)
        if not _is_asked(c, family):
            continue
        exact_weights = family.exact and c.linear and bool(state)
        if exact_weights:
            reference.set_state(zero_one(state, trainable))
        seeds = len(draws) if family is BASE else FAMILY_SEEDS // few
        if family is not BASE and time.monotonic() - start > CALIBRATION_S:
            seeds = 1
        calibrated = _calibrate_family(
            reference, c, family, draws[:seeds], want_compile, c.traits(found)
        )
        if exact_weights:
            reference.set_state(state)
        if calibrated is not None:
            c.families[family.name] = calibrated
        if family is BASE and floating:
            _aim(reference, c, draws[0], want_compile, c.traits(found))
    reference.set_state(state)
    if not reference.sparing:
        _probe(reference, c, assumptions.Case(*draws[0].get(), state), found)
    return c


def _probe(
    reference: ReferenceClient, c: Calibration, base: assumptions.Case, found: Sequence[Structure]
) -> None:
    """Finds what can be asked of a candidate that get_inputs() never varies. The reference's
    process may end by it.
    """
    info = reference.info
    changes = assumptions.changes_of(
        base, info["arguments"], found, info["names"], assumptions.constant(info, c.carried.names)
    )
    patience, reference.timeout = reference.timeout, min(reference.timeout, PROBE_S)
    try:
        c.assumptions = assumptions.probe(reference, c, base, changes, secret())
    except WorkerFailure as e:
        if ran_out(e):
            raise
        c.spent = True
        c.notes.append(
            "what a kernel takes for granted of whole numbers, scalars and buffers is not asked: "
            f"with others the reference's process {e}"
        )
    finally:
        reference.timeout = patience


def _aim(
    reference: ReferenceClient, c: Calibration, draw: Draw, want_compile: bool, traits: Traits
) -> None:
    """Sees whether inputs can be moved to where the reference decides, and the honest are right."""
    if not _has_sides(reference, c):
        return
    inputs = reference.aimed(draw.tree, draw.tensors, _free(draw.tensors, traits), secret())
    if inputs is None:
        return
    base = c.families[BASE.name]
    f = FamilyCalibration(BOUNDARIES.name, True, "", False, [replace(n) for n in base.outputs])
    problems: list[str] = []
    modes = ["wide", "eager"]
    if _calibrate_draw(
        reference, c, BOUNDARIES, f, draw.tree, inputs, 0, modes, want_compile, problems
    ):
        f.note = "; ".join(dict.fromkeys(problems))
        f.gates = not problems
        c.families[f.name] = f
        c.aimed = True


def _free(tensors: Sequence[torch.Tensor], traits: Traits) -> list[int]:
    """Returns which inputs have no structure that a move of one element breaks."""
    floating = [i for i, t in enumerate(tensors[: traits.given]) if t.is_floating_point()]
    return [i for i in floating if not traits.structure(i)]


def _is_asked(c: Calibration, family: Family) -> bool:
    """Whether a family makes other inputs than the draw's on this task."""
    if family is PERMUTED:
        return bool(c.axes)
    if family is ORDERED:
        return bool(c.lines)
    if family is FEW_FACTORS:
        return bool(c.factors)
    return c.many_terms if family in (FEW_TERMS, REPEATED) else True


def _reduced_axes(
    reference: ReferenceClient,
    c: Calibration,
    draws: Sequence[Draw],
    structures_of: Sequence[Structure],
) -> list[Axis]:
    """Returns axes of the inputs along which another order leaves the outputs within the bound."""
    pair = [d.tensors[: c.given] for d in draws[:2]]
    tried = families.axes_of(pair, structures_of)
    if not tried:
        return []
    mode = ["wide" if c.wide else "eager"]
    before = reference.forward(*draws[0].get(), mode)[0]
    if "error" in before:
        return []
    end = time.monotonic() + AXES_S
    found: list[Axis] = []
    for axis in random.SystemRandom().sample(tried, min(AXES, len(tried))):
        inputs = families.apply(PERMUTED, draws[0].tensors, secret(), Traits([axis]))
        inputs = reference.lend(inputs)
        after = reference.forward(draws[0].tree, inputs, mode)[0]
        if "error" not in after and _unchanged(c, before["tensors"], after["tensors"]):
            found.append(axis)
        if time.monotonic() > end:
            break
    return found


def _unchanged(c: Calibration, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if not x.is_floating_point():
            if not torch.equal(x, y):
                return False
            continue
        noise = c.families["base"].outputs[i]
        bound = correctness.bound_of(noise, Scale(), noise.scale, c.floor(i).max)
        wide = x.double()
        error = correctness.error_of(y, wide, None)
        if not math.isfinite(error.max):
            error = correctness.error_of(y, wide, correctness.not_finite(wide))
        if error.max > bound.max or error.rms > bound.rms:
            return False
    return True


def _calibrate_family(
    reference: ReferenceClient,
    c: Calibration,
    family: Family,
    draws: Sequence[Draw],
    want_compile: bool,
    traits: Traits,
) -> FamilyCalibration | None:
    # What tells of values behind indices comes before what is held against it.
    modes = ["wide", "eager"]
    if family.planted:
        modes.append("scalar")
    else:
        modes.append("noise:1:coherent" if family.coherent else "noise:1")
    if family is BASE:
        modes.append("noise:2")
    f = FamilyCalibration(family.name, True, "", family.exact and c.linear, [])
    problems: list[str] = []
    for k, draw in enumerate(draws):
        inputs = reference.lend(families.apply(family, draw.tensors, secret(), traits))
        done = _calibrate_draw(
            reference, c, family, f, draw.tree, inputs, k, modes, want_compile, problems
        )
        if not done:
            return None
    if family.planted:
        # Simulated rounding says nothing beside NaN; what stays finite errs as the base draws do.
        for n, base in zip(f.outputs, c.families["base"].outputs, strict=True):
            n.error.widen(base.error)
            n.moved.widen(base.moved)
    if family is ORDERED:
        # Along a row in order a sum in one lane errs the same way at each step, and what is asked
        # about here is off by far more.
        for n in f.outputs:
            n.error = Scale(LANES * n.error.max, LANES * n.error.rms)
    f.note = "; ".join(dict.fromkeys(problems))
    f.gates = not problems or family is BASE
    return f


def _calibrate_draw(
    reference: ReferenceClient,
    c: Calibration,
    family: Family,
    f: FamilyCalibration,
    tree: Any,
    inputs: Sequence[torch.Tensor],
    k: int,
    modes: Sequence[str],
    want_compile: bool,
    problems: list[str],
) -> bool:
    """Takes what a family's inputs, the k-th, show into ``f``, and what an honest form fails into
    ``problems``. False: the family is left out.
    """
    used = list(modes)
    lanes = list(decision_sides.LANES) if _has_sides(reference, c) else []
    used[2:2] = lanes
    if c.wide and not family.planted:
        used.append(f"moved:{k}")
    if want_compile and c.compiled:
        used.append("compile")
    answers = reference.each(tree, inputs, used, decided=bool(lanes))
    with reference.whole() if k == 0 else nullcontext():
        wide = next(answers)
    if "error" in wide and k and reference.parts is not None:
        reference.parts, c.by_rows = None, False
        wide = reference.forward(tree, inputs, ["wide"], sources=True)[0]
    eager = next(answers)
    if "error" in eager:
        if family is BASE or ran_out(eager["error"]):
            raise ReferenceBroken(eager["error"])
        c.notes.append(f"{family.name}: left out, the reference raises {eager['error'].type} on it")
        return False
    # Without their content.
    c.outputs = c.outputs or [t.to("meta") for t in eager["tensors"]]
    if error := reshaped(c.outputs, eager["tensors"]):
        if family is BASE:
            raise ReferenceBroken(error)
        c.notes.append(f"{family.name}: left out, the reference's result {error.message}")
        return False
    if "error" in wide or not c.wide:
        # No float64: float32 is expected, and the noise that could not be simulated is allowed
        # for by another order of evaluation only.
        if c.wide and family is BASE:
            c.wide = False
            c.notes.append(
                f"the reference does not run in float64 ({wide['error'].type}): "
                "float32 is what is expected"
            )
        elif c.wide:
            if ran_out(wide["error"]):
                raise ReferenceBroken(wide["error"])
            c.notes.append(f"{family.name}: left out, the reference raises in float64")
            return False
        wide = {
            **eager,
            "tensors": [t.double() if t.is_floating_point() else t for t in eager["tensors"]],
        }
    e = Expected(wide["tensors"], eager["tensors"], wide["sources"], decides=c.decides)
    if lanes:
        _take_sides(e, [next(answers) for _ in lanes])
    correctness.complete(e)
    if not f.outputs:
        f.outputs = [Noise() for _ in e.wide]
    skips = [_begin_widening(n, e, i, family, problems) for i, n in enumerate(f.outputs)]
    known = [n.error.max for n in f.outputs]
    f.exact = f.exact and all(_is_exact(e, i, t) for i, t in enumerate(eager["tensors"]))
    e.lighten()
    del eager
    if k == 0 and c.by_rows:
        c.by_rows = c.wide and _rows_apart(reference, tree, inputs, e)
    for r in answers:
        mode = r["mode"]
        if "error" not in r:
            for i, n in enumerate(f.outputs):
                _widen(n, e, i, mode, r, skips[i], known[i], family, problems)
            if mode == "compile":
                f.exact = f.exact and all(_is_exact(e, i, t) for i, t in enumerate(r["tensors"]))
        elif mode == "compile":
            message = r["error"].message.splitlines()
            why = f"torch.compile fails: {message[0][:160] if message else r['error'].type}"
            if family is BASE:
                c.compiled = False
                c.notes.append(why)
            else:
                problems.append(why)
        elif c.wide and ran_out(r["error"]):
            raise ReferenceBroken(r["error"])  # or bounds would be too narrow
        del r
    return True


def _has_sides(reference: ReferenceClient, c: Calibration) -> bool:
    """Whether float64 can be asked what else is right."""
    return c.decides and c.wide and not reference.sparing


def _take_sides(e: Expected, lanes: Sequence[dict[str, Any]]) -> None:
    """Takes what else is right into what is expected, as far as the reference said it."""
    given = [r["tensors"] for r in lanes if "error" not in r]
    e.sides = [decision_sides.of(w, [t[i] for t in given]) for i, w in enumerate(e.wide)]


def _rows_apart(
    reference: ReferenceClient, tree: Any, inputs: Sequence[torch.Tensor], e: Expected
) -> bool:
    """Whether a batch in parts gives what the whole gives. Then it is computed so from now on."""
    counts = any(s["shape"] and "int" in s["dtype"] for s in reference.info["state"])
    reference.parts = None if counts else Parts.of(inputs, e.wide, reference.device)
    if reference.parts is None:
        return False
    got = reference.forward(tree, inputs, ["wide"])[0]
    given = [] if "error" in got else got["tensors"]
    if len(given) == len(e.wide) and all(map(_the_same, given, e.wide, e.scales)):
        return True
    reference.parts = None
    return False


def _the_same(got: torch.Tensor, wide: torch.Tensor, scale: Scale) -> bool:
    if got.shape != wide.shape:
        return False
    off = correctness.error_of(got, wide, None)
    if not math.isfinite(off.max):  # as it is where both are finite
        if not torch.equal(*map(correctness.kinds, (got, wide))):
            return False
        off = correctness.error_where_finite(got, wide)
    return off.max <= SAME_IN_PARTS * scale.max and off.rms <= SAME_IN_PARTS * scale.rms


def _begin_widening(
    n: Noise, e: Expected, i: int, family: Family, problems: list[str]
) -> torch.Tensor | None:
    """Takes what one draw's expected values tell of output i into its noise.

    Returns which elements say nothing.
    """
    wide, skip = e.wide[i], e.skips[i]
    if not wide.is_floating_point():
        return None
    assert e.eager is not None
    n.scale.widen(e.scales[i])
    n.error.widen(e.own[i])
    if family.planted:
        _same_kinds("eager", e.eager[i], wide, problems)
        nonfinite = correctness.not_finite(wide)
        return nonfinite if skip is None else skip | nonfinite
    if skip is not None and correctness.count(skip) * 2 > skip.numel():
        problems.append("eager itself is off or not finite on most elements")
    return skip


def _same_kinds(who: str, got: torch.Tensor, wide: torch.Tensor, problems: list[str]) -> None:
    if bool((correctness.kinds(got) != correctness.kinds(wide)).any()):
        problems.append(f"{who} and float64 differ in where NaN and Inf come out")


def _widen(
    n: Noise,
    e: Expected,
    i: int,
    mode: str,
    r: dict[str, Any],
    skip: torch.Tensor | None,
    known: float,
    family: Family,
    problems: list[str],
) -> None:
    """Takes what an honest form gives for output i into its noise, and names what it fails.

    ``known``: the largest error before this draw's forms, but for eager.
    """
    wide, got = e.wide[i], r["tensors"][i]
    simulated = mode.startswith("noise:")
    if not wide.is_floating_point():
        eager = e.sources[i]
        if simulated and eager is not None and r["sources"][i] is not None:
            a, b = r["sources"][i]["values"], eager["values"]
            n.source = max(n.source, correctness.error_where_finite(a, b).max)
        elif mode == "compile":
            o = correctness.compare(got, e, i, n, 0.0)
            if not o.passed and not o.unsettled:
                problems.append(f"torch.compile gives other values: {o.reason}")
        return
    if mode.startswith("moved:"):
        n.moved.widen(correctness.error_where_finite(got, wide, skip))
        return
    if family.planted:
        forms = {"compile": "torch.compile", "scalar": "eager, one element at a time,"}
        if mode in forms:
            _same_kinds(forms[mode], got, wide, problems)
    if mode == "compile":
        wide = e.right(i, got)
    error = correctness.error_of(got, wide, skip)
    if simulated and not math.isfinite(error.max):
        lost = correctness.not_finite(got)
        error = correctness.error_of(got, wide, lost if skip is None else skip | lost)
    if math.isfinite(error.max):
        far = correctness.OFF * e.scales[i].rms
        if mode == "compile" and error.max > max(far, 100 * known):
            problems.append("torch.compile is over 10 % off where eager is not")
            return
        n.error.widen(error)
    elif mode == "compile":
        problems.append("torch.compile gives NaN or Inf where eager does not")


def _is_exact(e: Expected, i: int, form: torch.Tensor) -> bool:
    """Whether output i is whole numbers, and a form of the reference has them."""
    wide = e.wide[i]
    if not wide.is_floating_point():
        return True
    if not wide.numel() or not correctness.whole(wide, 2**23):
        return False
    return correctness.equal(form, wide)


def ill_conditioned(c: Calibration) -> bool:
    base = c.families["base"]
    return any(n.moved.max > correctness.ILL * n.scale.max > 0 for n in base.outputs)


# Verification.


class Failed(Exception):
    """A gate was not passed.

    ``status`` is ``wrong`` or ``cheated``; the message is one sentence.
    """

    def __init__(
        self,
        status: str,
        reason: str,
        hint: str = "",
        *,
        near: bool = False,
        mixed: bool = False,
        unsettled: bool = False,
        slight: bool = False,
    ) -> None:
        """``near``: it may be that the bound is too narrow, as one random pattern showed it.
        ``mixed``: it is the draw, if no other one shows the same. ``unsettled``: likewise, as
        decisions on it may fall either way; ``slight``: by no more than these explain.
        """
        super().__init__(reason)
        self.status = status
        self.hint = hint
        self.near, self.mixed, self.unsettled, self.slight = near, mixed, unsettled, slight


@dataclass
class Report:
    """CorrectnessReport, as it grows."""

    precision: str
    seeds: int = 0
    families: dict[str, dict[str, Any]] = field(default_factory=dict)
    kernelbench: bool | None = None
    deterministic: bool | None = None
    drops_nan: bool = False
    loses_infinity: bool = False
    either: int = 0  # elements that have two right values, where it gave the other,
    compared: int = 0  # of so many
    caches_weights: bool | None = None
    follows_weights: bool | None = None
    general: bool | None = None
    evidence: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "precision": self.precision,
            "seeds": self.seeds,
            "families": list(self.families.values()),
        }
        for name in (
            "kernelbench",
            "deterministic",
            "caches_weights",
            "follows_weights",
            "general",
        ):
            value = getattr(self, name)
            if value is not None:
                out[name] = value
        return out

    def row(self, name: str) -> dict[str, Any] | None:
        """Returns what is known of a family, to be put back."""
        row = self.families.get(name)
        return None if row is None else dict(row)

    def put(self, name: str, row: dict[str, Any] | None) -> None:
        """Puts it back."""
        if row is None:
            self.families.pop(name, None)
        else:
            self.families[name] = row

    def add(self, family: FamilyCalibration, name: str, outcomes: Sequence[Outcome]) -> None:
        row = self.families.setdefault(
            name,
            {
                "name": name,
                "gates": family.gates,
                "passed": True,
                "seeds": 0,
                "max_error": 0.0,
                "max_bound": 0.0,
                "rms_error": 0.0,
                "rms_bound": 0.0,
                "skipped": 0,
                "note": family.note,
            },
        )
        row["seeds"] += 1
        for o in outcomes:
            row["skipped"] += o.skipped
            row["passed"] = row["passed"] and o.passed
            # The output and the draw that came closest to its bound, so that error and bound
            # belong together.
            for kind in ("max", "rms"):
                error, bound = getattr(o.error, kind), getattr(o.bound, kind)
                before = (
                    row[f"{kind}_error"] / row[f"{kind}_bound"] if row[f"{kind}_bound"] else -1.0
                )
                if (error / bound if bound else (math.inf if error else 0.0)) > before:
                    row[f"{kind}_error"] = error if math.isfinite(error) else 1e300
                    row[f"{kind}_bound"] = bound if math.isfinite(bound) else 1e300
        if any(o.dropped for o in outcomes):
            row["note"] = f"{family.note}; NaN is dropped (advisory)".removeprefix("; ")
        if any(o.lost for o in outcomes):
            row["note"] = f"{row['note']}; infinity is lost (advisory)".removeprefix("; ")
        if not row["passed"] and not family.gates and "advisory" not in row["note"]:
            reasons = "; ".join(o.reason for o in outcomes if o.reason)
            row["note"] = f"{row['note']} (advisory: {reasons})"


def _near(o: Outcome) -> bool:
    return o.error.max <= NEAR * o.bound.max and o.error.rms <= NEAR * o.bound.rms


_Reshaped = tuple[families.Shape, Any, list[torch.Tensor], Expected]


class Verification:
    """One candidate against one reference, both loaded. See ``run``."""

    def __init__(
        self,
        reference: ReferenceClient,
        calibration: Calibration,
        level: str,
        *,
        precision: str = "float32",
        strict: bool = False,
        plan: weights.Plan | None = None,
    ) -> None:
        """``strict``: whether what a candidate takes for granted of its inputs is wrong. ``plan``:
        how it gets weights, where that is known.
        """
        self.plan = plan if plan is not None and plan.by_seed else None
        self.reference = reference
        self.calibration = calibration
        self.level = level
        self.strict = strict
        self.traits = Traits()
        self.input_names = [str(n) for n in reference.info.get("arguments") or []]
        self.report = Report(precision)
        # Few inputs on which a certified candidate is right, and what is right: see general().
        self.small: tuple[Any, list[torch.Tensor], list[torch.Tensor]] | None = None
        self.tried: dict[families.Shape, bool] = {}  # other shapes, and whether it is right there
        self.draws: list[Draw] = []
        self.expected: list[Expected] = []
        self.output_tree: Any = None
        self.aliases: list[int] = []
        # Some of what the candidate was right on, and what is right unless memory is spared.
        self.varied: list[tuple[Job, Expected | None]] = []
        self.by_seed: set[str] = set()  # weights and buffers that another seed makes others
        self._room = Room()
        self.inputs: list[torch.Tensor] = []  # as the reference draws them, without content
        self.outputs: list[torch.Tensor] = []  # as the reference's, without content
        self.state: list[torch.Tensor] = []
        self._salt = secret()

    def prepare(self, state: list[torch.Tensor] | None = None) -> None:
        """Draws inputs and weights, unless they are given, and has the first expected outputs
        computed: all that needs no candidate.
        """
        r = self.reference
        self.original = r.state()
        self.state = self._moved(self.original) if state is None else state
        self.draws = draw_many(r, BASE_SEEDS[self.level])
        self.traits = self.calibration.traits(self._structures())
        r.set_state(self.state)
        job = self.base_job(self.draws[0])
        with r.whole():
            first = self._expect(job.tree, job.inputs)
        assert first.eager is not None
        self.inputs = [torch.empty_like(t, device="meta") for t in job.inputs]
        self.outputs = [torch.empty_like(t, device="meta") for t in first.eager]
        if self._sparing and self.calibration.by_rows:
            _rows_apart(r, job.tree, job.inputs, first)  # under these weights, too
        if not self._sparing:
            self.expected.append(first.private())

    def _moved(self, original: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns other weights, where they can be changed after construction."""
        return perturbed(original, self._may_move(), self.reference.info["tied"], secret())

    def _may_move(self) -> list[bool]:
        moved = self.reference.info["moved"]
        return moved if self.plan is None else self.plan.may_move(moved)

    def constructed(self) -> list[torch.Tensor]:
        """Has the reference, which was constructed anew, take other weights where it may. Returns
        what it has then.
        """
        made = self.reference.state()
        pairs = zip(self.reference.info["names"], made, self.original, strict=True)
        self.by_seed |= {n for n, a, b in pairs if not same_bytes(a, b)}
        state = self._moved(made)
        self.reference.set_state(state)
        return state

    def judge_constructed(self, candidate: CandidateClient) -> None:
        """Judges a candidate that was constructed as the reference was just now. Raises Failed."""
        known = self.calibration.families[BASE.name]
        tree, inputs = self.draws[secret() % len(self.draws)].get()
        answer, expected = self._both(candidate, tree, inputs)
        self._judge_closely(known, BASE.name, tree, inputs, answer, expected, candidate)

    def _structures(self) -> list[Structure]:
        """Returns the structures of the inputs, none that calibration has not found."""
        c = self.calibration
        if not any(c.kinds):
            return []
        return input_structure.again(some_draws(self.reference), c.kinds, c.structures)

    @property
    def _sparing(self) -> bool:
        return self.reference.sparing

    @property
    def _whole(self) -> int:
        """How many base draws' expected values are kept, to move elements of."""
        if self._sparing:
            return 0
        return ELEMENTS[self.level] if all(d.kept for d in self.draws) else 1

    def _known(
        self, candidate: CandidateClient, job: Job, k: int, *, bare: bool = False
    ) -> Expected:
        """Returns what is expected of base draw k, ``job``. The reference must be idle."""
        if self.expected:
            return self.expected[k]
        return self._beside(candidate, job.tree, job.inputs, bare=bare)

    def _lasting(self, expected: Expected) -> Expected:
        """Returns it in memory that outlives more answers of the reference."""
        return expected if self._sparing else expected.private()

    def _expect(self, tree: Any, inputs: Sequence[torch.Tensor], *, bare: bool = False) -> Expected:
        self._expect_begin(tree, inputs, bare=bare)
        return self._expect_finish()

    def _expect_begin(
        self, tree: Any, inputs: Sequence[torch.Tensor], *, bare: bool = False
    ) -> None:
        if not self.calibration.wide:
            modes = ["eager"]
        else:
            modes = ["wide"] if bare and not self._discrete else ["wide", "eager"]
        self.reference.begin_forward(tree, inputs, modes, sources=self._discrete)

    @property
    def _discrete(self) -> bool:
        # Before the first answer the reference is asked for the sources of indices: there may be
        # some.
        return not self.outputs or any(not t.is_floating_point() for t in self.outputs)

    def _expect_finish(self) -> Expected:
        results = {r["mode"]: r for r in self.reference.finish_forward()}
        eager = results.get("eager")
        if eager is not None and "error" in eager:
            raise eager["error"]
        wide = results.get("wide", eager)
        assert wide is not None
        if "error" in wide:
            raise wide["error"]
        if self.output_tree is None and eager is not None:
            self.output_tree = eager["tree"]
            self.aliases = eager["aliases"]
        tensors = [t.double() if t.is_floating_point() else t for t in wide["tensors"]]
        beside = None if eager is None else eager["tensors"]
        decides = _has_sides(self.reference, self.calibration)
        e = correctness.complete(Expected(tensors, beside, wide["sources"], decides=decides))
        if decides and e.own:
            # Eager may be on the other side of what is rounded: who fails is looked at with that.
            e.own = [Scale() for _ in e.own]
        return e

    # With a candidate.

    def run(self, candidate: CandidateClient, fresh: Fresh | None = None) -> Report:
        """Raises Failed at the first gate not passed, and what the candidate's client raises.

        ``fresh`` starts another process of the candidate, for one that keeps its first weights.
        """
        self._again(candidate, self._stream(candidate, self._jobs()))
        self.report.seeds = len(self.draws)
        self._exact(candidate, fresh)
        self._elements(candidate)
        self._boundaries(candidate)
        self._in_a_row(candidate)
        if self.level == "certify" and any(self._may_move()):
            self._follows(candidate)
        self._tell_of_sides()
        return self.report

    def _tell_of_sides(self) -> None:
        r = self.report
        if r.either:
            r.evidence.append(
                f"{r.either} of {r.compared} elements had two right values, and it gave the other: "
                "float64 is within the bound of where it is rounded, compared, counted or ordered"
            )

    def _boundaries(self, candidate: CandidateClient) -> None:
        """Asks about inputs near to where the reference decides: a bias shows there. At quick in
        one evaluation of several: it takes as long as all else.
        """
        known = self.calibration.families.get(BOUNDARIES.name)
        if not self.calibration.aimed or known is None:
            return
        if self.level == "quick" and secret() % BOUNDARIES_IN_TURN:
            return
        for k in range(SEEDS_PER_FAMILY[self.level]):
            tree, inputs = self.draws[k % len(self.draws)].get()
            aimed = self.reference.aimed(tree, inputs, _free(inputs, self.traits), secret())
            if aimed is None:
                continue
            answer, expected = self._both(candidate, tree, aimed)
            name = BOUNDARIES.name
            self._judge_closely(known, name, tree, aimed, answer, expected, candidate)

    def _jobs(self) -> Iterator[Job]:
        """All that is compared under the weights of this evaluation, base draws first."""
        for draw in self.draws:
            yield self.base_job(draw)
        left_out = self._left_out()
        for family in FAMILIES[1:]:
            known = self.calibration.families.get(family.name)
            if known is None or self._other_weights(known) or family in left_out:
                continue
            for k, seed in enumerate(self._seeds(family)):
                draw = self.draws[k % len(self.draws)]
                again = _Remade(draw, family, seed, self.traits)
                # Nothing else holds what is made: there may be little room.
                yield replace(self._job(family, known, again.made(), draw), again=again)

    def _left_out(self) -> set[Family]:
        """Returns what is asked another time: at quick two of three times few factors, and all but
        one of the families for outputs of many terms, nobody knows which.
        """
        if self.level != "quick":
            return set()
        chance = random.SystemRandom()
        out = {FEW_FACTORS} if chance.randrange(3) else set()
        in_turn = {ORDERED, FEW_TERMS, REPEATED} if self.calibration.many_terms else set()
        if asked := [f for f in in_turn if f.name in self.calibration.families]:
            out |= in_turn - {chance.choice(asked)}
        return out

    def _seeds(self, family: Family) -> list[int]:
        """Returns a seed for each time that a family is asked: at certify once for each line."""
        seeds = [secret() for _ in range(SEEDS_PER_FAMILY[self.level])]
        lines = {ORDERED: self.traits.lines, FEW_FACTORS: self.traits.factors}.get(family)
        if lines and self.level == "certify":
            count = len(lines)
            seeds += [secret() for _ in range(count - len(seeds))]
            seeds = [s - s % count + k % count for k, s in enumerate(seeds)]
        return seeds

    def _job(
        self,
        family: Family,
        known: FamilyCalibration,
        inputs: Sequence[torch.Tensor],
        draw: Draw,
    ) -> Job:
        """Returns what to compare on inputs made from a draw."""
        return Job(family, known, draw.tree, self.reference.lend(inputs))

    def _other_weights(self, known: FamilyCalibration) -> bool:
        return known.exact and any(self.reference.info["trainable"])

    def _stream(self, candidate: CandidateClient, jobs: Iterator[Job]) -> list[Any]:
        """Judges one after the other, while the reference works on the next.

        Returns what is remembered of the first answer.
        """
        if self._sparing:
            return self._one_by_one(candidate, jobs)
        first: Answer | None = None
        job = next(jobs)
        expected = self.expected[0]
        following = next(jobs, None)
        kept = all(d.kept for d in self.draws)
        wanted = self._choose_varied()
        while True:
            answer: Answer | None = None
            failed: WorkerError | None = None
            try:
                self._candidate_begin(candidate, job.tree, job.inputs)
                candidate.wait_forward()  # not beside the reference: its threads need the cores
            except WorkerError as e:
                failed = e
            if following is not None:
                # More than one base draw is needed whole, where elements are moved.
                bare = following.family is not BASE or len(self.expected) >= self._whole
                self._expect_begin(following.tree, following.inputs, bare=bare)
            passed = True
            if failed is not None:
                if job.known.gates:
                    raise failed
                outcome = Outcome(False, Scale(), Scale(), 0, "it raises")
                self.report.add(job.known, job.family.name, [outcome])
            else:
                answer = candidate.answer()
                if first is None:
                    first = answer
                    self._as_kernelbench(answer, expected)
                passed = self._judge(job.known, job.family.name, answer, expected)
                if passed:
                    self._keep(job, expected, wanted)
            # While the reference works, unless it is the one to draw.
            upcoming = next(jobs, None) if kept else None
            later = None if following is None else self._expect_finish()
            if not passed and answer is not None:
                if later is not None:
                    later = later.private()  # more answers take its memory
                whole = self._closely(job, answer.outputs)
                asked = job.known, job.family.name, job.tree, job.inputs, answer
                if self._stands(candidate, job, partial(self._judge_near, *asked, whole)):
                    self._keep(job, whole, wanted)
            if following is None or later is None:
                if first is None:
                    raise RuntimeError("the reference's own draw was not judged")
                return self._remembered(first.outputs)
            if following.family is BASE and len(self.expected) < self._whole:
                self.expected.append(later.private())
            job, expected = following, later
            following = upcoming if kept else next(jobs, None)

    def _one_by_one(self, candidate: CandidateClient, jobs: Iterator[Job]) -> list[Any]:
        """The same where memory is spared: nothing is held of one job while the next is judged."""
        wanted = self._choose_varied()
        first: list[Any] | None = None
        while True:
            with self._staying():  # the draw's block, too
                job = next(jobs, None)
                if job is None:
                    break
                answer = self._alone(candidate, job, wanted, first is None)
                if first is None and answer is not None:
                    first = self._remembered(answer.outputs)
                del job, answer
        if first is None:
            raise RuntimeError("the reference's own draw was not judged")
        return first

    @contextmanager
    def _staying(self) -> Iterator[None]:
        """Has the reference use its blocks again, where there is room. What it draws and answers
        inside is gone with what it draws and answers inside another.
        """
        stayed = self._room.stays
        if self._room.there(self.reference.device, self._bytes(self.inputs)):
            with self.reference.keeping():
                yield
            return
        if stayed:
            self.reference.let_go()
        yield

    def _bytes(self, inputs: Sequence[torch.Tensor]) -> int:
        """Returns what a call has of inputs and outputs."""
        return sum(t.numel() * t.element_size() for t in [*inputs, *self.outputs])

    def _remembered(self, outputs: Sequence[torch.Tensor]) -> list[Any]:
        """Returns what is kept of outputs to see whether others are the same bit by bit."""
        return [digest(t, self._salt) for t in outputs] if self._sparing else list(outputs)

    def _as_before(self, before: Sequence[Any], outputs: Sequence[torch.Tensor]) -> bool:
        """Whether outputs are those that were remembered."""
        if self._sparing:
            return self._remembered(outputs) == before
        return all(same_bytes(a, b) for a, b in zip(before, outputs, strict=True))

    def _alone(
        self, candidate: CandidateClient, job: Job, wanted: set[str], first: bool
    ) -> Answer | None:
        """Judges one job by itself. Returns its answer, None where it raises."""
        expected = self._beside(candidate, job.tree, job.inputs, bare=not first)
        try:
            self._candidate_begin(candidate, job.tree, job.inputs)
            answer = candidate.finish_forward()
        except WorkerError as e:
            if ran_out(e) and self._room.stays:
                del expected
                self._clear(candidate)  # what stays may be what it lacks
                return self._alone(candidate, job, wanted, first)
            if job.known.gates:
                raise
            outcome = Outcome(False, Scale(), Scale(), 0, "it raises")
            self.report.add(job.known, job.family.name, [outcome])
            return None
        if first:
            self._as_kernelbench(answer, expected)
        if not self._judge(job.known, job.family.name, answer, expected):
            del expected
            candidate.let_go()
            self.reference.let_go()  # many answers are held against each other
            if not self._stands(candidate, job, partial(self._judge_at_last, job, answer)):
                return answer
        if job.family.name in wanted:
            wanted.remove(job.family.name)
            kept = job if job.again is None else replace(job, inputs=job.again)
            self.varied.append((kept, None))
        return answer

    def _beside(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        *,
        bare: bool = False,
    ) -> Expected:
        """Returns what is expected, for which a candidate may have to give up what it has of its
        last call.
        """
        if not self._sparing:
            return self._expect(tree, inputs, bare=bare)
        parts = self.reference.parts
        needs = ROOM_TO_COMPUTE * candidate.holds() if parts is None else parts.room
        if self.reference.device.room()[0] < needs:
            candidate.let_go()
        try:
            return self._expect(tree, inputs, bare=bare)
        except (WorkerError, torch.OutOfMemoryError, CudaError) as e:
            if not ran_out(e):
                raise
        self._clear(candidate)
        return self._expect(tree, inputs, bare=bare)

    def _clear(self, candidate: CandidateClient) -> None:
        """Has nobody keep anything, now and from now on."""
        candidate.let_go()
        self._room.close()
        self.reference.let_go()
        self.reference.device.release()

    def _as_kernelbench(self, answer: Answer, expected: Expected) -> None:
        assert expected.eager is not None
        self.report.kernelbench = correctness.kernelbench_passes(answer.outputs, expected.eager)

    def _keep(self, job: Job, expected: Expected, wanted: set[str]) -> None:
        """Keeps what the candidate was right on for the timed calls, one of each wanted family."""
        if job.family.name in wanted:
            wanted.remove(job.family.name)
            self.varied.append((job, expected.private()))

    def _choose_varied(self) -> set[str]:
        """Returns the families of which one input each will come among the timed calls."""
        names = [
            f.name
            for f in FAMILIES
            if f is not BASE
            and (known := self.calibration.families.get(f.name)) is not None
            and known.gates
            and not self._other_weights(known)
        ]
        size = sum(t.numel() * t.element_size() for t in self.inputs)
        # Expected values are kept in float64.
        size += sum(t.numel() * max(t.element_size(), 8) for t in self.outputs)
        room = VARIED_BYTES[self.level]
        if self.reference.device.kind == "cuda":
            room = min(VARIED_ON_A_GPU, self.reference.device.free_bytes() // 16)
        count = max(room // max(size, 1), 1)
        return set(random.SystemRandom().sample(names, min(count, len(names))))

    def _need_room(self) -> None:
        """Has the reference keep nothing of other calls, where it may need the room."""
        least = ROOM_TO_COMPUTE * self._bytes(self.inputs)
        if self._sparing and self.reference.device.room()[0] < least:
            self.reference.let_go()

    def judge_varied(self, i: int, outputs: Sequence[torch.Tensor]) -> str | None:
        """Judges a timed call on inputs of ``varied``. Returns one sentence where it is wrong."""
        job, expected = self.varied[i]
        self._need_room()
        job = replace(job, inputs=self.reference.lend(list(job.inputs)))
        wrong = self._wrong(job, outputs, expected or self._expect(job.tree, job.inputs))
        if wrong is not None:  # where float32 itself goes astray only more of the reference tells
            wrong = self._wrong(job, outputs, self._closely(job))
        if wrong is not None and self.reference.parts is not None:
            del job
            with self.reference.whole():
                return self.judge_varied(i, outputs)
        if wrong is None:
            return None
        return f"on family {job.family.name} (inputs: {job.family.says}) {wrong}"

    def _closely(self, job: Job, outputs: Sequence[torch.Tensor] | None = None) -> Expected:
        """Returns all that is known of what to expect of a job, or as much as shows that these
        outputs are right. The reference must be idle.
        """
        effects = self._effects(job) if job.family.planted else None
        expected = self._lasting(self._expect(job.tree, job.inputs))
        if job.family.planted:
            expected.effects = effects or planted_nan.unknown(expected.wide)
        if self._sparing:
            expected.lighten()
        if expected.decides and outputs is not None:
            self._look_aside(job.tree, job.inputs, expected)
            if all(o.passed for o in self._outcomes(job, outputs, expected)):
                expected.moved = [Scale() for _ in expected.wide]
                return expected
        # Simulated rounding says nothing beside NaN.
        self._look_closer(job.tree, job.inputs, expected, simulated=not job.family.planted)
        return expected

    def right_again(self, candidate: CandidateClient, job: Job) -> bool:
        """Whether another process of a candidate is right on this, time after time.

        The reference must have this evaluation's weights.
        """
        job = job.remade()
        with self.reference.whole():
            expected = self._closely(job)
        for _ in range(AGAIN):
            answer, _ = self._both(candidate, job.tree, job.inputs, expected)
            if answer.problem or self._wrong(job, answer.outputs, expected):
                return False
        return True

    def unseen(self) -> tuple[Any, list[torch.Tensor]]:
        """Returns a draw that nobody has seen, for a process that is not ours."""
        return self.reference.draw(secret())

    def judge_unseen(
        self, tree: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Judges what the candidate computes for one. Raises Failed."""
        answer = Answer(list(outputs), "", [], False)
        expected = self._expect(tree, inputs)  # there may be no room for it before
        base = self.calibration.families["base"]
        self._judge_closely(base, "base", tree, inputs, answer, expected)
        self.report.seeds += 1

    def right_with(self, candidate: CandidateClient, state: Sequence[torch.Tensor]) -> bool:
        """Whether a process is right on the first draw where the reference has these weights."""
        self._need_room()
        self.reference.set_state(state)
        try:
            return self._right(candidate, self.base_job(self.draws[0]))
        finally:
            self.reference.set_state(self.state)

    def right_on_first(self, candidate: CandidateClient) -> bool:
        """Whether a process of a candidate is right on the first draw."""
        job = self.base_job(self.draws[0])
        return self._right(candidate, job, self._known(candidate, job, 0))

    def _right(
        self, candidate: CandidateClient, job: Job, expected: Expected | None = None
    ) -> bool:
        answer, expected = self._both(candidate, job.tree, job.inputs, expected)
        if answer.problem:
            return False
        if self._wrong(job, answer.outputs, expected) is None:
            return True
        return self._wrong(job, answer.outputs, self._closely(job)) is None

    def base_job(self, draw: Draw, inputs: Sequence[torch.Tensor] | None = None) -> Job:
        """Returns what to compare on inputs as the reference draws them: on a draw's own, where
        none are given.
        """
        known = self.calibration.families[BASE.name]
        return self._job(BASE, known, draw.tensors if inputs is None else inputs, draw)

    def kept_job(self, inputs: Sequence[torch.Tensor]) -> Job:
        """Returns what to compare on inputs like those that the reference draws, which are kept."""
        return Job(BASE, self.calibration.families[BASE.name], self.draws[0].tree, inputs)

    def _outcomes(
        self, job: Job, outputs: Sequence[torch.Tensor], expected: Expected
    ) -> Iterator[Outcome]:
        """Compares output by output."""
        for i, got in enumerate(outputs):
            yield correctness.compare(
                got,
                expected,
                i,
                job.known.outputs[i],
                self.calibration.floor(i, job.family.name).max,
                mask=job.family.planted,
                exact=job.known.exact,
            )

    def _wrong(self, job: Job, outputs: Sequence[torch.Tensor], expected: Expected) -> str | None:
        for i, o in enumerate(self._outcomes(job, outputs, expected)):
            which = self.calibration.carried.output(i) if len(outputs) > 1 else "the output"
            if o.slight:
                continue  # verification has asked on draws that tell more
            if not o.passed:
                return f"{which} of a timed call: {o.reason}"
            if o.dropped and not self.report.drops_nan:
                return f"{which} of a timed call drops NaN, which verification has not seen"
            if o.lost and not self.report.loses_infinity:
                return f"{which} of a timed call loses infinity, which verification has not seen"
        return None

    def _candidate_begin(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        *,
        goes_on: bool = False,
    ) -> None:
        if self._sparing:
            device, call = self.reference.device, self._bytes(inputs)
            give_back(device, call, ROOMY[1])
            if self.reference.parts is not None and device.room()[0] < ROOM_TO_CALL * call:
                self.reference.give_back()
        like = self.outputs, self.output_tree, self.aliases
        candidate.begin_forward(tree, inputs, *like, goes_on=goes_on)

    def _both(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        expected: Expected | None = None,
    ) -> tuple[Answer, Expected]:
        """Runs reference and candidate on the same inputs: at the same time, unless memory is
        spared.
        """
        if expected is None and self._sparing:
            expected = self._beside(candidate, tree, inputs)
        if expected is not None:
            self._candidate_begin(candidate, tree, inputs)
            return candidate.finish_forward(), expected
        self._expect_begin(tree, inputs)
        try:
            self._candidate_begin(candidate, tree, inputs)
        finally:
            expected = self._expect_finish()
        return candidate.finish_forward(), expected

    def _judge(
        self, family: FamilyCalibration, name: str, answer: Answer, expected: Expected
    ) -> bool:
        """Raises Failed. Returns False where more must be known of the expected values."""
        if answer.problem:
            raise Failed(
                "wrong",
                answer.problem,
                "return what the reference returns: structure, dtype, shape",
            )
        if answer.outside:
            raise Failed(
                "wrong",
                "it writes outside its inputs' memory",
                "check the index arithmetic of every store",
            )
        if answer.wrote:
            which = ", ".join(self._input(i) for i in answer.wrote)
            raise Failed(
                "wrong",
                f"it writes into its input {which}",
                "allocate the output instead of writing in place",
            )
        mask = name == "planted"
        exact = family.exact
        outcomes = [
            correctness.compare(
                got,
                expected,
                i,
                family.outputs[i],
                self.calibration.floor(i, name).max,
                mask=mask,
                exact=exact,
            )
            for i, got in enumerate(answer.outputs)
        ]
        unknown = expected.moved is None or (mask and expected.effects is None)
        # Nobody is wrong by what was computed in parts.
        unknown = unknown or self.reference.parts is not None
        more = expected.eager is None or (family.gates and unknown)
        if more and not all(o.passed for o in outcomes):
            return False
        self.report.add(family, name, outcomes)
        if not family.gates:
            return True
        self._note_advisory(outcomes)
        for i, o in enumerate(outcomes):
            if not o.passed:
                which = f"{self.calibration.carried.output(i)}, " if len(outcomes) > 1 else ""
                says = (
                    families.BY_NAME[name].says if name in families.BY_NAME else "one element moved"
                )
                where = (
                    "on the reference's own draws"
                    if name == "base"
                    else f"on family {name} (inputs: {says})"
                )
                where = IN_A_ROW_SAYS if name == IN_A_ROW else where
                near = all(p.passed or _near(p) for p in outcomes)
                mixed = all(p.passed or p.mixed for p in outcomes)
                open_ = all(p.passed or p.unsettled for p in outcomes)
                says = f"{which}{where}: {o.reason}"
                slight = all(p.passed or p.slight for p in outcomes)
                raise Failed("wrong", says, near=near, mixed=mixed, unsettled=open_, slight=slight)
        self.report.either += sum(o.either for o in outcomes)
        self.report.compared += sum(t.numel() for t in expected.wide)
        return True

    def _note_advisory(self, outcomes: Sequence[Outcome]) -> None:
        """Notes that NaN is dropped, or infinity lost. Raises Failed where that may not be."""
        dropped, lost = sum(o.dropped for o in outcomes), sum(o.lost for o in outcomes)
        if not all(o.passed for o in outcomes):
            return
        self.report.drops_nan |= dropped > 0
        self.report.loses_infinity |= lost > 0
        if self.strict and dropped:
            raise Failed(
                "wrong",
                f"it drops NaN: {dropped} elements are what a number far away gives in its place",
                "let NaN through: fmaxf and tl.maximum give the other operand",
            )
        if self.strict and lost:
            raise Failed(
                "wrong",
                f"it loses infinity: {lost} elements are NaN, where the reference's are infinite",
                "let no sum be taken apart in which infinity comes with either sign",
            )

    def _judge_near(
        self,
        family: FamilyCalibration,
        name: str,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        answer: Answer,
        expected: Expected,
    ) -> bool:
        """The same once the draw was looked at. Where little is missing it is looked at again, in
        more patterns, as where a timed call is wrong: one may not show how far it moves.
        """
        before = self.report.row(name)
        try:
            return self._judge(family, name, answer, expected)
        except Failed as e:
            if not e.near:
                raise
        self.report.put(name, before)
        self._look_closer(tree, inputs, expected, PATTERNS, simulated=name != "planted")
        return self._judge(family, name, answer, expected)

    def _judge_at_last(self, job: Job, answer: Answer) -> None:
        """Judges an answer by all that can be known. Raises Failed."""
        asked = job.known, job.family.name, job.tree, job.inputs, answer
        if not self._judge_near(*asked, self._closely(job, answer.outputs)):
            with self.reference.whole():
                self._judge_near(*asked, self._closely(job))

    def _stands(self, candidate: CandidateClient, job: Job, judge: Callable[[], object]) -> bool:
        """Has an answer judged at last. Raises Failed. An elimination that meets NaN and infinity
        comes to either, on a draw in hundreds: who takes one for the other is wrong if he does on
        another draw, too, and False says that this one tells nothing.
        """
        before = self.report.row(job.family.name)
        try:
            judge()
            return True
        except Failed as e:
            if e.unsettled:
                self.report.put(job.family.name, before)
                self._settle(candidate, job)
                return False
            if not e.mixed or job.again is None:
                raise
        self.report.put(job.family.name, before)
        for _ in range(ELSEWHERE):
            other = self._other(job)
            answer, _ = self._both(candidate, other.tree, other.inputs)
            self._judge_at_last(other, answer)
        return False

    def _other(self, job: Job) -> Job:
        """Returns the same on another draw, or on other inputs made from it."""
        if job.again is None:
            return replace(job, inputs=self.reference.lend(self.reference.draw(secret())[1]))
        again = job.again.other()
        return replace(job, inputs=self.reference.lend(again.made()), again=again)

    def _settle(self, candidate: CandidateClient, job: Job) -> None:
        """Draws until it is right, or wrong by more than decisions may do. Raises Failed where it
        is wrong so. A family all of whose draws tell nothing is advisory, but for the reference's
        own: there the honest are right on one of so many.
        """
        before = self.report.row(job.family.name)
        for left in reversed(range(REDRAWN)):
            other = self._other(job)
            answer, _ = self._both(candidate, other.tree, other.inputs)
            try:
                self._judge_at_last(other, answer)
                return
            except Failed as e:
                if not e.unsettled or (job.family is BASE and not left):
                    raise
            self.report.put(job.family.name, before)
        known = replace(job.known, gates=False, note=NEVER_SETTLED)
        self.report.add(known, job.family.name, [Outcome(False, Scale(), Scale())])

    def _judge_closely(
        self,
        family: FamilyCalibration,
        name: str,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        answer: Answer,
        expected: Expected,
        candidate: CandidateClient | None = None,
    ) -> None:
        """Raises Failed. The reference must not be at work. ``expected`` is of no use any more.

        A draw on which decisions fall either way tells nothing here: others were judged.
        """
        before = self.report.row(name)
        try:
            self._judge_by_all(family, name, tree, inputs, answer, expected, candidate)
        except Failed as e:
            if not e.slight:
                raise
            self.report.put(name, before)

    def _judge_by_all(
        self,
        family: FamilyCalibration,
        name: str,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        answer: Answer,
        expected: Expected,
        candidate: CandidateClient | None,
    ) -> None:
        if self._judge(family, name, answer, expected):
            return
        self._look_closer(tree, inputs, expected)
        if self._judge_near(family, name, tree, inputs, answer, expected):
            return
        expected.wide, expected.eager = [], None  # there may be no room for two
        if candidate is not None:
            candidate.let_go()
        with self.reference.whole():
            expected = self._expect(tree, inputs)
            self._look_closer(tree, inputs, expected)
            self._judge_near(family, name, tree, inputs, answer, expected)

    def _look_closer(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        expected: Expected,
        patterns: int = 1,
        *,
        simulated: bool = True,
    ) -> None:
        """Finds how far float64 moves on this very draw when its inputs move by a unit, in so many
        random patterns of signs, and where float32 rounding takes it, if that is to be simulated:
        a draw may be far worse conditioned than any in calibration.
        """
        if not self._sparing:
            expected.last()
        expected.moved = [Scale() for _ in expected.wide]
        floating = any(t.is_floating_point() for t in expected.wide)
        decided = expected.decides
        if decided and expected.sides is None:
            self._look_aside(tree, inputs, expected)
        if not self.calibration.wide or not floating:
            return
        for seed in range(patterns):
            modes = [f"moved:{seed}"] + [f"noise:{seed}"] * simulated
            for r in self.reference.each(tree, inputs, modes, decided=decided):
                rounding = r["mode"].startswith("noise:")
                if "error" in r:
                    if ran_out(r["error"]) and not rounding:  # which takes far more
                        raise r["error"]
                    return
                known = expected.own if rounding else expected.moved
                for n, (a, b) in enumerate(zip(expected.wide, r["tensors"], strict=True)):
                    if a.is_floating_point():
                        skip = expected.skips[n] if expected.skips else None
                        known[n].widen(correctness.error_where_finite(b, a, skip))
                    del b
                del r  # or it is still there while the next answer is made

    def _look_aside(self, tree: Any, inputs: Sequence[torch.Tensor], expected: Expected) -> None:
        """Finds what else is right where float64 decides, and how far eager is off that."""
        _take_sides(expected, list(self.reference.each(tree, inputs, decision_sides.LANES)))
        correctness.complete(expected)

    def _effects(self, job: Job) -> list[planted_nan.Effect] | None:
        """Returns what became of what was planted, None where the reference raises."""
        assert job.again is not None

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            self._expect_begin(job.tree, inputs, bare=True)
            wide = self._expect_finish().wide
            return wide if self._sparing else [t.clone() for t in wide]

        try:
            return planted_nan.look(run, job.inputs, job.again.base)
        except WorkerError as e:
            if ran_out(e) or e.ill:
                raise
            return None

    def _input(self, i: int) -> str:
        return self.input_names[i] if i < len(self.input_names) else str(i)

    def _again(self, candidate: CandidateClient, before: list[Any]) -> None:
        """The first input again:

        within the bound, by the same gate; a bitwise difference is recorded.
        """
        job = self.base_job(self.draws[0])
        expected = self._known(candidate, job, 0)
        second, expected = self._both(candidate, job.tree, job.inputs, expected)
        self._judge_closely(job.known, "base", job.tree, job.inputs, second, expected, candidate)
        self.report.families["base"]["seeds"] -= 1
        self.report.deterministic = self._as_before(before, second.outputs)

    def _exact(self, candidate: CandidateClient, fresh: Fresh | None) -> None:
        """Zeros and ones as inputs and weights, where the task is linear: no error at all.

        A candidate may pack its weights at the first call. One that fails with these, which are
        its second, is asked again in a process that has met no others.
        """
        known = self.calibration.families.get("zero_one")
        if known is None or not self._other_weights(known) or self.plan is not None:
            return
        state = zero_one(self.original, self.reference.info["trainable"])
        self._weights(candidate, state)
        try:
            self._exact_forwards(candidate, known)
        except Failed:
            if fresh is None:
                raise
            self.report.families.pop("zero_one", None)
            another = fresh()
            try:
                another.set_state(self.reference.info["names"], state)
                self._exact_forwards(another, known)
            except WorkerFailure as e:
                if e.client is another:
                    e.client = candidate  # whichever of its processes it was
                raise
            finally:
                another.kill()
        self._weights(candidate, self.state)

    def _exact_forwards(self, candidate: CandidateClient, known: FamilyCalibration) -> None:
        for draw in self.draws[: SEEDS_PER_FAMILY[self.level]]:
            tree, inputs = draw.get()
            inputs = families.apply(families.BY_NAME["zero_one"], inputs, secret(), self.traits)
            answer, expected = self._both(candidate, tree, inputs)
            self._judge_closely(known, "zero_one", tree, inputs, answer, expected, candidate)

    def _weights(self, candidate: CandidateClient, state: Sequence[torch.Tensor]) -> None:
        self.reference.set_state(state)
        candidate.set_state(self.reference.info["names"], state)

    def _elements(self, candidate: CandidateClient) -> None:
        """Moves one element, and all that equal it in every draw, so far that float64 changes by
        many bounds: who left it out does not follow.
        """
        floating = [i for i, t in enumerate(self.inputs) if t.is_floating_point() and t.numel()]
        if not floating:
            return
        for k in range(ELEMENTS[self.level]):
            sign, outlier = 1 if secret() & 1 else -1, bool(k % 2)
            k %= max(len(self.expected), 1)
            which = floating[secret() % len(floating)]
            target = self.draws[k].tensors[which]
            at = self.traits.structure(which).picked(target, secret())
            if at is None:
                continue
            rms = correctness.scale_of(target).rms or 1.0
            del target
            # An outlier may matter where a small change does not, and upwards only.
            for tried in [STEPS[1:], STEPS[1:]] if outlier else [STEPS]:
                sign = -sign
                for step in tried:
                    if self._element(candidate, k, which, at, sign * step * rms):
                        break

    def _element(
        self, candidate: CandidateClient, k: int, which: int, at: torch.Tensor, by: float
    ) -> bool:
        """Judges base draw k with one element of one input moved, where float64 shows that it was.

        The draw is made anew where it is not kept, so that nothing else is held of it.
        """
        draw = self.draws[k]
        before = self._known(candidate, self.base_job(draw), k, bare=True)

        def moved() -> list[torch.Tensor]:
            tensors = list(draw.tensors)
            tensors[which] = tensors[which].clone()
            tensors[which].view(-1)[at] += by
            return tensors

        job = self.base_job(draw, moved())
        after = self._beside(candidate, job.tree, job.inputs)
        if not self._shows(job.known, before, after):
            return False
        del before
        answer, _ = self._both(candidate, job.tree, job.inputs, after)
        self._judge_closely(job.known, ELEMENT, job.tree, job.inputs, answer, after, candidate)
        return True

    def _in_a_row(self, candidate: CandidateClient) -> None:
        """Calls it some times without putting back what it carries, every second time until a
        position comes round. What is expected of a call follows from the state that the candidate
        showed after the one before, which was right: so the bound is that of one call.
        """
        if not self.calibration.carried.names:
            return
        for k in range(ROWS[self.level]):
            some = random.SystemRandom().randint(*CALLS_IN_A_ROW)
            calls = some if k % 3 else CALLS_IN_A_ROW[1]
            self._row_of_calls(candidate, calls, last=k % 2 == 0)

    def _row_of_calls(self, candidate: CandidateClient, calls: int, last: bool) -> None:
        carried, base = self.calibration.carried, self.calibration.families[BASE.name]
        state: list[torch.Tensor] = []
        tree: Any = None
        drawn: list[torch.Tensor] = []
        for i in range(calls):
            if i != 2:  # one call has what the call before it had, but for the state
                tree, drawn = self.reference.draw(secret(), last=last)
            args = drawn[: carried.given]
            inputs = self.reference.lend([*args, *(state or drawn[carried.given :])])
            try:
                expected = self._beside(candidate, tree, inputs)
            except WorkerError as e:
                if not i or ran_out(e) or e.ill:
                    raise
                return  # the reference itself has come to its end
            expected = self._lasting(expected)
            self._candidate_begin(candidate, tree, inputs, goes_on=i > 0)
            answer = candidate.finish_forward()
            self._judge_closely(base, IN_A_ROW, tree, inputs, answer, expected, candidate)
            state = answer.outputs[carried.state]

    def _shows(self, base: FamilyCalibration, before: Expected, after: Expected) -> bool:
        for i, (a, b) in enumerate(zip(before.wide, after.wide, strict=True)):
            if not a.is_floating_point():
                if bool((a != b).any()):
                    return True
                continue
            change = correctness.error_of(b, a, None).max
            bound = correctness.bound_of(
                base.outputs[i], after.own[i], after.scales[i], self.calibration.floor(i).max
            ).max
            if math.isfinite(change) and change >= correctness.SENSITIVE * bound:
                return True
        return False

    def assumes(self, start: assumptions.Start) -> list[str]:
        """Returns what the candidate, which is right, takes for granted, one sentence each.

        ``start`` starts a process of it with other weights and buffers. Raises what the reference's
        client raises.
        """
        told = [assumptions.NO_NAN] if self.report.drops_nan else []
        told += [assumptions.NO_INFINITY] if self.report.loses_infinity else []
        return told + assumptions.Asking(self, start).told()

    def look_closer(self, tree: Any, inputs: Sequence[torch.Tensor], expected: Expected) -> None:
        """Finds how far this very draw can move, in many patterns."""
        self._look_closer(tree, inputs, expected, PATTERNS)

    def seed(self) -> int:
        """Returns a secret seed."""
        return secret()

    def judge_call(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> str | None:
        """Judges a timed call on other inputs than ours.

        Returns one sentence where it is wrong. The reference must have this evaluation's weights.
        """
        self._need_room()
        job = self.base_job(self.draws[0], inputs)
        expected = self._expect(job.tree, job.inputs)
        wrong = self._wrong(job, outputs, expected)
        # Among hundreds of draws one may be far worse conditioned than any in calibration, and a
        # single pattern of signs may not show it.
        if wrong is not None:
            expected = self._lasting(expected)
        for patterns in (1, PATTERNS):
            if wrong is None:
                break
            self._look_closer(job.tree, job.inputs, expected, patterns)
            wrong = self._wrong(job, outputs, expected)
        if wrong is not None and self.reference.parts is not None:
            del job, expected
            with self.reference.whole():
                return self.judge_call(inputs, outputs)
        return wrong

    def changed(self) -> list[torch.Tensor]:
        """Returns other weights, as a change leaves them."""
        return self._moved(self.original)

    def _follows(self, candidate: CandidateClient) -> None:
        """Changes the weights once more, in place, and sees whether the candidate follows."""
        changed = self.changed()
        self.reference.set_state(changed)
        if not candidate.set_state(self.reference.info["names"], changed, in_place=True):
            self.reference.set_state(self.state)
            if candidate.plan is not None and candidate.plan.taken:
                self.report.follows_weights = False  # the names were there
                return
            self.report.evidence.append(
                "its parameters have other names than the reference's: "
                "whether it follows a change is not known"
            )
            return
        with self.reference.whole():
            answer, expected = self._both(candidate, *self.draws[0].get())
        base = self.calibration.families["base"]

        def right() -> bool:
            outcomes = (
                correctness.compare(
                    got, expected, i, base.outputs[i], self.calibration.floor(i).max
                )
                for i, got in enumerate(answer.outputs)
            )
            return all(o.passed or o.slight for o in outcomes)

        follows = not answer.problem and right()
        if expected.decides and not answer.problem and not follows:
            self._look_closer(*self.draws[0].get(), expected)
            follows = right()
        self.report.follows_weights = follows
        self.report.caches_weights = not follows
        self._weights(candidate, self.state)

    # Other shapes.

    def general(self, reference: ReferenceClient, candidate: CandidateClient) -> None:
        """Records whether a candidate computes other shapes of the inputs too. Gates nothing; but
        what it is right on is what its exported file takes.

        Both are fresh processes with this evaluation's weights: either may die here.
        """
        judge = Verification(reference, self.calibration, self.level)
        judge.expected, judge.draws = self.expected, self.draws
        judge.inputs, judge.outputs = self.inputs, self.outputs
        judge.output_tree, judge.aliases = self.output_tree, self.aliases
        right: list[str] = []
        failed: list[str] = []
        # A kernel for one length of rows takes few of them as it takes many. First, where there may
        # be no room for the rest.
        if self._sparing:
            self.small = judge._small(candidate)
        for shape, tree, inputs, expected in judge._other_shapes():
            self.tried[shape] = False
            shapes = ", ".join(str(list(t.shape)) for t in inputs)
            try:
                why = judge._wrong_at(candidate, tree, inputs, expected)
            except WorkerError as e:
                why = f"it raises {e.type}"
            except WorkerFailure as e:
                # The process is gone, and with it the shapes that were to come.
                why = f"its process {e}" if isinstance(e, WorkerGone) else str(e)
                failed.append(f"{shapes} ({why})")
                break
            if why:
                failed.append(f"{shapes} ({why})")
            else:
                self.tried[shape] = True
                right.append(shapes)
        if not right and not failed:
            return
        self.report.general = not failed
        if self.small is None:
            self.small = judge._small(candidate)
        self.tried |= judge.tried
        parts = [f"right on {'; '.join(right)}"] if right else []
        parts += [f"fails on {'; '.join(failed)}"] if failed else []
        self.report.evidence.append(f"inputs of other shapes: {', '.join(parts)}")

    def _other_shapes(self) -> Iterator[_Reshaped]:
        """Gives inputs of the shapes on which the reference itself runs."""
        growth = 1.1 if self._sparing else 2.0
        yield from self._reshaped_as(families.shapes_of(self._some_draws(), growth))

    def _some_draws(self) -> list[list[torch.Tensor]]:
        together = all(d.kept for d in self.draws)
        return [d.tensors for d in (self.draws if together else self.draws[:2])]

    def _reshaped_as(self, tried: Iterable[Sequence[families.Shape]]) -> Iterator[_Reshaped]:
        """Gives, of each list, inputs of the first shape on which the reference itself runs."""
        tree, draws = self.draws[0].tree, self._some_draws()
        for ways in tried:
            for shape in ways:
                inputs = families.reshaped(draws, shape)
                try:
                    expected = self._expect(tree, inputs)
                except WorkerError:
                    continue  # the reference cannot, so nobody need
                yield shape, tree, inputs, expected
                break

    def _small(
        self, candidate: CandidateClient
    ) -> tuple[Any, list[torch.Tensor], list[torch.Tensor]] | None:
        """Returns few inputs on which it is right, as a tree and its tensors, and what is right."""
        with suppress(WorkerFailure):
            few = [families.small(self._some_draws())]
            for shape, tree, inputs, expected in self._reshaped_as(few):
                if not self._wrong_at(candidate, tree, inputs, expected):
                    self.tried[shape] = True
                    eager = expected.private().eager
                    assert eager is not None
                    return tree, inputs, eager
        return None

    def _wrong_at(
        self,
        candidate: CandidateClient,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        expected: Expected,
    ) -> str:
        assert expected.eager is not None
        candidate.begin_forward(tree, inputs, expected.eager, self.output_tree, self.aliases)
        answer = candidate.finish_forward()
        if answer.problem:
            return answer.problem
        if answer.outside:
            return "it writes outside its inputs' memory"
        base = self.calibration.families["base"]
        for i, got in enumerate(answer.outputs):
            floor = self.calibration.floor(i).max
            o = correctness.compare(got, expected, i, base.outputs[i], floor)
            if not o.passed and expected.decides and expected.moved is None:
                self._look_closer(tree, inputs, expected)
                o = correctness.compare(got, expected, i, base.outputs[i], floor)
            if not o.passed and not o.unsettled:
                return o.reason
        return ""
