"""What the author of a file reads that is no task; odd files that are tasks stay tasks."""

from __future__ import annotations

from typing import Any

import pytest
from evaluating import Evaluator
from test_referee import HEAD, SOFTMAX

from kwharness.base import paths
from kwharness.base.configs import ReferenceConfig
from kwharness.base.operations import Failure
from kwharness.clients.errors import WorkerError
from kwharness.process.policy import Limits
from kwharness.referee import faults
from kwharness.task.invalid import Invalid
from kwharness.verify import calibrate_family


def whole(
    top: str = "",
    construct: str = "pass",
    inputs: str = "return [torch.randn(8, 8)]",
    init: str = "return []",
    forward: str = "return torch.softmax(x, -1)",
) -> str:
    """A reference whose parts are these statements."""
    return HEAD + (
        f"{top}\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {construct}\n\n    def forward(self, x):\n        {forward}\n\n"
        f"def get_inputs():\n    {inputs}\n\ndef get_init_inputs():\n    {init}\n"
    )


def everywhere(statement: str) -> dict[str, str]:
    """The statement in each part of a reference, by what that part is called."""
    return {
        "importing the file": whole(top=statement),
        "Model's constructor": whole(construct=statement),
        "get_inputs()": whole(inputs=statement),
        "get_init_inputs()": whole(init=statement),
        "Model's forward": whole(forward=statement),
    }


# Parts that are asked for as another one is.
SAME_WAY = ("Model's constructor", "get_init_inputs()")


def where(part: str) -> str:
    return f"while {part}" if part.startswith("importing") else f"in {part}"


BAD: dict[str, tuple[str, str]] = {  # what is wrong -> source, a part of the sentence
    "prose": ("Dear Sir or Madam,\n", "line 1: not valid Python: invalid syntax"),
    "syntax": ("def broken(:\n", "line 1: not valid Python"),
    "python 2": ("print 'x'\n", "line 1: not valid Python: Missing parentheses"),
    "compiles not": (
        SOFTMAX + "\nreturn 1\n",
        "imported: SyntaxError: 'return' outside function (line 15)",
    ),
    "parentheses": (SOFTMAX + f"\nX = {'(' * 5000}1{')' * 5000}\n", "too many nested parentheses"),
    "depth": (SOFTMAX + f"\nX = {'-' * 100_000}1\n", "nested too deeply"),
    "attributes": (SOFTMAX + f"\nX = a{'.b' * 100_000}\n", "nested too deeply"),
    "null byte": (SOFTMAX + "\n# \0\n", "line 15: the source holds a null byte"),
    "names": ("import torch\n", "no Model, no get_inputs() and no get_init_inputs()"),
    "one name": (SOFTMAX.replace("def get_inputs", "def inputs"), "no get_inputs()"),
    "model function": (SOFTMAX + "\ndef Model(): pass\n", "Model is a function, not a class deri"),
    "model instance": (SOFTMAX + "\nModel = Model()\n", "Model is a Model, not a class derived"),
    "plain class": (
        SOFTMAX.replace("(nn.Module)", ""),
        "Model is a plain class, not a class deri",
    ),
    "list": (SOFTMAX + "\nget_inputs = [1]\n", "get_inputs is a list, not a function"),
    "import": (SOFTMAX + "\nraise RuntimeError('at once')\n", "imported: RuntimeError: at once"),
    "other package": (SOFTMAX + "\nimport einops_\n", "No module named 'einops_' (line 15)"),
    "other file": (SOFTMAX + "\nfrom .net import f\n", "ImportError: attempted relative import"),
    "data file": (SOFTMAX + "\nopen('weights.pt')\n", "No such file or directory: 'weights.pt'"),
    "network": (
        SOFTMAX + "\nimport urllib.request as r\nr.urlopen('http://example.com')\n",
        "URLError",
    ),
    "arguments": (
        whole(init="return [1]"),
        "Model(*get_init_inputs()) raises TypeError: Model.__init__() takes 1",
    ),
    "no super": (
        whole(construct="del self._parameters; self.w = nn.Parameter(torch.ones(2))"),
        "Model(*get_init_inputs()) raises AttributeError: cannot assign parameters before",
    ),
    "meta weights": (
        whole(construct="self.w = nn.Parameter(torch.ones(2, device='meta'))"),
        "Model's w is a tensor on meta",
    ),
    "init none": (whole(init="return None"), "get_init_inputs() returns None, not a list"),
    "init raises": (whole(init="1 / 0"), "get_init_inputs() raises ZeroDivisionError"),
    "inputs none": (whole(inputs="return None"), "get_inputs() returns None, not a list"),
    "inputs tensor": (whole(inputs="return torch.ones(2)"), "returns a Tensor, not a list"),
    "inputs generator": (whole(inputs="yield torch.ones(2)"), "returns a generator, not a list"),
    "inputs dict": (whole(inputs="return {'x': torch.ones(2)}"), "returns a dict, not a list"),
    "inputs strings": (whole(inputs="return ['a', 'b']"), "forward() takes 2 positional arg"),
    "inputs nested": (
        whole(inputs="return [[torch.ones(2)]]"),
        "forward raises TypeError: softmax() received an invalid combination of arguments - got "
        "(list, int) (line 13)",
    ),
    "inputs objects": (whole(inputs="return [object()]"), "get_inputs() returns holds an object"),
    "inputs array": (
        whole("import numpy", inputs="return [numpy.ones(2)]"),
        "returns holds an ndarray",
    ),
    "inputs cycle": (whole(inputs="a = []; a.append(a); return a"), "is nested too deeply"),
    "inputs many": (whole(inputs="return [0] * 10**7"), "returns holds over 10000 values"),
    "inputs tensors": (whole(inputs="return [torch.ones(1)] * 10001"), "holds over 10000 values"),
    "inputs text": (whole(inputs="return ['a' * (100 << 20)]"), "over 1048576 characters of text"),
    "inputs integer": (whole(inputs="return [10**5000]"), "holds an integer of 16610 bits"),
    "inputs sparse": (whole(inputs="return [torch.eye(2).to_sparse()]"), "layout torch.sparse_coo"),
    "inputs dtype": (
        whole(inputs="return [torch.ones(2).to(torch.float8_e4m3fn)]"),
        "holds a tensor of dtype float8_e4m3fn",
    ),
    "inputs meta": (whole(inputs="return [torch.ones(2, device='meta')]"), "a tensor on meta"),
    "inputs cuda": (whole(inputs="return [torch.ones(2).cuda()]"), "get_inputs() raises"),
    "inputs empty": (whole(inputs="return [torch.ones(0, 8)]"), "forward returns no element"),
    "inputs raise": (whole(inputs="raise ValueError('none left')"), "ValueError: none left (line"),
    "inputs change": (
        whole("import itertools\nN = itertools.count(8)", inputs="return [torch.ones(next(N), 8)]"),
        "get_inputs() returns other tensors, shapes or dtypes from one call to the next",
    ),
    "forward": (whole(forward="return x @ torch.ones(3, 3)"), "forward raises RuntimeError"),
    "no forward": (
        SOFTMAX.replace("def forward", "def backward"),
        'Module [Model] is missing the required "forward" function',
    ),
    "recursion": (whole(forward="return self.forward(x)"), "RecursionError: maximum recursion"),
    "nothing": (whole(forward="return None"), "forward returns no tensor"),
    "no element": (whole(forward="return x[:0]"), "forward returns no element"),
    "set": (whole(forward="return [{x}]"), "forward's result holds a set"),
    "coroutine": (whole().replace("    def forward", "    async def forward"), "is a coroutine"),
    "output meta": (whole(forward="return x.to('meta')"), "holds a tensor on meta"),
    "output dtype": (
        whole(forward="return x.to(torch.float8_e4m3fn)"),
        "holds a tensor of dtype float8_e4m3fn",
    ),
    "outputs": (whole(forward="return [x * 2] * 10001"), "forward's result holds over 10000"),
    "stochastic": (whole(forward="return x * torch.rand_like(x)"), "stochastic"),
    "as many as there are": (
        # Three lengths are the same on two draws once in 900,000.
        whole(forward="return [x.repeat(97, 1)[: 1 + int(v * 1e6) % 97] for v in x.view(-1)[:3]]"),
        "has a shape that depends on values",
    ),
    "as many as rounding leaves": (
        whole(forward="return x.repeat(9, 1)[: 3 + (x.dtype == torch.float64)]"),
        "has a shape that depends on values: output 0 has [",
    ),
    "as many outputs as rounding leaves": (
        whole(forward="return [x * 2] * (3 + (x.dtype == torch.float64))"),
        "has a number of outputs that depends on values: 4, then 3",
    ),
    "counts": (
        whole(construct="self.n = 1", forward="self.n += 1; return x * self.n"),
        "put back (n)",
    ),
    "grows": (
        whole(construct="self.n = 1", forward="self.n += 1; return [x * 2] * self.n"),
        "put back (n)",
    ),
    "cache grows": (
        whole(
            construct="self.register_buffer('k', torch.zeros(0, 8))",
            forward="self.k = torch.cat([self.k, x]); return x @ self.k.t()",
        ),
        "remembers something from call to call that cannot be put back (k)",
    ),
    "number in a dict": (
        whole(
            construct="self.at = {'step': 1}",
            forward="self.at['step'] += 1; return x * self.at['step']",
        ),
        "put back (at.step)",
    ),
    "number in a tuple": (
        whole(
            construct="self.past = (torch.zeros(8), 0)",
            forward="self.past = (self.past[0] + x[0], self.past[1] + 1)\n"
            "        return x - self.past[0] / self.past[1]",
        ),
        "put back (past.1)",
    ),
    "alternates": (
        whole(
            construct="self.odd = False",
            forward="self.odd = not self.odd; return x * 2 if self.odd else x * 3",
        ),
        "put back (odd)",
    ),
    "list grows": (
        whole(
            construct="self.seen = [torch.zeros(8)]",
            forward="self.seen.append(x[0]); return x - self.seen[-2]",
        ),
        "remembers something from call to call that cannot be put back (seen)",
    ),
    "tuple grows": (
        whole(
            construct="self.kept = {'past': ()}",
            forward="self.kept = {'past': (*self.kept['past'], x)}\n"
            "        return x + len(self.kept['past'])",
        ),
        "remembers something from call to call that cannot be put back (kept.past)",
    ),
    "list shrinks": (
        whole(
            construct="self.left = [torch.randn(8) for _ in range(99)]",
            forward="return x * self.left.pop(0)",
        ),
        "remembers something from call to call that cannot be put back (left)",
    ),
    "cache in a list grows": (
        whole(
            construct="self.kv = [torch.zeros(0, 8), torch.zeros(0, 8)]",
            forward="self.kv = [torch.cat([t, x]) for t in self.kv]\n"
            "        return x @ self.kv[0].t() @ self.kv[1]",
        ),
        "remembers something from call to call that cannot be put back (kv.0, kv.1)",
    ),
    "an object remembers": (
        whole(
            "class Kept:\n    last = 0.0",
            construct="self.kept = Kept()",
            forward="last, self.kept.last = self.kept.last, x; return x - last",
        ),
        "stochastic",
    ),
    "the file remembers": (
        whole("LAST = [0.0]", forward="LAST.append(x); return x - LAST.pop(0)"),
        "stochastic",
    ),
    "state of the first call": (
        whole(
            construct="self.last = None",
            forward="y = x if self.last is None else x - self.last; self.last = x; return y * 2",
        ),
        "remembers something from call to call that cannot be put back (last)",
    ),
    "state twice": (
        whole(
            construct="self.kv = torch.zeros(2, 8); self.k = self.kv[0]",
            forward="self.k += x.mean(0); return x + self.kv.sum(0)",
        ),
        "Model keeps its state twice in the same memory (kv, k)",
    ),
    "os._exit": (
        whole(forward="import os; os._exit(0)"),
        "the reference's process ended itself with exit code 0 in Model's forward",
    ),
    "descriptors": (
        whole(
            "import os\nfor i in range(3, 99):\n"
            "    try: os.write(i, b'~' * 99)\n    except OSError: pass"
        ),
        "the reference writes to descriptors that are not its own while importing the file",
    ),
    "closes": (whole("import os\nos.closerange(0, 999)"), "ended itself with exit code 1"),
    "crash": (
        whole(forward="import ctypes; ctypes.string_at(0)"),
        "segmentation fault (SIGSEGV) in Model's forward",
    ),
    "input()": (whole(forward="input('how many? ')"), "the reference waits for input (line 13)"),
    "fork": (whole(forward="import os; os.fork(); return x"), "the reference forks (line 13)"),
    "fork bomb": (whole("import os\nwhile True: os.fork()"), "the reference forks (line 6)"),
    "process": (
        whole(
            "import multiprocessing as m",
            forward="p = m.get_context('fork').Process(target=print); p.start(); return x",
        ),
        "the reference forks (line 13)",
    ),
    "threads": (
        whole(
            "import threading\ndef spin():\n    while True: pass\nfor _ in range(8): "
            "threading.Thread(target=spin, name='busy\\n').start()"
        ),
        "the reference leaves a thread running (busy)",
    ),
    "idle thread": (
        whole("import threading as t", forward="t.Thread(target=t.Event().wait).start(); return x"),
        "the reference leaves a thread running (Thread-1",
    ),
    "program": (
        whole("import subprocess\nsubprocess.Popen(['sleep', '99'])"),
        "the reference leaves a process running (sleep)",
    ),
    "program of forward": (
        whole(
            "import subprocess", forward="subprocess.Popen('sleep 99 & exit', shell=True); return x"
        ),
        "the reference leaves a process running (sleep)",
    ),
    "huge inputs": (
        whole(inputs="return [torch.zeros(1).expand(1 << 34)]", forward="return x[:4]"),
        "the reference ran out of memory in get_inputs()",
    ),
    "huge output": (
        whole(forward="return x[:1, :1].expand(1 << 20, 1 << 14)"),
        "the reference ran out of memory in Model's forward",
    ),
    "many outputs": (
        whole(forward="return [x + 1 for _ in range(9000)]"),
        "forward's result holds too many tensors",
    ),
    "many threads": (
        whole(
            "import threading as t\nfor _ in range(9999): t.Thread(target=t.Event().wait).start()"
        ),
        "RuntimeError: can't start new thread",
    ),
    "breaks Python": (whole("import builtins\nbuiltins.len = None"), "importing the file"),
    "several lines": (
        whole(forward="raise ValueError('\\n\\n a \\x1b[31m\\u2028b \\n c')"),
        "ValueError: a [31m",
    ),
    "no words": (
        whole("class E(Exception):\n    def __str__(self): raise self", forward="raise E"),
        "Model's forward raises E (line 14)",
    ),
    "odd name": (
        whole(forward="raise type('a\\nb' * 999, (Exception,), {})"),
        "Model's forward raises a ba b",
    ),
    "surrogates": (whole(forward="raise ValueError('\\udcff')"), "ValueError: ? (line 13)"),
}
for part, source in everywhere("import sys; sys.exit(3)").items():
    BAD[f"sys.exit: {part}"] = (source, "the reference calls sys.exit (line ")
for part, source in everywhere("raise KeyboardInterrupt").items():
    BAD[f"interrupt: {part}"] = (source, "KeyboardInterrupt (line ")
for part, source in everywhere("x = torch.ones(1 << 50)").items():
    BAD[f"memory: {part}"] = (source, f"the reference ran out of memory {where(part)}")

# What is found where another of them is found every day: ``make soak`` has these, too.
LIKE_OTHERS = {
    *("decorated", "form feeds", "made"),
    *("list", "model instance", "plain class"),
    *("inputs array", "inputs dict", "inputs generator", "inputs meta", "inputs tensor"),
    *("inputs tensors", "init none", "grows", "many outputs", "output dtype", "output meta"),
    *("fork", "idle thread", "program of forward", "no words", "several lines"),
    *(f"{what}: {part}" for what in ("sys.exit", "interrupt", "memory") for part in SAME_WAY),
}


def parts(statement: str) -> list[Any]:
    """Returns the parts of a reference that has the statement there, marked in the same way."""
    return [
        pytest.param(part, source, marks=pytest.mark.slow if part in SAME_WAY else [])
        for part, source in everywhere(statement).items()
    ]


def kinds(table: dict[str, Any]) -> list[Any]:
    """Returns the names in a table, marked where they take no part every day."""
    return [pytest.param(k, marks=pytest.mark.slow) if k in LIKE_OTHERS else k for k in table]


def refused(evaluator: Evaluator, source: str, timeout_s: float = 30) -> Invalid:
    request = {"name": "bad", "source": source, "threads": 1, "timeout_s": timeout_s}
    with pytest.raises(Invalid) as e:
        evaluator.ask("inspect", request)
    said = e.value
    assert said.hint and said.message.isprintable() and len(said.message) < 500
    assert paths.ROOT not in said.traceback
    return said


@pytest.mark.parametrize("kind", kinds(BAD))
def test_a_bad_reference_is_invalid_in_one_sentence(evaluator: Evaluator, kind: str) -> None:
    source, said = BAD[kind]
    assert said in refused(evaluator, source).message


@pytest.mark.parametrize(("part", "source"), parts("while True: pass"))
def test_an_endless_part_is_named(evaluator: Evaluator, part: str, source: str) -> None:
    said = refused(evaluator, source, timeout_s=2)
    assert said.message == f"{part} took over 2 s"
    assert "a loop that does not end" in said.hint


def test_steps_that_are_slow_together_are_bounded(evaluator: Evaluator) -> None:
    source = whole("import time", forward="time.sleep(1.2); return torch.softmax(x, -1)")
    said = refused(evaluator, source, timeout_s=3)
    assert said.message == "inspecting the reference takes over 6 s; it was at Model's forward"


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        ("without .cuda()", "inputs cuda"),
        ("only PyTorch", "other package"),
        ("float64", "inputs dtype"),
    ],
)
def test_a_hint_is_about_what_went_wrong(evaluator: Evaluator, hint: str, kind: str) -> None:
    assert hint in refused(evaluator, BAD[kind][0]).hint


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("every index", "CUDA error: device-side assert triggered"),
        ("every index", "CUDA error: an illegal memory access was encountered"),
        ("without .cuda()", "Expected all tensors on one device, but found CUDA"),
    ],
)
def test_a_hint_is_about_what_cuda_says(evaluator: Evaluator, hint: str, said: str) -> None:
    found = refused(evaluator, whole(forward=f"raise RuntimeError({said!r})"))
    assert hint in found.hint and said in found.message


@pytest.mark.parametrize(("part", "source"), parts("a = [bytearray(1 << 24) for _ in range(9999)]"))
def test_memory_that_grows_is_bounded(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, part: str, source: str
) -> None:
    spawn = evaluator.server.spawn

    def small(*args: Any, **more: Any) -> Any:
        return spawn(*args, **more, limits=Limits(memory_bytes=512 << 20))

    monkeypatch.setattr(evaluator.server, "spawn", small)
    assert refused(evaluator, source).message == f"the reference ran out of memory {where(part)}"


GOOD = {
    "tabs": SOFTMAX.replace("    ", "\t"),
    "form feeds": SOFTMAX.replace("\n\n", "\n\f\n"),
    "windows": SOFTMAX.replace("\n", "\r\n"),
    "if": SOFTMAX.replace("class", "if True:\n  class").replace("\n    ", "\n        "),
    "long line": SOFTMAX + f"\nX = '{'a' * (1 << 20)}'\n",
    "made": SOFTMAX.replace("class Model(", "class Other(") + "\nModel = (lambda: Other)()\n",
    "decorated": SOFTMAX.replace("class Model(", "@(lambda c: c)\nclass Model("),
    "prints": whole(
        "import sys\nprint('x' * (100 << 20))",
        inputs="print('y' * (9 << 20), file=sys.stderr); return [torch.randn(8, 8)]",
    ),
    "reads its input": whole("import sys\nassert sys.stdin.read() == ''"),
    "kills its group": whole("import os\nos.killpg(0, 9)\nos.kill(os.getpid(), 19)"),
    "threads that end": whole(
        "from concurrent.futures import ThreadPoolExecutor as Pool",
        forward="\n        with Pool(2) as p: return list(p.map(torch.sin, x))",
    ),
    "programs that end": whole(
        "import subprocess",
        construct="subprocess.run(['true'])",
        forward="subprocess.Popen(['true']); return torch.sin(x)",
    ),
    "compiled": whole("@torch.compile\ndef sin(x): return torch.sin(x)", forward="return sin(x)"),
    "constant": whole(forward="return torch.ones_like(x)"),
    "nan": whole(forward="return x * float('nan')"),
}
FLAGS = {"constant": "constant_output", "nan": "non_finite_reference"}


@pytest.mark.parametrize("kind", kinds(GOOD))
def test_an_odd_reference_is_a_task(evaluator: Evaluator, kind: str) -> None:
    t = evaluator.task(GOOD[kind])
    assert t["outputs"] and t["notes"] if kind in FLAGS else not t["flags"]
    assert FLAGS.get(kind, "") in [*t["flags"], ""]


def test_what_a_reference_prints_is_not_kept(evaluator: Evaluator) -> None:
    with evaluator.server.spawn(ReferenceConfig()) as worker:
        worker.channel.send({"op": "import", "source": GOOD["prints"], "threads": 1})
        answer, _ = worker.channel.recv(120)
        assert answer["ok"] and 60 << 10 < len(worker.log()) < 70 << 10


def test_a_reference_that_breaks_later_is_no_task(evaluator: Evaluator) -> None:
    more = {"time": False, "known": evaluator.calibration(whole())}
    request = evaluator.request(
        whole(), whole() + "\n\nclass ModelNew(Model): pass\n", "quick", more
    )
    request["task"] = {**request["task"], "source": whole(forward="raise ValueError('enough')")}
    with pytest.raises(Invalid, match="Model's forward raises ValueError: enough"):
        evaluator.ask("evaluate", request)


def test_want_of_memory_in_calibration_is_nobodys_word() -> None:
    error = WorkerError(Failure("RuntimeError", "cannot allocate memory"))
    assert isinstance(faults.of_reference(error), faults.Infrastructure)
    broken = calibrate_family.ReferenceBroken(WorkerError(Failure("ValueError", stage="forward")))
    assert isinstance(faults.of_reference(broken), Invalid)
