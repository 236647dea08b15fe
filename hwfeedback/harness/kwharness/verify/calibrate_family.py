"""Calibrates one family on a task: what honest forms of the reference err by on its draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from kwharness.base.calibration import Calibration, FamilyCalibration, Noise, Scale
from kwharness.clients.answers import ModeAnswer, reshaped
from kwharness.clients.batch_parts import Parts
from kwharness.clients.errors import WorkerError, ran_out
from kwharness.clients.reference_client import ReferenceClient
from kwharness.numerics import correctness, decision_sides, families, norms
from kwharness.numerics.correctness import Expected
from kwharness.numerics.families import BASE, ORDERED, Family, Traits
from kwharness.numerics.rounding import LANES
from kwharness.verify import secret_draws

# Of an output's scale: what float64 computes in parts is the same but for this, or it is not
# computed in parts.
SAME_IN_PARTS = 1e-9


class ReferenceBroken(Exception):
    """The reference fails on its own base draw: the task is not to be judged."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(str(error))
        self.error = error


class Calibrator:
    """One family, as its draws are taken into ``found``."""

    def __init__(
        self,
        reference: ReferenceClient,
        c: Calibration,
        family: Family,
        want_compile: bool,
        found: FamilyCalibration,
    ) -> None:
        self._reference = reference
        self._c = c
        self._family = family
        self._want_compile = want_compile
        self.found = found
        self.problems: list[str] = []  # what an honest form fails

    def take(self, tree: Any, inputs: Sequence[torch.Tensor], k: int, modes: Sequence[str]) -> bool:
        """Takes what a family's inputs, the k-th, show. False: the family is left out."""
        reference, c, f = self._reference, self._c, self.found
        lanes = list(decision_sides.LANES) if has_sides(reference, c) else []
        answers = reference.each(tree, inputs, self._asked(modes, lanes, k), decided=bool(lanes))
        with reference.whole() if k == 0 else nullcontext():
            wide = next(answers)
        if wide.error is not None and k and reference.parts is not None:
            reference.parts, c.by_rows = None, False
            wide = reference.forward(tree, inputs, ["wide"], sources=True)[0]
        eager = next(answers)
        if not self._runs(eager):
            return False
        if wide.error is not None or not c.wide:
            if not self._does_without(wide):
                return False
            doubled = [t.double() if t.is_floating_point() else t for t in eager.tensors]
            wide = replace(eager, tensors=doubled)
        e = Expected(wide.tensors, eager.tensors, wide.sources, decides=c.decides)
        if lanes:
            take_sides(e, [next(answers) for _ in lanes])
        correctness.complete(e)
        if not f.outputs:
            f.outputs = [Noise() for _ in e.wide]
        skips = [self._begin_widening(e, i) for i in range(len(f.outputs))]
        f.exact = f.exact and all(_is_exact(e, i, t) for i, t in enumerate(eager.tensors))
        known = [n.error.max for n in f.outputs]
        e.lighten()
        del eager
        if k == 0 and c.by_rows:
            c.by_rows = c.wide and rows_apart(reference, tree, inputs, e)
        self._widen_by(answers, e, skips, known)
        return True

    def _asked(self, modes: Sequence[str], lanes: Sequence[str], k: int) -> list[str]:
        """Returns the modes of the k-th draw."""
        used = list(modes)
        used[2:2] = lanes
        if self._c.wide and not self._family.planted:
            used.append(f"moved:{k}")
        if self._want_compile and self._c.compiled:
            used.append("compile")
        return used

    def _runs(self, eager: ModeAnswer) -> bool:
        """Whether eager gave outputs as on the draws before. Raises ReferenceBroken."""
        c, family = self._c, self._family
        if eager.error is not None:
            error = eager.error
            if family is BASE or ran_out(error):
                raise ReferenceBroken(error)
            c.notes.append(f"{family.name}: left out, the reference raises {error.type} on it")
            return False
        # Without their content.
        c.outputs = c.outputs or [t.to("meta") for t in eager.tensors]
        if other := reshaped(c.outputs, eager.tensors):
            if family is BASE:
                raise ReferenceBroken(other)
            c.notes.append(f"{family.name}: left out, the reference's result {other.message}")
            return False
        return True

    def _does_without(self, wide: ModeAnswer) -> bool:
        """Whether a family does without float64: float32 is expected, and the noise that could not
        be simulated is allowed for by another order of evaluation only. Raises ReferenceBroken.
        """
        c, family, error = self._c, self._family, wide.error
        if c.wide and error is not None:
            if family is BASE:
                c.wide = False
                c.notes.append(
                    f"the reference does not run in float64 ({error.type}): "
                    "float32 is what is expected"
                )
                return True
            if ran_out(error):
                raise ReferenceBroken(error)
            c.notes.append(f"{family.name}: left out, the reference raises in float64")
            return False
        return True

    def _widen_by(
        self,
        answers: Iterator[ModeAnswer],
        e: Expected,
        skips: Sequence[torch.Tensor | None],
        known: Sequence[float],
    ) -> None:
        """Takes the honest forms of a draw. Raises ReferenceBroken."""
        c, f = self._c, self.found
        for r in answers:
            mode = r.mode
            if r.error is None:
                for i in range(len(f.outputs)):
                    self._widen(e, i, r, skips[i], known[i])
                if mode == "compile":
                    forms = enumerate(r.tensors)
                    f.exact = f.exact and all(_is_exact(e, i, t) for i, t in forms)
                    del forms
            elif mode == "compile":
                message = r.error.message.splitlines()
                why = f"torch.compile fails: {message[0][:160] if message else r.error.type}"
                if self._family is BASE:
                    c.compiled = False
                    c.notes.append(why)
                else:
                    self.problems.append(why)
            elif c.wide and ran_out(r.error):
                raise ReferenceBroken(r.error)  # or bounds would be too narrow
            del r

    def _begin_widening(self, e: Expected, i: int) -> torch.Tensor | None:
        """Takes what one draw's expected values tell of output i into its noise.

        Returns which elements say nothing.
        """
        wide, skip, n = e.wide[i], e.skips[i], self.found.outputs[i]
        if not wide.is_floating_point():
            return None
        assert e.eager is not None
        n.scale.widen(e.scales[i])
        n.error.widen(e.own[i])
        if self._family.planted:
            _same_kinds("eager", e.eager[i], wide, self.problems)
            nonfinite = norms.not_finite(wide)
            return nonfinite if skip is None else skip | nonfinite
        if skip is not None and norms.count(skip) * 2 > skip.numel():
            self.problems.append("eager itself is off or not finite on most elements")
        return skip

    def _widen(
        self, e: Expected, i: int, r: ModeAnswer, skip: torch.Tensor | None, known: float
    ) -> None:
        """Takes what an honest form gives for output i into its noise, and names what it fails.

        ``known``: the largest error before this draw's forms, but for eager.
        """
        wide, got = e.wide[i], r.tensors[i]
        n, mode, problems = self.found.outputs[i], r.mode, self.problems
        simulated = mode.startswith("noise:")
        if not wide.is_floating_point():
            eager = e.sources[i]
            mine = r.sources[i]
            if simulated and eager is not None and mine is not None:
                error = norms.error_where_finite(mine.values, eager.values)
                n.source = max(n.source, error.max)
            elif mode == "compile":
                o = correctness.compare(got, e, i, n, 0.0)
                if not o.passed and not o.unsettled:
                    problems.append(f"torch.compile gives other values: {o.reason}")
            return
        if mode.startswith("moved:"):
            n.moved.widen(norms.error_where_finite(got, wide, skip))
            return
        if self._family.planted:
            forms = {"compile": "torch.compile", "scalar": "eager, one element at a time,"}
            if mode in forms:
                _same_kinds(forms[mode], got, wide, problems)
        if mode == "compile":
            wide = e.right(i, got)
        error = norms.error_of(got, wide, skip)
        if simulated and not math.isfinite(error.max):
            lost = norms.not_finite(got)
            error = norms.error_of(got, wide, lost if skip is None else skip | lost)
        if math.isfinite(error.max):
            far = correctness.OFF * e.scales[i].rms
            if mode == "compile" and error.max > max(far, 100 * known):
                problems.append("torch.compile is over 10 % off where eager is not")
                return
            n.error.widen(error)
        elif mode == "compile":
            problems.append("torch.compile gives NaN or Inf where eager does not")


def calibrate_family(
    reference: ReferenceClient,
    c: Calibration,
    family: Family,
    draws: Sequence[secret_draws.Draw],
    want_compile: bool,
    traits: Traits,
) -> FamilyCalibration | None:
    """Returns what honest errors are on a family's inputs, made from these draws; None where it is
    left out. Raises ReferenceBroken.
    """
    # What tells of values behind indices comes before what is held against it.
    modes = ["wide", "eager"]
    if family.planted:
        modes.append("scalar")
    else:
        modes.append("noise:1:coherent" if family.coherent else "noise:1")
    if family is BASE:
        modes.append("noise:2")
    f = FamilyCalibration(family.name, True, "", family.exact and c.linear, [])
    calibrator = Calibrator(reference, c, family, want_compile, f)
    for k, draw in enumerate(draws):
        inputs = reference.lend(families.apply(family, draw.tensors, secret_draws.secret(), traits))
        done = calibrator.take(draw.tree, inputs, k, modes)
        if not done:
            return None
    if family.planted:
        # Simulated rounding says nothing beside NaN; what stays finite errs as the base draws do.
        for n, base in zip(f.outputs, c.base.outputs, strict=True):
            n.error.widen(base.error)
            n.moved.widen(base.moved)
    if family is ORDERED:
        # Along a row in order a sum in one lane errs the same way at each step, and what is asked
        # about here is off by far more.
        for n in f.outputs:
            n.error = Scale(LANES * n.error.max, LANES * n.error.rms)
    f.note = "; ".join(dict.fromkeys(calibrator.problems))
    f.gates = not calibrator.problems or family is BASE
    return f


def has_sides(reference: ReferenceClient, c: Calibration) -> bool:
    """Whether float64 can be asked what else is right."""
    return c.decides and c.wide and not reference.sparing


def take_sides(e: Expected, lanes: Sequence[ModeAnswer]) -> None:
    """Takes what else is right into what is expected, as far as the reference said it."""
    given = [r.tensors for r in lanes if r.error is None]
    e.sides = [decision_sides.of(w, [t[i] for t in given]) for i, w in enumerate(e.wide)]


def rows_apart(
    reference: ReferenceClient, tree: Any, inputs: Sequence[torch.Tensor], e: Expected
) -> bool:
    """Whether a batch in parts gives what the whole gives. Then it is computed so from now on."""
    counts = any(s.shape and "int" in s.dtype for s in reference.info.state)
    reference.parts = None if counts else Parts.of(inputs, e.wide, reference.device)
    if reference.parts is None:
        return False
    got = reference.forward(tree, inputs, ["wide"])[0]
    given = [] if got.error is not None else got.tensors
    if len(given) == len(e.wide) and all(map(_the_same, given, e.wide, e.scales)):
        return True
    reference.parts = None
    return False


def _the_same(got: torch.Tensor, wide: torch.Tensor, scale: Scale) -> bool:
    if got.shape != wide.shape:
        return False
    off = norms.error_of(got, wide, None)
    if not math.isfinite(off.max):  # as it is where both are finite
        if not torch.equal(*map(correctness.kinds, (got, wide))):
            return False
        off = norms.error_where_finite(got, wide)
    return off.max <= SAME_IN_PARTS * scale.max and off.rms <= SAME_IN_PARTS * scale.rms


def _same_kinds(who: str, got: torch.Tensor, wide: torch.Tensor, problems: list[str]) -> None:
    if bool((correctness.kinds(got) != correctness.kinds(wide)).any()):
        problems.append(f"{who} and float64 differ in where NaN and Inf come out")


def _is_exact(e: Expected, i: int, form: torch.Tensor) -> bool:
    """Whether output i is whole numbers, and a form of the reference has them."""
    wide = e.wide[i]
    if not wide.is_floating_point():
        return True
    if not wide.numel() or not correctness.whole(wide, 2**23):
        return False
    return correctness.equal(form, wide)
