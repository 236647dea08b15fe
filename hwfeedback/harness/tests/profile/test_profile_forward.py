"""The profile of a candidate: reports that ncu wrote on a GPU, read; and an ncu that behaves badly,
in a real sandbox. Whether it holds on a GPU: test_gpu.py.
"""

from __future__ import annotations

import os
import pathlib
import re
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kwharness.base.configs import ProfilerConfig
from kwharness.base.learned import Learned
from kwharness.base.protocol import ProtocolError
from kwharness.base.requests import Ceilings, Request
from kwharness.base.verdicts import CorrectnessReport, Floor, Kernel, Profile, Verdict
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.warm_processes import WarmProcesses
from kwharness.machine import device as devices
from kwharness.machine import toolchain
from kwharness.process.fork_client import ForkServer
from kwharness.process.policy import Limits
from kwharness.profile import kernel_kinds, kernel_work, ncu, profile_forward, under_ncu
from kwharness.referee import doctor, profiles
from kwharness.referee.context import Context
from kwharness.workers import profiler as worker_profiler

HERE = pathlib.Path(__file__).parents[1]
CANDIDATE = """
import torch, torch.nn as nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""
KERNELS = [Kernel("relu(const float*, float*, long)", registers=16)]


def taken(profiler: profile_forward.Profiler, subject: under_ncu.Subject) -> dict[str, Any]:
    """Takes a profile, and returns it as a verdict has it."""
    return profiler.profile(subject).to_json()


def told_of(profiler: profile_forward.Profiler, *given: Any) -> dict[str, Any]:
    return profiler._told(*given).to_json()


def position(profile: dict[str, Any], ceilings: dict[str, Any], least: int) -> dict[str, float]:
    whole = {"tool": "ncu"} | profile
    given = Profile.from_json(whole), Ceilings.from_json(ceilings)
    return kernel_work.position(*given, least)


def together(kernels: list[dict[str, Any]]) -> dict[str, float]:
    return kernel_kinds.together([(k["ms"], k["metrics"]) for k in kernels])


def subject(source: str = CANDIDATE) -> under_ncu.Subject:
    def load(client: CandidateClient) -> None:
        client.load(source, [], [], threads=1, timeout=120)
        client.init({"tuple": []}, [], eval_mode=False, timeout=120)

    x = torch.zeros(4)
    return under_ncu.Subject(load, {"tuple": [{"t": 0}]}, [x], lambda: KERNELS, True)


def lists(*kinds: Any, **more: Any) -> kernel_kinds.Seen:
    """What PyTorch's profiler saw."""
    return kernel_kinds.Seen([kernel_kinds.Kind(*kind) for kind in kinds], **more)


def profiler(server: ForkServer, **more: Any) -> profile_forward.Profiler:
    return profile_forward.Profiler(server, devices.CPU, ProfilerConfig(), Limits(), (), 90, **more)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Puts a program in ncu's place: ``$report`` is where its report goes, ``"$@"`` what it is to
    start. It lies where the sandbox's user may look.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = pathlib.Path(folder, "ncu")

        def place(body: str) -> None:
            program.write_text(HEAD + body)
            program.chmod(0o755)
            monkeypatch.setattr(toolchain, "ncu", lambda: str(program))

        yield place


HEAD = """#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    --log-file) report=$2; shift 2; break;;
    --metrics) metrics=$2; shift 2;;
    *) shift;;
  esac
done
"""
WRITES = """cat > $report <<'END'
==PROF== Connected to process 1
"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","sm__cycles_active.avg"
"","","","","ns","cycle"
"0","void relu<4>(const float *, float *)","(256, 1, 1)","(4, 1, 1)","2,000","n/a"
"1","relu(const float *)","(256, 1, 1)","(8, 1, 1)","6000","9"
END
"""


ENDS = """cat > $report <<'END'
==PROF== Disconnected from process 1
END
"""


def says(*lines: str) -> str:
    return "cat > $report <<'END'\n" + "".join(f"=={w}\n" for w in lines) + "END\n"


def test_what_ncu_measured(server: ForkServer, fake: Callable[[str], None]) -> None:
    """All of it but ncu and the GPU."""
    fake('"$@"\n' + WRITES)
    p = profiler(server)
    found = taken(p, subject())
    assert (found["tool"], found["launches"], p.passing) == ("ncu", 2, False)
    assert found["ms"] == pytest.approx(0.008)
    first, second = found["kernels"]
    assert first["name"] == "relu(const float *)" and first["whose"] == "custom"
    assert (first["share"], first["grid"], first["block"]) == (0.75, [8, 1, 1], [256, 1, 1])
    assert first["metrics"] == {kernel_kinds.TIME: 6000.0, "sm__cycles_active.avg": 9.0}
    assert second["metrics"] == {kernel_kinds.TIME: 2000.0}, "what is no number is absent"
    assert found["metrics"] == {kernel_kinds.TIME: 8000.0, "sm__cycles_active.avg": 9.0}
    assert "dram__bytes_read.sum" in found["missing"]
    assert kernel_kinds.TIME not in found["missing"]
    # A CPU's forward cannot be captured as a graph of a GPU's, nor listed.
    assert "how often each kernel is launched is not known" in found["why"]


@pytest.fixture
def ahead(
    server: ForkServer, fake: Callable[[str], None]
) -> Iterator[tuple[profile_forward.Profiler, WarmProcesses]]:
    """A profiler whose processes have started; who starts one now gets nothing. That takes twelve
    seconds of processor time: what is not one of the three everyday cases runs by ``make soak``.
    """
    fake('"$@"\n' + WRITES)
    spares = WarmProcesses()
    p = profiler(server, warm=spares)
    p.ahead()
    spares.wait()
    fake("exit 1\n")
    yield p, spares
    spares.close()


@pytest.mark.slow
def test_it_is_started_ahead(ahead: tuple[profile_forward.Profiler, WarmProcesses]) -> None:
    p, spares = ahead
    for _ in range(profile_forward.AHEAD):
        assert taken(p, subject())["tool"] == "ncu"
    assert not spares, "one candidate each"
    assert taken(p, subject())["tool"] == "static"


def test_its_context_is_made_ahead(ahead: tuple[profile_forward.Profiler, WarmProcesses]) -> None:
    p, spares = ahead
    for _ in range(2):  # the other ones stay where they are
        p.begin()
        spares.wait_for_prepared()
    begun = spares.take(*p.keys)
    assert begun.began and not spares.take(*p.keys).began
    begun.kill()
    p.begin()
    assert taken(p, subject())["tool"] == "ncu"
    p.begin()
    assert taken(p, subject())["tool"] == "static", "one candidate each"


@pytest.mark.slow
def test_one_whose_context_is_made_is_there_for_the_next(
    ahead: tuple[profile_forward.Profiler, WarmProcesses], server: ForkServer
) -> None:
    p, spares = ahead
    p.begin()
    later = profiler(server, warm=spares)
    later.begin()
    spares.wait_for_prepared()
    assert taken(later, subject())["tool"] == "ncu"
    assert not any(served.began for served in (spares.take(*p.keys), spares.take(*p.keys)))


@pytest.mark.slow
def test_who_has_not_started_is_not_waited_for(
    server: ForkServer, fake: Callable[[str], None], tmp_path: pathlib.Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    fake(f'read _ <{go}; "$@"\n' + WRITES)
    spares = WarmProcesses()
    p = profiler(server, warm=spares)
    p.begin()  # nothing was started
    p.ahead()
    p.begin()
    spares.wait_for_prepared()
    go.write_text("\n")  # until here it did not start
    spares.wait()
    assert spares
    spares.close()


@pytest.mark.parametrize("made", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_whose_context_was_not_needed_ends(
    server: ForkServer,
    ahead: tuple[profile_forward.Profiler, WarmProcesses],
    monkeypatch: pytest.MonkeyPatch,
    made: bool,
) -> None:
    p, spares = ahead
    if not made:  # it does not answer

        def waits(served: under_ncu.Served) -> under_ncu.Served:
            try:
                served.channel.recv(120)
            except ProtocolError:
                served.kill()
                raise
            raise AssertionError("it answered")

        monkeypatch.setattr(p, "_begin_ahead", waits)
    p.begin()
    if made:
        spares.wait_for_prepared()
    spares.close()
    end = time.monotonic() + 120
    while server.ping().workers and time.monotonic() < end:
        time.sleep(0.05)
    assert server.ping().workers == 0


@pytest.mark.slow
def test_a_context_that_cannot_be_made_is_not_spoken_of(
    ahead: tuple[profile_forward.Profiler, WarmProcesses], monkeypatch: pytest.MonkeyPatch
) -> None:
    p, spares = ahead
    begin = p._begin_ahead

    def ended(served: under_ncu.Served) -> under_ncu.Served:
        served.end()
        served.wait(120)
        return begin(served)

    monkeypatch.setattr(p, "_begin_ahead", ended)
    p.begin()
    spares.wait_for_prepared()
    assert taken(p, subject())["tool"] == "ncu"
    assert spares.take(*p.keys) is not None and not spares, "it has ended, and one was used"


def test_one_that_has_ended_is_left_out(
    ahead: tuple[profile_forward.Profiler, WarmProcesses],
) -> None:
    p, spares = ahead
    p.begin()
    spares.wait_for_prepared()
    first, second = spares.take(*p.keys), spares.take(*p.keys)
    for served, key in zip((first, second), p.keys, strict=False):
        served.end()
        served.wait(120)
        spares.begin(key, lambda served=served: served)
    assert taken(p, subject())["tool"] == "ncu" and taken(p, subject())["tool"] == "static"


def test_one_that_hangs_at_its_start_is_waited_for_once(
    server: ForkServer,
    fake: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profile_forward, "START_S", 4.0)
    fake("sleep 1000\n")
    spares = WarmProcesses()
    p = profiler(server, warm=spares)
    monkeypatch.setattr(p, "_listed", lambda _: lists(("relu", (8,), (256,), 1, 0.5)))
    p.ahead()
    found = taken(p, subject())
    late = profile_forward._late[p._program]
    assert len(late) == profile_forward.AHEAD, "those that were started at once, and no other"
    why = "ncu did not start within 4 s, twice or more: it is not asked for 10 minutes"
    for _ in range(2):
        assert (found["tool"], found["why"], p.passing) == ("profiler", why, True)
        p.ahead()
        assert not spares
        p.passing, times = False, list(late)
        found = taken(p, subject())
        assert late == times, "it was started again"
    fake('"$@"\n' + WRITES)
    monkeypatch.setattr(profile_forward, "START_S", 30.0)
    assert taken(p, subject())["tool"] == "profiler", "it is the same program"
    monkeypatch.setattr(profile_forward, "REST_S", 0.0)
    assert taken(p, subject())["tool"] == "ncu"
    monkeypatch.setattr(profile_forward, "REST_S", 600.0)
    assert not p._rests(), "it has started since"
    spares.close()


PERMISSION = "ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU"
BUSY = "ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other"
OLD = "echo \"==ERROR== unrecognised option '--filter-mode'. Use --help for details\"; exit 1\n"


def rarely(*case: object) -> Any:
    """An ncu that imports PyTorch, as those beside it do every day: by ``make soak`` alone."""
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("body", "why", "passing"),
    [
        (None, "Nsight Compute (ncu) is not there", False),
        ('"$@"\n' + says(PERMISSION), "NVreg_RestrictProfilingToAdminUsers", False),
        rarely('"$@"\n' + says(BUSY), "the GPU's counters are busy", True),
        (OLD, "this ncu is too old", False),
        rarely('"$@"\n' + says("ERROR== Cuda driver is not compatible"), "says: Cuda driver", True),
        ('"$@"\n' + ENDS, "ncu saw no kernel", False),
        rarely('"$@"\nexit 3\n', "ncu saw no kernel (exit code 3)", False),
        ("echo cannot open shared object file; exit 127\n", "exit code 127: cannot open", False),
        ("kill -9 $$\n", "ncu was killed by signal 9", True),
        ("sleep 1000\n", "ncu did not start within 3 s", True),
        ('"$@"\nsleep 1000\n', "ncu does not answer", True),
        rarely('"$@"\nyes x | head -c 9000000 > $report\n', "saw no kernel", False),
    ],
    ids=[
        "absent", "permission", "busy", "old", "other words", "no kernel", "exits", "broken",
        "killed", "hangs at start", "hangs at the end", "junk",
    ],
)  # fmt: skip
def test_an_ncu_that_cannot(
    server: ForkServer,
    fake: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    body: str | None,
    why: str,
    passing: bool,
) -> None:
    """Each is named, bounded in time, and PyTorch's profiler and then the compiler come instead."""
    if body is None:
        monkeypatch.setattr(toolchain, "ncu", lambda: "")
    else:
        fake(body)
    if "sleep" in (body or ""):
        monkeypatch.setattr(profile_forward, "START_S", 3.0 if not body.startswith('"') else 30.0)
        monkeypatch.setattr(under_ncu, "REPORT_S", 3.0)
    seen: list[str] = []

    def listed(_: under_ncu.Subject) -> kernel_kinds.Seen:
        seen.append("asked")
        raise under_ncu.NoProfile("no GPU here")

    p = profiler(server)
    monkeypatch.setattr(p, "_listed", listed)
    found = taken(p, subject())
    assert why in found["why"] and "no GPU here" in found["why"]
    assert (found["tool"], p.passing, seen) == ("static", passing, ["asked"])
    assert found["kernels"][0]["metrics"]["launch__registers_per_thread"] == 16


NOT_KNOWN = """
case $metrics in *lts__t_bytes.sum,*) echo "==ERROR== Failed to find metric lts__t_bytes.sum"; exit 1;; esac
case $metrics in
  *dram__bytes_read.sum,*dram__bytes_write.sum*) "$@"
    echo '==ERROR== Failed to find metric dram__bytes_read.sum, dram__bytes_write.' > $report; exit 0;;
esac
"$@"
"""  # noqa: E501


def starts(p: profile_forward.Profiler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes with how many metrics ncu is started."""
    found: list[int] = []
    start = p._start

    def noted() -> under_ncu.Served:
        found.append(len(p._known))
        return start()

    monkeypatch.setattr(p, "_start", noted)
    return found


def test_metrics_that_ncu_does_not_know_are_left_out(
    server: ForkServer, fake: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start, and at the first launch."""
    fake(NOT_KNOWN + WRITES)
    unknown = {"lts__t_bytes.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"}
    n = len(ncu.selection(90))
    for expected in ([n, n, n - 1, n - 3, n - 3], [n - 3]):
        p = profiler(server)
        begun = starts(p, monkeypatch)
        monkeypatch.setattr(p, "_listed", lambda _: lists(("relu", (8, 1, 1), (256, 1, 1), 1)))
        found = taken(p, subject())
        assert (found["tool"], p.passing, begun) == ("ncu", False, expected)
        assert unknown < set(found["missing"]) and kernel_kinds.TIME not in found["missing"]


def test_what_a_candidate_says_ncu_does_not_know_is_not_remembered(
    server: ForkServer, fake: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake('"$@"\n')
    p = profiler(server)
    begun = starts(p, monkeypatch)
    monkeypatch.setattr(p, "_listed", lambda _: lists(("relu", (8, 1, 1), (256, 1, 1), 1)))
    says = "import os; open(os.environ['TMPDIR'] + '/report.csv', 'w')"
    says += ".write('==ERROR== Failed to find metric lts__t_bytes.sum')"
    found = taken(p, subject(CANDIDATE.replace("return", f"{says}\n        return")))
    assert (found["tool"], len(begun)) == ("profiler", 2)
    assert "Failed to find metric lts__t_bytes.sum" in found["why"]
    assert begun[0] == len(p._known), "it is asked for all"


def test_an_ncu_that_knows_no_metric_is_left(
    server: ForkServer, fake: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for none it would measure what it likes."""
    fake("exit 1\n")
    p = profiler(server)
    monkeypatch.setattr(p, "_named", {m: m for m in "abc"})
    tried = iter([["a"], ["b", "c"]])
    monkeypatch.setattr(p, "_refused", lambda: next(tried))
    assert p._learn_unknown() and p._known == ["b", "c"]
    refusing = iter(range(1000))
    monkeypatch.setattr(p, "_named", {f"a__{i}": f"a__{i}" for i in range(100)})
    monkeypatch.setattr(p, "_refused", lambda: [f"a__{next(refusing)}"])
    assert p._learn_unknown() and len(p._known) == 100 - profile_forward.MOST_REFUSALS


def test_which_metrics_ncu_names() -> None:
    asked = ["dram__bytes.sum", "dram__bytes.sum.per_second", "dram__bytes_read.sum", "a__b.avg"]

    def named(*words: str) -> list[str]:
        return ncu.unknown(ncu.Report(errors=list(words)), asked)

    said = "Failed to find metric {}"
    assert named(said.format("dram__bytes.sum")) == asked[:1]
    assert named(said.format("'dram__bytes.sum.per_second'.")) == asked[1:2]
    assert named(said.format("dram__bytes_read.sum, a__b.avg."), "others") == asked[2:]
    assert named(said.format("dram__bytes")) == asked[:2]
    assert named(said.format("regex:other__one.sum"), "It says dram__bytes.sum") == []
    assert named() == []
    told = ncu.Report(warnings=[said.format("a__b.avg")])
    assert ncu.unknown(told, asked) == ["a__b.avg"] and ncu.unknown(told, ()) == []


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        ("raise ValueError('not twice')", "it fails under ncu in a forward: ValueError: not twice"),
        ("import os; os._exit(3)", "its process ended under ncu in a forward"),
        # As the exploit does that kills ncu.
        rarely(
            "import os; os.kill(os.getppid(), 9); import time; time.sleep(60)", "ncu was killed"
        ),
    ],
)
def test_a_candidate_that_fails_under_it(
    server: ForkServer,
    fake: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    forward: str,
    why: str,
) -> None:
    fake('"$@"\n')
    source = CANDIDATE.replace("return", f"{forward}\n        return")
    p = profiler(server)
    monkeypatch.setattr(p, "_listed", lambda _: lists(("relu", (8,), (256,), 1, 0.5)))
    found = taken(p, subject(source))
    assert found["tool"] == "profiler" and why in found["why"]
    assert (found["launches"], found["ms"], found["kernels"][0]["share"]) == (1, 0.5, 1.0)


def test_the_exploit_that_kills_ncu(
    server: ForkServer, fake: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gains no more than a sentence; whoever is profiled next has a profile."""
    fake('"$@"\n' + WRITES)
    p = profiler(server)
    monkeypatch.setattr(p, "_listed", lambda _: lists(("relu", (8,), (256,), 1, 0.5)))
    found = taken(p, subject((HERE / "exploits" / "cuda" / "kills_ncu.py").read_text()))
    assert (found["tool"], found["launches"], p.passing) == ("profiler", 1, True)
    assert "ncu" in found["why"], found["why"]
    assert taken(p, subject())["tool"] == "ncu"


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        ("import time; time.sleep(1000)", "it takes ncu over 2 s: what it had measured by then"),
        (
            "import os; os._exit(3)",
            "its process ended under ncu in a forward: what it had measured",
        ),
    ],
)
def test_what_was_measured_until_it_was_cut_off(
    server: ForkServer,
    fake: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    forward: str,
    why: str,
) -> None:
    if "sleep" in forward:
        monkeypatch.setattr(profile_forward, "MEASURE_S", 2.0)
    # ncu writes what it knows when its program has been killed; a script that starts ncu is not.
    fake('sh -c \'"$@"; true\' sh "$@"\n' + WRITES)
    p = profiler(server)
    monkeypatch.setattr(p, "_listed", lambda _: lists(("relu", (8, 1, 1), (256, 1, 1), 3)))
    found = taken(p, subject(CANDIDATE.replace("return", f"{forward}\n        return")))
    assert found["tool"] == "ncu" and p.passing
    assert found["why"].startswith(why)
    assert found["kernels"][0]["launches"] == 3
    assert found["kernels"][0]["metrics"][kernel_kinds.TIME] == 18000, "a sum is of all launches"


def test_no_processes_are_left(server: ForkServer, fake: Callable[[str], None]) -> None:
    fake("sleep 1000 & sleep 1000 & exit 1\n")
    taken(profiler(server), subject())
    end = time.monotonic() + 120
    while server.ping().workers and time.monotonic() < end:
        time.sleep(0.05)
    assert server.ping().workers == 0


def test_a_report_of_three_kernels() -> None:
    """As release 2025.3.1 wrote it on an H200, where a locale separates thousands; columns that
    say what the GPU is are left out. L1's own throughput was asked for then, and not its parts, nor
    what the tensor cores do by type.
    """
    report = ncu.read((HERE / "ncu" / "three_kernels.csv").read_text())
    assert not report.errors and ncu.complaint(report) == ("", True)
    straight, strided, conflicts = report.rows
    assert [ncu.base(r.name) for r in report.rows] == ["strided", "strided", "conflicts"]
    assert straight.grid == (65536, 1, 1) and conflicts.block == (1024, 1, 1)
    parts = ("data_pipe_lsu_wavefronts", "m_l1tex2xbar_req_cycles_active", "lsuin_requests")
    later = {f"l1tex__{part}.avg.pct_of_peak_sustained_active" for part in parts}
    asked = set(ncu.selection(90))
    later |= {m for m in asked if m.startswith("sm__ops_path_tensor_src_")}
    later |= {m for m in asked if m.startswith("lts__t_sectors_srcunit_tex")}
    assert later < asked
    assert all(asked - later <= set(r.metrics) for r in report.rows)
    assert straight.metrics[kernel_kinds.TIME] == 56704
    assert straight.metrics["dram__bytes.sum.per_second"] == pytest.approx(2.0323566591e12)
    sectors = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
    assert (straight.metrics[sectors], strided.metrics[sectors]) == (4, 32)
    assert conflicts.metrics["l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"] > 3e7


@pytest.mark.parametrize(
    ("words", "ours", "passing"),
    [
        ("ERR_NVGPUCTRPERM - no permission to access", "RestrictProfilingToAdminUsers", False),
        ("Profiling failed because a driver resource was unavailable.", "a monitor such as", True),
        ("Failed to access the interprocess lock file.", "another ncu holds them", True),
        ("Failed to find metric sm__what.sum", "not know all metrics", False),
        ("unrecognised option '--filter-mode'", "too old", False),
        ("Profiling is not supported on this device", "does not support this GPU", False),
        ("Something else", "ncu says: Something else", True),
    ],
)
def test_what_ncu_says_is_told_in_a_sentence(words: str, ours: str, passing: bool) -> None:
    told, again = ncu.complaint(ncu.Report(errors=[words]))
    assert ours in told and again == passing
    told, again = ncu.complaint(ncu.Report(errors=["Something else"], warnings=[words]))
    assert ours in told and again == passing, "what it knows comes first"


def test_kinds_find_their_rows() -> None:
    """Names as the driver's graph and as ncu have them, which are not the same."""
    report = ncu.read((HERE / "ncu" / "three_kernels.csv").read_text())
    report.rows += ncu.read((HERE / "ncu" / "eager_softmax.csv").read_text()).rows
    listed = [
        ["strided(float const*, float*, long, int)", [65536, 1, 1], [256, 1, 1], 2],
        ["void conflicts<3>(float const*, float*, long)", [16384, 1, 1], [1024, 1, 1], 1],
        [
            "void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<float, 4>(float*)",
            [8192, 1, 1],
            [1024, 1, 1],
            1,
        ],
        ["another(int)", [7, 1, 1], [32, 1, 1], 5],
    ]
    p = profile_forward.Profiler(None, devices.CPU, ProfilerConfig(), Limits(), (), 90)
    seen = kernel_kinds.Seen(kernel_kinds.kinds_of(listed), report)
    found = told_of(p, subject(), seen, "ncu", "")
    assert found["launches"] == 9
    assert found["why"] == "3 of 4 kinds of launches were measured"
    by_name = {ncu.base(k["name"]): k for k in found["kernels"]}
    assert by_name["strided"]["ms"] == pytest.approx(0.056704 + 0.295808)
    assert by_name["strided"]["metrics"]["dram__bytes_read.sum"] == 67117056 + 1073741056
    assert by_name["cunn_SoftMaxForwardReg"]["whose"] == "pytorch"
    assert by_name["cunn_SoftMaxForwardReg"]["ms"] > 0
    assert by_name["another"]["metrics"] == {} and by_name["another"]["ms"] == 0
    # Its time is not known, and neither is that of all.
    assert found["ms"] == 0 and not any(k["share"] for k in found["kernels"])
    assert found["metrics"] and not [m for m in found["metrics"] if kernel_kinds.is_sum(m)]
    assert position(found, {"memory_gbs": 4000.0}, 1 << 20) == {"launches": 9.0}


RELU, OTHERS = "void relu<4>(float const*, float*)", (("a", 2), ("b", 5), ("c", 1))


def answers(monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]) -> None:
    """Has a candidate's process say this of what it measured: without a GPU it knows nothing."""
    finish = CandidateClient.finish

    def finished(self: CandidateClient, fds_wanted: int = 0) -> Any:
        answer, fds = finish(self, fds_wanted)
        return (said if "launches" in answer else answer), fds

    monkeypatch.setattr(CandidateClient, "finish", finished)


def test_times_that_ncu_did_not_measure_are_those_of_pytorchs_profiler(
    server: ForkServer, fake: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake('"$@"\n' + WRITES)
    four, eight, block = (4, 1, 1), (8, 1, 1), (256, 1, 1)
    kinds = [(RELU, four, block, 1), ("relu(float const*)", eight, block, 2)]
    kinds += [(f"void k<{name}>(int)", four, block, n) for name, n in OTHERS]
    answers(monkeypatch, {"launches": [list(k) for k in kinds], "more": 3})
    listed = [(RELU, four, block, 1, 7.0), ("relu(float const*)", eight, block, 2, 7.0)]
    # Of these the first has its name, and the others are told apart by how many they are.
    listed += [("k<C>", four, block, 1, 0.25), ("void k<a>(int)", four, block, 2, 0.5)]
    listed += [("k<B>", four, block, 5, 1.0), ("Memcpy DtoD (Device -> Device)", (), (), 1, 9.0)]
    p = profiler(server)
    monkeypatch.setattr(p, "_listed", lambda _: lists(*listed, more=3, more_ms=0.036))
    found = taken(p, subject())
    assert (found["tool"], found["launches"], p.passing) == ("ncu", 14, False)
    whys = "2 of 5 kinds of launches were measured; "
    whys += "3 launches are of other kinds than those that are listed"
    assert found["why"] == whys
    assert [k["ms"] for k in found["kernels"]] == pytest.approx([1, 0.5, 0.25, 0.012, 0.002])
    assert found["ms"] == pytest.approx(1.8)
    assert sum(k["share"] for k in found["kernels"]) == pytest.approx(0.98)
    assert found["metrics"] == {"sm__cycles_active.avg": 9.0}, "a part of a sum is no sum"
    # Where that fails nobody knows.
    p = profiler(server)
    found = taken(p, subject())
    assert (found["tool"], found["launches"], found["ms"], p.passing) == ("ncu", 14, 0, True)
    assert not any(k["share"] for k in found["kernels"])
    why = "the times of those that ncu did not measure are not known: PyTorch's profiler cannot be"
    assert found["why"].startswith(why) and found["why"].endswith(f"; {whys}")


def test_launches_of_kinds_that_are_not_listed_are_counted() -> None:
    size = (4, 1, 1), (256, 1, 1)
    rows = [ncu.Row(RELU, *size, {kernel_kinds.TIME: 2000.0})]
    p = profile_forward.Profiler(None, devices.CPU, ProfilerConfig(), Limits(), (), 90)
    for more, ms in ((0, 0.002), (30, 0.752), (31, 0)):  # PyTorch's profiler saw 30
        seen = kernel_kinds.Seen([kernel_kinds.Kind(RELU, *size, 1)], ncu.Report(rows), more=more)
        listed = lists((RELU, *size, 1, 7.0), ("k", *size, 10, 0.25), more=20, more_ms=0.5)
        kernel_kinds.fill_in(seen, listed)
        found = told_of(p, subject(), seen, "ncu", "")
        assert (found["launches"], found["ms"]) == (1 + more, pytest.approx(ms))
        says = f"{more} launches are of other kinds than those that are listed"
        assert found.get("why") == (says if more else None)
        assert (kernel_kinds.TIME in found["metrics"]) == (not more)
        at = position(found, {}, 1)
        assert (at["launches"], "kernels_ms" in at) == (1 + more, ms > 0)
    for bad in (-1, 1 << 31, "30", True, 1.5, None, [], {}):
        assert kernel_kinds.count_of(bad) == 0
    for bad in (-1.0, float("nan"), float("inf"), "1", True, None):
        assert kernel_kinds.ms_of(bad) == 0
    assert (kernel_kinds.count_of(7), kernel_kinds.ms_of(2)) == (7, 2.0)


def test_a_worker_counts_kinds_beyond_those_that_it_lists() -> None:
    size = (1, 1, 1), (32, 1, 1)
    many = [(str(i % 1003), *size) for i in range(3000)]
    kinds, more = worker_profiler.counted(many)
    assert len(kinds) == worker_profiler.MAX_KINDS == 1000 and more == 3 + 3
    assert kinds[0] == ["0", *size, 3] and sum(k[3] for k in kinds) == 3000 - more
    assert worker_profiler.counted([]) == ([], 0)


def test_a_part_that_was_measured_is_not_the_whole() -> None:
    """Where nobody says how often each kernel is launched: ncu looks at the first eight alike."""
    row = ncu.Row("k", (4, 1, 1), (32, 1, 1), {kernel_kinds.TIME: 1000.0})
    p = profile_forward.Profiler(None, devices.CPU, ProfilerConfig(), Limits(), (), 90)
    for n, whole in ((7, True), (8, False)):
        assert kernel_kinds.is_whole([row] * n) == whole
        kinds = kernel_kinds.kinds_in([row] * n)
        seen = kernel_kinds.Seen(kinds, ncu.Report([row] * n), whole=whole)
        found = told_of(p, subject(), seen, "ncu", "")
        assert found["ms"] == pytest.approx(0.007 if whole else 0)
        assert (kernel_kinds.TIME in found["metrics"]) == whole


def test_a_forward_that_launches_nothing(
    server: ForkServer, fake: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake('"$@"\n' + ENDS)
    answers(monkeypatch, {"launches": [], "more": 0})
    p = profiler(server)
    found = taken(p, subject())
    assert (found["tool"], found["launches"], found["ms"]) == ("static", 0, 0)
    assert found["why"].startswith("a forward launches no kernel; ")


def test_several_launches_of_a_kind_are_one() -> None:
    """Measured of each kind is not how often it was launched."""
    ratio = "sm__cycles_active.avg"

    def row(name: str, ns: float, value: float) -> ncu.Row:
        return ncu.Row(name, (4, 1, 1), (32, 1, 1), {kernel_kinds.TIME: ns, ratio: value})

    rows = [
        row("void at::elementwise<add>(T1)", 100, 10),
        row("void at::elementwise<mul>(T1)", 400, 1),
        row("void at::elementwise<add>(T1)", 300, 20),
    ]
    kinds = [
        kernel_kinds.Kind("void at::elementwise<Add>(int)", (4, 1, 1), (32, 1, 1), 10),
        kernel_kinds.Kind("void at::elementwise<Mul>(int)", (4, 1, 1), (32, 1, 1), 1),
    ]
    p = profile_forward.Profiler(None, devices.CPU, ProfilerConfig(), Limits(), (), 90)
    found = told_of(p, subject(), kernel_kinds.Seen(kinds, ncu.Report(rows)), "ncu", "")
    add, mul = found["kernels"]
    assert add["name"].endswith("<Add>(int)") and add["ms"] == pytest.approx(2000e-6)
    assert add["metrics"] == {kernel_kinds.TIME: 2000, ratio: (100 * 10 + 300 * 20) / 400}
    assert mul["metrics"] == {kernel_kinds.TIME: 400, ratio: 1}
    assert [k.count for k in kernel_kinds.kinds_in(rows)] == [2, 1]


def test_what_a_worker_lists_is_held_to_its_form() -> None:
    sound = ["k", [1, 1, 1], [32, 1, 1], 3]
    for bad in (
        None, "no", 3, {}, [None], [[]], [["k"]], [["k", [1], [32], 1]], [["k", 1, 2, 3]],
        [["k", [1, 1, 1], [32, 1, 1], 0]], [["k", [1, 1, -1], [32, 1, 1], 1]],
        [["k", [1, 1, 1 << 40], [32, 1, 1], 1]], [[7, [1, 1, 1], [32, 1, 1], 1]],
        [["k", [1, 1, 1], [32, 1, 1], 1.5]], [["k", [True, 1, 1], [32, 1, 1], 1]],
    ):  # fmt: skip
        assert kernel_kinds.kinds_of(bad) == []
    assert kernel_kinds.kinds_of([None, sound]) == [
        kernel_kinds.Kind("k", (1, 1, 1), (32, 1, 1), 3)
    ]
    assert len(kernel_kinds.kinds_of([sound] * 5000)) == 1000


def test_the_launch_that_only_warms_ncu_is_left_out() -> None:
    names = [
        "at::cuda::(anonymous namespace)::spin_kernel(long)",
        "at::cuda::<unnamed>::spin_kernel(long)",
        "spin_kernel_of_mine(float*)",
    ]
    one, more = '"(1, 1, 1)"', '"(128, 1, 1)"'
    lines = "".join(f'"{i}","{name}",{one},{one},"5"\n' for i, name in enumerate(names))
    lines += f'"3","spin_kernel(int)",{one},{more},"5"\n'
    head = (
        '"ID","Kernel Name","Grid Size","Block Size","gpu__time_duration.sum"\n"","","","","ns"\n'
    )
    assert [r.name for r in ncu.read(head + lines).rows] == [names[2], "spin_kernel(int)"]


def test_reads_units_and_separators() -> None:
    text = WRITES.replace('"ns"', '"us"').replace('"2,000"', '"1,234.5"').replace("END", "")
    first, second = ncu.read(text).rows
    assert first.metrics == {kernel_kinds.TIME: 1234500.0}
    assert second.grid == (8, 1, 1) and second.block == (256, 1, 1)


@pytest.mark.parametrize(
    ("cell", "unit", "value"),
    [
        ("1,234,567.5", "", 1234567.5),
        ("12", "Kbyte", 12000.0),
        ("2.5", "Gbyte/s", 2.5e9),
        ("3", "byte/ns", 3e9),
        ("7", "ms", 7e6),
        ("99.5", "%", 99.5),
        ("1e3", "cycle", 1000.0),
        *(
            (c, "", None)
            for c in (
                "n/a",
                "(!) n/a",
                "(!) nan",
                "nan",
                "inf",
                "",
                "-1",
                "1" * 40,
                "0x10",
                "1e99",
                "١",
            )
        ),
    ],
)
def test_numbers(cell: str, unit: str, value: float | None) -> None:
    assert ncu.number(cell, unit) == (value if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("void softmax<4>(float const*, float*)", "softmax"),
        ("softmax(const float *, float *)", "softmax"),
        ("void at::native::(anonymous namespace)::reduce<int>(T)", "reduce"),
        ("void at::native::<unnamed>::reduce<int>(T)", "reduce"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("<<<", "<<<"),
        ("", ""),
    ],
)
def test_base_names(name: str, base: str) -> None:
    assert ncu.base(name) == base


@pytest.mark.parametrize(
    ("name", "is_of"),
    [
        ("void rows<4>(float const*)", "custom"),
        ("void at::native::vectorized_elementwise_kernel<4, float>(int)", "pytorch"),
        ("nvjet_hsh_128x64_64x8", "vendor"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm>(T)", "vendor"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn", "vendor"),
        ("Memcpy DtoD (Device -> Device)", "pytorch"),
        ("unknown_kernel", "custom"),
    ],
)
def test_whose(name: str, is_of: str) -> None:
    assert kernel_work.whose(name, {"rows"}, True) == is_of
    if name == "unknown_kernel":
        assert kernel_work.whose(name, set(), False) == "pytorch"


def test_metrics_of_a_forward_are_weighted_by_time() -> None:
    kernels = [
        {"ms": 3.0, "metrics": {"a__b.sum": 10.0, "a__b.pct": 50.0}},
        {"ms": 1.0, "metrics": {"a__b.sum": 5.0, "a__b.pct": 90.0, "a__c.avg": 7.0}},
    ]
    all_of_them = {"a__b.sum": 15.0, "a__b.pct": 60.0, "a__c.avg": 7.0}
    assert together(kernels) == all_of_them
    alike = [{"ms": ms, "metrics": {"a__b.pct": 24.43}} for ms in (0.012320, 0.3, 1.1)]
    for kernels in (alike[:1], alike):
        assert together(kernels) == {"a__b.pct": 24.43}


KERNEL = {"name": "k", "whose": "custom", "ms": 1.0, "share": 0.5, "grid": [], "block": []}


def test_the_position_below_the_ceilings() -> None:
    executed = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    profile = {
        "ms": 2.0,
        "launches": 3,
        "kernels": [KERNEL | {"launches": 3}, KERNEL | {"launches": 1}],
        "metrics": {
            "dram__bytes_read.sum": 3e9,
            "dram__bytes_write.sum": 1e9,
            "lts__t_sectors_srcunit_tex.sum": 6e9 / 32,
            **{executed.format(op): 1e9 for op in ("fadd", "fmul", "ffma")},
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 25.0,
        },
    }
    measured = {"memory_gbs": 4000.0, "cache_gbs": 6000.0, "fp32_gflops": 50000.0}
    found = position(profile, measured, 2 * 10**9)
    assert found == {
        "launches": 4.0,
        "kernels_ms": 2.0,
        "dram_gbs": 2000.0,
        "dram_roof_share": 0.5,
        "l2_gbs": 3000.0,
        "l2_roof_share": 0.5,
        "fp32_gflops": 2000.0,
        "fp32_roof_share": 0.04,
        "tensor_roof_share": 0.25,
        "dram_bytes_ratio": 2.0,
    }
    assert position({"ms": 0.0, "launches": 0}, measured, 1) == {}


PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"


@pytest.mark.parametrize(
    ("counted", "gflops", "share"),
    [
        # The rates of float16, by both results, and of float8 are each a part of its own ceiling.
        ({"fp16": 8e11, "bf16_dst_fp32": 0.0}, 4e5, 0.5),
        ({"fp16_dst_fp16": 2e11, "fp16_dst_fp32": 6e11, "fp4_fp6_fp8_dst_fp32": 6e11}, 7e5, 0.7),
        ({"tf32_dst_fp32": 4e11, "fp8": 3e11, "int8": 2.8e11}, 4.9e5, 0.5 + 0.1 + 0.1),
        ({"bf16_dst_fp32": 7e11, "bf16_dst_fp32_sparsity_on": 7e11}, 3.5e5, 0.5),
        # Where a type has no ceiling, or nothing was counted, of cycles.
        ({"fp16": 8e11, "fp64": 2e11}, 5e5, 0.25),
        ({"fp16": 0.0, "int8": 0.0}, 0.0, 0.25),
        ({}, None, 0.25),
    ],
)
def test_the_tensor_cores_position(
    counted: dict[str, float], gflops: float | None, share: float
) -> None:
    metrics = {f"sm__ops_path_tensor_src_{t}.sum": n for t, n in counted.items()} | {PIPE: 25.0}
    profile: dict[str, Any] = {"ms": 2.0, "launches": 1, "metrics": metrics}
    roofs = {"tensor_gflops": ceilings()}
    found = position(profile, roofs, 1)
    assert found.get("tensor_gflops") == (None if gflops is None else pytest.approx(gflops))
    assert found["tensor_roof_share"] == pytest.approx(share)
    assert position(profile, {}, 1)["tensor_roof_share"] == 0.25, "no ceiling"
    profile["missing"] = ["sm__ops_path_tensor_src_tf32_dst_fp32.sum"]
    found = position(profile, roofs, 1)
    assert (found.get("tensor_gflops"), found["tensor_roof_share"]) == (None, 0.25)


def test_what_a_gpu_names_otherwise_has_one_name() -> None:
    """Of a selection and of all that there is; the profile says what was measured."""
    size = (4, 1, 1), (256, 1, 1)
    read, write = "dram__bytes_read.sum", "dram__bytes_write.sum"
    own = {m: m.replace("bytes_", "bytes_op_") for m in (read, write)}
    metrics = {kernel_kinds.TIME: 2000.0, own[read]: 64.0, own[write]: 32.0, "lts__odd.sum": 1.0}
    seen = kernel_kinds.Seen(
        [kernel_kinds.Kind(RELU, *size, 2)], ncu.Report([ncu.Row(RELU, *size, metrics)])
    )
    for full in (False, True):
        p = profile_forward.Profiler(
            None, devices.CPU, ProfilerConfig(), Limits(), (), 120, full=full
        )
        assert own[read] in p._known and read not in p._known
        found = told_of(p, subject(), seen, "ncu", "")
        told = {kernel_kinds.TIME: 4000.0, read: 128.0, write: 64.0}
        assert found["metrics"] == told | ({"lts__odd.sum": 2.0} if full else {})
        assert found["measured_as"] == own
        assert not {read, write, *own.values()} & set(found.get("missing", ()))
        assert position(found, {}, 96)["dram_bytes_ratio"] == 2
    p = profile_forward.Profiler(None, devices.CPU, ProfilerConfig(), Limits(), (), 90)
    assert "measured_as" not in told_of(p, subject(), seen, "ncu", "")


def test_a_full_set_loses_nothing_of_the_selection() -> None:
    """A kernel has thousands of a full set, in the order of their names."""
    size = (4, 1, 1), (256, 1, 1)
    chosen = ncu.selection(90)
    metrics = dict.fromkeys([f"a__{i}.sum" for i in range(4000)] + list(chosen.values()), 1.0)
    metrics |= {kernel_kinds.TIME: 2000.0, "device__attribute_warp_size": 32.0}
    text = ",".join(f'"{w}"' for w in ["ID", "Kernel Name", "Grid Size", "Block Size", *metrics])
    text += "\n" + ",".join(['""'] * (4 + len(metrics))) + "\n"
    text += ",".join(f'"{w}"' for w in ["0", "k", *size, *metrics.values()])
    report = ncu.read(text)
    p = profile_forward.Profiler(None, devices.CPU, ProfilerConfig(), Limits(), (), 90, full=True)
    found = told_of(
        p, subject(), kernel_kinds.Seen(kernel_kinds.kinds_in(report.rows), report), "ncu", ""
    )
    (kernel,) = found["kernels"]
    assert set(chosen) < set(kernel["metrics"]) and "missing" not in found
    assert len(kernel["metrics"]) == profile_forward.MAX_METRICS
    assert "device__attribute_warp_size" not in kernel["metrics"]


def test_a_cut_report_has_no_number_that_was_cut() -> None:
    head = f'"ID","Kernel Name","Grid Size","Block Size","lts__odd.sum","{kernel_kinds.TIME}"\n'
    row = '"0","k","(4, 1, 1)","(32, 1, 1)","123456789","2000"\n'
    whole = head + '"","","","","",""\n' + row
    begun = whole.ljust(ncu.MAX_REPORT - row.index("456789"), "\n") + row
    assert begun[: ncu.MAX_REPORT].endswith('"123')
    for text in (begun, begun[: ncu.MAX_REPORT]):
        (found,) = ncu.read(text).rows
        assert found.metrics == {"lts__odd.sum": 123456789.0, kernel_kinds.TIME: 2000.0}


def test_a_metric_that_this_ncu_does_not_know_is_missing() -> None:
    """2025.3 does not fail for it: it says "(!) n/a" of it."""
    unknown, hits = "sm__ops_path_tensor_src_fp8.sum", "lts__t_sector_hit_rate.pct"
    ms = kernel_kinds.TIME
    text = f'''"ID","Kernel Name","Grid Size","Block Size","{ms}","{unknown}","{hits}"
"","","","","ns","","%"
"0","k","(4, 1, 1)","(32, 1, 1)","2000","(!) n/a","nan"
'''
    report = ncu.read(text)
    p = profile_forward.Profiler(None, devices.CPU, ProfilerConfig(), Limits(), (), 90)
    found = told_of(
        p, subject(), kernel_kinds.Seen(kernel_kinds.kinds_in(report.rows), report), "ncu", ""
    )
    assert found["metrics"] == {kernel_kinds.TIME: 2000.0}
    assert {unknown, hits} < set(found["missing"])


def test_both_profiles_have_their_position() -> None:
    """Eager's is not remembered with it: the ceilings are measured anew at times."""
    seen = {
        "tool": "ncu",
        "ms": 2.0,
        "launches": 3,
        "metrics": {"lts__t_sectors_srcunit_tex.sum": 6e9 / 32},
    }
    learned, draw = Learned(), types.SimpleNamespace(tree=None, tensors=[])
    trial = types.SimpleNamespace(
        verification=types.SimpleNamespace(draws=[draw]),
        reference=types.SimpleNamespace(orders=[]),
        program=None,
        forward_s=1.0,
    )
    facts = types.SimpleNamespace(begin=lambda: None)
    request = {"task": {"source": ""}, "candidate": {"source": ""}}
    position = {"kernels_ms": 2.0, "l2_gbs": 3000.0, "l2_roof_share": 0.5}
    for ceiling in (6000.0, 3000.0):  # the second time it is known
        asked = {**request, "ceilings": {"cache_gbs": ceiling}, "known": learned.to_json()}
        p = profiles.Profiles(Context(None, Request.from_json(asked)))
        told = types.SimpleNamespace(profile=lambda _: Profile.from_json(seen), passing=False)
        p.profiler = told  # type: ignore[assignment]
        v = Verdict("quick", "", "", CorrectnessReport("float32"), Floor(0.0, "memory", 1, 0))
        v.candidate_ms, v.metrics = 1.0, {"own": 1.0}
        with p.context.costs.part("all"):
            p.take(trial, facts, v, learned)  # type: ignore[arg-type]
        position["l2_roof_share"] = 3000.0 / ceiling
        assert v.metrics == {"own": 1.0} | position
        assert v.profile == v.eager_profile == Profile.from_json(seen | {"position": position})
        assert learned.to_json() == {"profile": seen}


def test_selections_are_of_known_names() -> None:
    for capability in ncu.families():
        chosen = ncu.selection(capability)
        assert kernel_kinds.TIME in chosen and len(chosen) > 50
        assert set(ncu.shared()["metrics"]) < set(chosen)
        assert all(ncu._METRIC.fullmatch(m) for m in [*chosen, *chosen.values()])
        assert len(set(chosen.values())) == len(chosen)
        assert all(kernel_kinds.is_sum(m) == kernel_kinds.is_sum(own) for m, own in chosen.items())
        named = ncu._data(ncu.families()[capability]).get("named", {})
        assert {m: own for m, own in chosen.items() if m != own} == named, "no other is renamed"
        plain = ncu.selection(capability, products=False)
        assert plain == {m: own for m, own in chosen.items() if not kernel_work.operand(m)}
        types = {kernel_work.operand(m) for m in chosen} - {None}
        assert {"float16", "bfloat16", "tf32", "int8"} <= types <= set(ceilings()), capability
    assert ncu.selection(80) == ncu.selection(20) == ncu.selection(87) != ncu.selection(90)
    assert ncu.selection(max(c for c in ncu.families() if c <= 110)) == ncu.selection(110)
    assert ncu.selection(120) == ncu.selection(999)
    assert ncu.selection(120)["dram__bytes_read.sum"] == "dram__bytes_op_read.sum"
    asked = ncu.command("ncu", ("a__b.sum",))
    assert asked[0] == "ncu" and asked[asked.index("--metrics") + 1] == "a__b.sum"
    assert "--set" not in asked
    more = ncu.command("ncu", ("a__b.sum",), full=True)
    assert more[-4:] == ["--set", "full", "--metrics", "a__b.sum"], "the set has not all of them"


def ceilings() -> dict[str, float]:
    """The tensor cores', by the types that are measured (ceilings_cuda.py)."""
    return {"float16": 8e5, "bfloat16": 7e5, "tf32": 4e5, "float8": 1.5e6, "int8": 1.4e6}


CUDAFORGE = [
    "sm__cycles_active.avg",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "launch__occupancy_limit_blocks",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__registers_per_thread",
    "sm__inst_executed.sum",
    "sm__inst_executed_pipe_fp32.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes.sum.per_second",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__t_sector_hit_rate.pct",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "lts__t_sector_hit_rate.pct",
    "lts__throughput.avg.pct_of_peak_sustained_active",
    "smsp__warp_issue_stalled_memory_dependency_per_warp_active.pct",
    "smsp__warp_issue_stalled_short_scoreboard_per_warp_active.pct",
    "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct",
    "smsp__warp_issue_stalled_barrier_per_warp_active.pct",
    "smsp__warp_issue_stalled_branch_resolving_per_warp_active.pct",
    "smsp__sass_average_branch_targets_threads_uniform.pct",
]


def test_what_cudaforge_asks_for_is_asked_for() -> None:
    """Under its name, or replaced; the documentation says which."""
    asked, replaced = set(ncu.shared()["metrics"]), ncu.shared()["replaced"]
    assert len(set(CUDAFORGE)) == 24
    assert {m for m in CUDAFORGE if m not in asked} == set(replaced)
    for instead in replaced.values():
        assert instead and set(instead) <= asked
    docs = (HERE.parents[2] / "docs" / "metrics.md").read_text()
    (table,) = re.findall(r"^\| CudaForge.*?\n\n", docs + "\n\n", re.M | re.S)
    said: list[str] = []
    for row in table.splitlines()[2:-1]:
        theirs, ours = (re.findall(r"`(.+?)`", cell) for cell in row.split("|")[1:3])
        said += theirs
        assert [m for m in theirs if m in asked] == ([] if ours else theirs)
        if ours:
            (name,) = theirs
            assert ours == replaced[name]
    assert sorted(said) == sorted(CUDAFORGE)


@pytest.mark.parametrize(
    ("there", "params", "ok", "says", "todo"),
    [
        (True, "RmProfilingAdminOnly: 0\n", True, "ncu; PARAMS has RmProfilingAdminOnly: 0", ""),
        (
            True,
            "Mobile: 4294967295\nRmProfilingAdminOnly: 1\n",
            False,
            "ncu; PARAMS has RmProfilingAdminOnly: 1",
            "NVreg_RestrictProfilingToAdminUsers=0 (being root does not help",
        ),
        (True, "Mobile: 4294967295\n", True, "PARAMS does not say who may read", ""),
        (True, None, True, "PARAMS does not say who may read", ""),
        (False, "RmProfilingAdminOnly: 0\n", False, "was not found", "install Nsight Compute"),
        (
            False,
            "RmProfilingAdminOnly: 1\n",
            False,
            "was not found",
            "install Nsight Compute, and load the driver",
        ),
    ],
)
def test_the_doctor_says_whether_it_can_be(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
    params: str | None,
    ok: bool,
    says: str,
    todo: str,
) -> None:
    """The same for root, whom the sandbox makes nobody."""
    monkeypatch.setattr(toolchain, "ncu", lambda: "/opt/ncu" if there else "")
    monkeypatch.setattr(doctor, "DRIVER", str(tmp_path / "params"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if params is not None:
        (tmp_path / "params").write_text(params)
    found, note, cost = doctor._profiler()
    assert found == ok and says.replace("PARAMS", doctor.DRIVER) in note
    assert todo in cost and "or run as root" not in cost
