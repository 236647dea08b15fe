"""What CUDA, PyTorch and NVML say of a GPU, or of its driver, that does not work."""

from __future__ import annotations

import re

_LOOK = "look at the kernel's log (dmesg) for Xid, and reset the GPU or restart the machine"
# What is said, and what to do about it. A text counts only where it names whom it is about: these
# words alone may be anybody's.
_SAYS = [
    (re.compile(text), advice)
    for text, advice in (
        (
            r"driver on your system is too old|driver version is insufficient"
            r"|supported in the installed CUDA driver|unsupported toolchain"
            r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            "install a newer NVIDIA driver, or a PyTorch for the CUDA that this one knows",
        ),
        (
            r"forward compatibility was attempted|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
            "take the libraries of cuda-compat out of the way (LD_LIBRARY_PATH), or install a "
            "newer NVIDIA driver",
        ),
        (
            r"Driver/library version mismatch|unsupported display driver"
            r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "restart the machine: the driver was updated while it was loaded",
        ),
        (
            r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY",
            "start NVIDIA's fabric manager (nvidia-fabricmanager), for which GPUs with NVSwitch "
            "wait",
        ),
        (
            r"no CUDA-capable device|No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE"
            r"|no NVIDIA driver|driver is a stub|CUDA_ERROR_STUB_LIBRARY",
            "see whether nvidia-smi shows the GPU: if not, install NVIDIA's driver, or look at "
            "the kernel's log (dmesg) for Xid",
        ),
        (
            r"busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
            "end what else has the GPU, and see that its compute mode is Default "
            "(nvidia-smi -q -d COMPUTE)",
        ),
        (r"\bMPS |CUDA_ERROR_MPS_", "end NVIDIA's MPS control daemon, or restart it"),
        (
            r"uncorrectable ECC|CUDA_ERROR_ECC_UNCORRECTABLE|GPU is lost|fallen off the bus"
            r"|GPU has fallen|NVLink|CUDA_ERROR_NVLINK_UNCORRECTABLE|or a hardware error"
            r"|CUDA_ERROR_CONTAINED|hardware stack error|CUDA_ERROR_HARDWARE_STACK_ERROR"
            r"|driver shutting down|startup failure in cuda runtime|initialization error"
            r"|CUDA_ERROR_NOT_INITIALIZED|OS call failed|CUDA_ERROR_OPERATING_SYSTEM"
            r"|unknown error|CUDA_ERROR_UNKNOWN",
            _LOOK,
        ),
    )
]
_NAMED = re.compile("cuda|nvidia|nvml|gpu|driver", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.?!])\s+")
SHOWN = 300  # characters
REFEREE = "the referee"  # who met it in a process that runs no foreign code
STAGE = "device"  # at which a process fails that cannot begin on its GPU


class Ill(Exception):
    """A GPU, or its driver, does not work, as was met where no candidate's code had run."""

    def __init__(self, where: str, words: str, traceback: str = "") -> None:
        super().__init__(told(where, words))
        self.traceback = traceback


def said(text: str) -> str:
    """Returns the sentence that says that a GPU or a driver does not work, "" where none does."""
    for line in text.splitlines():
        if _NAMED.search(line):
            for sentence in _SENTENCE.split(line.strip()):
                if any(says.search(sentence) for says, _ in _SAYS):
                    shown = "".join(c for c in sentence if c.isprintable())  # it is foreign text
                    return shown[:SHOWN].rstrip(".")
    return ""


def told(where: str, words: str) -> str:
    """Returns what is told of it: who met it, what was ``said``, and what to do."""
    advice = next((a for says, a in _SAYS if says.search(words)), _LOOK)
    return f"{where} met a GPU that does not work: {words}; {advice}"
