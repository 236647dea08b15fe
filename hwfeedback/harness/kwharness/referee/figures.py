"""The figures of a verdict: the floor, the headroom, and what they are said to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kwharness.base.carried import Carried
from kwharness.base.constants import SHARED
from kwharness.base.requests import Ceilings, Request, Specs, Task
from kwharness.base.tensors import Spec
from kwharness.base.verdicts import Floor, Speedup, Verdict
from kwharness.referee import faults
from kwharness.task.needed_bytes import bytes_of
from kwharness.timing.measurement import Timed
from kwharness.verify.verification import Verification

PINS = 1.02  # of what a memory's clock and width say: clocks are told in whole MHz
# A candidate that takes less than this share of what the task's operations take at the measured
# rate does not do them all: a sum over the columns of x W is x times a sum. A rate is measured to a
# few per cent.
LEFT_OUT = 0.9


@dataclass(frozen=True)
class Roofline:
    """The least that a call takes, on the measured ceilings. Times are milliseconds."""

    task: Task
    ceilings: Ceilings
    specs: Specs
    carried: Carried  # from call to call
    inputs: Sequence[torch.Tensor] | None = None  # None: not known yet, as the outputs
    outputs: Sequence[torch.Tensor] | None = None

    @classmethod
    def of(cls, request: Request, carried: Carried, verification: Verification | None) -> Roofline:
        tensors = (
            (verification.oracle.inputs, verification.oracle.outputs)
            if verification is not None
            else (None, None)
        )
        return cls(request.task, request.ceilings, request.specs, carried, *tensors)

    def floor(self, ms: float = 0.0) -> Floor:
        """The least time on the measured ceilings, under the conditions in which we time.

        Inputs always come from memory, because windows evict them from the caches; weights and
        outputs may stay in the cache where the whole working set fits. The reference's operations
        bound nobody who was done in ``ms`` without the time for them.
        """
        nbytes, operations = self._least_bytes(), self.task.operations
        memory, cache = self.ceilings.memory_gbs, self.ceilings.cache_gbs
        peak = self.peak_gflops()
        missed = nbytes
        if cache > memory and nbytes <= self.specs.l3_bytes / 2 and self.inputs is not None:
            missed = min(nbytes, sum(t.numel() * t.element_size() for t in self.inputs))
        moving = self._from_memory_ms(missed, self._written() if missed == nbytes else 0)
        if moving and nbytes > missed:
            moving += (nbytes - missed) / (1e6 * cache)
        computing = operations / (1e6 * peak) if peak else 0.0
        if 0 < ms < LEFT_OUT * computing:
            operations, computing = 0, 0.0
        mostly_cached = nbytes > missed and (nbytes - missed) * memory > missed * cache
        bound = "compute" if computing > moving else "cache" if mostly_cached else "memory"
        return Floor(max(moving, computing), bound, nbytes, operations)

    def from_memory_ms(self, nbytes: int) -> float:
        """Returns how long memory takes for so many bytes, the outputs' among them; 0 where nothing
        was measured.
        """
        return self._from_memory_ms(nbytes, self._written())

    def _from_memory_ms(self, nbytes: int, written: int) -> float:
        # What is read beyond what is written moves as in reading alone: memory need not turn round.
        memory, reading = self.ceilings.memory_gbs, self.ceilings.read_gbs
        if not memory:
            return 0.0
        alone = max(nbytes - 2 * written, 0) if reading > memory else 0
        return (nbytes - alone) / (1e6 * memory) + (alone / (1e6 * reading) if alone else 0.0)

    def peak_gflops(self) -> float:
        """Returns the ceiling of the task's operations: that of float32 with fused multiply-adds,
        or where all that floats is a shorter type the tensor cores' for it.
        """
        peak, tensor_cores = self.ceilings.fp32_gflops, self.ceilings.tensor_gflops
        tensors = [*self.task.inputs, *self.task.parameters, *self.task.outputs]
        types = {s.dtype for s in tensors if "float" in s.dtype}
        if types and all(t in tensor_cores for t in types):
            return max(peak, *(tensor_cores[t] for t in types))
        return peak

    def _written(self) -> int:
        """Returns the bytes of the outputs; of all, before they are known: as if it were a copy."""
        if self.outputs is None:
            return self.task.least_bytes
        returned = self.carried.returned or None
        return sum(t.numel() * t.element_size() for t in self.outputs[:returned])

    def _least_bytes(self) -> int:
        """Returns the bytes that a call has to read and write. Of a state, a cache say, it may be
        next to nothing.
        """
        least = self.task.least_bytes
        if not self.carried.names:
            return least
        told = [*self.task.inputs, *self.task.outputs]
        return max(least - self.carried.bytes, bytes_of([Spec(s.dtype, s.shape) for s in told]))


def check_possible(timed: Timed, request: Request) -> None:
    """Raises a Fault for a time in which the memory's pins cannot move what has to be read and
    written: measured ceilings are exceeded by honest kernels, the pins are not.

    The L2 may have held so much of it when a call began, and so much when it ended.
    """
    pins, measured = request.specs.memory_gbs, request.ceilings.memory_gbs
    if not 0 < measured < pins:
        return  # pins that move less than was measured are another memory's
    moved = request.task.needed_bytes - 2 * request.specs.l2_bytes
    least_ms = moved / (PINS * 1e6 * pins)
    ms = timed.report.candidate.high_ms
    if ms >= least_ms:
        return
    raise faults.Fault(
        "cheated",
        f"{ms:.4g} ms is a time in which this memory, of {pins:.4g} GB/s, cannot move what has "
        f"to be read and written: that takes {least_ms:.4g} ms",
        "leave the clock and the harness alone",
    )


def fill(v: Verdict, timed: Timed, roofline: Roofline, threads: int) -> None:
    """Writes what was measured (timing.Timed) into a verdict."""
    v.timing = timed.report
    ms = v.candidate_ms = v.timing.candidate.median_ms
    v.baselines = {n: m.median_ms for n, m in (v.timing.baselines or {}).items()}
    v.speedup, v.speedups = timed.speedup, timed.speedups
    if ms <= 0:
        return
    ceilings, floor = roofline.ceilings, roofline.floor(ms)
    v.floor = floor
    v.headroom = min(1.0, floor.ms / ms)
    gbs, gflops = floor.bytes / (1e6 * ms), floor.operations / (1e6 * ms)
    metrics = {
        "threads": float(threads),
        "achieved_gbs": gbs,
        "achieved_gflops": gflops,
        "working_set_bytes": float(floor.bytes),
        "vectorised_loops": float(len(v.build.vectorised or [])),
        "missed_loops": float(len(v.build.missed or [])),
        **timed.metrics,
    }
    if from_memory := roofline.from_memory_ms(floor.bytes):
        metrics["memory_share"] = from_memory / ms
    if ceilings.cache_gbs:
        metrics["cache_share"] = gbs / ceilings.cache_gbs
    if peak := roofline.peak_gflops():
        metrics["compute_share"] = gflops / peak
    if roofline.task.operations and not floor.operations:
        del metrics["achieved_gflops"]
        metrics.pop("compute_share", None)
    if ceilings.call_us:
        calls = v.metrics.get("custom_calls", 0.0)
        metrics["call_overhead_share"] = min(1.0, calls * ceilings.call_us / (1e3 * ms))
    v.metrics |= metrics


def success(families: int, s: Speedup | None) -> str:
    """Says of a correct candidate on how many input families it agrees, and how fast it is."""
    said = f"agrees with float64 on {families} input families"
    if s is None:
        return said
    word = f"{s.value:.2f}x the speed of"
    if s.high < 1:
        word = f"slower than the baseline: {word}"
    elif s.low <= 1 and s.high > SHARED.vague_ratio * s.low:
        word = f"too wide an interval to tell: {word}"
    elif s.low <= 1:
        word = f"no measurable difference: {word}"
    return f"{said}; {word} {s.against} ({s.low:.2f} to {s.high:.2f})"
