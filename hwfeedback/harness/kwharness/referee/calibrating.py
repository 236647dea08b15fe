"""The reference's process of an evaluation, with a calibration: a known one, or one made now."""

from __future__ import annotations

from kwharness.base.calibration import Calibration
from kwharness.base.learned import Learned
from kwharness.clients.errors import WorkerFailure
from kwharness.clients.reference_client import ReferenceClient
from kwharness.machine import device as devices
from kwharness.referee.opponents import COMPILE_S, Opponents
from kwharness.referee.processes import LOAD_S, Processes
from kwharness.verify import calibrate, calibrate_family


def started(
    processes: Processes, opponents: Opponents, learned: Learned
) -> tuple[ReferenceClient, Calibration]:
    """Starts the reference, and calibrates where nothing is known."""
    context, known = processes.context, processes.calibration
    compiles = known is None and not context.rules.uncompiled
    timeout = COMPILE_S if known is None else LOAD_S
    reference = processes.reference(compiles=compiles, timeout=timeout)
    try:
        if known is None:
            with context.costs.part("calibrate"):
                reference, known = _calibrated(reference, processes, compiles)
                if compiles and not known.spent:
                    opponents.leave("compile", reference)
                if known.spent:
                    reference.kill()
                    reference = processes.reference(compiles=compiles, timeout=COMPILE_S)
            devices.tidy(context.device)
            learned.calibration = known
            context.learn(Learned(calibration=known))
        processes.calibration = known
        reference.timeout = LOAD_S
    except BaseException:
        reference.kill()
        raise
    return reference, known


def _calibrated(
    reference: ReferenceClient, processes: Processes, compiles: bool
) -> tuple[ReferenceClient, Calibration]:
    """Calibrates, in a second process with the whole batch where one in parts fails."""
    try:
        return reference, _calibrate(reference, processes, parts=True)
    except (calibrate_family.ReferenceBroken, WorkerFailure):
        if not reference.had_parts:
            raise
        # A row that it asks for by its number, say, is in no part: on a GPU that ends a context.
        processes.context.progress("verify", "calibrating again, with the whole batch")
        reference.kill()
        reference = processes.reference(compiles=compiles, timeout=COMPILE_S)
        try:
            return reference, _calibrate(reference, processes, parts=False)
        except BaseException:
            reference.kill()
            raise


def _calibrate(reference: ReferenceClient, processes: Processes, *, parts: bool) -> Calibration:
    context = processes.context
    return calibrate.calibrate(
        reference,
        want_compile=not context.rules.uncompiled,
        parts=parts,
        note=lambda note: context.progress("verify", note),
    )
