"""The profile of a correct candidate on a GPU, and that of eager: it decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kwharness.attribution import trace
from kwharness.base.configs import ProfilerConfig
from kwharness.base.learned import Learned
from kwharness.base.verdicts import Kernel, Profile, Verdict
from kwharness.profile import kernel_work, ncu, profile_forward
from kwharness.referee.context import Context
from kwharness.referee.kernel_facts import KernelFacts
from kwharness.referee.program import Program
from kwharness.referee.trial import Trial


def wait_for_prepared(context: Context) -> None:
    """Waits until no process begins in which a profile will be taken. Nothing may be timed before,
    nor a clock looked at.
    """
    if context.warm is not None:
        with context.costs.part("profile"):
            context.warm.profilers.wait_for_prepared()


class Profiles:
    """Those of one evaluation."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.profiler: profile_forward.Profiler | None = None  # where a profile is asked for

    def begin(self) -> None:
        """Has the process started in which the next profile is taken, where that disturbs nobody.
        It touches no GPU.
        """
        context = self.context
        warm = context.warm.profilers if context.warm is not None else None
        wants = context.request.timed.profile and context.device.profiled and context.times
        if not wants or context.level != "quick":
            if warm is not None:
                warm.keep(())
            return
        if context.in_company:
            return
        if self.profiler is None:
            self.profiler = self._new()
        if warm is not None and context.goes_on and not context.compilers_disturb():
            warm.keep(self.profiler.keys)
            self.profiler.ahead()

    def _new(self) -> profile_forward.Profiler:
        context = self.context
        major, minor = context.device.capability()
        return profile_forward.Profiler(
            context.server,
            context.device,
            context.config(ProfilerConfig),
            context.limits(),
            context.fds,
            10 * major + minor,
            warm=context.warm.profilers if context.warm is not None else None,
            full=context.request.timed.profile == ncu.FULL,
            products=trace.multiplies(context.task.operators),
        )

    def prepare(self) -> None:
        """Has one of those processes begin on the GPU, for this candidate or the next one."""
        if self.profiler is not None and self.context.goes_on:
            self.profiler.begin()

    @property
    def passing(self) -> bool:
        """Whether what a profile lacks may be there another time."""
        return self.profiler is not None and self.profiler.passing

    def met(self) -> list[Any]:
        """Returns the workers that met the candidate."""
        return list(self.profiler.met) if self.profiler is not None else []

    def take(self, trial: Trial, facts: KernelFacts, v: Verdict, learned: Learned) -> None:
        """Adds the profile of a correct candidate, and that of eager."""
        profiler, context = self.profiler, self.context
        if profiler is None or v.candidate_ms <= 0:
            return
        context.progress("profile", context.level)
        facts.begin()

        def kernels() -> Sequence[Kernel]:
            facts.add(v)
            return v.build.kernels or []

        with context.costs.part("profile"):
            found = profiler.profile(_subject(trial, trial.program, kernels, True))
            v.profile = self._placed(found, v)
            v.metrics |= v.profile.position or {}
        known = context.request.known.profile
        if known is not None:
            v.eager_profile = self._placed(known, v)
            return
        self.begin()  # nothing is timed any more, and the next candidate's comes soon
        text = f"{context.task.source}\n\nModelNew = Model\n"
        with context.costs.part("profile of eager"):
            eager = profiler.profile(_subject(trial, Program(text, text), list, False))
        v.eager_profile = self._placed(eager, v)
        if not profiler.passing:
            learned.profile = eager

    def _placed(self, profile: Profile, v: Verdict) -> Profile:
        """Returns a profile with its position below the ceilings, which are measured anew at times:
        what is remembered has none.
        """
        ceilings = self.context.request.ceilings
        return replace(profile, position=kernel_work.position(profile, ceilings, v.floor.bytes))


def _subject(
    trial: Trial,
    program: Program,
    kernels: Callable[[], Sequence[Kernel]],
    custom: bool,
) -> profile_forward.Subject:
    draw = trial.verification.draws[0]
    return profile_forward.Subject(
        lambda client: trial.load(client, program=program),
        draw.tree,
        draw.tensors,
        kernels,
        custom,
        trial.reference.orders,
        trial.forward_s,
    )
