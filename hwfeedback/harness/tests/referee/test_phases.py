"""An evaluation in two phases: with a share of the device, and alone. The lock is a real one."""

from __future__ import annotations

import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import waiting
from evaluating import Evaluator
from test_referee import NATIVE, SCALED

from kwharness.base.configs import Config
from kwharness.base.operations import Failure
from kwharness.base.requests import Request
from kwharness.clients.errors import WorkerError
from kwharness.process.fork_client import ForkServer
from kwharness.referee import evaluation, faults, trial
from kwharness.referee.context import Asker
from kwharness.referee.processes import Processes

HANGS = NATIVE.replace(
    "    def forward(self, x):\n", "    def forward(self, x):\n        while 1: pass\n"
)


def seen(
    evaluator: Evaluator, source: str, **more: Any
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Returns a verdict that was reached with a share, and what others could have had whenever the
    referee said what it does.
    """
    stages: list[tuple[str, str]] = []

    def look(stage: str, _note: str) -> None:
        device = evaluator.device
        could = "alone" if device.free(fcntl.LOCK_EX) else ""
        stages.append((stage, could or ("share" if device.free(fcntl.LOCK_SH) else "nothing")))

    evaluator.referee.progress = look  # type: ignore[method-assign]
    known = {"known": evaluator.calibration(SCALED), "want_baselines": ["eager"]}
    request = evaluator.request(SCALED, source, "quick", {**known, **more})
    answer = evaluator.sharing(Request.from_json(request), [])
    return answer.verdict.to_json(), stages


def test_it_is_verified_beside_others_and_timed_alone(evaluator: Evaluator) -> None:
    v, stages = seen(evaluator, NATIVE)
    assert v["status"] == "correct", v["reason"]
    assert v["candidate_ms"] > 0
    assert "turn" in v["cost_s"]
    assert {could for stage, could in stages if stage in ("build", "verify")} == {"share"}
    assert {could for stage, could in stages if stage == "time"} == {"nothing"}
    # Nothing of it has the device any more.
    waiting.until(lambda: evaluator.device.free(fcntl.LOCK_EX), "it lets go of the device")


def test_what_is_wrong_never_asks_to_be_alone(evaluator: Evaluator) -> None:
    wrong = NATIVE.replace("v < 0 ? 0 : v", "v")
    v, stages = seen(evaluator, wrong)
    assert v["status"] == "wrong", v["reason"]
    assert {could for _, could in stages} == {"share"}
    assert not evaluator.device.asked.is_set()


def test_nothing_of_it_runs_while_it_waits_to_be_alone(evaluator: Evaluator) -> None:
    """Another has a share: what waits for it has no process that met the candidate."""
    other = evaluator.device.take(fcntl.LOCK_SH)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(seen(evaluator, NATIVE + "\n")))
    met: list[str] = []
    spawn = ForkServer.spawn

    def noted(server: ForkServer, config: Config, *args: Any, **more: Any) -> Any:
        worker = spawn(server, config, *args, **more)
        if config.role == "candidate":
            met.append(f"/proc/{worker.pid}")
        return worker

    with pytest.MonkeyPatch.context() as m:
        m.setattr(ForkServer, "spawn", noted)
        try:
            thread.start()
            waiting.event(evaluator.device.asked, "it asks to be alone")
            waiting.until(lambda: not any(map(os.path.exists, met)), "its processes end")
            assert met
            assert not found
        finally:
            os.close(other)
            waiting.ended(thread, "it is timed")
    v, stages = found[0]
    assert v["status"] == "correct", v["reason"]
    assert ("time", "nothing") in stages


def test_what_was_started_ahead_gives_up_its_share(evaluator: Evaluator) -> None:
    """As on a GPU, where the process that is timed is started while another is verified."""
    share = evaluator.device.take(fcntl.LOCK_SH)
    could: list[bool] = []

    def alone() -> tuple[list[int], None]:
        os.close(share)
        could.append(evaluator.device.free(fcntl.LOCK_EX))
        return [evaluator.device.take(fcntl.LOCK_SH)], None

    request = Request.from_json(evaluator.request(SCALED, NATIVE, "quick", {}))
    context = evaluation.Context(evaluator.server, request, [share], Asker(alone=alone))
    nothing = SimpleNamespace(drain=lambda _: None, hold=lambda _: None)
    with ThreadPoolExecutor() as context.beside:
        processes = Processes(context)
        processes.begin(False)
        processes.be_alone(nothing)  # type: ignore[arg-type]
        worker = processes.take(False)
        assert could == [True]
        os.close(context.fds.pop())
        assert not evaluator.device.free(fcntl.LOCK_EX), "it has the device again"
        worker.kill()
        waiting.until(lambda: evaluator.device.free(fcntl.LOCK_EX), "it has ended")


def test_who_is_late_in_company_is_judged_again_alone(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "FORWARD_S", 1.0)
    v, stages = seen(evaluator, HANGS)
    assert v["status"] == "timed_out", v["reason"]
    assert any("judged again by itself" in e for e in v["evidence"])
    assert [could for stage, could in stages if stage == "verify"] == ["share", "nothing"]


def _memory() -> faults.Fault:
    fault = faults.Fault("crashed", "it ran out of memory")
    fault.__cause__ = torch.OutOfMemoryError("CUDA out of memory")
    return fault


@pytest.mark.parametrize(
    ("fault", "beside", "after"),
    [
        (faults.Fault("timed_out", "it hangs"), True, False),
        (_memory(), True, False),
        (faults.Fault("rejected", "a share of the time", measured=True), True, True),
        (faults.Fault("wrong", "it computes something else"), False, False),
        (faults.Fault("crashed", "it raised ValueError"), False, False),
    ],
)
def test_what_may_be_the_doing_of_others(
    evaluator: Evaluator, fault: faults.Fault, beside: bool, after: bool
) -> None:
    request = Request.from_json(evaluator.request(SCALED, NATIVE, "quick", {}))
    asker = Asker(alone=lambda: ([], None))
    context = evaluation.Context(evaluator.server, request, asker=asker)
    e = evaluation.Evaluation(context)
    assert e.may_be_of_company(fault) is beside
    context.be_alone()
    assert e.may_be_of_company(fault) is after
    e = evaluation.Evaluation(evaluation.Context(evaluator.server, request))
    assert not e.may_be_of_company(fault)


def test_a_worker_error_without_memory_is_one() -> None:
    error = WorkerError(Failure("OutOfMemoryError", "CUDA out of memory"))
    fault = faults.Fault("crashed", "it ran out of memory")
    fault.__cause__ = error
    assert faults.lack_of_memory(fault) is error
