"""Calibrates: runs the reference alone, on draws of every family.

What it finds is kept for each task (calibration.py).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from kwharness.clients.errors import WorkerError, WorkerFailure, ran_out
from kwharness.clients.reference_client import Parts, ReferenceClient, reshaped
from kwharness.numerics import (
    correctness,
    decision_sides,
    families,
    few_terms,
    input_structure,
    orders,
)
from kwharness.numerics.correctness import Expected, Noise, Scale
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
from kwharness.verify import assumptions, calibration, secret_draws

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
# Of an output's scale: what float64 computes in parts is the same but for this, or it is not
# computed in parts.
SAME_IN_PARTS = 1e-9

Note = Callable[[str], None]


class ReferenceBroken(Exception):
    """The reference fails on its own base draw: the task is not to be judged."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(str(error))
        self.error = error


# Calibration.


def calibrate(
    reference: ReferenceClient,
    *,
    want_compile: bool = True,
    parts: bool = True,
    note: Note = lambda _: None,
) -> calibration.Calibration:
    """Runs the reference on all families and returns what honest errors are.

    ``parts``: whether float64 may take a large batch in parts. A forward that must not see fewer
    rows may end its process by that: then it is to be calibrated again without.

    Raises ReferenceBroken, and what a worker raises that has ended.
    """
    c = calibration.Calibration()
    seen = reference.inspect(secret_draws.secret())
    c.carried = seen["carried"]
    if c.carried:
        reference.carry(c.carried)
    c.linear = seen["linear"]
    sizes = [math.prod(o["shape"]) for o in seen["outputs"] if o["dtype"].startswith("float")]
    c.by_rows = parts and reference.sparing
    few = 2 if reference.sparing and min(sizes, default=0) >= MANY_ELEMENTS else 1
    state = reference.state()
    trainable = reference.info["trainable"]
    draws = secret_draws.draw_many(reference, CALIBRATION_SEEDS // few)
    inputs = draws[0].tensors[: c.given]
    floating = any(t.is_floating_point() for t in inputs)
    found = input_structure.of(secret_draws.some_draws(reference))
    c.structures, c.kinds = [s.says for s in found], [s.kinds() for s in found]
    c.lines = orders.lines_of(inputs, seen["lengths"])
    c.factors = [at for at in orders.lines_of(inputs, seen["products"]) if not found[at.input]]
    elements = sum(math.prod(o["shape"]) for o in seen["outputs"])
    c.many_terms = few_terms.many(inputs, elements)
    del inputs
    if not reference.sparing:
        c.decides = reference.decides(*draws[0].get()) > 0
    moved, tied = reference.info["moved"], reference.info["tied"]
    reference.set_state(secret_draws.perturbed(state, moved, tied, secret_draws.secret()))
    start = time.monotonic()
    for family in FAMILIES:
        if family is not BASE and not floating:
            c.notes.append("no input is floating: only base draws are compared")
            break
        note(f"calibrating {family.name}")
        if family is PERMUTED:
            c.axes = _reduced_axes(reference, c, draws, found)
        if family is FEW_FACTORS:
            c.factors = _summed_along(reference, c, draws[0], found)
        if not _is_asked(c, family):
            continue
        exact_weights = family.exact and c.linear and bool(state)
        if exact_weights:
            reference.set_state(secret_draws.zero_one(state, trainable))
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
    reference: ReferenceClient,
    c: calibration.Calibration,
    base: assumptions.Case,
    found: Sequence[Structure],
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
    c: calibration.Calibration,
    draw: secret_draws.Draw,
    want_compile: bool,
    traits: Traits,
) -> None:
    """Sees whether inputs can be moved to where the reference decides, and the honest are right."""
    if not has_sides(reference, c):
        return
    inputs = reference.aimed(
        draw.tree, draw.tensors, free_elements(draw.tensors, traits), secret_draws.secret()
    )
    if inputs is None:
        return
    base = c.families[BASE.name]
    f = calibration.FamilyCalibration(
        BOUNDARIES.name, True, "", False, [replace(n) for n in base.outputs]
    )
    problems: list[str] = []
    modes = ["wide", "eager"]
    if _calibrate_draw(
        reference, c, BOUNDARIES, f, draw.tree, inputs, 0, modes, want_compile, problems
    ):
        f.note = "; ".join(dict.fromkeys(problems))
        f.gates = not problems
        c.families[f.name] = f
        c.aimed = True


def free_elements(tensors: Sequence[torch.Tensor], traits: Traits) -> list[int]:
    """Returns which inputs have no structure that a move of one element breaks."""
    floating = [i for i, t in enumerate(tensors[: traits.given]) if t.is_floating_point()]
    return [i for i in floating if not traits.structure(i)]


def _is_asked(c: calibration.Calibration, family: Family) -> bool:
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
    c: calibration.Calibration,
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
    if "error" in before:
        return []
    end = time.monotonic() + AXES_S
    found: list[Axis] = []
    for axis in random.SystemRandom().sample(tried, min(AXES, len(tried))):
        inputs = families.apply(PERMUTED, draws[0].tensors, secret_draws.secret(), Traits([axis]))
        inputs = reference.lend(inputs)
        after = reference.forward(draws[0].tree, inputs, mode)[0]
        if "error" not in after and _unchanged(c, before["tensors"], after["tensors"]):
            found.append(axis)
        if time.monotonic() > end:
            break
    return found


def _summed_along(
    reference: ReferenceClient,
    c: calibration.Calibration,
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
        traits = replace(c.traits(found), factors=[line])
        inputs = families.apply(FEW_FACTORS, draw.tensors, secret_draws.secret(), traits)
        answers = reference.forward(draw.tree, reference.lend(inputs), ["wide", "eager"])
        if any("error" in a for a in answers):
            return c.factors
        errors.append(_relative_error(*(a["tensors"] for a in answers)))
    return [at for at, error in zip(c.factors, errors, strict=True) if error <= 2 * min(errors)]


def _relative_error(wide: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> float:
    """Returns the largest root mean square error of an output, relative to that of the output."""
    found = 0.0
    for w, t in zip(wide, eager, strict=True):
        if t.is_floating_point() and (size := correctness.scale_of(w).rms):
            found = max(found, correctness.error_where_finite(t, w).rms / size)
    return found


def _unchanged(
    c: calibration.Calibration, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]
) -> bool:
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
    c: calibration.Calibration,
    family: Family,
    draws: Sequence[secret_draws.Draw],
    want_compile: bool,
    traits: Traits,
) -> calibration.FamilyCalibration | None:
    # What tells of values behind indices comes before what is held against it.
    modes = ["wide", "eager"]
    if family.planted:
        modes.append("scalar")
    else:
        modes.append("noise:1:coherent" if family.coherent else "noise:1")
    if family is BASE:
        modes.append("noise:2")
    f = calibration.FamilyCalibration(family.name, True, "", family.exact and c.linear, [])
    problems: list[str] = []
    for k, draw in enumerate(draws):
        inputs = reference.lend(families.apply(family, draw.tensors, secret_draws.secret(), traits))
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
    c: calibration.Calibration,
    family: Family,
    f: calibration.FamilyCalibration,
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
    lanes = list(decision_sides.LANES) if has_sides(reference, c) else []
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
        take_sides(e, [next(answers) for _ in lanes])
    correctness.complete(e)
    if not f.outputs:
        f.outputs = [Noise() for _ in e.wide]
    skips = [_begin_widening(n, e, i, family, problems) for i, n in enumerate(f.outputs)]
    known = [n.error.max for n in f.outputs]
    f.exact = f.exact and all(_is_exact(e, i, t) for i, t in enumerate(eager["tensors"]))
    e.lighten()
    del eager
    if k == 0 and c.by_rows:
        c.by_rows = c.wide and rows_apart(reference, tree, inputs, e)
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


def has_sides(reference: ReferenceClient, c: calibration.Calibration) -> bool:
    """Whether float64 can be asked what else is right."""
    return c.decides and c.wide and not reference.sparing


def take_sides(e: Expected, lanes: Sequence[dict[str, Any]]) -> None:
    """Takes what else is right into what is expected, as far as the reference said it."""
    given = [r["tensors"] for r in lanes if "error" not in r]
    e.sides = [decision_sides.of(w, [t[i] for t in given]) for i, w in enumerate(e.wide)]


def rows_apart(
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


def ill_conditioned(c: calibration.Calibration) -> bool:
    base = c.families["base"]
    return any(n.moved.max > correctness.ILL * n.scale.max > 0 for n in base.outputs)
