"""Calibrates: runs the reference alone, on draws of every family.

What it finds is kept for each task (calibration.py).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from kwharness.base.calibration import Calibration, FamilyCalibration, Line, Scale
from kwharness.base.for_reference import Inspected
from kwharness.clients.errors import WorkerFailure, ran_out
from kwharness.clients.reference_client import ReferenceClient
from kwharness.numerics import (
    correctness,
    families,
    few_terms,
    input_structure,
    norms,
    orders,
)
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
from kwharness.verify import assumptions, calibrate_family, calibration, secret_draws

CALIBRATION_SEEDS = 4
FAMILY_SEEDS = 2
CALIBRATION_S = 30.0  # past this a family is calibrated on one seed
# Of outputs, from which half of the seeds tell as much where each of them takes long: what the
# largest of so many errors is varies little from one draw to the next.
MANY_ELEMENTS = 1 << 18
AXES = 16  # tried, of those that may be reduced, for at most
AXES_S = 3.0
PROBE_S = 20.0  # of one forward of the reference on what get_inputs() never gives
PATTERNS = 8  # of signs, before a timed call is wrong

Note = Callable[[str], None]


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
    seen = reference.inspect(secret_draws.secret())
    c.carried = seen.carried
    if c.carried:
        reference.carry(c.carried)
    c.linear = seen.linear
    sizes = [o.numel for o in seen.outputs if o.dtype.startswith("float")]
    c.by_rows = parts and reference.sparing
    few = 2 if reference.sparing and min(sizes, default=0) >= MANY_ELEMENTS else 1
    state = reference.state()
    trainable = reference.info.trainable
    draws = secret_draws.draw_many(reference, CALIBRATION_SEEDS // few)
    found, floating = _look_at_inputs(reference, c, draws[0], seen)
    if not reference.sparing:
        c.decides = reference.decides(*draws[0].get()) > 0
    moved, tied = reference.info.moved, reference.info.tied
    reference.set_state(secret_draws.perturbed(state, moved, tied, secret_draws.secret()))
    start = time.monotonic()
    for family in FAMILIES:
        if family is not BASE and not floating:
            c.notes.append("no input is floating: only base draws are compared")
            break
        note(f"calibrating {family.name}")
        if not _is_asked(reference, c, family, draws, found):
            continue
        exact_weights = family.exact and c.linear and bool(state)
        if exact_weights:
            reference.set_state(secret_draws.zero_one(state, trainable))
        seeds = len(draws) if family is BASE else FAMILY_SEEDS // few
        if family is not BASE and time.monotonic() - start > CALIBRATION_S:
            seeds = 1
        calibrated = calibrate_family.calibrate_family(
            reference, c, family, draws[:seeds], want_compile, calibration.traits(c, found)
        )
        if exact_weights:
            reference.set_state(state)
        if calibrated is not None:
            c.families.append(calibrated)
        if family is BASE and floating:
            _aim(reference, c, draws[0], want_compile, calibration.traits(c, found))
    reference.set_state(state)
    if not reference.sparing:
        _probe(reference, c, assumptions.Case(*draws[0].get(), state), found)
    return c


def _look_at_inputs(
    reference: ReferenceClient,
    c: Calibration,
    draw: secret_draws.Draw,
    seen: Inspected,
) -> tuple[list[Structure], bool]:
    """Finds what families go by. Returns the structures of the inputs, and whether one of these is
    floating.
    """
    inputs = draw.tensors[: c.given]
    found = input_structure.of(secret_draws.some_draws(reference))
    c.structures, c.kinds = [s.says for s in found], [s.kinds() for s in found]
    c.lines = orders.lines_of(inputs, seen.lengths)
    c.factors = [at for at in orders.lines_of(inputs, seen.products) if not found[at.input]]
    elements = sum(o.numel for o in seen.outputs)
    c.many_terms = few_terms.many(inputs, elements)
    return found, any(t.is_floating_point() for t in inputs)


def _probe(
    reference: ReferenceClient,
    c: Calibration,
    base: assumptions.Case,
    found: Sequence[Structure],
) -> None:
    """Finds what can be asked of a candidate that get_inputs() never varies. The reference's
    process may end by it.
    """
    info = reference.info
    changes = assumptions.changes_of(
        base, info.arguments, found, info.names, assumptions.constant(info, c.carried.names)
    )
    patience, reference.timeout = reference.timeout, min(reference.timeout, PROBE_S)
    try:
        c.assumptions = assumptions.probe(reference, c, base, changes, secret_draws.secret())
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
    reference: ReferenceClient,
    c: Calibration,
    draw: secret_draws.Draw,
    want_compile: bool,
    traits: Traits,
) -> None:
    """Sees whether inputs can be moved to where the reference decides, and the honest are right."""
    if not calibrate_family.has_sides(reference, c):
        return
    inputs = reference.aimed(
        draw.tree, draw.tensors, free_elements(draw.tensors, traits), secret_draws.secret()
    )
    if inputs is None:
        return
    base = c.base
    f = FamilyCalibration(BOUNDARIES.name, True, "", False, [replace(n) for n in base.outputs])
    calibrator = calibrate_family.Calibrator(reference, c, BOUNDARIES, want_compile, f)
    if calibrator.take(draw.tree, inputs, 0, ["wide", "eager"]):
        f.note = "; ".join(dict.fromkeys(calibrator.problems))
        f.gates = not calibrator.problems
        c.families.append(f)
        c.aimed = True


def free_elements(tensors: Sequence[torch.Tensor], traits: Traits) -> list[int]:
    """Returns which inputs have no structure that a move of one element breaks."""
    floating = [i for i, t in enumerate(tensors[: traits.given]) if t.is_floating_point()]
    return [i for i in floating if not traits.structure(i)]


def _is_asked(
    reference: ReferenceClient,
    c: Calibration,
    family: Family,
    draws: Sequence[secret_draws.Draw],
    found: Sequence[Structure],
) -> bool:
    """Whether a family makes other inputs than the draw's on this task. Finds what it goes by."""
    if family is PERMUTED:
        c.axes = _reduced_axes(reference, c, draws, found)
        return bool(c.axes)
    if family is ORDERED:
        return bool(c.lines)
    if family is FEW_FACTORS:
        c.factors = _summed_along(reference, c, draws[0], found)
        return bool(c.factors)
    return c.many_terms if family in (FEW_TERMS, REPEATED) else True


def _reduced_axes(
    reference: ReferenceClient,
    c: Calibration,
    draws: Sequence[secret_draws.Draw],
    structures_of: Sequence[Structure],
) -> list[Axis]:
    """Returns axes of the inputs along which another order leaves the outputs within the bound."""
    pair = [d.tensors[: c.given] for d in draws[:2]]
    tried = families.axes_of(pair, structures_of)
    if not tried:
        return []
    mode = ["wide" if c.wide else "eager"]
    before = reference.forward(*draws[0].get(), mode)[0]
    if before.error is not None:
        return []
    end = time.monotonic() + AXES_S
    found: list[Axis] = []
    for axis in random.SystemRandom().sample(tried, min(AXES, len(tried))):
        inputs = families.apply(PERMUTED, draws[0].tensors, secret_draws.secret(), Traits([axis]))
        inputs = reference.lend(inputs)
        after = reference.forward(draws[0].tree, inputs, mode)[0]
        if after.error is None and _unchanged(c, before.tensors, after.tensors):
            found.append(axis)
        if time.monotonic() > end:
            break
    return found


def _summed_along(
    reference: ReferenceClient,
    c: Calibration,
    draw: secret_draws.Draw,
    found: Sequence[Structure],
) -> list[Line]:
    """Returns, of lines that are as long as the sums in products, those along which these are added
    up: with few terms left there, eager errs least. A square matrix has another of that length.
    """
    if len(c.factors) < 2 or not c.wide:
        return c.factors
    errors = []
    for line in c.factors:
        traits = replace(calibration.traits(c, found), factors=[line])
        inputs = families.apply(FEW_FACTORS, draw.tensors, secret_draws.secret(), traits)
        answers = reference.forward(draw.tree, reference.lend(inputs), ["wide", "eager"])
        if any(a.error is not None for a in answers):
            return c.factors
        errors.append(_relative_error(*(a.tensors for a in answers)))
    return [at for at, error in zip(c.factors, errors, strict=True) if error <= 2 * min(errors)]


def _relative_error(wide: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> float:
    """Returns the largest root mean square error of an output, relative to that of the output."""
    found = 0.0
    for w, t in zip(wide, eager, strict=True):
        if t.is_floating_point() and (size := norms.scale_of(w).rms):
            found = max(found, norms.error_where_finite(t, w).rms / size)
    return found


def _unchanged(c: Calibration, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if not x.is_floating_point():
            if not torch.equal(x, y):
                return False
            continue
        noise = c.base.outputs[i]
        bound = correctness.bound_of(noise, Scale(), noise.scale, calibration.floor(c, i).max)
        wide = x.double()
        error = norms.error_of(y, wide, None)
        if not math.isfinite(error.max):
            error = norms.error_of(y, wide, norms.not_finite(wide))
        if error.max > bound.max or error.rms > bound.rms:
            return False
    return True


def ill_conditioned(c: Calibration) -> bool:
    base = c.base
    return any(n.moved.max > correctness.ILL * n.scale.max > 0 for n in base.outputs)
