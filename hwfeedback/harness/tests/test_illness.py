"""A GPU that does not work, or its driver, is nobody's fault, whoever met it: here a reference on
the CPU says what one on a GPU would.
"""

from __future__ import annotations

import pytest
from judging import Judge
from test_bad_references import whole
from test_referee import HEAD

import clients
import cold
import evaluation
import illness

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


@says
def test_what_is_said_is_told_with_what_to_do(
    advice: str, before: str, shown: str, after: str
) -> None:
    """By whoever says so: a candidate is asked again for it, and a known one after that."""
    text = before + shown + after
    assert illness.said(f"Of something else.\n\a{text}") == shown
    error = {"stage": "forward", "type": "AcceleratorError", "message": text}
    failed = evaluation._fault(clients.WorkerError(error), "being timed")
    assert isinstance(failed, evaluation.Infrastructure)
    assert str(failed).startswith(f"ModelNew's forward met a GPU that does not work: {shown}; ")
    assert advice in str(failed) and len(str(failed)) < 400


@pytest.mark.parametrize("text", OWN)
def test_what_is_ones_own_is_not_said(text: str) -> None:
    assert illness.said(text) == ""


def test_a_candidate_on_the_cpu_meets_none(judge: Judge) -> None:
    lost = "raise RuntimeError('CUDA error: GPU is lost')"
    candidate = HEAD + f"class ModelNew(nn.Module):\n    def forward(self, x): {lost}\n"
    v = judge.verdict(whole(), candidate)
    assert (v["status"], "GPU is lost" in v["reason"]) == ("crashed", True)


@pytest.mark.parametrize(("cuda", "raised"), [(True, "Infrastructure"), (False, "Fault")])
def test_an_exported_file_that_meets_it(cuda: bool, raised: str) -> None:
    log = "RuntimeError: CUDA error: GPU is lost\nCompile with `TORCH_USE_CUDA_DSA`.\n"
    failed = evaluation._broken(cold.Broken("Compile with `TORCH_USE_CUDA_DSA`.", log), cuda)
    assert type(failed).__name__ == raised and "in a new interpreter" in str(failed)
