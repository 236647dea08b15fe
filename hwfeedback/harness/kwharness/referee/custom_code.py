"""Policy: whether a candidate's own code does the work of the task."""

from __future__ import annotations

from kwharness.attribution import trace
from kwharness.base.for_candidate import Traced
from kwharness.base.verdicts import WorkReport
from kwharness.referee import faults
from kwharness.referee.trial import Trial
from kwharness.torch_compile.called_language import CalledLanguage
from kwharness.torch_compile.called_languages import LANGUAGES

MOSTLY = 0.5  # of a forward's time
WAYS = "native(), load_inline() or " + ", ".join(x.name for x in LANGUAGES)
NEARLY = 0.25  # what may be MOSTLY of it where nobody else has the device


def other(language: CalledLanguage) -> str:
    """Says that the device is not what kernels in a language run on."""
    return f"the device is {'a GPU' if language.on_cores else 'the CPU'}"


def was_built(trial: Trial) -> None:
    """Raises a Fault where nothing was built for the candidate."""
    program = trial.program
    if program.artifacts():
        return
    idle = program.called(trial.context, runs=False)
    more = "".join(f": it imports {language.name}, and {other(language)}" for language in idle[:1])
    raise faults.Fault(
        "rejected",
        f"it has no custom code: nothing was built for it{more}",
        f"write a kernel with {WAYS} for one operator of it at least",
    )


def does_the_work(trial: Trial, seen: Traced, work: WorkReport, calls: int) -> None:
    """Raises a Fault where custom code covers no operator of the task. ``seen`` is a traced
    forward, ``work`` and ``calls`` what trace.report makes of it.
    """
    # A CUDA graph replays what was called when it was captured, before the trace.
    if not calls and (not trial.context.device.replays or right_without(trial)):
        did = ", ".join(trace.computes(work)[:6]) or "nothing"
        raise faults.Fault(
            "rejected",
            f"none of its custom code ran in a forward: the work was done by {did}",
            "call the custom kernel in forward, at module level names such as lib.kernel(...)",
        )
    operators = trial.context.task.operators
    # One that sums what its kernel has summed in parts runs all operators, on less than the
    # inputs, and most is its own.
    elements = sum(t.numel() for t in trial.verification.oracle.inputs)
    mostly = work.custom >= MOSTLY and not trace.as_much(seen, operators, elements)
    if not trace.covers(seen, operators) and not mostly:
        did = ", ".join(dict.fromkeys(operators))
        raise faults.Fault(
            "rejected",
            f"its custom code covers no operator of the task: PyTorch ran {did}",
            "compute at least one of them in the custom kernel, and not beside it",
            measured=work.custom >= NEARLY,
        )
    if not calls:
        trial.verification.report.evidence.append(
            "none of its custom code was called in the forward that was traced, and it is "
            "needed: a CUDA graph replays it, and what else is in that is not seen"
        )
    elif (trace.computes(work) or trial.context.level == "certify") and right_without(trial):
        raise faults.Fault(
            "rejected",
            "its output is right when its custom code does nothing",
            "have the custom kernel compute what forward returns",
        )


def right_without(trial: Trial) -> bool:
    """Whether the candidate is right with stand-ins for its custom code that do nothing."""
    try:
        candidate = trial.candidate(poison=True, stand_in=True)
    except faults.Fault:
        return False  # it needs it to be constructed
    try:
        doing = "running without its custom code"
        with trial.verifying(candidate), faults.faults(doing, candidate):
            return trial.verification.right_on_first(candidate)
    except faults.Fault:
        return False
    finally:
        candidate.kill()
