"""A GPU that does not work, or its driver, is nobody's fault, whoever met it: here a reference on
the CPU says what one on a GPU would.
"""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
from evaluating import Evaluator, evaluate
from test_bad_references import whole
from test_referee import HEAD

from kwharness.base.calibration import Calibration
from kwharness.base.configs import CandidateConfig, Place, ReferenceConfig
from kwharness.base.operations import Failure
from kwharness.base.protocol import Channel
from kwharness.clients import candidate_client, errors, reference_client
from kwharness.machine import device, health
from kwharness.machine.health import Ill
from kwharness.process import sandbox
from kwharness.referee import context, faults
from kwharness.referee import main as referee
from kwharness.standalone import calls
from kwharness.task import inspect_task
from kwharness.task.invalid import Invalid
from kwharness.timing import timing, turns, window_base
from kwharness.verify import calibrate

XID = "look at the kernel's log (dmesg) for Xid"
NEWER = "install a newer NVIDIA driver"
RESTART = "restart the machine: the driver was updated"
SEE = "see whether nvidia-smi shows the GPU"
ERROR_804 = "Error 804: forward compatibility was attempted on non supported HW"
ERROR_802 = "Error 802: system not yet initialized"
COUNTING = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? "
)
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)"
UPDATE = (
    ". Please update your GPU driver by downloading and installing a new version from the URL: "
    "http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org"
)
# What is advised where this is said, and more around it that is not shown.
SAYS = [
    (XID, "", "CUDA error: uncorrectable ECC error encountered", "\nMore."),
    (XID, "", "cuCtxSynchronize: CUDA_ERROR_ECC_UNCORRECTABLE", ""),
    (XID, "", "CUDA error: GPU is lost", ". Reboot the system to recover this GPU"),
    (XID, "", "NVML: the GPU has fallen off the bus", ""),
    (XID, "", "CUDA error: unknown error", ""),
    (XID, "", "CUDA error: hardware stack error", ""),
    (XID, "", "CUDA error: uncorrectable NVLink error detected during the execution", ""),
    (XID, "", "CUDA error: Invalid access of peer memory over nvlink or a hardware error", ""),
    (NEWER, "", TOO_OLD, UPDATE),
    (NEWER, "", "CUDA driver version is insufficient for CUDA runtime version", ""),
    (NEWER, "", "CUDA: the provided PTX was compiled with an unsupported toolchain", ".\n"),
    (NEWER, "", "CUDA error: API call is not supported in the installed CUDA driver", ""),
    ("cuda-compat", COUNTING, ERROR_804, ""),
    (RESTART, "", "Failed to initialize NVML: Driver/library version mismatch", ""),
    (RESTART, "", "system has unsupported display driver / cuda driver combination", ""),
    ("fabric manager", COUNTING, ERROR_802, ""),
    (SEE, "", "CUDA error: no CUDA-capable device is detected", "\n"),
    (SEE, "", "No CUDA GPUs are available", ""),
    (SEE, "", "libcuda.so.1: no NVIDIA driver is installed", ""),
    ("compute mode", "", "CUDA error: CUDA-capable device(s) is/are busy or unavailable", ""),
    ("MPS control daemon", "", "CUDA error: the MPS client has been terminated by the server", ""),
]
IDS = [shown[-40:] for _, _, shown, _ in SAYS]
says = pytest.mark.parametrize(("advice", "before", "shown", "after"), SAYS, ids=IDS)
# One for each thing to do.
KINDS = list(
    {advice: (advice, before + shown + after) for advice, before, shown, after in SAYS}.values()
)
OWN = [
    "uncorrectable ECC error, says nobody",
    "unknown error",
    "CUDA error: device-side assert triggered",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: invalid device ordinal",
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
    "Expected all tensors to be on the same device, but found two devices, cuda:0 and cpu!",
    "Could not run 'aten::add' with arguments from the 'CUDA' backend. CPU: registered; MPS: too",
]


class Played(device.Cpu):
    """The CPU, as what has a driver."""

    has_driver = True


def raising(text: str) -> str:
    return f"raise RuntimeError({text!r})"


def inspected(evaluator: Evaluator, source: str, on: Any, device: str = "cpu") -> Any:
    def spawn() -> errors.Spawned:
        return evaluator.server.spawn(ReferenceConfig(place=Place(device)))

    return inspect_task.inspect(spawn, "it", source, "", threads=1, timeout_s=30, device=on)


@says
def test_what_is_said_is_told_with_what_to_do(
    advice: str, before: str, shown: str, after: str
) -> None:
    """By whoever says so: a candidate is asked again for it, and a known one after that."""
    text = before + shown + after
    assert health.said(f"Of something else.\n\a{text}") == shown
    error = Failure("AcceleratorError", text, stage="forward")
    failed = faults._fault(errors.WorkerError(error), "being timed")
    assert isinstance(failed, faults.Infrastructure)
    assert str(failed).startswith(f"ModelNew's forward met a GPU that does not work: {shown}; ")
    assert advice in str(failed) and len(str(failed)) < 400


@pytest.mark.parametrize("text", OWN)
def test_what_is_ones_own_is_not_said(text: str) -> None:
    assert health.said(text) == ""


@pytest.mark.parametrize(("advice", "text"), KINDS)
def test_a_reference_that_meets_it_is_not_invalid(
    evaluator: Evaluator, advice: str, text: str
) -> None:
    with pytest.raises(Ill) as e:
        inspected(evaluator, whole(forward=raising(text)), Played())
    assert str(e.value).startswith("Model's forward met a GPU that does not work: ")
    assert advice in str(e.value) and "raise RuntimeError" in e.value.traceback


LOST = raising("CUDA error: GPU is lost")
PARTS = {
    "importing the file": whole(LOST),
    "get_init_inputs()": whole(init=LOST),
    "Model's constructor": whole(construct=LOST),
    "get_inputs()": whole(inputs=LOST),
    # In one form of the forward, which others may lack: float64, and the captured graph.
    "Model's forward": whole(
        forward=f"\n        if x.dtype == torch.float64: {LOST}\n        return torch.sin(x)"
    ),
    "the reference": whole(
        f"import sys, types\ndef lost(*_): {LOST}",
        forward="sys.modules['kwharness.task.capture'] = types.SimpleNamespace(capture=lost); "
        "return torch.sin(x)",
    ),
    # The process ends by it.
    "Model's forward, last words": whole(
        "import os, sys",
        forward="\n        sys.stderr.write(\"what():  CUDA error: GPU is lost\\n\"); os.abort()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_wherever_a_reference_meets_it(evaluator: Evaluator, part: str) -> None:
    with pytest.raises(Ill) as e:
        inspected(evaluator, PARTS[part], Played())
    where, _, _ = part.partition(",")
    assert str(e.value).startswith(f"{where} met a GPU that does not work: ")
    assert "GPU is lost; look at" in str(e.value)


@pytest.mark.parametrize(
    ("text", "on", "hint"),
    [
        ("no such thing", Played(), "get_inputs() fits forward"),
        ("CUDA error: device-side assert triggered", Played(), ""),
        (TOO_OLD + UPDATE, device.CPU, "make everything on the CPU"),  # it asked for a GPU
        ("No CUDA GPUs are available", device.CPU, "make everything on the CPU"),
    ],
)
def test_what_is_a_references_own_fault_stays_so(
    evaluator: Evaluator, text: str, on: Any, hint: str
) -> None:
    with pytest.raises(Invalid) as e:
        inspected(evaluator, whole(forward=raising(text)), on)
    assert e.value.message.startswith("Model's forward raises RuntimeError: ")
    assert hint in e.value.hint


def test_a_process_that_cannot_begin_on_its_gpu(evaluator: Evaluator) -> None:
    """It has none in its sandbox."""
    with pytest.raises(Ill, match=r"^the reference met a GPU that does not work: "):
        inspected(evaluator, whole(), Played(), "cuda")
    worker = evaluator.server.spawn(CandidateConfig(place=Place(device="cuda")))
    client = candidate_client.CandidateClient(worker, 30, Played())
    with (
        pytest.raises(faults.Infrastructure, match="met a GPU that does not work"),
        faults.faults("importing the candidate", client),
    ):
        client.load("", [], [], threads=1, timeout=120)
    client.kill()


def test_the_judge_meets_it(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(kind: str) -> None:
        assert kind == "cuda"
        raise RuntimeError(TOO_OLD + UPDATE)

    monkeypatch.setattr(sandbox, "one_gpu", lambda _: {})
    monkeypatch.setattr(device, "of", of)
    request: dict[str, Any] = {"name": "it", "source": whole(), "device": "cuda:0"}
    request["gpu"] = {"minor": 0, "uuid": "GPU-0"}
    near, theirs = Channel.pair()
    far = Channel(theirs)
    far.send({"type": "inspect", "id": 1, **request})
    serving = threading.Thread(target=referee.Referee(near, evaluator.server).serve, daemon=True)
    serving.start()
    answer, _ = far.recv(120)
    far.close()
    serving.join(120)
    assert answer["error"]["kind"] == "ill"
    assert answer["error"]["message"].startswith(
        f"the referee met a GPU that does not work: {TOO_OLD}; {NEWER}"
    )
    said = referee._refusal(RuntimeError("CUDA error: unknown error"))
    assert said.kind == "infrastructure"
    assert said.message.startswith("the referee met a GPU that does not work: CUDA error: unk")


# Calibration and what follows.

ZEROS = "\n        if not x.any(): {}\n        return torch.softmax(x, -1)"


def test_a_family_that_meets_it_is_not_left_out(evaluator: Evaluator) -> None:
    def calibrated(statement: str) -> Calibration:
        worker = evaluator.server.spawn(ReferenceConfig())
        client = reference_client.ReferenceClient(worker, 30, Played())
        try:
            client.load(whole(forward=ZEROS.format(statement)), threads=1, eval_mode=False)
            return calibrate.calibrate(client, want_compile=False)
        finally:
            client.kill()

    with pytest.raises(errors.WorkerError, match="GPU is lost") as e:
        calibrated(LOST)
    assert str(faults.of_reference(e.value)).startswith("Model's forward met a GPU")
    left = calibrated("raise ValueError('nothing but zeros')")
    assert "zeros" not in left.families and any("ValueError" in n for n in left.notes)


# Where a reference begins to fail that was a task before, and what comes of it.
LATER = {
    "Model's constructor": (whole(construct=LOST), Ill),
    "get_inputs()": (whole(inputs=LOST), Ill),
    "Model's forward": (whole(forward=LOST), Ill),
    "own": (whole(forward="raise ValueError('enough')"), Invalid),
    # A candidate has run: whose doing it is a known one tells.
    "Model's forward, later": (
        whole(
            "N = [0]",
            forward=f"\n        N[0] += 1\n        if N[0] > 4: {LOST}\n"
            "        return torch.softmax(x, -1)",
        ),
        faults.Infrastructure,
    ),
}


@pytest.mark.parametrize("part", LATER)
def test_a_reference_that_meets_it_later(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    source, raised = LATER[part]
    candidate = HEAD + (
        "class ModelNew(nn.Module):\n    def forward(self, x): return torch.softmax(x, -1)\n"
    )
    request = evaluator.request(
        whole(), candidate, "quick", {"time": False, "require_custom": False}
    )
    request["known"] = evaluator.calibration(whole())
    request["task"] = {**request["task"], "source": source}
    monkeypatch.setattr(context, "device_of", lambda _: Played())
    with pytest.raises(raised) as e:
        evaluate(evaluator.server, request)
    if raised is not Invalid:
        where, _, _ = part.partition(",")
        assert str(e.value).startswith(f"{where} met a GPU that does not work: CUDA error: GPU is")


@pytest.mark.parametrize("on", ["cuda", "cpu"])
@pytest.mark.parametrize("text", ["CUDA error: GPU is lost", "division by zero"])
def test_a_baseline_that_meets_it_is_not_left_out(on: str, text: str) -> None:
    times = types.SimpleNamespace(device=types.SimpleNamespace(has_driver=on == "cuda"), notes=[])
    failed = window_base.CallFailed(Failure("AcceleratorError", text))
    lost = turns.Lost("compile", failed)
    lost.__cause__ = failed
    if on == "cpu" or "CUDA" not in text:
        timing.Timing._leave_out(times, lost, "it is left out")  # type: ignore[arg-type]
        assert times.notes == ["it is left out"]
        return
    with pytest.raises(timing.BaselineFailed) as e:
        timing.Timing._leave_out(times, lost, "it is left out")  # type: ignore[arg-type]
    told = faults.of_baseline(e.value)
    assert isinstance(told, Ill) and str(told).startswith("timing the baselines met a GPU that")


# Candidates.


def test_a_candidate_on_the_cpu_meets_none(evaluator: Evaluator) -> None:
    candidate = HEAD + f"class ModelNew(nn.Module):\n    def forward(self, x): {LOST}\n"
    v = evaluator.verdict(whole(), candidate)
    assert (v["status"], "GPU is lost" in v["reason"]) == ("crashed", True)


@pytest.mark.parametrize(("cuda", "raised"), [(True, "Infrastructure"), (False, "Fault")])
def test_an_exported_file_that_meets_it(cuda: bool, raised: str) -> None:
    log = "RuntimeError: CUDA error: GPU is lost\nCompile with `TORCH_USE_CUDA_DSA`.\n"
    failed = faults.of_exported_file(
        calls.Broken("Compile with `TORCH_USE_CUDA_DSA`.", log), has_driver=cuda
    )
    assert type(failed).__name__ == raised and "in a new interpreter" in str(failed)
