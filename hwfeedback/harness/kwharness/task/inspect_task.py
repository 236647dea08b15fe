"""Inspection: whether a file is a task, and what there is to say about it.

Every way in which a reference can be no task ends in one sentence, a hint and the traceback.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kwharness.base.constants import SHARED
from kwharness.base.tensors import DTYPES
from kwharness.clients.errors import Spawned, WorkerError, WorkerGone, WorkerLate, ran_out, sentence
from kwharness.clients.reference_client import ReferenceClient, reshaped
from kwharness.machine import health
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import CPU, SPARING_PEAK, Device, spares, too_large
from kwharness.machine.health import Ill
from kwharness.model.state import Carried, shown
from kwharness.numerics import correctness, families
from kwharness.numerics.correctness import Expected
from kwharness.verify import secret_draws

_TYPES = ", ".join(DTYPES)


class Invalid(Exception):
    """The file is no task. ``message`` becomes one line: it quotes foreign text."""

    def __init__(self, message: str, hint: str, traceback: str = "") -> None:
        message = sentence(message)
        super().__init__(message)
        self.message, self.hint, self.traceback = message, hint, traceback

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "invalid",
            "message": self.message,
            "hint": self.hint,
            "traceback": self.traceback,
        }


# What reads all that it is given, whatever its values are.
NEED_ALL = set(
    """
    abs neg relu leaky_relu sigmoid tanh softplus selu elu gelu silu mish hardtanh hardswish
    hardsigmoid exp log sqrt rsqrt square pow add sub rsub mul div clamp clamp_min clamp_max
    minimum maximum sum mean amax amin max min argmax argmin var std norm linalg_vector_norm
    logsumexp softmax log_softmax cumsum layer_norm group_norm rms_norm
    """.split()  # noqa: SIM905
)
# Calls between two that are compared, where a model remembers something that is not put back.
BETWEEN = 3
LONG_MS = 2000.0  # who takes longer is not called again for what may be hidden
DEGENERATE = {"constant_output", "ignores_input"}
# What CUDA says of a forward whose labels or indices lie outside.
_ASTRAY = ("device-side assert", "illegal memory access")
_CONTRACT = SHARED.task_form
SMALLER = (
    "make the inputs or the model smaller: checking takes many times the memory of one forward"
)
_ALONE = "a reference is one file that needs only PyTorch: no other files, packages or network"
_NOT_ALONE = ("ImportError", "ModuleNotFoundError", "FileNotFoundError", "URLError")
# What the client asks for, by the stage at which that fails.
_PARTS = {
    "import": "importing the file",
    "init_inputs": "get_init_inputs()",
    "construct": "Model's constructor",
    "inputs": "get_inputs()",
    "forward": "Model's forward",
}


def _during(doing: str) -> str:
    if not doing:
        return ""
    return f" {'while' if doing.split()[0].endswith('ing') else 'in'} {doing}"


def failed(e: WorkerError | WorkerGone) -> Ill | Invalid:
    """Returns whose fault it is that a reference's worker failed: nobody's where its GPU does not
    work, else the reference's.
    """
    if not e.ill:
        return invalid(e)
    if isinstance(e, WorkerError):
        return Ill(_PARTS.get(e.stage, "the reference"), e.ill, e.traceback)
    return Ill(e.doing, e.ill, e.log[-4000:])


def invalid(e: Exception) -> Invalid:
    """Turns what a reference worker's client raised into the sentence that its author reads."""
    if isinstance(e, WorkerLate):
        hint = "look for a loop that does not end or a wait"
        if e.doing != _PARTS["import"]:
            hint += ", or make the inputs smaller"
        return Invalid(str(e), hint, e.log[-4000:])
    if isinstance(e, WorkerGone):
        during = _during(e.doing)
        if e.oom:
            return Invalid(f"the reference ran out of memory{during}", SMALLER, e.log[-4000:])
        hint = "a reference must not end its process: look for os._exit or a crash in native code"
        if e.broke:
            message = f"the reference writes to descriptors that are not its own{during}"
            return Invalid(message, "write only to what the file itself opened", e.log[-4000:])
        return Invalid(f"the reference's process {e}{during}", hint, e.log[-4000:])
    assert isinstance(e, WorkerError)
    first = next((line.strip() for line in e.message.splitlines() if line.strip()), "")
    first = first.removesuffix(", but expected one of:").removesuffix(":")[:300]
    what = f"{e.type}: {first}" if first else e.type
    line = f" (line {e.lines[-1]})" if e.lines else ""
    if e.out_of_memory:
        message = f"the reference ran out of memory{_during(_PARTS.get(e.stage, ''))}"
        return Invalid(message, SMALLER, e.traceback)
    if e.type == "SystemExit":
        return Invalid(f"the reference calls sys.exit{line}", "remove the call", e.traceback)
    if e.type == "Forked":
        message = f"the reference forks{line}"
        hint = "compute in one process: no os.fork, no multiprocessing"
        return Invalid(message, hint, e.traceback)
    if e.type == "EOFError" and "reading a line" in e.message:
        hint = "remove input(): nobody is there to answer"
        return Invalid(f"the reference waits for input{line}", hint, e.traceback)
    table = {
        "import": (
            f"the file fails when it is imported: {what}{line}",
            _ALONE if e.type in _NOT_ALONE else "run it with python to see the error by itself",
        ),
        "names": (f"the file defines no {_listed(e.message)}", _CONTRACT),
        "model": (f"{e.message}, not a class derived from nn.Module", _CONTRACT),
        "function": (f"{e.message}, not a function", _CONTRACT),
        "processes": (
            f"the reference leaves a process running ({e.message})",
            "end every program in the call that starts it: it would compute while others are timed",
        ),
        "threads": (
            f"the reference leaves a thread running ({e.message})",
            "end every thread in the call that starts it: it would compute while others are timed",
        ),
        "init_inputs": (
            f"get_init_inputs() raises {what}{line}",
            "it must return a list of Model's arguments",
        ),
        "init_type": (
            f"get_init_inputs() returns {e.message}, not a list",
            "return a list, [] where Model takes no arguments",
        ),
        "init_content": (
            f"what get_init_inputs() returns {e.message}",
            "return numbers, strings, tensors, and lists, tuples or dicts of them",
        ),
        "construct": (
            f"Model(*get_init_inputs()) raises {what}{line}",
            "check that __init__ takes what get_init_inputs() returns",
        ),
        "state": (e.message, f"keep parameters and buffers on the CPU, dense, in one of {_TYPES}"),
        "inputs": (
            f"get_inputs() raises {what}{line}",
            "it must return a list of forward's arguments",
        ),
        "inputs_type": (
            f"get_inputs() returns {e.message}, not a list",
            "return a list of forward's arguments",
        ),
        "inputs_content": (
            f"what get_inputs() returns {e.message}",
            "return tensors, numbers, strings, and lists, tuples or dicts of them",
        ),
        "inputs_device": (
            f"get_inputs() returns a tensor on {e.message}",
            "make inputs on the CPU: they are moved as needed",
        ),
        "forward": (f"Model's forward raises {what}{line}", "check that get_inputs() fits forward"),
        "output_content": (
            f"forward's result {e.message}",
            "return tensors, numbers, and lists, tuples or dicts of them",
        ),
        "output_shape": (
            f"forward's result {e.message}",
            "return tensors of fixed shapes, filled up, and how much of them counts",
        ),
        "no_output": (f"forward returns {e.message}", "return what it computes"),
    }
    message, hint = table.get(e.stage, (f"the reference raises {what}{line}", _CONTRACT))
    if "of dtype" in e.message and e.stage.endswith("_content"):
        hint = f"use one of {_TYPES}"
    if any(said in first for said in _ASTRAY):
        hint = "check that every index lies in what it is for (--device cpu names the first)"
    elif "NVIDIA" in first or "CUDA" in first:
        hint = "make everything on the CPU, without .cuda() or device=: it is moved as needed"
    return Invalid(message, hint, e.traceback)


def _listed(names: str) -> str:
    parts = [n if n == "Model" else f"{n}()" for n in names.split(", ")]
    return ", no ".join(parts[:-1]) + (" and no " if parts[1:] else "") + parts[-1]


def inspect(
    spawn: Callable[[], Spawned],
    name: str,
    source: str,
    fingerprint: str,
    *,
    threads: int,
    timeout_s: float,
    device: Device = CPU,
) -> dict[str, Any]:
    """Returns the Task as JSON. ``timeout_s`` is for each step. Raises Invalid, and Ill."""
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


def _bytes(specs: list[dict[str, Any]]) -> int:
    return sum(
        DTYPES[s["dtype"]].itemsize * math.prod(s["shape"]) for s in specs if s["dtype"] in DTYPES
    )


def _bytes_after(seen: dict[str, Any]) -> int:
    """Returns what a call has more than inputs and outputs: state, and inputs that are written."""
    carried: Carried = seen["carried"]
    return 2 * carried.bytes + _bytes([seen["inputs"][i] for i in carried.written])


def _size(size: int) -> str:
    unit, name = (1 << 30, "GiB") if size >= 1 << 30 else (1 << 20, "MiB")
    return f"{size / unit:.3g} {name}"


def _inspect(
    reference: ReferenceClient,
    name: str,
    source: str,
    fingerprint: str,
    threads: int,
    timeout_s: float,
) -> dict[str, Any]:
    reference.load(source, threads=threads, eval_mode=False)
    seed = secret_draws.secret()
    reference.sparing = True  # until it is known how large the outputs are
    tree, inputs = reference.draw(seed)
    seen = _looked(reference, seed)
    call = _bytes(seen["inputs"]) + _bytes(seen["outputs"]) + _bytes_after(seen)
    reference.sparing = spares(reference.device, call)
    for s in seen["outputs"]:
        if s["dtype"] not in DTYPES:
            raise Invalid(
                f"forward returns a tensor of dtype {s['dtype']}",
                "return a dtype that can be compared",
            )
    if not any(t.numel() for t in inputs) and inputs:
        raise Invalid("get_inputs() returns no element", "return tensors that hold something")
    flags: list[str] = []
    notes: list[str] = []
    if too_large(reference.device, call):
        flags.append("too_large")
        notes.append(
            f"A call has {_size(call)} of inputs and outputs. Evaluating it takes about "
            f"{_size(SPARING_PEAK * call)}, one thing after the other, and the device has "
            f"{_size(reference.device.room()[1])}: it may not fit."
        )
    if seen["carried"].names:
        tree, inputs = reference.draw(seed)  # with the state behind them
    stochastic = _stochastic(reference, tree, inputs, seen)
    if reference.info["training"] and (stochastic or seen["carried"].names):
        # Dropout draws, and batch norm keeps count, in train mode only.
        changed = seen["carried"].names
        reference.load(source, threads=threads, eval_mode=True)
        again = _looked(reference, seed)
        tree, inputs = reference.draw(seed)
        differs = stochastic or again["carried"].names != changed
        if differs and not _stochastic(reference, tree, inputs, again):
            only = [n for n in changed if n not in again["carried"].names]
            why = "is stochastic" if stochastic else f"changes its buffers ({_some(only)})"
            notes.append(f"The model {why} in train mode, so it is evaluated in eval mode.")
            flags.append("train_mode_dependent")
            stochastic = False
            seen = again
        elif not stochastic:
            reference.load(source, threads=threads, eval_mode=False)
            seen = _looked(reference, seed)
            tree, inputs = reference.draw(seed)
    if stochastic and seen["unkept"]:
        raise Invalid(
            f"Model remembers something from call to call that cannot be put back "
            f"({_some(seen['unkept'])})",
            "keep state in tensors that the constructor makes, whose shape stays: a buffer for a "
            "cache, an integer buffer for a position",
        )
    if stochastic:
        raise Invalid(
            "the reference is stochastic: two runs on the same input differ",
            "draw random numbers in get_inputs() and pass them to forward; "
            "keep what a call leaves for the next in buffers",
        )
    carried = seen["carried"]
    if carried.names:
        notes.append(
            f"A forward changes the model's state ({_some(carried.names)}): "
            "it is an input and an output of each call."
        )
    if carried.written:
        notes.append(
            f"A forward writes into its inputs ({_some(carried.inputs)}): "
            "what is in them after a call is compared as an output."
        )

    wide, eager = reference.forward(tree, inputs, ["wide", "eager"], sources=True)
    if "error" in eager:
        raise eager["error"]
    mode = "eager" if "error" in wide else "wide"
    if mode == "eager":
        notes.append(
            "It does not run in float64: expected values are float32's, with wider bounds."
        )
        wide = {**eager, "tensors": [_double(t) for t in eager["tensors"]]}
    tensors = [_double(t) for t in wide["tensors"]]
    expected = correctness.complete(Expected(tensors, eager["tensors"], wide["sources"]))
    scales = expected.scales
    floating = [t for t in eager["tensors"] if t.is_floating_point()]
    if any(bool(correctness.not_finite(t).any()) for t in floating):
        flags.append("non_finite_reference")
        notes.append(
            "The reference gives NaN or Inf on its own inputs; those elements are not compared."
        )
    if all(_constant(t) for t in expected.wide[: len(seen["outputs"])]):
        flags.append("constant_output")
        notes.append(
            "All elements of the output are the same: a constant would look right on one draw."
        )
    del wide, eager, expected, floating
    given = len(seen["inputs"])
    about = _other_draws(reference, tree, inputs, tensors, mode, seen["input_names"], given)
    flags += about[0]
    notes += about[1]
    state = reference.state()
    trainable = reference.info["trainable"]
    if any(trainable):
        tied = reference.info["tied"]
        reference.set_state(secret_draws.perturbed(state, trainable, tied, secret_draws.secret()))
        other = _in_mode(reference, tree, inputs, mode)
        if other is not None and _close(tensors, other):
            flags.append("ignores_weights")
            notes.append("The output does not depend on the parameters.")
        del other
        reference.set_state(state)
    if mode == "wide":
        moved = reference.forward(tree, inputs, ["moved:0"])[0]
        if "error" not in moved:
            for t, m, s in zip(tensors, moved["tensors"], scales, strict=True):
                if not t.is_floating_point():
                    continue
                if correctness.error_where_finite(m, t).max > correctness.ILL * s.max > 0:
                    flags.append("ill_conditioned")
                    notes.append(
                        "One unit in the last place of the input moves the output by over 1 %."
                    )
                    break
    graph, graph_note = None, "a graph tells nothing of what a model carries from call to call"
    if not carried:
        graph, graph_note = _graph(reference, timeout_s)
    info = reference.info
    parameters = [
        {"name": n, **s}
        for n, s, t in zip(info["names"], info["state"], trainable, strict=True)
        if t
    ]
    return {
        "fingerprint": fingerprint,
        "name": name,
        "source": source,
        "inputs": [
            {"name": n, **s} for n, s in zip(seen["input_names"], seen["inputs"], strict=True)
        ],
        "outputs": seen["outputs"],
        "parameters": parameters,
        "operators": seen["operators"],
        "operations": seen["operations"],
        "least_bytes": _bytes(seen["inputs"]) + _bytes(info["state"]) + _bytes(seen["outputs"]),
        "needed_bytes": needed_bytes(graph) if about[2] and not set(flags) & DEGENERATE else 0,
        "flags": list(dict.fromkeys(flags)),
        "notes": notes,
        "eager_ms": seen["eager_ms"],
        "graph": graph,
        "graph_note": graph_note,
    }


def _looked(reference: ReferenceClient, seed: int) -> dict[str, Any]:
    """Returns what one forward on a draw shows. What the model carries is behind inputs and outputs
    from here on.
    """
    seen = reference.inspect(seed)
    if seen["shared"]:
        raise Invalid(
            f"Model keeps its state twice in the same memory ({_some(seen['shared'])})",
            "keep it in one tensor, and take views of it in forward",
        )
    if seen["carried"]:
        reference.carry(seen["carried"])
    return seen


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:3])) + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )


def _graph(reference: ReferenceClient, timeout_s: float) -> tuple[dict[str, Any] | None, str]:
    """Returns the graph of a forward and a note, None where there is none."""
    try:
        answer, _ = reference.ask(
            {"op": "capture", "seed": 0}, timeout=timeout_s, doing="capturing the graph"
        )
        graph = answer.get("graph")
        note = sentence(str(answer.get("note") or ""))
        return (graph if isinstance(graph, dict) else None), note
    except WorkerError as e:
        if e.ill:
            raise
        return None, f"capture failed: {e}"[:300]
    except (WorkerGone, WorkerLate) as e:
        if e.client is None or e.ill:
            raise
        return None, f"capture failed: the worker {e}"[:300]


def needed_bytes(graph: Any) -> int:
    """Returns the bytes of inputs and outputs of a captured graph where every element of them is
    certainly read or written, whatever inputs without structure hold, else 0. A slice, a gather, a
    mask or a strided window need not read all, nor does a product; a view need not write.
    """
    try:
        nodes = {str(n["name"]): n for n in graph["nodes"]}
        inputs = {str(i["name"]): i for i in graph["inputs"]}
        if any(n["many"] or n["op"].split(".")[1] not in NEED_ALL for n in nodes.values()):
            return 0
        given = _refs(graph["outputs"])
        used = {r for n in nodes.values() for r in _refs([n["args"], n["kwargs"]])}
        if len(set(given)) < len(given) or not set(given) <= set(nodes):
            return 0
        if not set(inputs) <= used or not set(nodes) <= used | set(given):
            return 0
        if any(0 in i["strides"] for i in inputs.values()):
            return 0  # some of it is expanded
        return _bytes([*inputs.values(), *(o for g in given for o in nodes[g]["outputs"])])
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        return 0  # there is none, or it is a reference's invention


def _refs(tree: Any) -> list[str]:
    """Returns the names of the tensors in a part of a graph."""
    if isinstance(tree, dict):
        own = [str(tree["ref"])] if "ref" in tree else []
        return own + [r for v in tree.values() for r in _refs(v)]
    return [r for v in tree for r in _refs(v)] if isinstance(tree, (list, tuple)) else []


def _other_draws(
    reference: ReferenceClient,
    tree: Any,
    inputs: list[torch.Tensor],
    tensors: list[torch.Tensor],
    mode: str,
    names: list[str],
    given: int,
) -> tuple[list[str], list[str], bool]:
    """Returns flags and notes on how the output, ``tensors``, depends on the inputs, the first
    ``given``, and whether these have no structure that a kernel might rely on: zeros in their
    places need no reading.
    """
    flags: list[str] = []
    notes: list[str] = []
    _, others = reference.draw(secret_draws.secret())
    if not _alike(inputs, others):
        raise Invalid(
            "get_inputs() returns other tensors, shapes or dtypes from one call to the next",
            "let only the content of tensors be random",
        )
    inputs, others, state = inputs[:given], others[:given], inputs[given:]
    fresh = [_shaken(a) if torch.equal(a, b) else b for a, b in zip(inputs, others, strict=True)]
    fresh += state
    if inputs:
        other = _in_mode(reference, tree, fresh, mode)
        if other is not None and (error := reshaped(tensors, other)):
            raise failed(error)
        if other is not None and _close(tensors, other):
            # What is averaged over millions hardly differs from draw to draw.
            halves = [t / 2 if t.is_floating_point() else t for t in fresh[:given]] + state
            of_halves = _in_mode(reference, tree, halves, mode)
            if of_halves is None or _close(other, of_halves):
                flags.append("ignores_input")
                notes.append("The output does not depend on the input.")
            else:
                notes.append(
                    "The output is nearly the same in every draw: only inputs of other kinds tell "
                    "a kernel that ignores them."
                )
        if all(torch.equal(a, b) for a, b in zip(inputs, others, strict=True)):
            notes.append(
                "get_inputs() returns the same values whatever the seed; "
                "kernels are checked on those and on maps of them."
            )
        for n, a, b in zip(names, inputs, others, strict=True):
            if not a.is_floating_point() and a.numel() > 1 and torch.equal(a, b):
                notes.append(
                    f"Input {n} is the same in every draw, and is not floating, so no other is "
                    "made of it: a kernel that ignores it is right, and its verdict says so."
                )
    return (
        flags,
        notes,
        all(families.unstructured(pair) for pair in zip(inputs, others, strict=True)),
    )


def _double(t: torch.Tensor) -> torch.Tensor:
    return t.double() if t.is_floating_point() else t


def _stochastic(
    reference: ReferenceClient, tree: Any, inputs: list[torch.Tensor], seen: dict[str, Any]
) -> bool:
    """Whether two runs on the same input differ by more than rounding. Atomic additions come in any
    order, and where what they sum nearly cancels little but their rounding is left: float64 tells.
    """
    # Something may be remembered where nobody looks: in an object, or by the file.
    may_hide = not reference.sparing and seen["eager_ms"] < LONG_MS
    for mode in ("eager", "wide"):
        first = _in_mode(reference, tree, inputs, mode)
        more = [_in_mode(reference, tree, inputs, mode)]  # next to it: something may alternate
        between = BETWEEN if seen["unkept"] else int(may_hide)
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
    if "error" in r and mode == "eager":
        raise r["error"]
    return None if "error" in r else [_double(t) for t in r["tensors"]]


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
        for c in correctness.chunks(t)
    )


def _shaken(t: torch.Tensor) -> torch.Tensor:
    """Another content for an input that get_inputs() always draws alike."""
    return t + torch.randn_like(t) if t.is_floating_point() else t
