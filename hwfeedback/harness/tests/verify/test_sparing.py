"""Large tasks: what is judged in little memory is judged as everything else is."""

from __future__ import annotations

import functools
import gc
import math
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import forked
import pytest
import torch
import waiting
from evaluating import Evaluator, new_cache, processes_of
from test_verify import prepared

from kwharness.base import for_candidate, for_reference, operations, trees
from kwharness.base.calibration import Calibration
from kwharness.base.learned import Learned
from kwharness.base.protocol import Timeout
from kwharness.base.tensors import Block, Entry, LayoutError
from kwharness.clients import batch_parts, candidate_client, client
from kwharness.clients.answers import ModeAnswer
from kwharness.clients.batch_parts import Parts
from kwharness.clients.errors import WorkerError
from kwharness.clients.reference_client import ReferenceClient
from kwharness.machine import device
from kwharness.numerics import correctness
from kwharness.numerics.rounding import Float32Noise, one_ulp
from kwharness.referee import calibrating, faults, granted, memory
from kwharness.referee.builds import Builds
from kwharness.referee.faults import Infrastructure, NoRoom
from kwharness.referee.opponents import Opponents
from kwharness.referee.program import Program
from kwharness.referee.trial import Trial
from kwharness.referee.warm_pool import WarmPool
from kwharness.task.invalid import Invalid
from kwharness.timing import process_use, window_base, window_session
from kwharness.timing.baselines import BaselineFailed
from kwharness.verify import (
    asked_of_inputs,
    calibrate,
    calibrate_family,
    check_output,
    secret_draws,
    timed_calls,
    verification,
    verify,
)
from kwharness.workers import candidate as worker_candidate
from kwharness.workers import forms, loaded
from kwharness.workers import reference as worker_reference

TASK = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(COLUMNS))

    def forward(self, x):
        return torch.softmax(x * self.w, -1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
"""
SMALL = TASK.replace("ROWS", "96").replace("COLUMNS", "1024")
LARGE = TASK.replace("ROWS", "640").replace("COLUMNS", "32768")  # 80 MiB in, as much out
LARGE_BYTES = 640 * 32768 * 4
# What is freed has no pages any more: 12 times as much is seen, 60 and 90 where nothing is spared.
MOST = 16
INTEGERS = SMALL.replace("torch.softmax(x * self.w, -1)", "torch.argmax(x * self.w, -1)")
SAME = "torch.softmax(x * self.w, -1)"


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    with pytest.MonkeyPatch.context() as m:
        m.setattr(device, "PEAK", 1 << 60)
        j = Evaluator(new_cache(tmp_path_factory))
        yield j
        j.close()


TIMED = """import sys


def timed():
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name not in ("_calls", "calls"):
        frame = frame.f_back
    return frame is not None


"""


def form(forward: str, task: str = SMALL) -> str:
    return TIMED + task.replace("class Model(", "class ModelNew(").replace(SAME, forward)


@contextmanager
def with_candidate(
    evaluator: Evaluator,
) -> Iterator[tuple[verification.Verification, candidate_client.CandidateClient]]:
    """A verification that is prepared, and a candidate that is right."""
    with prepared(evaluator, SMALL) as e:
        v = e.verification
        e.program = Program(form(SAME), form(SAME))
        candidate = e.candidate(poison=True)
        yield v, candidate
        candidate.kill()


def test_the_same_is_said_of_a_task(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    spared = {n: evaluator.task(n) for n in (SMALL, INTEGERS)}
    monkeypatch.setattr(device, "PEAK", 0)
    evaluator.tasks = {}
    for source, task in spared.items():
        seen = evaluator.task(source)
        seen["eager_ms"] = task["eager_ms"]
        assert seen == task


def test_inputs_of_families_are_made_again(evaluator: Evaluator) -> None:
    """What comes among the timed calls is in no memory until then, and the same then."""
    with prepared(evaluator, SMALL) as e:
        v = e.verification
        seen = 0
        for job in verify._jobs(v):
            if job.again is not None:
                made = job.remade().inputs
                assert isinstance(made, list) and len(job.again) == len(made)
                for a, b, c in zip(made, job.again, list(job.again), strict=True):
                    assert torch.equal(a, b) or a.isnan().any()
                    assert b is not c and torch.equal(b.isnan(), c.isnan())
                seen += 1
        assert seen > 8


@pytest.mark.parametrize(("free", "times"), [(79, 1), (80, 0)])
def test_memory_goes_back_where_there_is_little(
    monkeypatch: pytest.MonkeyPatch, free: int, times: int
) -> None:
    released: list[int] = []
    monkeypatch.setattr(device.Cpu, "release", lambda _: released.append(1))
    monkeypatch.setattr(device.Cpu, "free_bytes", lambda _: free)
    r = worker_reference.Reference(None, device.CPU)
    r._spare(10)
    assert not released, "where nothing is to be spared"
    r.sparing = True
    r._spare(10)
    r._given = 10
    r._spare(1)
    assert len(released) == 2 * times


def test_what_is_left_behind_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an evaluation that hangs together in cycles."""

    class Kept:
        def __init__(self) -> None:
            self.me = self

    for room, there in ((80, True), (69, False)):
        monkeypatch.setattr(device.Cpu, "room", lambda _, room=room: (room, 80))
        gc.disable()
        try:
            left = weakref.ref(Kept())
            device.tidy(device.CPU)
            assert (left() is not None) is there
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("forward", "status", "says"),
    [
        (SAME, "correct", "15 input families"),
        ("torch.exp(x * self.w) / torch.exp(x * self.w).sum(-1, keepdim=True)", "wrong", "family"),
        ("torch.softmax((x * self.w).half(), -1).float()", "wrong", "off by more than"),
        ("torch.softmax(x * self.w, -1).double()", "wrong", "float64"),
        (f"{SAME} * (1.001 if timed() else 1)", "cheated", "right on the same input"),
        ("torch.softmax(x * (self.w + self.missing), -1)", "crashed", "AttributeError"),
    ],
    ids=["right", "overflows", "half", "double", "wrong_when_timed", "raises"],
)
@pytest.mark.alone
def test_verdicts(evaluator: Evaluator, forward: str, status: str, says: str) -> None:
    v = evaluator.verdict(
        SMALL, form(forward), require_custom=False, time=True, want_baselines=["eager"]
    )
    assert (v["status"], says in v["reason"]) == (status, True), v["reason"]


@pytest.mark.parametrize("enough", [True, False])
def test_many_elements_need_fewer_draws(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, enough: bool
) -> None:
    asked: list[str] = []
    each = ReferenceClient.each

    def counted(self: ReferenceClient, tree: Any, inputs: Any, modes: Any, **more: Any) -> Any:
        asked.append(modes[2])
        return each(self, tree, inputs, modes, **more)

    monkeypatch.setattr(ReferenceClient, "each", counted)
    if enough:
        monkeypatch.setattr(calibrate, "MANY_ELEMENTS", 16)
    client = reference(evaluator)
    try:
        c = calibrate.calibrate(client, want_compile=False)
    finally:
        client.kill()
    families = len(c.families) - 1
    assert len(asked) == (2 + families if enough else 4 + 2 * families)


def test_eager_does_not_fit() -> None:
    cause: BaseException = no_memory()
    for raised in (None, cause):
        e = BaselineFailed("eager could not be timed: CUDA out of memory.")
        e.__cause__ = raised
        assert isinstance(faults.of_baseline(e), NoRoom) == (raised is cause)


def test_a_task_that_does_not_fit(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16 GiB.")

    monkeypatch.setattr(correctness, "complete", full)
    with pytest.raises(Invalid, match="more memory than the device has free") as e:
        evaluator.task(SMALL + "\n")
    assert "smaller" in e.value.hint


def reference(
    evaluator: Evaluator, kept: WarmPool | None = None, source: str = SMALL
) -> ReferenceClient:
    request = evaluator.request(source, "", "quick", {})
    return processes_of(evaluator.server, request, kept).reference(compiles=False)


def test_answers_are_not_written_over(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by a process that has answered when there was memory enough."""
    kept = WarmPool()
    with monkeypatch.context() as m:
        m.setattr(device, "PEAK", 0)
        client = reference(evaluator, kept)
        tree, inputs = client.draw(1)
        for _ in range(2):
            client.forward(tree, inputs, ["wide", "eager"])
    client.sparing = True
    client.begin_forward(tree, inputs, ["wide"])
    (wide,) = client.finish_forward()[0].tensors
    before = wide.clone()
    for k in range(2):
        client.forward(tree, inputs, [f"moved:{k}"])
    assert torch.equal(wide, before)
    kept.give(client)
    other = reference(evaluator, kept)
    assert other.pid != client.pid and other.holds() == 0
    other.kill()


def test_inputs_that_are_lent(evaluator: Evaluator) -> None:
    """A forward on them copies nothing, and nobody writes over them before the next are lent."""
    client = reference(evaluator)
    tree, inputs = client.draw(1)
    for given in ([t + 1 for t in inputs], inputs):
        lent = client.lend(given)
        (expected,) = client.forward(tree, given, ["eager"])[0].tensors  # copied elsewhere
        assert client._blocks["in"].size > 1
        where = client._blocks["lent"]
        for mode in ("eager", "wide", "noise:1", "moved:1", "scalar"):
            (out,) = client.forward(tree, lent, [mode])[0].tensors
            assert torch.allclose(out, expected.to(out.dtype), 1e-3)
        assert client._blocks["lent"] is where and client._blocks["in"].size == 1
        assert all(torch.equal(a, b) for a, b in zip(lent, given, strict=True))
    client.let_go()
    assert client._blocks["in"].size == client._blocks["lent"].size == 1
    assert all(torch.equal(a, b) for a, b in zip(lent, inputs, strict=True))
    (out,) = client.forward(tree, lent, ["eager"])[0].tensors
    assert torch.equal(out, expected)
    client.kill()


WHOLE = SMALL.replace(SAME, "x / x.abs().max() + self.w")
SOME_ROWS = SMALL.replace(SAME, "torch.where(torch.isnan(x).any(), x.flip(0), x) * self.w")
COLUMNS = SMALL.replace(SAME, "x.sum(0) * self.w")
LOSS = SMALL.replace(SAME, "((x * self.w) ** 2).mean()")
NORM = SMALL.replace(SAME, "torch.layer_norm(x, x.shape[1:]) * self.w")
MODES = ("wide", "noise:1", "noise:1:coherent", "moved:1")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of 96 rows is computed in seven parts."""
    monkeypatch.setitem(batch_parts.PART, "cpu", 16 * 96 * 1024 // 7 + 1)


def in_parts(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, source: str) -> list[str]:
    """Calibrates. Returns the modes that were computed in parts."""
    asked: list[str] = []
    begin = ReferenceClient.begin

    def noted(self: ReferenceClient, request: operations.Request, *more: Any) -> None:
        if isinstance(request, for_reference.Forward) and request.parts > 1:
            assert request.parts == 7
            asked.extend(request.modes)
        begin(self, request, *more)

    with monkeypatch.context() as m:
        m.setattr(ReferenceClient, "begin", noted)
        client = reference(evaluator, source=source)
        try:
            c = calibrate.calibrate(client, want_compile=False)
        finally:
            client.kill()
    assert Calibration.from_json(c.to_json()) == c
    assert c.by_rows == (client.parts is not None)
    return asked


@pytest.mark.parametrize("source", [SMALL, NORM], ids=["softmax", "layer_norm"])
def test_a_batch_whose_rows_have_nothing_to_do_with_each_other(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, small_parts: None, source: str
) -> None:
    """It is computed in parts, and gives the same."""
    asked = in_parts(evaluator, monkeypatch, source)
    assert {m.partition(":")[0] for m in asked} == {"wide", "noise", "moved"}
    client = reference(evaluator, source=source)
    tree, inputs = client.draw(1)
    inputs = client.lend(inputs)
    whole = [client.forward(tree, inputs, [m])[0].tensors[0] for m in MODES]
    client.parts = Parts.of(inputs, whole[:1], client.device)
    assert client.parts is not None and client.parts.count == 7
    parts = [client.forward(tree, inputs, [m])[0].tensors[0] for m in MODES]
    client.kill()
    exact, *moved = (a - b for a, b in zip(whole, parts, strict=True))
    assert float(exact.abs().max()) < 1e-12
    for off in moved:  # as much at random, not the same
        assert 0 < float(off.abs().max()) < 1e-4 * float(whole[0].abs().max())


@pytest.mark.parametrize(
    "source",
    # The last three are told in the same way.
    [
        WHOLE,
        SOME_ROWS,
        *(pytest.param(s, marks=pytest.mark.slow) for s in (COLUMNS, LOSS)),
        INTEGERS,
    ],
    ids=lambda s: s[-160:-90],
)
def test_a_batch_that_is_one(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, small_parts: None, source: str
) -> None:
    asked = in_parts(evaluator, monkeypatch, source)
    if source is SOME_ROWS:  # until it is seen
        assert {m.partition(":")[0] for m in asked} == {"wide", "noise", "moved"}
        assert len(asked) < len(in_parts(evaluator, monkeypatch, SMALL))
    elif source is WHOLE:
        assert asked == ["wide"]
    else:
        assert asked == []


@pytest.mark.parametrize("mode", ["noise:1", "noise:1:coherent", "moved:1"])
def test_what_is_random_is_so_for_each_part(mode: str) -> None:
    def signs(of: str) -> torch.Tensor:
        seed = int(of.split(":")[1])
        if of.startswith("moved"):
            return one_ulp([torch.ones(1000)], seed)[0] > 1
        x = torch.full((1000,), 3.0, dtype=torch.float64)
        with Float32Noise(seed, coherent=of.endswith("coherent")):
            return x * 5 > 15

    each = [signs(worker_reference._for_part(mode, i)) for i in range(20)]
    for i, a in enumerate(each):
        assert all(0.3 < float((a == b).double().mean()) < 0.7 for b in each[:i])
    assert [worker_reference._for_part("wide", i) for i in (0, 3)] == ["wide", "wide"]


X = torch.empty(64, 1000, device="meta")


@pytest.mark.parametrize(
    ("inputs", "outputs", "count", "cut"),
    [
        ([X], [X], 16, [0]),
        ([X, X[:, 0] > 0, X[0]], [X], 16, [0, 1]),
        ([X], [X, X[:, 0]], 16, [0]),
        ([X[:5]], [X[:5]], 2, [0]),
        ([X, X[:, 0].long()], [X], 0, []),  # which rows, maybe
        ([X], [X.long()], 0, []),
        ([X], [X[0]], 0, []),
        ([X], [X, X[:32]], 0, []),
        ([X], [X.sum()], 0, []),
        ([X[0]], [X], 0, []),
        ([X[:0]], [X[:0]], 0, []),
        ([X[:1]], [X[:1]], 0, []),
        ([X, X.t()], [X], 0, []),  # each part would take all of the other
        ([X], [], 0, []),
    ],
)
def test_how_a_batch_is_cut(
    monkeypatch: pytest.MonkeyPatch, inputs: Any, outputs: Any, count: int, cut: list[int]
) -> None:
    monkeypatch.setitem(batch_parts.PART, "cpu", 64_064)
    parts = Parts.of(inputs, outputs, device.CPU)
    assert (parts.count, parts.cut) == (count, cut) if count else parts is None


def test_a_forward_fails_in_a_part(evaluator: Evaluator, small_parts: None) -> None:
    fails = "torch.softmax(x * self.w, -1) if len(x) > 95 else x[:1]"
    client = reference(evaluator, source=SMALL.replace(SAME, fails))
    tree, inputs = client.draw(1)
    right = client.forward(tree, inputs, ["wide"])[0].tensors
    client.parts = Parts.of(inputs, right, client.device)
    (answer,) = client.forward(tree, inputs, ["wide"])
    assert "other rows" in str(answer.error)
    with client.whole():
        assert torch.equal(client.forward(tree, inputs, ["wide"])[0].tensors[0], right[0])
    client.kill()


@pytest.mark.parametrize(
    "ends",
    [pytest.param("Model.forward = None", marks=pytest.mark.slow), "import os; os._exit(3)"],
)
def test_a_part_ends_the_process(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, small_parts: None, ends: str
) -> None:
    """As an index does on a GPU that no part has: nothing can be computed there any more."""
    uncompiled = functools.partial(calibrate.calibrate, want_compile=False)
    monkeypatch.setattr(calibrate, "calibrate", uncompiled)
    few = f"        if len(x) < 96:\n            {ends}\n        return {SAME}"
    source = SMALL.replace(f"        return {SAME}", few)
    assert ends in source
    learned = [Learned(), Learned()]
    for task, known in zip((source, SMALL), learned, strict=True):
        processes = processes_of(evaluator.server, evaluator.request(task, "", "quick", {}))
        opponents = Opponents(processes, Builds(processes.context))
        calibrating.started(processes, opponents, known)[0].kill()
    whole, cut = (known.to_json()["calibration"] for known in learned)
    assert cut["by_rows"] and not whole["by_rows"]
    assert [f["name"] for f in whole["families"]] == [f["name"] for f in cut["families"]]


def test_the_whole_has_the_last_word(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    """Parts that give something else convict nobody, should nothing have seen it before."""
    depends = SMALL.replace(SAME, f"{SAME} * (1 if len(x) > 95 else 1 + 1e-3)")
    evaluator.known[depends] = evaluator.calibration(SMALL + "\n\n")
    assert evaluator.known[depends]["calibration"]["by_rows"]
    wrong = form(f"{SAME} * (1 + 1e-3)")
    assert evaluator.verdict(depends, form(SAME), require_custom=False)["status"] == "correct"
    assert evaluator.verdict(depends, wrong, require_custom=False)["status"] == "wrong", (
        "it was seen"
    )
    monkeypatch.setattr(calibrate_family, "SAME_IN_PARTS", 1.0)
    timed = {"time": True, "want_baselines": ["eager"]}
    v = evaluator.verdict(depends, form(SAME), require_custom=False, **timed)
    assert v["status"] == "correct", v["reason"]
    with prepared(evaluator, depends) as e:
        verification = e.verification
        assert verification.reference.parts is not None
        _, inputs = verification.reference.draw(7)
        tree = verification.draws[0].tree
        (right,) = verification.reference.forward(tree, inputs, ["eager"])[0].tensors
        assert timed_calls.check_call(verification, inputs, [right]) is None
        assert "off by more" in str(timed_calls.check_call(verification, inputs, [right * 1.01]))


def test_a_candidate_gives_up_what_is_needed(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it does not know beforehand, too."""
    room, full = [1 << 60], [0]
    monkeypatch.setattr(device.Cpu, "room", lambda _: (room[0], 1 << 62))
    finish = ReferenceClient.finish_forward

    def answers(self: ReferenceClient) -> Any:
        results = finish(self)
        if full[0]:
            full[0] -= 1
            return [ModeAnswer(results[0].mode, no_memory())]
        return results

    monkeypatch.setattr(ReferenceClient, "finish_forward", answers)
    with with_candidate(evaluator) as (v, candidate):
        for little, times, holds in ((False, 0, True), (True, 0, False), (False, 1, False)):
            job = v.oracle.base_job(v.draws[0])
            v.oracle.both(candidate, job.tree, job.inputs, v.oracle.expect(job.tree, job.inputs))
            assert candidate.holds() > 1 << 19
            room[0], full[0] = 1 if little else 1 << 60, times
            v.oracle.beside(candidate, job.tree, job.inputs)
            assert (candidate.holds() > 1 << 19) == holds
            room[0] = 1 << 60
        full[0] = 2
        with pytest.raises(WorkerError, match="OutOfMemory"):
            v.oracle.beside(candidate, job.tree, job.inputs)


def test_blocks_that_are_kept_for_a_while(evaluator: Evaluator) -> None:
    client = reference(evaluator)
    tree, _ = client.draw(0)

    def answer(seed: int) -> list[torch.Tensor]:
        _, inputs = client.draw(seed)
        return [*inputs, *client.forward(tree, inputs, ["eager"])[0].tensors]

    wanted = [[t.clone() for t in answer(seed)] for seed in range(5)]
    names = ("draw", "out0", "out1")
    assert not any(n in client._blocks for n in names)
    used: list[list[int]] = []
    for seed, want in enumerate(wanted):
        with client.keeping():
            got = answer(seed)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        used.append([id(client._blocks.get(n)) for n in names])
        # What is asked for besides is not written over it.
        client.forward(tree, client.draw(9)[1], ["wide", "eager"])
        client.forward(tree, client.draw(9)[1], ["wide", "eager"])
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert used[2] == used[3] == used[4], "they are used again"
    client.let_go()
    assert all(client._blocks[n].size < 4096 for n in names)
    assert all(torch.equal(a, b) for a, b in zip(answer(3), wanted[3], strict=True))
    client.kill()


@pytest.mark.parametrize("much", [1000, 12, 0])
def test_blocks_stay_while_there_is_room(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, much: int
) -> None:
    """``much``: how often there is room, as one looks."""
    came, looks = [0], [0]
    private = client.private

    def counted(*given: Any) -> Any:
        came[0] += 1
        return private(*given)

    def room(_: Any) -> tuple[int, int]:
        looks[0] += 1
        return (1 << 60 if looks[0] <= much else 0), 1 << 62

    with with_candidate(evaluator) as (v, candidate):
        with monkeypatch.context() as m:
            m.setattr(device.Cpu, "room", room)
            m.setattr(client, "private", counted)
            verify._check_all(v, candidate)
        assert came[0] < 12 if much > 99 else came[0] > 15, "blocks"
        kept = [n for n in ("draw", "out0", "out1") if v.reference._room[n]]
        assert bool(kept) == (much > 99), "where there is no room any more nothing is kept"


CLUMSY = (
    form(SAME)
    + """
calls, real = [0], ModelNew.forward


def forward(self, x):
    calls[0] += 1
    if calls[0] == 3:
        raise torch.OutOfMemoryError("CUDA out of memory.")
    return real(self, x)


ModelNew.forward = forward
"""
)


@pytest.mark.parametrize("room", [True, False])
def test_a_candidate_may_need_what_stays(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    if not room:
        monkeypatch.setattr(secret_draws, "ROOMY", (math.inf, math.inf))
    v = evaluator.verdict(SMALL, CLUMSY, require_custom=False)
    assert v["status"] == ("correct" if room else "crashed"), v["reason"]


def test_a_closer_look_is_not_written_over(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float64 moves when its inputs do, also where blocks are used again."""
    seen: list[tuple[float, bool]] = []
    checked = check_output.Checker.check

    def closely(self: Any, known: Any, name: str, answer: Any, expected: Any) -> bool:
        if expected.moved is None:
            return False
        if name == "base":
            same = torch.allclose(expected.wide[0].float(), answer.outputs[0])
            seen.append((expected.moved[0].max, same))
        return checked(self, known, name, answer, expected)

    with with_candidate(evaluator) as (v, candidate), monkeypatch.context() as m:
        m.setattr(device.Cpu, "room", lambda _: (1 << 60, 1 << 62))
        m.setattr(check_output.Checker, "check", closely)
        verify._check_all(v, candidate)
    assert len(seen) == verification.BASE_SEEDS["quick"]
    assert all(moved > 0 and same for moved, same in seen)


@pytest.mark.parametrize("room", [True, False])
def test_nothing_is_freed_beside_what_is_timed(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """Where there is room: else each draw for a timed call is gone with it."""
    passing: list[bool] = []
    inside: list[int] = []
    real, drawn = window_session.Redrawn.row, ReferenceClient.draws

    def row(self: window_session.Redrawn, at: int) -> torch.Tensor:
        inside.append(at)
        try:
            return real(self, at)
        finally:
            inside.pop()

    def draws(self: ReferenceClient, seeds: Any, **more: Any) -> Any:
        if inside:
            passing.append(self._passing)
        return drawn(self, seeds, **more)

    monkeypatch.setattr(ReferenceClient, "draws", draws)
    monkeypatch.setattr(window_session.Redrawn, "row", row)
    if not room:
        monkeypatch.setattr(secret_draws, "ROOMY", (1 << 40, 1 << 40))
    asked: dict[str, Any] = {"require_custom": False, "time": True, "want_baselines": ["eager"]}
    v = evaluator.verdict(SMALL, form(SAME), **asked)
    assert v["status"] == "correct", v["reason"]
    assert passing and all(p == (not room) for p in passing)


def test_blocks_that_cannot_be_given_back_hide_no_verdict(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a part's end. What needs them back within one, to look closer, fails by the same error."""
    asked_at_an_end = 0
    real = memory.let_go

    def full(_: ReferenceClient) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def at_an_end(reference: ReferenceClient) -> None:
        nonlocal asked_at_an_end
        asked_at_an_end += 1
        with monkeypatch.context() as m:
            m.setattr(ReferenceClient, "let_go", full)
            real(reference)

    monkeypatch.setattr(memory, "let_go", at_an_end)
    asked: dict[str, Any] = {"require_custom": False, "time": True, "want_baselines": ["eager"]}
    v = evaluator.verdict(SMALL, form(f"{SAME} * (1.5 if timed() else 1)"), **asked)
    assert v["status"] in ("cheated", "wrong"), v["reason"]
    assert asked_at_an_end == 2  # after verifying, and after timing


def test_a_block_that_makes_no_sense_is_closed() -> None:
    beyond = operations.Tensors([Entry("float32", [9999], 0)], 4096)
    block = Block.create(4096)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LayoutError):
        client.private(device.CPU, [os.dup(block.fd)], beyond, uncopied=True)
    assert len(os.listdir("/proc/self/fd")) == before
    block.close()


GROWS = SMALL.replace(SAME, "(x, x) if x.dtype == torch.float64 else (x,)")


@pytest.mark.parametrize("sparing", [True, False])
def test_modes_that_give_more_than_others(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, sparing: bool
) -> None:
    monkeypatch.setattr(device, "PEAK", device.PEAK if sparing else 0)
    task = evaluator.task(SMALL) | {"source": GROWS}  # which by itself would be no task
    monkeypatch.setitem(evaluator.tasks, GROWS, task)
    client = reference(evaluator, source=GROWS)
    assert client.sparing == sparing
    tree, inputs = client.draw(1)
    wide, eager = client.each(tree, inputs, ["wide", "eager"])
    assert wide.error is None
    assert "a number of outputs that depends on values: 2, then 1" in eager.error.message
    client.kill()


ORDERED = SMALL.replace(SAME, "x * (2 if x.stride(0) == 1 else 3)").replace(
    "[torch.randn(96, 1024)]", "[torch.randn(1024, 96).t()]"
)


def test_inputs_that_are_moved_lie_in_the_same_order(evaluator: Evaluator) -> None:
    client = reference(evaluator, source=ORDERED)
    tree, inputs = client.draw(1)
    wide, moved = (r.tensors[0] for r in client.forward(tree, inputs, ["wide", "moved:0"]))
    change = (moved - wide).abs()
    assert float(change.max()) > 0 and bool((change <= 1e-6 * wide.abs()).all())
    client.kill()


class Watched(device.Cpu):
    """Notes how many of the tensors in ``made`` are there whenever what is free is given back."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[torch.Tensor]] = []
        self.held: list[int] = []

    def release(self) -> None:
        self.held.append(sum(r() is not None for r in self.made))


class Deaf:
    def send(self, *_: Any) -> None:
        pass


def test_a_reference_holds_no_output_when_it_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.chdir(tmp_path)  # a source is a file of the working folder

    run = forms.Forms.run

    def noted(self: forms.Forms, *given: Any) -> Any:
        entry, tensors = run(self, *given)
        cpu.made.extend(weakref.ref(t) for t in tensors)
        return entry, tensors

    cpu = Watched()
    monkeypatch.setattr(forms.Forms, "run", noted)
    monkeypatch.setattr(loaded, "nothing_left_running", lambda: None)
    r = worker_reference.Reference(Deaf(), cpu)  # type: ignore[arg-type]
    r.import_(for_reference.Import(SMALL), [])
    r.init_inputs(for_reference.InitInputs(), [])
    r.construct(for_reference.Construct(0), [])
    tree, inputs = r._loaded.draw(1)
    block, layout = device.block_of(device.CPU, inputs)
    r.blocks.map("in", os.dup(block.fd), block.size)
    r.forward(for_reference.Forward(tree, ["wide"], layout, sparing=True), [])
    assert cpu.made and cpu.held[-1] == 0
    block.close()


@pytest.mark.parametrize(("free", "held"), [(191, [0]), (192, [])])
def test_a_candidate_holds_no_output_when_it_answers(
    monkeypatch: pytest.MonkeyPatch, free: int, held: list[int]
) -> None:
    """What its process keeps for later goes back where less is free than 8 times its call."""
    monkeypatch.setattr(Watched, "free_bytes", lambda _: free)

    def forward(x: torch.Tensor) -> torch.Tensor:
        out = 2 * x
        cpu.made.append(weakref.ref(out))
        return out

    cpu = Watched()
    c = worker_candidate.Candidate(Deaf(), cpu, False)  # type: ignore[arg-type]
    c.model = forward  # type: ignore[assignment]
    tree, inputs = trees.flatten([torch.ones(3)])
    blocks = [device.block_of(device.CPU, inputs) for _ in ("in", "out")]
    for name, (block, _) in zip(("in", "out"), blocks, strict=True):
        c.blocks.map(name, os.dup(block.fd), block.size)
    call = for_candidate.Call(tree, blocks[0][1], blocks[1][1], {"t": 0}, sparing=True)
    assert c.call(call, []).fits
    assert blocks[1][0].views(blocks[1][1])[0].tolist() == [2.0] * 3
    assert len(cpu.made) == 1 and cpu.held == held and cpu.made[0]() is None
    for block, _ in blocks:
        block.close()


class Counted(candidate_client.CandidateClient):
    """A candidate that is right, and asked when the reference has answered."""

    def __init__(self, beside: ReferenceClient) -> None:
        self.beside = beside
        self.met: list[weakref.ref[torch.Tensor]] = []
        self.most = 0  # inputs and answers of former calls, still there
        self._blocks = {}

    def begin_forward(self, tree: Any, inputs: Any, *_: Any, **_more: Any) -> None:
        assert not self.beside._asked
        self.most = max(self.most, len({id(t) for r in self.met if (t := r()) is not None}))
        self.outputs = self.beside.forward(tree, inputs, ["eager"])[0].tensors
        self.met += map(weakref.ref, [*inputs, *self.outputs])

    def finish_forward(self) -> candidate_client.Answer:
        given, self.outputs = self.outputs, []
        return candidate_client.Answer(given, "", [], False)


def test_one_thing_after_the_other(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_calls, "choose_varied", lambda _: set())
    monkeypatch.setattr(secret_draws, "ROOMY", (math.inf, math.inf))
    with prepared(evaluator, SMALL) as e:
        candidate = Counted(e.verification.reference)
        verify._repeat_first(
            e.verification, candidate, verify._check_all(e.verification, candidate)
        )
        assert candidate.most == 0
        candidate.met.clear()
        e.verification.oracle.both(candidate, *e.verification.draws[0].get())


def no_memory() -> WorkerError:
    """What a reference says."""
    client = object.__new__(ReferenceClient)
    client.device = device.CPU
    return WorkerError(operations.Failure("OutOfMemoryError", "CUDA out of memory."), client)


@pytest.mark.parametrize("mode", ["noise", "moved"])
@pytest.mark.parametrize("k", [0, 9], ids=["the reference's own draws", "a family"])
def test_no_bound_is_narrow_because_memory_ran_out(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, mode: str, k: int
) -> None:
    forward, asked = ReferenceClient.forward, []

    def full(self: ReferenceClient, tree: Any, inputs: Any, modes: Any, **more: Any) -> Any:
        asked.extend(m for m in modes if m.startswith(mode))
        found = forward(self, tree, inputs, modes, **more)
        out = len(asked) > k and modes[0].startswith(mode)
        return [ModeAnswer(modes[0], no_memory())] if out else found

    monkeypatch.setattr(ReferenceClient, "forward", full)
    client = reference(evaluator)
    with pytest.raises(calibrate_family.ReferenceBroken, match="OutOfMemory"):
        calibrate.calibrate(client, want_compile=False)
    client.kill()


def test_a_closer_look_takes_memory(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        return [ModeAnswer("moved:0", no_memory())]

    with prepared(evaluator, SMALL) as e:
        tree, inputs = e.verification.draws[0].get()
        expected = e.verification.oracle.expect(tree, inputs)
        monkeypatch.setattr(ReferenceClient, "forward", full)
        with pytest.raises(WorkerError, match="OutOfMemory"):
            e.verification.oracle.look_closer(tree, inputs, expected)


def test_who_leaves_no_memory_for_what_is_expected(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(took: bool) -> Any:
        with monkeypatch.context() as m:
            m.setattr(candidate_client.CandidateClient, "took_memory", lambda _: took)
            m.setattr(window_session.Redrawn, "expected", full)
            more: dict[str, Any] = {"time": True, "want_baselines": ["eager"]}
            return evaluator.verdict(SMALL, form(SAME), require_custom=False, **more)

    def full(*_: Any) -> Any:
        raise no_memory()

    v = judged(True)
    assert (v["status"], v["reason"]) == ("crashed", "it leaves the GPU without memory")
    with pytest.raises(Infrastructure, match="more memory than the device has free"):
        judged(False)


def test_other_shapes_may_not_fit(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16 GiB.\nMore.")

    with prepared(evaluator, SMALL) as e:
        monkeypatch.setattr(Trial, "candidate", full)
        granted.try_other_shapes(e, e.reference.orders)
        (said,) = e.verification.report.evidence
        assert said.endswith("Tried to allocate 16 GiB.")


def test_indices(evaluator: Evaluator) -> None:
    v = evaluator.verdict(INTEGERS, form("", INTEGERS), require_custom=False)
    assert v["status"] == "correct", v["reason"]
    off = form("", INTEGERS).replace("torch.argmax(x", "1023 - torch.argmax(x")
    v = evaluator.verdict(INTEGERS, off, require_custom=False)
    assert v["status"] == "wrong" and "indices are wrong" in v["reason"]


@pytest.mark.slow
@pytest.mark.alone
def test_a_certificate(evaluator: Evaluator) -> None:
    more: dict[str, Any] = {"time": True, "want_baselines": ["eager"], "require_custom": False}
    packs = form(
        "self.by(x)\n\n"
        "    def by(self, x):\n"
        "        if getattr(self, 'seen', -1) != self.w._version:\n"
        "            self.seen, self.kept = self.w._version, self.w.clone()\n"
        "            __import__('time').sleep(0.4)\n"
        "        return torch.softmax(x * self.kept, -1)"
    )
    v = evaluator.verdict(SMALL, packs, "certify", **more)
    assert v["status"] == "certified", v["reason"]
    assert any("packing its weights takes" in n for n in v["timing"]["notes"])
    assert v["speedup"]["low"] < 1.05
    assert v["correctness"]["deterministic"] and v["correctness"]["follows_weights"]


class Watch(threading.Thread):
    """The most memory that this process and those below it had, shared pages in parts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over, self._looked = 0, False, threading.Event()

    def run(self) -> None:
        while not self.over:
            here = process_use.tree(os.getpid())
            self.most = max(self.most, sum(map(held, here)))
            self._looked.set()
            time.sleep(0.005)

    def begin(self) -> int:
        """Begins. Returns what they have now, once it was looked at: that takes a while."""
        self.start()
        waiting.event(self._looked, "the first look at memory")
        before, self.most = self.most, 0
        return before


def held(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


@pytest.mark.slow
@pytest.mark.alone
def test_how_much_memory_a_verdict_takes(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no room for blocks to stay."""
    monkeypatch.setattr(secret_draws, "ROOMY", (math.inf, math.inf))
    evaluator.verdict(SMALL, form(SAME), require_custom=False)  # what is loaded once is
    watch = Watch()
    before = watch.begin()
    evaluator.task(LARGE)
    v = evaluator.verdict(LARGE, form(SAME, LARGE), require_custom=False)
    watch.over = True
    waiting.ended(watch, "the last look at memory")
    assert v["status"] == "correct", v["reason"]
    assert (watch.most - before) / LARGE_BYTES < MOST


def test_contents_are_drawn_again() -> None:
    drawn: list[int] = []

    def draw(i: int) -> list[torch.Tensor]:
        drawn.append(i)
        return [torch.full((3, 5), float(i)), torch.arange(4) + i]

    first = draw(0)
    slots = window_base.Slots.of(first, first[:1])
    contents = window_session.Redrawn(slots, draw, lambda inputs: [inputs[0] * 2])
    contents.grow(5)
    contents.vary([[torch.full((3, 5), 0.5), torch.arange(4)]])
    assert len(contents) == 5 and contents.varied == range(-1, 0)
    contents.take(1)
    for row in (*contents.take(2), 1, 1, -1):
        x, n = contents.inputs([row])
        value = 0.5 if row < 0 else row
        assert x.shape == (1, 3, 5) and bool((x == value).all())
        assert n[0].tolist() == [int(value) + k for k in range(4)]
        assert torch.equal(contents.expected([row])[0], 2 * x)
    assert drawn == [0, 1, 2, 1] and contents.left() == 2
    with pytest.raises(ValueError):
        contents.inputs([1, 2])


@pytest.mark.alone
def test_nobody_waits_less_for_a_worker_because_contents_are_drawn() -> None:
    def draw(i: int) -> list[torch.Tensor]:
        time.sleep(2)  # so long that a busy machine makes no difference
        return [torch.full((3, 5), float(i))]

    slots = window_base.Slots.of([torch.empty(3, 5)], [torch.empty(3, 5)])
    contents = window_session.Redrawn(slots, draw, lambda inputs: [inputs[0] * 2])
    contents.grow(2)
    worker = forked.Forked(forked.spinning(0.3))
    try:
        session = window_session.Session(worker, contents, 1, window_session.Options(timeout_s=120))
        session.until = time.monotonic() + 2
        (out,) = session.run("fresh", contents.take(1)).outputs()
        assert torch.equal(out, contents.expected([0])[0])
        session.until = time.monotonic() - contents.again_s
        with pytest.raises(Timeout):
            session.run("fresh", contents.take(1))
    finally:
        worker.kill()


STATE = SMALL.replace(
    "        self.w = nn.Parameter(torch.rand(COLUMNS))\n".replace("COLUMNS", "1024"),
    "        self.w = nn.Parameter(torch.rand(1024))\n"
    "        self.mean = torch.zeros(1024)\n"
    "        self.steps = torch.zeros((), dtype=torch.int64)\n",
).replace(
    SAME,
    "self.moved(x.add_(1))\n\n"
    "    def moved(self, x):\n"
    "        self.mean.mul_(0.5).add_(x.mean(0) * self.w)\n"
    "        self.steps.add_(1)\n"
    "        return x - self.mean / self.steps",
)


@pytest.mark.alone
def test_state_is_carried_and_an_input_written(evaluator: Evaluator) -> None:
    more: dict[str, Any] = {"time": True, "want_baselines": ["eager"], "custom_code": "any"}
    itself = STATE.replace("class Model(", "class ModelNew(")
    assert "writes into its inputs (x)" in " ".join(evaluator.task(STATE)["notes"])
    v = evaluator.verdict(STATE, itself, **more)
    assert v["status"] == "correct", v["reason"]
    rows = {f["name"]: f["seeds"] for f in v["correctness"]["families"]}
    assert rows["in_a_row"] >= 2 * asked_of_inputs.CALLS_IN_A_ROW[0]
    for wrong, said in (
        (itself.replace("self.steps.add_(1)", "pass"), "on the reference's own draws"),
        (itself.replace("x.add_(1)", "x + 1"), "input x after the call"),
        (
            itself.replace("x - self.mean / self.steps", "x - self.mean / self.steps.mul_(1)")
            .replace("self.steps.add_(1)", "steps = self.steps + 1")
            .replace("self.steps.mul_(1)", "steps"),
            "state steps",
        ),
    ):
        assert wrong != itself
        v = evaluator.verdict(STATE, wrong, time=False)
        assert v["status"] == "wrong" and said in v["reason"], v["reason"]


def stateful(constructor: str, body: str) -> str:
    """Returns a task with a state of its own."""
    made = SMALL.replace(
        "        self.w = nn.Parameter(torch.rand(1024))\n",
        f"        self.w = nn.Parameter(torch.rand(1024))\n        {constructor}\n",
    )
    return made.replace(f"return {SAME}", body)


OF_STATE = {
    "written": (STATE, []),
    "last": (
        stateful(
            "self.last = torch.zeros(96, 1024)",
            "y, self.last = x * self.last * self.w, x\n        return y",
        ),
        [],
    ),
    "replaced": (
        stateful(
            "self.sums = [torch.zeros(1024), torch.zeros(1024)]",
            "self.sums = [self.sums[1] + 1, x.mean(0)]\n        return x * self.w + self.sums[0]",
        ),
        [],
    ),
    "single": (
        stateful(
            "self.mean = torch.zeros(1024)",
            "self.mean.add_(x.float().mean(0))\n        return x.float() * self.w - self.mean",
        ),
        [],
    ),
    "ignored": (
        stateful(
            "self.mean = torch.ones(1024)", "self.mean.mul_(0.5)\n        return self.mean * self.w"
        ),
        ["ignores_input"],
    ),
}


@pytest.mark.parametrize("name", OF_STATE)
def test_draws_and_answers_of_state_last(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What one is held against is not overwritten by the next."""
    source, flags = OF_STATE[name]
    seen = []
    for peak in (device.PEAK, 0):
        monkeypatch.setattr(device, "PEAK", peak)
        evaluator.tasks = {}
        seen.append({**evaluator.task(source), "eager_ms": 0.0})
    assert seen[0] == seen[1] and seen[0]["flags"] == flags
    assert "state" in seen[0]["notes"][0] and "same values" not in " ".join(seen[0]["notes"])
    monkeypatch.undo()
    r = reference(evaluator, source=source)
    try:
        r.sparing = True
        r.carry(r.inspect(1).carried)
        tree, first = r.draw(1)
        drawn = [t.clone() for t in first]
        for mode in ("eager", "wide"):
            answers = []
            for seed in (1, 2):
                (answer,) = r.forward(*r.draw(seed), [mode])
                answers.append((answer.tensors, [t.clone() for t in answer.tensors]))
            r.forward(*r.draw(3), [mode])
            for kept, then in answers:
                assert all(map(torch.equal, kept, then))
            changed = zip(answers[0][0], answers[1][0], strict=True)
            assert not all(torch.equal(a, b) for a, b in changed) or flags
        assert all(map(torch.equal, first, drawn)) and tree
    finally:
        r.kill()
