"""Inspection: whether a file is a task, and what there is to say about it.

Every way in which a reference can be no task ends in one sentence, a hint and the traceback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from kwharness.base.calibration import Scale
from kwharness.base.carried import shown
from kwharness.base.constants import SHARED
from kwharness.base.for_reference import Inspected
from kwharness.base.graph import Graph
from kwharness.base.requests import InspectedTask, TensorSpec
from kwharness.base.tensors import DTYPES, Spec
from kwharness.clients.answers import reshaped
from kwharness.clients.errors import Spawned, WorkerError, WorkerGone, WorkerLate, ran_out, sentence
from kwharness.clients.reference_client import ReferenceClient
from kwharness.machine import health
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import CPU, SPARING_PEAK, Device, spares, too_large
from kwharness.machine.health import Ill
from kwharness.numerics import correctness, families, norms
from kwharness.numerics.correctness import Expected
from kwharness.task.invalid import SMALLER, Invalid, failed, invalid
from kwharness.task.needed_bytes import bytes_of, needed_bytes
from kwharness.verify import secret_draws

# Calls between two that are compared, where a model remembers something that is not put back.
BETWEEN = 3
LONG_MS = 2000.0  # who takes longer is not called again for what may be hidden
DEGENERATE = {"constant_output", "ignores_input"}


def inspect(
    spawn: Callable[[], Spawned],
    name: str,
    source: str,
    fingerprint: str,
    *,
    threads: int,
    timeout_s: float,
    device: Device = CPU,
) -> InspectedTask:
    """Returns the task. ``timeout_s`` is for each step. Raises Invalid, and Ill."""
    reference = ReferenceClient(spawn(), timeout_s, device)
    whole = SHARED.inspect_steps * timeout_s
    reference.until = time.monotonic() + whole
    try:
        return _inspect(reference, name, source, fingerprint, threads, timeout_s)
    except WorkerLate as e:
        if time.monotonic() < reference.until:
            raise invalid(e) from e
        message = f"inspecting the reference takes over {whole:g} s; it was at {e.doing}"
        raise Invalid(message, "make the inputs smaller", e.log[-4000:]) from e
    except (WorkerError, WorkerGone) as e:
        if e.client is None:
            raise  # nobody's fault
        raise failed(e) from e
    except (RuntimeError, CudaError) as e:
        if ran_out(e):
            message = "evaluating the task takes more memory than the device has free"
            raise Invalid(message, SMALLER, str(e)) from e
        if words := health.said(str(e)):
            raise Ill(health.REFEREE, words) from e
        raise
    finally:
        reference.kill()


def _bytes_after(seen: Inspected) -> int:
    """Returns what a call has more than inputs and outputs: state, and inputs that are written."""
    carried = seen.carried
    return 2 * carried.bytes + bytes_of([seen.inputs[i] for i in carried.written])


def _size(size: int) -> str:
    unit, name = (1 << 30, "GiB") if size >= 1 << 30 else (1 << 20, "MiB")
    return f"{size / unit:.3g} {name}"


class _Inspection:
    """One inspection, step by step: what there is to say of a task grows in flags and notes."""

    def __init__(self, reference: ReferenceClient, source: str, threads: int) -> None:
        self._reference = reference
        self._source = source
        self._threads = threads
        self._seed = secret_draws.secret()
        self._tree: Any = None
        self._inputs: list[torch.Tensor] = []
        self.seen: Inspected  # what one forward showed
        self.flags: list[str] = []
        self.notes: list[str] = []

    def load(self) -> None:
        """Runs it once on a draw, and sees how much memory a call takes."""
        self._reference.load(self._source, threads=self._threads, eval_mode=False)
        self._reference.sparing = True  # until it is known how large the outputs are
        self._tree, self._inputs = self._reference.draw(self._seed)
        self.seen = _looked(self._reference, self._seed)
        call = bytes_of(self.seen.inputs) + bytes_of(self.seen.outputs) + _bytes_after(self.seen)
        self._reference.sparing = spares(self._reference.device, call)
        for s in self.seen.outputs:
            if s.dtype not in DTYPES:
                raise Invalid(
                    f"forward returns a tensor of dtype {s.dtype}",
                    "return a dtype that can be compared",
                )
        if not any(t.numel() for t in self._inputs) and self._inputs:
            raise Invalid("get_inputs() returns no element", "return tensors that hold something")
        if too_large(self._reference.device, call):
            self.flags.append("too_large")
            self.notes.append(
                f"A call has {_size(call)} of inputs and outputs. Evaluating it takes about "
                f"{_size(SPARING_PEAK * call)}, one thing after the other, and the device has "
                f"{_size(self._reference.device.room()[1])}: it may not fit."
            )

    def settle_mode(self) -> bool:
        """Chooses train or eval mode. Returns whether it is stochastic in that."""
        if self.seen.carried.names:
            # With the state behind them.
            self._tree, self._inputs = self._reference.draw(self._seed)
        stochastic = _stochastic(self._reference, self._tree, self._inputs, self.seen)
        if self._reference.info.training and (stochastic or self.seen.carried.names):
            # Dropout draws, and batch norm keeps count, in train mode only.
            changed = self.seen.carried.names
            self._reference.load(self._source, threads=self._threads, eval_mode=True)
            again = _looked(self._reference, self._seed)
            self._tree, self._inputs = self._reference.draw(self._seed)
            differs = stochastic or again.carried.names != changed
            if differs and not _stochastic(self._reference, self._tree, self._inputs, again):
                only = [n for n in changed if n not in again.carried.names]
                why = "is stochastic" if stochastic else f"changes its buffers ({_some(only)})"
                self.notes.append(
                    f"The model {why} in train mode, so it is evaluated in eval mode."
                )
                self.flags.append("train_mode_dependent")
                stochastic = False
                self.seen = again
            elif not stochastic:
                self._reference.load(self._source, threads=self._threads, eval_mode=False)
                self.seen = _looked(self._reference, self._seed)
                self._tree, self._inputs = self._reference.draw(self._seed)
        return stochastic

    def look_at_state(self, stochastic: bool) -> None:
        """Raises Invalid for what cannot be put back, and notes what a call carries."""
        if stochastic and self.seen.unkept:
            raise Invalid(
                f"Model remembers something from call to call that cannot be put back "
                f"({_some(self.seen.unkept)})",
                "keep state in tensors that the constructor makes, whose shape stays: a buffer for "
                "a cache, an integer buffer for a position",
            )
        if stochastic:
            raise Invalid(
                "the reference is stochastic: two runs on the same input differ",
                "draw random numbers in get_inputs() and pass them to forward; "
                "keep what a call leaves for the next in buffers",
            )
        carried = self.seen.carried
        if carried.names:
            self.notes.append(
                f"A forward changes the model's state ({_some(carried.names)}): "
                "it is an input and an output of each call."
            )
        if carried.written:
            self.notes.append(
                f"A forward writes into its inputs ({_some(carried.inputs)}): "
                "what is in them after a call is compared as an output."
            )

    def expect(self) -> tuple[str, list[torch.Tensor], list[Scale]]:
        """Returns in which mode outputs are expected, "wide" or "eager", what comes of the draw in
        that, and its scales.
        """
        wide, eager = self._reference.forward(
            self._tree, self._inputs, ["wide", "eager"], sources=True
        )
        if eager.error is not None:
            raise eager.error
        mode = "eager" if wide.error is not None else "wide"
        if mode == "eager":
            self.notes.append(
                "It does not run in float64: expected values are float32's, with wider bounds."
            )
            wide = replace(eager, tensors=[_double(t) for t in eager.tensors])
        tensors = [_double(t) for t in wide.tensors]
        expected = correctness.complete(Expected(tensors, eager.tensors, wide.sources))
        scales = expected.scales
        floating = [t for t in eager.tensors if t.is_floating_point()]
        if any(bool(norms.not_finite(t).any()) for t in floating):
            self.flags.append("non_finite_reference")
            self.notes.append(
                "The reference gives NaN or Inf on its own inputs; those elements are not compared."
            )
        if all(_constant(t) for t in expected.wide[: len(self.seen.outputs)]):
            self.flags.append("constant_output")
            self.notes.append(
                "All elements of the output are the same: a constant would look right on one draw."
            )
        return mode, tensors, scales

    def look_at_other_draws(self, tensors: list[torch.Tensor], mode: str) -> bool:
        """Sees how the output, ``tensors``, depends on the inputs. Returns whether these have no
        structure that a kernel might rely on: zeros in their places need no reading.
        """
        _, others = self._reference.draw(secret_draws.secret())
        if not _alike(self._inputs, others):
            raise Invalid(
                "get_inputs() returns other tensors, shapes or dtypes from one call to the next",
                "let only the content of tensors be random",
            )
        given, names = len(self.seen.inputs), self.seen.input_names
        inputs, others, state = self._inputs[:given], others[:given], self._inputs[given:]
        fresh = [
            _shaken(a) if torch.equal(a, b) else b for a, b in zip(inputs, others, strict=True)
        ]
        fresh += state
        if inputs:
            other = _in_mode(self._reference, self._tree, fresh, mode)
            if other is not None and (error := reshaped(tensors, other)):
                raise failed(error)
            if other is not None and _close(tensors, other):
                # What is averaged over millions hardly differs from draw to draw.
                halves = [t / 2 if t.is_floating_point() else t for t in fresh[:given]] + state
                of_halves = _in_mode(self._reference, self._tree, halves, mode)
                if of_halves is None or _close(other, of_halves):
                    self.flags.append("ignores_input")
                    self.notes.append("The output does not depend on the input.")
                else:
                    self.notes.append(
                        "The output is nearly the same in every draw: only inputs of other kinds "
                        "tell a kernel that ignores them."
                    )
            if all(torch.equal(a, b) for a, b in zip(inputs, others, strict=True)):
                self.notes.append(
                    "get_inputs() returns the same values whatever the seed; "
                    "kernels are checked on those and on maps of them."
                )
            for n, a, b in zip(names, inputs, others, strict=True):
                if not a.is_floating_point() and a.numel() > 1 and torch.equal(a, b):
                    self.notes.append(
                        f"Input {n} is the same in every draw, and is not floating, so no other is "
                        "made of it: a kernel that ignores it is right, and its verdict says so."
                    )
        return all(families.unstructured(pair) for pair in zip(inputs, others, strict=True))

    def look_at_weights(self, tensors: list[torch.Tensor], mode: str) -> None:
        """Sees whether the output depends on the weights."""
        state = self._reference.state()
        trainable = self._reference.info.trainable
        if any(trainable):
            tied = self._reference.info.tied
            self._reference.set_state(
                secret_draws.perturbed(state, trainable, tied, secret_draws.secret())
            )
            other = _in_mode(self._reference, self._tree, self._inputs, mode)
            if other is not None and _close(tensors, other):
                self.flags.append("ignores_weights")
                self.notes.append("The output does not depend on the parameters.")
            del other
            self._reference.set_state(state)

    def look_at_condition(self, tensors: list[torch.Tensor], scales: list[Scale]) -> None:
        """Sees how far the output moves by one unit in the last place of the input."""
        moved = self._reference.forward(self._tree, self._inputs, ["moved:0"])[0]
        if moved.error is None:
            for t, m, s in zip(tensors, moved.tensors, scales, strict=True):
                if not t.is_floating_point():
                    continue
                if norms.error_where_finite(m, t).max > correctness.ILL * s.max > 0:
                    self.flags.append("ill_conditioned")
                    self.notes.append(
                        "One unit in the last place of the input moves the output by over 1 %."
                    )
                    break


def _inspect(
    reference: ReferenceClient,
    name: str,
    source: str,
    fingerprint: str,
    threads: int,
    timeout_s: float,
) -> InspectedTask:
    found = _Inspection(reference, source, threads)
    found.load()
    found.look_at_state(found.settle_mode())
    mode, tensors, scales = found.expect()
    unstructured = found.look_at_other_draws(tensors, mode)
    found.look_at_weights(tensors, mode)
    if mode == "wide":
        found.look_at_condition(tensors, scales)
    seen, flags = found.seen, found.flags
    graph, graph_note = None, "a graph tells nothing of what a model carries from call to call"
    if not seen.carried:
        graph, graph_note = _graph(reference, timeout_s)
    info = reference.info
    own = zip(info.names, info.state, info.trainable, strict=True)
    parameters = _named((n, s) for n, s, trainable in own if trainable)
    sized = unstructured and not set(flags) & DEGENERATE
    return InspectedTask(
        source=source,
        fingerprint=fingerprint,
        name=name,
        inputs=_named(zip(seen.input_names, seen.inputs, strict=True)),
        outputs=[TensorSpec(s.dtype, s.shape) for s in seen.outputs],
        parameters=parameters,
        operators=seen.operators,
        operations=seen.operations,
        least_bytes=bytes_of([*seen.inputs, *info.state, *seen.outputs]),
        needed_bytes=needed_bytes(graph) if sized else 0,
        flags=list(dict.fromkeys(flags)),
        notes=found.notes,
        eager_ms=seen.eager_ms,
        graph=graph,
        graph_note=graph_note,
    )


def _looked(reference: ReferenceClient, seed: int) -> Inspected:
    """Returns what one forward on a draw shows. What the model carries is behind inputs and outputs
    from here on.
    """
    seen = reference.inspect(seed)
    if seen.shared:
        raise Invalid(
            f"Model keeps its state twice in the same memory ({_some(seen.shared)})",
            "keep it in one tensor, and take views of it in forward",
        )
    if seen.carried:
        reference.carry(seen.carried)
    return seen


def _named(specs: Iterable[tuple[str, Spec]]) -> list[TensorSpec]:
    return [TensorSpec(s.dtype, s.shape, name) for name, s in specs]


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:3])) + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )


def _graph(reference: ReferenceClient, timeout_s: float) -> tuple[Graph | None, str]:
    """Returns the graph of a forward and a note, None where there is none."""
    try:
        captured = reference.capture(timeout_s)
        return captured.graph, sentence(captured.note)
    except WorkerError as e:
        if e.ill:
            raise
        return None, f"capture failed: {e}"[:300]
    except (WorkerGone, WorkerLate) as e:
        if e.client is None or e.ill:
            raise
        return None, f"capture failed: the worker {e}"[:300]


def _double(t: torch.Tensor) -> torch.Tensor:
    return t.double() if t.is_floating_point() else t


def _stochastic(
    reference: ReferenceClient, tree: Any, inputs: list[torch.Tensor], seen: Inspected
) -> bool:
    """Whether two runs on the same input differ by more than rounding. Atomic additions come in any
    order, and where what they sum nearly cancels little but their rounding is left: float64 tells.
    """
    # Something may be remembered where nobody looks: in an object, or by the file.
    may_hide = not reference.sparing and seen.eager_ms < LONG_MS
    for mode in ("eager", "wide"):
        first = _in_mode(reference, tree, inputs, mode)
        more = [_in_mode(reference, tree, inputs, mode)]  # next to it: something may alternate
        between = BETWEEN if seen.unkept else int(may_hide)
        for _ in range(between):
            other, others = reference.draw(secret_draws.secret())
            if _alike(inputs, others):
                _in_mode(reference, other, others, mode)
        if between:
            more.append(_in_mode(reference, tree, inputs, mode))
        if first is not None and all(m is not None and _close(first, m) for m in more):
            return False
    return True


def _in_mode(
    reference: ReferenceClient, tree: Any, inputs: list[torch.Tensor], mode: str
) -> list[torch.Tensor] | None:
    r = reference.forward(tree, inputs, [mode])[0]
    if r.error is not None and mode == "eager":
        raise r.error
    return None if r.error is not None else [_double(t) for t in r.tensors]


def _alike(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return [(t.shape, t.dtype) for t in a] == [(t.shape, t.dtype) for t in b]


def _close(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Whether two runs agree up to the rounding of another order of summation."""
    return _alike(a, b) and all(correctness.close(x, y) for x, y in zip(a, b, strict=True))


def _constant(t: torch.Tensor) -> bool:
    if t.numel() < 2:
        return False
    first = t.reshape(-1)[0]
    if not t.is_floating_point():
        return bool((t == first).all())
    return all(
        bool(((c - first).abs_() <= 1e-6 * first.abs()).logical_or_(~torch.isfinite(c)).all())
        for c in norms.chunks(t)
    )


def _shaken(t: torch.Tensor) -> torch.Tensor:
    """Another content for an input that get_inputs() always draws alike."""
    return t + torch.randn_like(t) if t.is_floating_point() else t
