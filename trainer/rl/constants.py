"""What Go and Python both go by: ``constants.toml`` says what each one is."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Constants:
    """The keys of the file, in its order. ``_s`` are seconds, ``_bytes`` bytes."""

    metrics_file: str
    policy_token_env: str
    first_poll_s: float
    last_poll_s: float
    waiter_gone_s: float
    yield_s: float
    holder_bytes: int
    exit_codes: dict[str, int]


SHARED = Constants(**tomllib.loads(Path(__file__).with_name("constants.toml").read_text("utf-8")))
