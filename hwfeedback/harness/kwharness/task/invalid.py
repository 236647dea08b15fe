"""Why a file is no task: one sentence, a hint and the traceback."""

from __future__ import annotations

from kwharness.base.constants import SHARED
from kwharness.base.tensors import DTYPES
from kwharness.clients.errors import WorkerError, WorkerGone, WorkerLate, sentence
from kwharness.machine.health import Ill

_TYPES = ", ".join(DTYPES)


class Invalid(Exception):
    """The file is no task. ``message`` becomes one line: it quotes foreign text."""

    def __init__(self, message: str, hint: str, traceback: str = "") -> None:
        message = sentence(message)
        super().__init__(message)
        self.message, self.hint, self.traceback = message, hint, traceback


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

# What is said and hinted of a failure, by its stage.
_SAID: dict[str, tuple[str, str]] = {
    "import": (
        "the file fails when it is imported: {what}{line}",
        "run it with python to see the error by itself",
    ),
    "names": ("the file defines no {listed}", _CONTRACT),
    "model": ("{said}, not a class derived from nn.Module", _CONTRACT),
    "function": ("{said}, not a function", _CONTRACT),
    "processes": (
        "the reference leaves a process running ({said})",
        "end every program in the call that starts it: it would compute while others are timed",
    ),
    "threads": (
        "the reference leaves a thread running ({said})",
        "end every thread in the call that starts it: it would compute while others are timed",
    ),
    "init_inputs": (
        "get_init_inputs() raises {what}{line}",
        "it must return a list of Model's arguments",
    ),
    "init_type": (
        "get_init_inputs() returns {said}, not a list",
        "return a list, [] where Model takes no arguments",
    ),
    "init_content": (
        "what get_init_inputs() returns {said}",
        "return numbers, strings, tensors, and lists, tuples or dicts of them",
    ),
    "construct": (
        "Model(*get_init_inputs()) raises {what}{line}",
        "check that __init__ takes what get_init_inputs() returns",
    ),
    "state": ("{said}", f"keep parameters and buffers on the CPU, dense, in one of {_TYPES}"),
    "inputs": (
        "get_inputs() raises {what}{line}",
        "it must return a list of forward's arguments",
    ),
    "inputs_type": (
        "get_inputs() returns {said}, not a list",
        "return a list of forward's arguments",
    ),
    "inputs_content": (
        "what get_inputs() returns {said}",
        "return tensors, numbers, strings, and lists, tuples or dicts of them",
    ),
    "inputs_device": (
        "get_inputs() returns a tensor on {said}",
        "make inputs on the CPU: they are moved as needed",
    ),
    "forward": ("Model's forward raises {what}{line}", "check that get_inputs() fits forward"),
    "output_content": (
        "forward's result {said}",
        "return tensors, numbers, and lists, tuples or dicts of them",
    ),
    "output_shape": (
        "forward's result {said}",
        "return tensors of fixed shapes, filled up, and how much of them counts",
    ),
    "no_output": ("forward returns {said}", "return what it computes"),
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
        return _of_gone(e)
    assert isinstance(e, WorkerError)
    return _of_error(e)


def _of_gone(e: WorkerGone) -> Invalid:
    during = _during(e.doing)
    if e.oom:
        return Invalid(f"the reference ran out of memory{during}", SMALLER, e.log[-4000:])
    hint = "a reference must not end its process: look for os._exit or a crash in native code"
    if e.broke:
        message = f"the reference writes to descriptors that are not its own{during}"
        return Invalid(message, "write only to what the file itself opened", e.log[-4000:])
    return Invalid(f"the reference's process {e}{during}", hint, e.log[-4000:])


def _of_error(e: WorkerError) -> Invalid:
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
    values = {"what": what, "line": line, "said": e.message, "listed": _listed(e.message)}
    message, hint = _SAID.get(e.stage, ("the reference raises {what}{line}", _CONTRACT))
    if e.stage == "import" and e.type in _NOT_ALONE:
        hint = _ALONE
    if "of dtype" in e.message and e.stage.endswith("_content"):
        hint = f"use one of {_TYPES}"
    if any(said in first for said in _ASTRAY):
        hint = "check that every index lies in what it is for (--device cpu names the first)"
    elif "NVIDIA" in first or "CUDA" in first:
        hint = "make everything on the CPU, without .cuda() or device=: it is moved as needed"
    return Invalid(message.format(**values), hint, e.traceback)


def _listed(names: str) -> str:
    parts = [n if n == "Model" else f"{n}()" for n in names.split(", ")]
    return ", no ".join(parts[:-1]) + (" and no " if parts[1:] else "") + parts[-1]
