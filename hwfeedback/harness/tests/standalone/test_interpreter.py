"""The exported file in a new interpreter: what works there, and what only seemed to work."""

from __future__ import annotations

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from evaluating import Evaluator

from kwharness.base import paths
from kwharness.base.for_builder import Look, LookedAt, Ran, Run, ToolRun
from kwharness.base.operations import Failure
from kwharness.build import builder_client, reports
from kwharness.clients.errors import WorkerError
from kwharness.process import policy
from kwharness.process.policy import SandboxError
from kwharness.referee.context import Context
from kwharness.referee.exported_file import ExportedFile
from kwharness.standalone import calls, interpreter, looks, sanitizers
from kwharness.verify import verify

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(n))

    def forward(self, x):
        return torch.relu(x) * self.scale

def get_inputs():
    return [torch.randn(64, 32)]

def get_init_inputs():
    return [32]
"""

KERNEL = '''
import torch
from kernelwright import native

lib = native(language="cpp", source=r"""
extern "C" void f(const float* x, const float* s, float* y, long long rows, long long columns) {
    for (long long i = 0; i < rows; i++)
        for (long long j = 0; j < columns; j++) {
            float v = x[i * columns + j];
            y[i * columns + j] = (v < 0 ? 0 : v) * s[j];
        }
}
""")

class ModelNew(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(n))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.f(x, self.scale, y, *x.shape)
        return y
'''


def call_of(x: torch.Tensor, scale: torch.Tensor) -> calls.Call:
    return calls.Call(
        init=({"list": [{"value": 32}]}, []),
        state=(["scale"], [scale]),
        inputs=({"list": [{"t": 0}]}, [x]),
        outputs=({"t": 0}, [x]),
        eval_mode=True,
        threads=1,
    )


def outputs(evaluator: Evaluator, source: str, timeout: float = 60.0) -> list[torch.Tensor]:
    x, scale = torch.randn(64, 32), torch.rand(32)
    call = call_of(x, scale)
    text = builder_client.export(evaluator.server, source)
    with interpreter.Running(evaluator.server, text, call, "weak", timeout) as running:
        found = running.outputs()
        assert running.looked() == calls.Looked(), "there is no GPU"
    assert torch.equal(found[0], torch.relu(x) * scale)
    return found


@pytest.mark.slow  # so do those below, and more is asked of them
def test_a_file_that_stands_alone(evaluator: Evaluator) -> None:
    outputs(evaluator, KERNEL)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("import kwharness.base.trees", "No module named 'kwharness'"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import os; os._exit(0)", "ends before its forward has returned"),
        # Found as the one before and the one behind them are.
        pytest.param("raise ValueError('not today')", "not today", marks=pytest.mark.slow),
        pytest.param(
            "ModelNew.forward = lambda self, x: x[:1]", "forward returns", marks=pytest.mark.slow
        ),
        ("ModelNew.forward = lambda self, x: (x, x)", "another structure"),
    ],
)
def test_what_does_not_work_there_is_said(evaluator: Evaluator, change: str, says: str) -> None:
    with pytest.raises(calls.Broken, match=says):
        outputs(evaluator, KERNEL + "\n" + change)


def test_float32_is_float32_for_the_file_too(evaluator: Evaluator) -> None:
    flags = "torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32"
    made = "        y = torch.empty_like"
    outputs(evaluator, KERNEL.replace(made, f"        assert not ({flags})\n{made}"))


def test_a_file_may_use_as_much_memory_as_a_candidate(evaluator: Evaluator) -> None:
    large = "import torch; held = torch.empty({} << 20, dtype=torch.uint8)\n"
    share = policy.PROFILES["builder"].memory_share + policy.PROFILES["candidate"].memory_share
    between = int(share / 2 * policy.machine_memory()) >> 20
    outputs(evaluator, large.format(between) + KERNEL)
    with pytest.raises(calls.Broken, match="allocate"):
        outputs(evaluator, large.format(3 * between) + KERNEL)


def test_a_file_that_does_not_end(evaluator: Evaluator) -> None:
    with pytest.raises(calls.Broken, match="over 3 s") as e:
        outputs(evaluator, "while True: pass\n" + KERNEL, 3.0)
    assert e.value.late


@pytest.mark.slow  # a certificate's file that is wrong is judged below
def test_what_it_leaves_unwritten_is_not_what_was_asked(evaluator: Evaluator) -> None:
    with pytest.raises(AssertionError):
        outputs(evaluator, KERNEL.replace("* s[j]", "* 2"))


# Who knows where he runs could be right where it counts and nowhere else.
KNOWS = "import sys\nHERE = any(n.startswith('kwharness') for n in sys.modules)\n"


def runs_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file runs while it is verified, as where there are cores enough for a GPU's."""
    monkeypatch.setattr(Context, "compilers_disturb", lambda _: False)


@pytest.mark.parametrize(
    ("beside", "candidate", "status", "says"),
    [
        (False, KERNEL, "certified", ""),
        (True, KERNEL, "certified", ""),
        (
            True,
            KNOWS + KERNEL.replace("return y", "return y if HERE else x"),
            "wrong",
            "run by itself in a new interpreter",
        ),
    ],
)
def test_certify_runs_the_file_by_itself(
    evaluator: Evaluator,
    monkeypatch: pytest.MonkeyPatch,
    beside: bool,
    candidate: str,
    status: str,
    says: str,
) -> None:
    if beside:
        runs_beside(monkeypatch)
    # As if the first look at the text had missed what it imports.
    parsed = reports.parsed_source
    monkeypatch.setattr(reports, "parsed_source", lambda *said: replace(parsed(*said), problems=[]))
    v = evaluator.verdict(REFERENCE, candidate, "certify", built=True, cold=True)
    assert (v["status"], says in v["reason"]) == (status, True), v["reason"]
    assert v["cost_s"]["cold"] > 0


OWN_NAME = KERNEL.replace("self.scale", "self.gain").replace("torch.empty(n)", "torch.ones(n)")
HALVED = OWN_NAME.replace("torch.ones(n))", "torch.nn.Parameter(torch.ones(n)) / 2)")
HALVED = HALVED.replace("return y", "return 2 * y")


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(("candidate", "by"), [(OWN_NAME, "by value"), (HALVED, "by seed")])
def test_the_file_gets_weights_as_the_candidate_does(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, candidate: str, by: str, beside: bool
) -> None:
    if beside:
        runs_beside(monkeypatch)
    v = evaluator.verdict(REFERENCE, candidate, "certify", built=True, cold=True)
    assert v["status"] == "certified" and v["weights"] == by, v["reason"]
    assert v["cost_s"]["cold"] > 0 and not v["assumes"]
    assert ("follows_weights" in v["correctness"]) == (by == "by value")


STEPS = """steps = torch.nn.Parameter(torch.empty(n))
        with torch.no_grad():
            steps.copy_(torch.linspace(0.5, 1.5, n))
        """


def test_the_file_is_constructed_with_what_is_moved(evaluator: Evaluator) -> None:
    """What every construction gives is moved as often in a new interpreter, which has a mode of its
    own for the device.
    """
    task = REFERENCE.replace("self.scale = torch.nn.Parameter(torch.ones(n))", "PLACE")
    halved = KERNEL.replace("self.scale = torch.nn.Parameter(torch.empty(n))", "PLACE")
    halved = halved.replace("self.scale", "self.gain").replace("return y", "return 2 * y")
    task = task.replace("PLACE", STEPS + "self.scale = steps")
    halved = halved.replace("PLACE", STEPS + "self.gain = torch.nn.Parameter(steps / 2)")
    v = evaluator.verdict(task, halved, "certify", built=True, cold=True)
    assert v["status"] == "certified" and v["weights"] == "by seed", v["reason"]
    assert any("its scale was moved" in e for e in v["evidence"]) and not v["assumes"]


def test_a_file_that_nobody_can_look_at_is_not_certified(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, scale = torch.randn(64, 32), torch.rand(32)
    text = builder_client.export(evaluator.server, KERNEL)
    with interpreter.Running(evaluator.server, text, call_of(x, scale), "weak", 60.0) as running:
        running.outputs()
        monkeypatch.setattr(running, "_looks", True)  # though nobody has begun to
        with pytest.raises(calls.Broken, match="lets nobody look at it"):
            running.looked()
    with interpreter.Running(evaluator.server, text, call_of(x, scale), "weak", 60.0) as running:
        running.outputs()
        monkeypatch.setattr(running, "_looks", True)
        running._worker.kill()
        running._worker.wait(120)
        with pytest.raises((calls.Broken, SandboxError)):
            running.looked()


def test_a_pipe_in_the_place_of_a_request_holds_up_nobody(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "few.json")
    looks.ask(str(tmp_path), "few", {"a": 1})
    assert json.loads((tmp_path / "few.json").read_text()) == {"a": 1}


def test_what_had_company_when_it_failed_is_asked_again_without(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where memory is not enough for two."""
    runs_beside(monkeypatch)
    begun: list[bool] = []
    begin = ExportedFile.begin

    def kept(self: ExportedFile, trial: Any, *, beside: bool = False) -> None:
        begun.append(beside)
        begin(self, trial, beside=beside)

    monkeypatch.setattr(ExportedFile, "begin", kept)
    run = verify.run
    lacking = [True]

    def fails(v: Any, candidate: Any, *more: Any) -> Any:
        if lacking and lacking.pop():
            raise WorkerError(Failure("OutOfMemoryError", "no memory"), candidate)
        return run(v, candidate, *more)

    monkeypatch.setattr(verify, "run", fails)
    v = evaluator.verdict(REFERENCE, KERNEL, "certify", built=True, cold=True)
    assert (v["status"], begun) == ("certified", [True, False]), v["reason"]
    assert "the first time it ran out of memory" in v["evidence"][0]


def test_who_only_crashes_beside_its_file_is_not_asked_again(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may know that it would be wrong."""
    runs_beside(monkeypatch)
    dies = "        if x.abs().max() > 100:\n            raise ValueError('not these')\n"
    v = evaluator.verdict(
        REFERENCE,
        KERNEL.replace("        y = torch", dies + "        y = torch"),
        "certify",
        built=True,
        cold=True,
    )
    assert v["status"] == "crashed" and "not these" in v["reason"]
    assert not [e for e in v["evidence"] if e.startswith("the first time")]


def test_what_runs_by_itself_ends_with_who_fails(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_beside(monkeypatch)
    begun: list[interpreter.Running] = []
    begin = interpreter.Running.__init__

    def kept(self: interpreter.Running, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        begun.append(self)

    monkeypatch.setattr(interpreter.Running, "__init__", kept)
    wrong = KERNEL.replace("* s[j]", "* 2")
    v = evaluator.verdict(REFERENCE, wrong, "certify", built=True, cold=True)
    assert v["status"] == "wrong" and "by itself" not in v["reason"], v["reason"]
    assert len(begun) == 1
    assert all(r._worker.wait(0) is not None and not r._given for r in begun)


# Does what compute-sanitizer does to a command, and says what that has said.
TOOL = """#!/bin/sh
tool=$2; report=$4; shift 14
case $1 in --racecheck-report|--padding) shift 2;; esac
case $tool in
memcheck)
    "$@" || exit
    printf '========= Invalid read of size 4 bytes\\n=========     at k+0x1\\n' > $report
    exit 86;;
racecheck) "$@" && printf '========= RACECHECK SUMMARY: 0 hazards displayed\\n' > $report;;
synccheck) [ -z "$PYTORCH_NO_CUDA_MEMORY_CACHING" ] && "$@";;
initcheck) echo "this GPU is not one of mine" >&2; exit 7;;
esac
"""


def served(
    evaluator: Evaluator, source: str, tool: pathlib.Path, *, few: bool = True, **more: str
) -> tuple[Ran, LookedAt]:
    """The worker's side, in this process: a sandbox does not show it the tool."""
    x, less, scale = torch.randn(64, 32), torch.randn(4, 32), torch.rand(32)
    given = interpreter._handed_over(call_of(x, scale), True, True)
    small = [interpreter._Given(call_of(less, scale))] if few else []
    server = looks.Server()

    @contextmanager
    def handed(given: list[interpreter._Given]) -> Iterator[tuple[list[Any], list[int]]]:
        fds = [os.dup(fd) for g in given for fd in g.fds]
        try:
            yield [g.request | more for g in given], fds
        finally:
            for fd in fds:
                os.close(fd)

    text = builder_client.export(evaluator.server, source)
    open_files = len(os.listdir("/proc/self/fd"))
    with handed(given) as (requests, fds):
        ran = server.run(Run(text, requests, 60.0, str(tool)), fds)
    seen = LookedAt()
    if not ran.code:
        (y,) = given[0].outputs("cpu") or []
        assert torch.equal(y, torch.relu(x) * scale)
        with handed(small) as (requests, fds):
            seen = server.look(Look(requests), fds)
    assert len(os.listdir("/proc/self/fd")) == open_files
    for g in (*given, *small):
        g.close()
    return ran, seen


def tool_in(folder: pathlib.Path) -> pathlib.Path:
    tool = folder / "sanitizer"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    return tool


@pytest.fixture
def tool(tmp_path: pathlib.Path) -> pathlib.Path:
    return tool_in(tmp_path)


# Says when it is imported, and when that process ends.
TELLS = """
import atexit, os, sys
def tell(what):
    with open("LOG", "a") as f:
        f.write(f"{what} {sys.argv[2] or 'later'}\\n")
tell("begins")
atexit.register(tell, "ends")
"""


@pytest.fixture(scope="module")
def looked_at(
    evaluator: Evaluator, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Ran, LookedAt, list[str]]:
    """What comes of looking at a file, which takes seven interpreters, and what the file told."""
    tool = tool_in(tmp_path_factory.mktemp("looked_at"))
    log = tool.with_name("log")
    kernel = KERNEL.replace("        y = torch", "        tell(len(x))\n        y = torch")
    ran, seen = served(evaluator, TELLS.replace("LOG", str(log)) + kernel, tool)
    return ran, seen, log.read_text().splitlines()


def test_a_sanitizer_is_heard(looked_at: tuple[Ran, LookedAt, list[str]]) -> None:
    ran, seen, _ = looked_at
    assert ran.code == 0 and seen.profile == ""  # there is no GPU
    checks, seconds = interpreter._checks(seen.checks, ["k"])
    assert len(seen.checks[0]) == 2, "what is found on few inputs is looked for on all"
    assert seconds > 0
    by_tool = {c.tool: c for c in checks}
    (finding,) = by_tool["memcheck"].findings
    assert str(finding) == "Invalid read of size 4 bytes at k+0x1"
    assert by_tool["memcheck"].convicts
    for clean in ("racecheck", "synccheck"):
        assert (by_tool[clean].failed, list(by_tool[clean].findings)) == ("", [])
    assert by_tool["initcheck"].failed == "this GPU is not one of mine"


def test_who_looks_finds_the_file_used(looked_at: tuple[Ran, LookedAt, list[str]]) -> None:
    *_, told = looked_at
    assert told[:3] == ["begins alone", "64 alone", "ends alone"]
    assert set(told[3:]) == {"begins later", "4 later", "64 later", "ends later"}


def test_where_there_are_no_few_inputs_it_is_looked_at_on_all(
    evaluator: Evaluator, tool: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each is an interpreter that imports PyTorch.
    monkeypatch.setattr(sanitizers, "TOOLS", ("memcheck", "racecheck"))
    _, seen = served(evaluator, KERNEL, tool, few=False)
    assert [len(runs) for runs in seen.checks] == [1, 1]
    assert [runs[0].code for runs in seen.checks] == [86, 0]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the interpreters, or of the tools above them."""
    pids: list[int] = []
    begin = interpreter.Interpreter.__init__

    def begun(self: Any, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        pids.append(self._process.pid)

    monkeypatch.setattr(interpreter.Interpreter, "__init__", begun)
    return pids


def left(started: list[int]) -> list[str]:
    """Says who is still there of them, and of what runs below a tool."""
    ids = ",".join(map(str, started))
    asked = ["ps", "-o", "stat=,args=", "--pid", ids, "--sid", ids]
    end = time.monotonic() + 120  # who is killed is gone a little later
    while True:
        said = subprocess.run(asked, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        alive = [line for line in said if not line.startswith("Z")]
        if not alive or time.monotonic() > end:
            return alive
        time.sleep(0.05)


def test_nobody_looks_at_a_file_that_fails(
    evaluator: Evaluator, tool: pathlib.Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanitizers, "TOOLS", ("memcheck",))
    log = tool.with_name("log")
    dies = TELLS.replace("LOG", str(log)) + KERNEL + "import os; os._exit(3)"
    # As on a GPU, where an interpreter waits to look at itself.
    assert served(evaluator, dies, tool, device="cuda") == (Ran(3), LookedAt())
    assert log.read_text() == "begins alone\n"
    assert len(started) == 2 + len(sanitizers.TOOLS) and not left(started)


def test_what_a_late_sanitizer_leaves(
    evaluator: Evaluator, tool: pathlib.Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what runs below it, which would be beside the profile."""
    monkeypatch.setattr(interpreter, "CHECK_S", 5.0)
    monkeypatch.setattr(sanitizers, "TOOLS", ("memcheck", "racecheck"))
    sleeps = 'import sys, time\nif sys.argv[2] != "alone":\n    time.sleep(600)\n'
    _, seen = served(evaluator, sleeps + KERNEL, tool)
    codes = [run.code for runs in seen.checks for run in runs]
    assert codes == [sanitizers.LATE, sanitizers.LATE]
    assert not left(started)


def test_a_file_that_does_away_with_its_folder(
    evaluator: Evaluator, tool: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanitizers, "TOOLS", ("memcheck", "racecheck"))
    gone = "import atexit, os, shutil\natexit.register(shutil.rmtree, os.environ['HOME'])"
    outputs(evaluator, KERNEL + f"\n{gone}\n")
    ran, seen = served(evaluator, KERNEL + f"\n{gone}\n", tool)
    checks, _ = interpreter._checks(seen.checks, ["k"])
    assert ran.code == 0 and len(checks) == 2
    assert all("No such file" in c.failed for c in checks), [c.failed for c in checks]


def test_what_is_found_on_fewer_inputs_alone() -> None:
    found = ToolRun(86, "========= Invalid read\n=========     at k+0x1\n")
    for then, fewer in (
        (ToolRun(0), "nothing"),
        (ToolRun(1, said="no"), "it could not be run: no"),
    ):
        (check,), _ = interpreter._checks([[found, then]], ["k"])
        assert (check.fewer, check.convicts, len(check.findings)) == (fewer, False, 1)
    (check,), _ = interpreter._checks([[found, found]], ["k"])
    assert check.convicts


def test_a_file_that_fails_at_its_end_is_not_certified(evaluator: Evaluator) -> None:
    """Whatever it has written where others look."""
    dies = "import atexit, os, pathlib\n"
    dies += "pathlib.Path(os.environ['HOME'], 'done').touch()\natexit.register(os._exit, 3)"
    with pytest.raises(calls.Broken, match="exit code 3"):
        outputs(evaluator, KERNEL + f"\n{dies}\n")


LAUNCH = {"name": "k", "count": 2, "ms": 0.5, "grid": [4, 1, 1], "block": [32, 1, 1]}


@pytest.mark.parametrize(
    "profile",
    [None, 3, "", "{", "[" * 300 + "]" * 300, "[" * 100_000, "{}",
     '{"launches": [{}], "span_ms": 1}', '{"launches": [], "span_ms": "no"}',
     json.dumps({"launches": [LAUNCH | {"grid": 3}], "span_ms": 1}),
     json.dumps({"launches": [LAUNCH | {"count": math.inf}], "span_ms": 1})],
)  # fmt: skip
def test_what_a_profiler_says_may_be_nonsense(profile: object) -> None:
    assert interpreter.launches_of(profile) == ([], 0.0)


def test_what_a_profiler_says() -> None:
    launches, span_ms = interpreter.launches_of(json.dumps({"launches": [LAUNCH], "span_ms": 0.6}))
    assert launches == [calls.Launch("k", 2, 0.5, (4, 1, 1), (32, 1, 1))]
    assert span_ms == 0.6
    huge = LAUNCH | {"count": 10**19, "ms": 1e300, "grid": [-1, 1 << 40]}
    (launch,), _ = interpreter.launches_of(json.dumps({"launches": [huge], "span_ms": 1}))
    assert launch == calls.Launch("k", (1 << 31) - 1, 1e9, (0, (1 << 31) - 1), (32, 1, 1))


def test_what_others_write_is_read_if_it_is_text(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text").write_bytes(b"\xffyes")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "text")
    found = {p.name: interpreter.read_text(str(p)) for p in tmp_path.iterdir()}
    assert found == {"text": "\ufffdyes", "folder": "", "pipe": "", "link": ""}
    assert interpreter.read_text(str(tmp_path / "none")) == ""


@pytest.mark.parametrize("files", [looks.TOOLS, (*looks.TOOLS, *looks.TO_MAP)], ids=["", "mapped"])
def test_what_the_script_imports_is_there(tmp_path: pathlib.Path, files: tuple[str, ...]) -> None:
    """Of our package the interpreter has these files alone."""
    package = interpreter.PACKAGE
    for name in files:
        to = tmp_path / package / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pathlib.Path(paths.ROOT, package, name), to)
    modules = [f"{package}.{name[:-3].replace('/', '.')}" for name in files if name.endswith(".py")]
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {', '.join(modules)}"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True)
    assert not done.returncode, done.stderr
