"""What Go and Python both go by: ``constants.toml`` says what each one is."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """The keys of the file, in its order. ``_s`` are seconds, ``_bytes`` bytes."""

    protocol_version: int
    max_frame_bytes: int
    max_fds: int
    send_timeout_s: float
    not_finite: float
    max_reference_bytes: int
    inspect_steps: int
    task_form: str
    baselines: list[str]
    gpu_baselines: list[str]
    vague_ratio: float
    quiet_spread: float
    spare_cores: int
    peak_calls: int
    sector_bytes: int
    allocator_env: str
    for_a_gpu: str
    asks_again: str
    other_shapes: str


with open(os.path.join(os.path.dirname(__file__), "constants.toml"), "rb") as _file:
    SHARED = Constants(**tomllib.load(_file))
