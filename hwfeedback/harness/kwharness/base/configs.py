"""What a worker of each role is started with: built by whoever asks for it, read by the worker.

The fork server's client reads of it what the sandbox is to give (process/fork_client.py). Nobody
compares or prints them, as messages.py there says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kwharness.base.records import FLAT, Message, Natural


@dataclass(frozen=True, eq=False, repr=False)
class Place(Message):
    """The device that a worker computes on."""

    device: str = "cpu"  # its kind: "cpu" or "cuda"
    gpu: Natural | None = None  # the minor number of the one NVIDIA GPU that it may use, and
    gpu_uuid: str = ""  # its name for the driver


@dataclass(frozen=True, eq=False, repr=False)
class Config(Message):
    """What workers of all roles have."""

    role: ClassVar[str]  # a row of policy.PROFILES
    sandbox: str = "strict"  # or "weak", which goes on without what the machine cannot give
    threads: Natural = 1  # of parallel regions
    place: Place = field(default=Place(), metadata=FLAT)
    read_only: list[str] = field(default_factory=list)  # paths of the host that it sees, too
    preimport: list[str] = field(default_factory=list)  # names in spawn_request.PREIMPORTS
    inductor_cache: str = ""  # a folder that it sees, of what torch.compile needs; "": none
    tools: bool = False  # NVIDIA's tools may look at what it starts


class ReferenceConfig(Config):
    """Of a reference's worker."""

    role = "reference"


@dataclass(frozen=True, eq=False, repr=False)
class CandidateConfig(Config):
    """Of a candidate's worker."""

    role = "candidate"
    poison: bool = False  # memory that it allocates holds no zeros


@dataclass(frozen=True, eq=False, repr=False)
class BuilderConfig(Config):
    """Of a builder."""

    role = "builder"
    runs: bool = False  # it serves a candidate, whose calls may start compilers
    cuda_home: str = ""  # the folder of the CUDA toolkit, "" where it does without
    light: str = ""  # the folder of our lighter headers, "" for none
    warm: bool = False  # it makes NVRTC ready before it is asked for anything


@dataclass(frozen=True, eq=False, repr=False)
class ProfilerConfig(Config):
    """Of a profiler's worker."""

    role = "profiler"
    # Nsight Compute's, under which an interpreter serves the candidate; []: the worker does.
    command: list[str] = field(default_factory=list)


BY_ROLE: dict[str, type[Config]] = {
    c.role: c for c in (ReferenceConfig, CandidateConfig, BuilderConfig, ProfilerConfig)
}
