"""Who did the work of a forward: custom code, vendor libraries, or PyTorch.

``observe`` runs in the candidate's process, so what it gives explains and never convicts by
itself; ``report`` is the referee's reading of it. What was seen from outside is held against it
(stack_samples.py).
"""

from __future__ import annotations

import math
import os
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kwharness.attribution.operator_names import HOUSEKEEPING, LIBRARIES, PLAIN, VENDOR
from kwharness.base.for_candidate import Spent, Traced
from kwharness.base.torch_modes import uncompiled
from kwharness.base.verdicts import OperatorShare, WorkReport
from kwharness.torch_compile.called_languages import LANGUAGES

LEAST_RUNS, MOST_RUNS = 2, 8  # the first one warms up
RUNS_S = 0.05  # runs are added until it is over: a short forward may be disturbed in each
# What PyTorch and this module take around an operator that custom code calls, at most: no work of
# the custom code's.
AROUND_S = 50e-6
NATIVE_FILE = "<kernelwright native>"  # of kernelwright.py's wrappers
# Custom functions that stand for whichever kernel is called.
KERNELS = {language.kind for language in LANGUAGES}
MAX_OPERATORS = 40
INDUCTOR, GRAPH = "inductor", "CUDA graph"
REGIONS = {INDUCTOR: "compiled", GRAPH: "graph"}  # to the names of their shares in a WorkReport


class Clock:
    """Tells the time of the host."""

    def mark(self) -> Any:
        return time.perf_counter()

    def between(self, start: Any, end: Any) -> float:
        """Returns seconds."""
        return float(end - start)

    def wait(self) -> None:
        """Returns when all that was asked for is done."""

    def begin(self) -> None:
        """Comes before each forward."""

    def working(
        self, forward: Callable[[], Any], hidden: list[tuple[list[str], float]]
    ) -> list[tuple[list[str], float]]:
        """Returns what ``_hidden`` gave with seconds of this clock, by another forward."""
        del forward
        return hidden

    around_s = AROUND_S


@uncompiled
class _Operators(TorchDispatchMode):
    """Times every operator; those of other libraries than PyTorch's are custom code."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.calls: list[tuple[str, str, Any, Any]] = []  # library, name, start, end
        self.met: dict[str, int] = {}  # elements that PyTorch's got, by name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = self._clock.mark()
        out = func(*args, **(kwargs or {}))
        end = self._clock.mark()
        library, _, name = func._schema.name.partition("::")
        own = library in LIBRARIES
        if own:
            self.met[name] = self.met.get(name, 0) + _elements((*args, *(kwargs or {}).values()))
        self.calls.append(("" if own else library, name if own else func._schema.name, start, end))
        return out


def _elements(values: Sequence[Any]) -> int:
    """Returns how many elements the tensors among an operator's arguments have. It is quick, since
    it comes between custom code's marks.
    """
    found = 0
    for v in values:
        if isinstance(v, torch.Tensor):
            found += v.numel()
        elif isinstance(v, (list, tuple)):
            found += _elements(v)
    return found


def _listener(clock: Clock, compiled: bool) -> _Operators:
    """Returns what lists operators. ``compiled``: what torch.compile has made runs as it is, and
    operators that it calls are listed; beside any other mode PyTorch leaves compiled code out.
    """
    if not compiled or "torch._dynamo" not in sys.modules:
        return _Operators(clock)

    class Beside(_Operators):
        __torch_dispatch__ = torch._dynamo.disable(_Operators.__torch_dispatch__)

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

    return Beside(clock)


def regions(compiled: bool) -> dict[str, list[Any]]:
    """Returns functions of Python in which a forward leaves its operators to something else: the
    replay of a CUDA graph, and, ``compiled``, what inductor has made in this process.
    """
    found: dict[str, list[Any]] = {GRAPH: [torch.cuda.CUDAGraph.replay]}
    if not compiled:
        return found
    codecache = sys.modules.get("torch._inductor.codecache")
    made = [getattr(m, "call", None) for m in codecache.PyCodeCache.modules] if codecache else []
    return found | {INDUCTOR: [getattr(f, "__func__", f) for f in made]}


class _Functions:
    """Times calls of functions, however they are reached: a global, a closure, an attribute.

    By the interpreter's profile events, which name the function that is called.
    """

    def __init__(
        self,
        functions: dict[str, Callable[..., Any]],
        operators: _Operators,
        clock: Clock,
        regions: dict[str, list[Any]],
    ) -> None:
        # name, start, end, and the operators that ran inside: from the n-th to the m-th
        self.calls: list[tuple[str, Any, Any, int, int]] = []
        self._operators = operators
        self._clock = clock
        self._built_in = {id(f): n for n, f in functions.items()}
        self._python = {
            id(f.__code__): n for n, f in functions.items() if isinstance(f, types.FunctionType)
        }
        for name, made in regions.items():
            self._python |= {
                id(f.__code__): name for f in made if isinstance(f, types.FunctionType)
            }
        self._open: list[tuple[str, Any, int]] = []

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("c_call", "c_return", "c_exception"):
            name = self._built_in.get(id(argument))
        else:
            if frame.f_code.co_filename == NATIVE_FILE and frame.f_code.co_name != "<module>":
                name = frame.f_globals["wrapper"].__name__
            else:
                name = self._python.get(id(frame.f_code))
                if name in KERNELS:
                    name = str(getattr(frame.f_locals.get("self"), "__name__", name))
        if name is None:
            return
        ran = len(self._operators.calls)
        if event in ("c_call", "call"):
            self._open.append((name, self._clock.mark(), ran))
        elif self._open and self._open[-1][0] == name:
            _, start, before = self._open.pop()
            self.calls.append((name, start, self._clock.mark(), before, ran))


def _seconds(
    operators: _Operators, functions: _Functions, clock: Clock
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns the seconds of each call by PyTorch's operators, and by custom functions."""
    took = [clock.between(start, end) for _, _, start, end in operators.calls]
    own: dict[str, list[float]] = {}
    custom: dict[str, list[float]] = {}
    for name, start, end, n, m in functions.calls:
        within = sum(took[n:m]) + clock.around_s * (m - n)
        custom.setdefault(name, []).append(max(clock.between(start, end) - within, 0.0))
    for (library, name, _, _), seconds in zip(operators.calls, took, strict=True):
        (custom if library else own).setdefault(name, []).append(seconds)
    return own, custom


def observe(
    forward: Callable[[], Any],
    found: dict[str, Callable[..., Any]],
    clock: Clock | None = None,
    regions: dict[str, list[Any]] | None = None,
) -> Traced:
    """Runs a forward some times, and returns what it ran in its fastest run.

    ``found`` is the custom functions by name, ``regions`` what ``regions`` gives.
    """
    clock = clock or Clock()
    runs: list[tuple[float, dict[str, list[float]], dict[str, list[float]]]] = []
    met: dict[str, int] = {}
    before = sys.getprofile()
    began = time.perf_counter()
    while len(runs) < LEAST_RUNS or (
        len(runs) < MOST_RUNS and time.perf_counter() - began < RUNS_S
    ):
        operators = _listener(clock, INDUCTOR in (regions or {}))
        functions = _Functions(found, operators, clock, regions or {})
        clock.begin()
        start = clock.mark()
        sys.setprofile(functions)
        try:
            with operators:
                forward()
        finally:
            sys.setprofile(before)
        end = clock.mark()
        clock.wait()
        runs.append((clock.between(start, end), *_seconds(operators, functions, clock)))
        met = operators.met
    total, own, custom = min(runs[1:], key=lambda r: r[0])
    apart = {n: custom.pop(n) for n in regions or {} if n in custom}
    hidden, plain = _hidden(forward, own, met)
    if hidden:
        _add_hidden(clock.working(forward, hidden), own, custom)
    return Traced(total, _spent(own), _spent(custom), _spent(apart), plain, met)


def _spent(took: dict[str, list[float]]) -> dict[str, Spent]:
    return {n: Spent(sum(t), len(t)) for n, t in took.items()}


def _hidden(
    forward: Callable[[], Any], seen: dict[str, list[float]], met: dict[str, int]
) -> tuple[list[tuple[list[str], float]], float]:
    """Runs a forward again and returns PyTorch's operators that no dispatch mode sees: what
    ``TORCH_LIBRARY`` operators or threads of C++ call. Each with what it calls, and seconds; and
    the seconds of those that are not counted, because they only move values. Adds to ``met`` how
    many elements they got, by name.

    By torch's profiler, whose callbacks are called for every operator on every thread.
    """
    from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
    from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState

    state = ProfilerState.KINETO
    config = ProfilerConfig(state, True, False, False, False, False, everywhere())
    _prepare_profiler(config, {ProfilerActivity.CPU})
    _enable_profiler(config, {ProfilerActivity.CPU})
    try:
        forward()
    finally:
        roots = _disable_profiler().experimental_event_tree()
    left = {n: len(t) for n, t in seen.items()}
    found: list[tuple[Any, float]] = []
    plain: list[float] = []
    for root in roots:
        _walk(root, left, found, plain)
    # What was seen and did not come again ran under another name: an operator may take another way
    # where a dispatch mode listens.
    renamed = sum(c for n, c in left.items() if n not in PLAIN and n not in HOUSEKEEPING)
    hidden = found[renamed:]
    for event, _ in hidden:
        _count(event, met)
    return [(_below(event), seconds) for event, seconds in hidden], sum(plain)


def everywhere() -> Any:
    """Returns what has torch's profiler see all threads, and say nothing by itself."""
    from torch._C._profiler import _ExperimentalConfig

    os.environ["KINETO_LOG_LEVEL"] = "9"  # it would say that it finds no GPU
    return _ExperimentalConfig(profile_all_threads=True)


def _operator(event: Any) -> str:
    """Returns the name of PyTorch's operator that an event is of, "" where it is of none."""
    library, _, name = event.name.partition("::")
    return name if name and library in LIBRARIES else ""


def _below(event: Any) -> list[str]:
    """Returns the operators of an event and of all that it calls."""
    names = [_operator(event)] if _operator(event) else []
    return names + [n for c in event.children for n in _below(c)]


def _count(event: Any, met: dict[str, int]) -> None:
    """Adds the elements that the operators of an event got, and of all that it calls."""
    name = _operator(event)
    if name:
        got = tree_leaves(getattr(event.extra_fields, "inputs", None) or [])
        met[name] = met.get(name, 0) + sum(math.prod(t.sizes) for t in got if hasattr(t, "sizes"))
    for child in event.children:
        _count(child, met)


def _walk(
    event: Any, left: dict[str, int], found: list[tuple[Any, float]], plain: list[float]
) -> None:
    """Finds what was not seen: ``left`` counts what was."""
    name = _operator(event)
    if left.get(name, 0):
        left[name] -= 1  # with what it calls
        return
    names = _below(event)
    if name and not any(left.get(n, 0) for n in names):
        seconds = event.duration_time_ns / 1e9
        if all(n in PLAIN or n in HOUSEKEEPING for n in names):
            plain.append(seconds)
        else:
            found.append((event, seconds))
        return
    for child in event.children:
        _walk(child, left, found, plain)


def _add_hidden(
    hidden: list[tuple[list[str], float]],
    own: dict[str, list[float]],
    custom: dict[str, list[float]],
) -> None:
    """Counts hidden operators among PyTorch's, and takes their time off the custom code's."""
    for names, seconds in hidden:
        for i, name in enumerate(dict.fromkeys(names)):
            own.setdefault(name, []).append(0.0 if i else seconds)
    rest = sum(seconds for _, seconds in hidden)
    for took in sorted(custom.values(), key=sum, reverse=True):
        for i, t in enumerate(took):
            took[i] = max(t - rest, 0.0)
            rest = max(rest - t, 0.0)


def report(seen: Traced, custom_code: bool, regions: bool = False) -> tuple[WorkReport, int]:
    """Returns who did the work, and how many custom calls a forward made.

    ``regions``: with what torch.compile has made and what a CUDA graph replays, by the names of
    REGIONS; what policy asks goes by the rest. ``custom_code`` says whether the candidate brought
    any; time that nobody claims is put down to it only then.
    """
    rows: list[tuple[str, str, Spent]] = []  # name, kind
    for op, spent in _sound(seen.operators)[:1000]:
        rows.append((f"aten.{op[:80]}", "vendor" if op in VENDOR else "pytorch", spent))
    rows += [(op[:80], "custom", spent) for op, spent in _sound(seen.native)[:1000]]
    if regions:
        apart = _sound(seen.regions)[:1000]
        rows += [(op, REGIONS[op], spent) for op, spent in apart if op in REGIONS]
    whole = sum(spent.seconds for _, _, spent in rows)
    calls = sum(spent.calls for _, kind, spent in rows if kind == "custom")
    if whole <= 0:
        own = 1.0 if custom_code else 0.0
        return WorkReport(custom=own, pytorch=1.0 - own, operators=[]), calls
    took = dict.fromkeys(("custom", "vendor", "pytorch", *REGIONS.values()), 0.0)
    for _, kind, spent in rows:
        took[kind] += spent.seconds
    shares = {kind: seconds / whole for kind, seconds in took.items()}
    rows.sort(key=lambda r: -r[2].seconds)
    return WorkReport(
        custom=shares["custom"],
        vendor=shares["vendor"],
        pytorch=shares["pytorch"],
        compiled=shares["compiled"] or None,
        graph=shares["graph"] or None,
        operators=[
            OperatorShare(name, kind, spent.seconds / whole, spent.calls)
            for name, kind, spent in rows[:MAX_OPERATORS]
        ],
    ), calls


def _sound(table: dict[str, Spent]) -> list[tuple[str, Spent]]:
    """Returns what a forward can have spent: a verdict holds no other figures."""
    return [(n, s) for n, s in table.items() if 0 <= s.seconds < 1e6 and s.calls < 1 << 31]


def not_custom(seen: Traced, work: WorkReport) -> float:
    """Returns the share of a forward's time that PyTorch's and vendors' code took, with what is
    counted nowhere else because it only moves values.

    Time that nothing claims, beyond what listing itself may take, is nobody's of these: whoever has
    PyTorch work where nobody lists it does not make it the list's by that.
    """
    share = work.vendor + work.pytorch
    if 0 <= seen.plain < 1e6 and seen.total > 0:
        listed = [spent for _, spent in _sound(seen.operators) + _sound(seen.native)]
        claimed = sum(spent.seconds for spent in listed)
        listing = AROUND_S * sum(spent.calls for spent in listed)
        share *= min(claimed / max(seen.total - listing, claimed, 1e-9), 1.0)
        share += seen.plain / seen.total
    return min(share, 1.0)


def multiplies(operators: Sequence[str]) -> bool:
    """Whether any of a task's operators is a product, a convolution or a recurrent layer."""
    return any(op.removeprefix("aten.") in VENDOR for op in operators)


def covers(seen: Traced, operators: Sequence[str]) -> bool:
    """Whether a forward left out any of the task's operators, as it must to have replaced one.

    ``operators`` are the reference's, one entry a call.
    """
    ran: dict[str, int] = {}
    for op, spent in seen.operators.items():
        ran[op.strip("_")] = ran.get(op.strip("_"), 0) + spent.calls
    wanted: dict[str, int] = {}
    for op in operators:
        name = op.removeprefix("aten.").strip("_")
        wanted[name] = wanted.get(name, 0) + 1
    return not wanted or any(ran.get(n, 0) < count for n, count in wanted.items())


def as_much(seen: Traced, operators: Sequence[str], elements: int) -> bool:
    """Whether a forward gave one of the task's operators that compute, as PyTorch has it, at least
    half as many elements as the task's inputs have: what a kernel has summed in parts is less. One
    of which nothing is told was given all.
    """
    names = {op.removeprefix("aten.") for op in operators} - PLAIN - HOUSEKEEPING
    wanted = {n.strip("_") for n in names}
    got: dict[str, int] = {}
    for op, n in seen.met.items():
        got[op.strip("_")] = got.get(op.strip("_"), 0) + n
    return any(2 * got.get(op, elements) >= elements for op in wanted)


def computes(work: WorkReport) -> list[str]:
    """Returns the names of PyTorch's and vendors' operators that compute something."""
    names = [o.name for o in work.operators or () if o.kind != "custom"]
    return [n for n in names if n.removeprefix("aten.") not in HOUSEKEEPING]
