"""Settings of a stage: JSON into dataclasses. An unknown key or a wrong type is an error that names
it.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rl.errors import BadInput

T = TypeVar("T")


@dataclass(frozen=True)
class Lora:
    """An adapter in place of all weights. ``rank`` 0: all weights are trained."""

    rank: int = 0
    alpha: float = 32.0
    modules: str = "all-linear"


@dataclass(frozen=True)
class Machine:
    """How a stage uses the machine.

    ``device``: "cpu", "cuda" or "auto". ``parallel``: "ddp" (each process has all weights) or
    "fsdp" (weights are spread). ``threads``: 0 leaves them to PyTorch. ``micro_tokens``: the most
    tokens, padding included, that go through the model at once; one longer row goes alone.
    ``packing`` puts rows behind each other instead of padding them. ``gpus``: which GPU each
    process has, by its number; empty: that of its own number. ``leases``: the folder of the
    devices' leases; empty: none is taken.
    """

    device: str = "auto"
    parallel: str = "ddp"
    threads: int = 0
    micro_tokens: int = 8192
    packing: bool = False
    gradient_checkpointing: bool = False
    gpus: list[int] = field(default_factory=list)
    leases: str = ""


@dataclass(frozen=True)
class Optimiser:
    """AdamW. ``warmup`` counts updates; ``schedule`` "constant" or "cosine" (to a tenth)."""

    lr: float = 3e-6
    warmup: int = 0
    schedule: str = "constant"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    weight_decay: float = 0.0
    gradient_norm: float = 1.0


@dataclass(frozen=True)
class Saving:
    """``every`` counts steps between checkpoints, of which the newest ``keep`` are kept."""

    every: int = 10
    keep: int = 2
    tensorboard: bool = True


def read(kind: type[T], path: str | Path) -> T:
    """Returns the settings in a JSON file."""
    try:
        found = json.loads(Path(path).read_text())
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", "name a JSON file") from error
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}", "mend the file") from error
    return decode(kind, found, str(path))


def decode(kind: type[T], found: Any, where: str) -> T:
    """Returns ``found``, of JSON, as a dataclass. ``where`` names it in errors."""
    if not isinstance(found, dict):
        raise BadInput(f"{where} must be an object, not {_kind(found)}", "mend the settings")
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise BadInput(f"{where} has an unknown key {key}", hint)
    hints = typing.get_type_hints(kind)
    for name, f in known.items():
        if name in found or f.default is not dataclasses.MISSING:
            continue
        if f.default_factory is dataclasses.MISSING:
            raise BadInput(f"{where} lacks {name}", "add it to the settings")
    return kind(**{k: _value(hints[k], v, f"{where}: {k}") for k, v in found.items()})


def _value(kind: Any, found: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return decode(kind, found, where)  # type: ignore[arg-type]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if found is None and type(None) in args:
            return None
        for one in args:
            if one is not type(None):
                try:
                    return _value(one, found, where)
                except BadInput:
                    continue
        raise BadInput(f"{where} cannot be {_kind(found)}", "mend the settings")
    if origin is list:
        if not isinstance(found, list):
            raise BadInput(f"{where} must be a list, not {_kind(found)}", "mend the settings")
        return [_value(args[0], x, where) for x in found]
    if origin is dict or kind is dict:
        if not isinstance(found, dict):
            raise BadInput(f"{where} must be an object, not {_kind(found)}", "mend the settings")
        return found
    if kind is float and isinstance(found, int) and not isinstance(found, bool):
        return float(found)
    if not isinstance(found, kind) or (kind is not bool and isinstance(found, bool)):
        raise BadInput(
            f"{where} must be of type {kind.__name__}, not {_kind(found)}", "mend the settings"
        )
    return found


def _kind(found: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number"}
    return "null" if found is None else names.get(type(found), "a number")


def require(condition: bool, reason: str, hint: str = "mend the settings") -> None:
    """Raises BadInput where a condition on settings does not hold."""
    if not condition:
        raise BadInput(reason, hint)
