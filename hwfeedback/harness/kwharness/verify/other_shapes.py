"""Whether a candidate computes other shapes of its inputs too, which gates nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from kwharness.base.constants import SHARED
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import WorkerError, WorkerFailure, WorkerGone
from kwharness.numerics import correctness, families
from kwharness.numerics.correctness import Expected
from kwharness.verify import calibration, findings, secret_draws
from kwharness.verify.oracle import Oracle

_Reshaped = tuple[families.Shape, Any, list[torch.Tensor], Expected]
Small = tuple[Any, list[torch.Tensor], list[torch.Tensor]]  # a tree, its tensors, what is right


class OtherShapes:
    """Asks one candidate, in a process that may die by it, as may the reference's."""

    def __init__(self, oracle: Oracle, draws: Sequence[secret_draws.Draw]) -> None:
        self._oracle = oracle
        self._draws = draws
        self.tried: dict[families.Shape, bool] = {}  # and whether it is right there
        self.small: Small | None = None  # few inputs on which it is right,
        self._of_small: dict[families.Shape, bool] = {}  # and of which shape

    def ask(self, candidate: CandidateClient, report: findings.Report) -> None:
        """Reports on which shapes a candidate is right. Either process may die by it."""
        right: list[str] = []
        failed: list[str] = []
        # A kernel for one length of rows takes few of them as it takes many. First, where there may
        # be no room for the rest.
        if self._oracle.small_first:
            self.small = self._ask_small(candidate)
        for shape, tree, inputs, expected in self._reshaped():
            self.tried[shape] = False
            shapes = ", ".join(str(list(t.shape)) for t in inputs)
            try:
                why = self._wrong_at(candidate, tree, inputs, expected)
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
        report.general = not failed
        if self.small is None:
            self.small = self._ask_small(candidate)
        self.tried |= self._of_small
        parts = [f"right on {'; '.join(right)}"] if right else []
        parts += [f"fails on {'; '.join(failed)}"] if failed else []
        report.evidence.append(f"{SHARED.other_shapes}{', '.join(parts)}")

    def _reshaped(self) -> Iterator[_Reshaped]:
        """Gives inputs of the shapes on which the reference itself runs."""
        yield from self._reshaped_as(families.shapes_of(self._some_draws(), self._oracle.growth))

    def _some_draws(self) -> list[list[torch.Tensor]]:
        together = all(d.kept for d in self._draws)
        return [d.tensors for d in (self._draws if together else self._draws[:2])]

    def _reshaped_as(self, tried: Iterable[Sequence[families.Shape]]) -> Iterator[_Reshaped]:
        """Gives, of each list, inputs of the first shape on which the reference itself runs."""
        tree, draws = self._draws[0].tree, self._some_draws()
        for ways in tried:
            for shape in ways:
                inputs = families.reshaped(draws, shape)
                try:
                    expected = self._oracle.expect(tree, inputs)
                except WorkerError:
                    continue  # the reference cannot, so nobody need
                yield shape, tree, inputs, expected
                break

    def _ask_small(self, candidate: CandidateClient) -> Small | None:
        """Returns few inputs on which it is right, as a tree and its tensors, and what is right."""
        with suppress(WorkerFailure):
            few = [families.small(self._some_draws())]
            for shape, tree, inputs, expected in self._reshaped_as(few):
                if not self._wrong_at(candidate, tree, inputs, expected):
                    self._of_small[shape] = True
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
        like = expected.eager, self._oracle.output_tree, self._oracle.aliases
        candidate.begin_forward(tree, inputs, *like)
        answer = candidate.finish_forward()
        if answer.problem:
            return answer.problem
        if answer.outside:
            return "it writes outside its inputs' memory"
        base = self._oracle.calibration.base
        for i, got in enumerate(answer.outputs):
            floor = calibration.floor(self._oracle.calibration, i).max
            o = correctness.compare(got, expected, i, base.outputs[i], floor)
            if not o.passed and expected.decides and expected.moved is None:
                self._oracle.look_closer(tree, inputs, expected)
                o = correctness.compare(got, expected, i, base.outputs[i], floor)
            if not o.passed and not o.unsettled:
                return o.reason
        return ""
