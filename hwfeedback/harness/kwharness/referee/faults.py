"""What ends an evaluation: a candidate's fault, with a hint, or the machine's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kwharness.base.operations import A, Request
from kwharness.build import builder_client, forbidden
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import (
    Spawned,
    WorkerError,
    WorkerFailure,
    WorkerGone,
    WorkerLate,
    ill,
    ran_out,
    sentence,
)
from kwharness.clients.workshop import Workshop
from kwharness.machine import health
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import Device
from kwharness.machine.health import Ill
from kwharness.standalone import interpreter, usage
from kwharness.task import inspect_task
from kwharness.timing import window_base, windows_cuda
from kwharness.timing.baselines import BaselineFailed
from kwharness.timing.window_base import CallFailed
from kwharness.torch_compile import called_languages
from kwharness.verify import calibrate_family

GONE_S = 30.0  # or by then, where it has much to give back
OUTPUT_KEPT = 4000
NAMED = 10  # things that it tried


class Fault(Exception):
    """The candidate's fault, as the verdict will say it."""

    def __init__(
        self,
        status: str,
        reason: str,
        hint: str = "",
        evidence: Sequence[str] = (),
        output: str = "",
        *,
        measured: bool = False,
    ) -> None:
        """``measured``: it rests on times of a phase in which others may have had the device."""
        super().__init__(sentence(reason) or "it failed without a word")
        self.measured = measured
        self.status = status
        self.hint = hint
        self.evidence = [e for e in evidence if e]
        self.output = output


class Infrastructure(Exception):
    """Not the candidate's fault."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class InCompany(Exception):
    """It took too long, or ran out of memory, while others had the device, or the same file ran
    beside it: that may be their doing.
    """


class Busy(Infrastructure):
    """Somebody else was at work on the GPU: what was measured says nothing of the candidate."""

    def __init__(self, others: Sequence[str]) -> None:
        known = f"with contexts on it are {', '.join(others)}" if others else "NVML names none"
        super().__init__(f"another process was at work on the GPU during a measurement: {known}")


class NoRoom(Infrastructure):
    """The task takes more memory to judge than the device has, and no candidate took it."""

    def __init__(self, said: str, traceback: str = "") -> None:
        first = (said.splitlines() or [""])[0]  # which says how much was asked for
        message = f"evaluating the task takes more memory than the device has free: {first}"
        super().__init__(message, traceback)


_STAGES = {
    "import": "importing the candidate",
    "construct": "constructing ModelNew",
    "weights": "loading the reference's weights into ModelNew",
    "forward": "ModelNew's forward",
    "output": "ModelNew's forward",
}
HINTS = {
    "weights": "give parameters the reference's names, construct them in its order, "
    "or define load_reference_state(self, state_dict)",
    "construct": "ModelNew takes the reference's init arguments",
    "output": "return plain tensors, as the reference does",
}


TOOK_MEMORY = ("it leaves the GPU without memory", "allocate less: the referee needs some, too")
FASTER = "make forward faster: it is called many times"


class Patience:
    """How long the answers of a candidate's processes are waited for, all of them together."""

    def __init__(self, seconds: float) -> None:
        self.whole = self.left = seconds


class Awaited(CandidateClient):
    """A candidate's process that is not timed."""

    def __init__(self, worker: Spawned, timeout: float, device: Device, patience: Patience) -> None:
        super().__init__(worker, timeout, device)
        self.patience = patience
        self._since = 0.0

    def begin(self, request: Request, fds: Sequence[int], timeout: float, doing: str) -> None:
        self._since = time.monotonic()
        self.until = self._since + self.patience.left
        super().begin(request, fds, timeout, doing)

    def finish(self, answer: type[A], fds_wanted: int = 0) -> tuple[A, list[int]]:
        asked, before = time.monotonic(), self.granted()
        try:
            return super().finish(answer, fds_wanted)
        except WorkerLate:
            asked = self._since  # whoever asked did nothing else meanwhile
            raise
        finally:
            self.patience.left -= time.monotonic() - asked - (self.granted() - before)


@contextmanager
def faults(doing: str, worker: CandidateClient | None = None) -> Iterator[None]:
    """Turns what a candidate's worker does wrong into a Fault: its own failure, and that others
    find no memory where it has taken it.
    """
    try:
        yield
    except (torch.OutOfMemoryError, CudaError) as e:
        if worker is None or not ran_out(e) or not worker.took_memory():
            raise
        raise Fault("crashed", *TOOK_MEMORY) from e
    except WorkerFailure as e:
        others = e.client is not worker and ran_out(e)
        if others and worker is not None and worker.took_memory():
            raise Fault("crashed", *TOOK_MEMORY) from e
        if e.client is not worker or (isinstance(e, WorkerGone) and e.client is None):
            raise  # the reference's worker, or one that was lost: not this candidate's fault
        raise _fault(e, doing) from e


# What CUDA says of a kernel, and what to look at.
_KERNEL = {
    "illegal memory access": "check every index of every kernel: one read or wrote where nothing "
    "of its lies",
    "misaligned address": "a vector of 8 or 16 bytes is read or written at an address that is no "
    "multiple of that: check the offsets of vector accesses",
    "no kernel image is available": "it was compiled for another architecture: leave that to us",
    "too many resources requested": "a block needs more registers or threads than there are: make "
    "it smaller, or say __launch_bounds__",
    "device-side assert": "an assert of a kernel failed",
    "invalid configuration argument": "a grid or a block is empty or too large, or has too much "
    "shared memory",
    "unspecified launch failure": "a kernel went astray: check indices of shared memory, and that "
    "every thread of a block reaches each barrier",
}


def of_build(e: WorkerError, workshop: Workshop | None) -> Fault | None:
    """Returns the Fault of a candidate that does not go on without what does not compile."""
    why = builder_client.not_built(e, workshop.failures) if workshop is not None else None
    return None if why is None else Fault(why.status, str(why))


def _fault(e: WorkerFailure, doing: str) -> Exception:
    """Returns the Fault of a candidate whose worker failed, or Infrastructure."""
    desk = e.client.desk if isinstance(e.client, CandidateClient) else None
    if desk is not None and isinstance(e, WorkerError):
        built = of_build(e, desk.workshop)
        if built is not None:
            return built
    if isinstance(e, WorkerGone):
        hint = ""
        if "SIGSEGV" in str(e) or "SIGBUS" in str(e):
            hint = "check every index: native code wrote or read outside its arrays"
        what = f"the candidate's process {e} while {doing}"
        return Fault("crashed", what, hint, (), e.log[-OUTPUT_KEPT:])
    if isinstance(e, WorkerLate):
        if isinstance(e.client, Awaited) and e.client.patience.left <= 0:
            what = f"its answers together took over {e.client.patience.whole:.0f} s, before timing"
            return Fault("timed_out", what, FASTER, (), e.log[-OUTPUT_KEPT:])
        return Fault(
            "timed_out", str(e), "look for a loop that does not end", (), e.log[-OUTPUT_KEPT:]
        )
    assert isinstance(e, WorkerError)
    where = _STAGES.get(e.stage, doing)
    line = f" (line {e.lines[-1]})" if e.lines else ""
    first = e.message.strip().splitlines()[0][:300] if e.message.strip() else ""
    output = e.client.worker.log()[-OUTPUT_KEPT:] if e.client is not None else ""
    if e.ill:
        # Whoever says so in its own words is asked again, and then it is its fault where a known
        # candidate passes: evaluate.go.
        return Infrastructure(health.told(where, e.ill), e.traceback)
    if e.stage == "output":
        return Fault("wrong", first, HINTS["output"], [e.traceback], output)
    if e.type == forbidden.NotAllowed.__name__:
        what = f"{where} calls what policy forbids{line}: {first}"
        return Fault("rejected", what, "do without, or catch it and go on", [e.traceback], output)
    if e.type == "SystemExit":
        what = f"{where} calls sys.exit{line}"
        return Fault("crashed", what, "remove the call", [e.traceback], output)
    if (language := called_languages.that_raises(e.type)) is not None:
        said = (e.message.strip().splitlines() or [""])[-1][:300]
        what = f"a {language.name} kernel does not compile{line}: {said}"
        return Fault("build_failed", what, "", [e.message[:2000]], output)
    if e.type in ("MemoryError", "OutOfMemoryError") or "allocate memory" in first:
        what = f"{where} ran out of memory{line}"
        return Fault("crashed", what, "allocate less", [e.traceback], output)
    what = f"{where} raised {e.type}{line}" + (f": {first}" if first else "")
    hint = HINTS.get(e.stage, "")
    if (language := called_languages.that_says(first)) is not None and not language.on_cores:
        hint = (
            f"{language.name}'s kernels run on a GPU, and the device is the CPU: write C++ for it"
        )
    hint = next((h for said, h in _KERNEL.items() if said in first), hint)
    if e.type == "PermissionError":
        hint = "a candidate has no network, starts no program and writes to /tmp alone: do without"
    return Fault("crashed", what, hint, [e.traceback], output)


STANDALONE = "the exported file, run by itself in a new interpreter"


def of_exported_file(e: interpreter.Broken, *, has_driver: bool) -> Exception:
    """Returns the Fault of an exported file that fails by itself, or Infrastructure."""
    output = e.log[-OUTPUT_KEPT:]
    if has_driver and (words := health.said(output)):
        return Infrastructure(health.told(STANDALONE, words))
    _, unfit, way = str(e).partition(usage.UNFIT)
    what = f"{STANDALONE}, fails: {sentence(way or str(e))}"
    if unfit:
        hint = "let ModelNew be as any module is: what it holds can be copied, moved and saved"
        return Fault("crashed", what, hint, (), output)
    hint = "import what it needs in the file itself, and nothing that only the harness has"
    return Fault("timed_out" if e.late else "crashed", what, hint, (), output)


def of_reference(e: calibrate_family.ReferenceBroken | WorkerError) -> Exception:
    """Returns whose fault it is that the reference raises before any candidate runs: its own,
    except that memory may have run out for what others hold, and that the GPU may not work.
    """
    error = e.error if isinstance(e, calibrate_family.ReferenceBroken) else e
    if error.out_of_memory:
        return NoRoom(error.message, error.traceback)
    return inspect_task.failed(error)


def of_baseline(e: BaselineFailed) -> Infrastructure | Ill:
    """Returns what it means that a baseline could not be timed."""
    if words := ill(e):
        return Ill("timing the baselines", words)
    if _busy(e) and windows_cuda.strangers_at_work():
        return Busy(windows_cuda.sensors().strangers())
    why = lack_of_memory(e)
    return Infrastructure(str(e)) if why is None else NoRoom(str(why))


def _busy(e: BaseException | None) -> bool:
    """Whether all that has led to this began with a GPU that was at work for nobody."""
    while e is not None:
        if isinstance(e, CallFailed) and e.error.type == window_base.GPU_BUSY:
            return True
        e = e.__cause__
    return False


def acquit(e: CallFailed, candidates: Sequence[CandidateClient]) -> None:
    """Raises Busy where the GPU is at work although no process of the candidate's is left: whatever
    it had there ended with it, so the work is a stranger's.
    """
    for c in candidates:
        c.kill()
    gone = all(c.worker.wait(GONE_S) is not None for c in candidates)
    if gone and windows_cuda.strangers_at_work():
        raise Busy(windows_cuda.sensors().strangers()) from e


def lack_of_memory(e: BaseException) -> BaseException | None:
    """Returns what says, among all that has led to this, that there was no memory."""
    why: BaseException | None = e
    while why is not None and not ran_out(why):
        if isinstance(why, interpreter.Broken) and why.out_of_memory:
            break
        why = why.__cause__
    return why
