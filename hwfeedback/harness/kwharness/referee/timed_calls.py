"""Whether what a candidate computes in timed calls is right, and whether it is right otherwise."""

from __future__ import annotations

import random
import time

import torch

from kwharness.base.calibration import Scale
from kwharness.numerics import correctness
from kwharness.referee import faults
from kwharness.referee.trial import Trial
from kwharness.verify import calibration, secret_draws
from kwharness.verify import timed_calls as checks

# Of a window, for calls that differ from eager's. Where ties make every call differ, a random part
# of them is judged: a candidate does not know which.
SUSPECTS_S = 0.5


class TimedCalls:
    """Those of one trial. ``caught``: of one that was wrong what holds for it, and its input."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.caught: secret_draws.Job | None = None

    def check(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], expected: list[torch.Tensor]
    ) -> str | None:
        """Compares the calls of a window with what eager made of the same contents.

        A call that differs by more than two honest results may is judged as in verification: by
        the float64 values of its own inputs, which the reference computes now.
        """
        verification, known = self.trial.verification, self.trial.calibration
        base = known.base
        limits = []
        for i, noise in enumerate(base.outputs):
            floor = calibration.floor(known, i).max
            # Both sides may err by a bound: the candidate, and eager which stands for the truth.
            limits.append(2 * correctness.bound_of(noise, Scale(), noise.scale, floor).max)
        suspects = [
            k
            for k in range(len(expected[0]))
            if not all(
                correctness.near(got[k], wanted[k], limit)
                for got, wanted, limit in zip(outputs, expected, limits, strict=True)
            )
        ]
        # In no order that a candidate could know, as there may be no time for all.
        random.SystemRandom().shuffle(suspects)
        end = time.monotonic() + SUSPECTS_S
        for k in suspects:
            given = [t[k] for t in inputs]
            wrong = checks.check_call(verification, given, [t[k] for t in outputs])
            if wrong:
                self.caught = verification.kept_job([t.clone() for t in given])
                return wrong
            if time.monotonic() > end:
                break
        return None

    def check_varied(self, i: int, outputs: list[torch.Tensor]) -> str | None:
        """Judges a call on an input of a family, which came among the others."""
        verification = self.trial.verification
        wrong = checks.check_varied(verification, i, outputs)
        if wrong:
            self.caught, _ = verification.varied[i]
        return wrong

    def deceives(self) -> bool:
        """Whether a candidate is right on what it was wrong on when it was timed."""
        if self.caught is None:
            return False
        candidate = self.trial.candidate(poison=True)
        try:
            with faults.faults("being asked again", candidate):
                return checks.right_again(self.trial.verification, candidate, self.caught)
        except faults.Fault:
            return False  # it fails where it is not timed, too
        finally:
            candidate.kill()
