"""Trajectories: what a policy saw and wrote, as Parquet files.

One row is a sample, a call of the model, by the key (episode, call):

- ``episode`` text, ``call`` int: which call of which episode.
- ``prompt_ids`` and ``response_ids``: lists of token ids, as they were sampled.
- ``response_mask``: list of the response's length; 1 is a token of the policy, 0 of the
  environment.
- ``rollout_logprobs``: list of the response's length; the sampler's, 0 where the mask is.
- ``reward`` float: the episode's, on its last call; what stands on the others is not read. An
  episode whose last call has none, and was not cut by a limit, met an infrastructure error.
- ``finish_reason`` text: ``stop``, or ``length`` or ``limit`` where a limit cut the episode. A
  first prompt that leaves no room is a call without a token, ``limit``.
- ``policy_version`` text.
- ``task`` text, ``verdict`` text of JSON, ``invalid`` bool, ``seconds`` float (of the verdict):
  optional.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rl.errors import BadInput, writing

CUT = ("length", "limit")  # reasons to finish that are no end

SCHEMA = pa.schema(
    [
        ("episode", pa.string()),
        ("call", pa.int32()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.int8())),
        ("rollout_logprobs", pa.list_(pa.float32())),
        ("reward", pa.float64()),
        ("finish_reason", pa.string()),
        ("policy_version", pa.string()),
        ("task", pa.string()),
        ("verdict", pa.string()),
        ("invalid", pa.bool_()),
        ("seconds", pa.float64()),
    ]
)
NEVER = b"never"  # in the schema's metadata
OPTIONAL = ("task", "verdict", "invalid", "seconds")


@dataclass
class Sample:
    """One call of the model; fields as the module says."""

    episode: str
    call: int
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    rollout_logprobs: list[float]
    reward: float | None
    finish_reason: str
    policy_version: str
    task: str = ""
    verdict: dict[str, Any] | None = None
    invalid: bool = False
    seconds: float = 0.0


@dataclass
class Episode:
    """Samples of one episode in the order of calls."""

    name: str
    samples: list[Sample] = field(default_factory=list)

    @property
    def task(self) -> str:
        """The task's name; without one, the first prompt stands for it."""
        first = self.samples[0]
        return first.task or ",".join(map(str, first.prompt_ids))

    @property
    def reward(self) -> float | None:
        """The last call's reward, None after an infrastructure error."""
        return self.samples[-1].reward

    @property
    def cut(self) -> bool:
        """Whether a limit ended it."""
        return self.samples[-1].finish_reason in CUT

    @property
    def tokens(self) -> int:
        """Tokens that the policy wrote."""
        return sum(sum(s.response_mask) for s in self.samples)


def group(samples: Iterable[Sample]) -> list[Episode]:
    """Returns the episodes of samples, in the order in which they first occur."""
    found: dict[str, Episode] = {}
    for sample in samples:
        found.setdefault(sample.episode, Episode(sample.episode)).samples.append(sample)
    for episode in found.values():
        episode.samples.sort(key=lambda s: s.call)
        calls = [s.call for s in episode.samples]
        if len(set(calls)) < len(calls):
            raise BadInput(
                f"episode {episode.name} has two samples of one call",
                "make the trajectories anew: (episode, call) is their key",
            )
    return list(found.values())


def write(path: Path, samples: Sequence[Sample], never: int = 0) -> None:
    """Writes a Parquet file, whole or not at all. ``never``: how many episodes were lost before
    their first call, see never_of.
    """
    rows = {name: [getattr(s, name) for s in samples] for name in SCHEMA.names}
    rows["verdict"] = [None if v is None else json.dumps(v) for v in rows["verdict"]]
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            schema = SCHEMA.with_metadata({NEVER: str(never)})
            pq.write_table(pa.table(rows, schema=schema), beside, compression="zstd")
            with open(beside, "rb") as f:
                os.fsync(f.fileno())
            os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def never_of(path: Path) -> int:
    """Returns how many episodes the writer of a Parquet file lost before their first call."""
    try:
        return int((pq.read_schema(path).metadata or {}).get(NEVER, b"0"))
    except (OSError, pa.ArrowInvalid, ValueError) as error:
        raise BadInput(f"{path} cannot be read as Parquet: {str(error)[:200]}") from error


def read(paths: Sequence[str | Path], vocabulary: int = 0) -> list[Episode]:
    """Returns the episodes in Parquet files, or in all of a folder, sorted by name. ``vocabulary``:
    how many ids the model knows; 0 does not check them.
    """
    files: list[Path] = []
    for given in map(Path, paths):
        inside = sorted(given.glob("*.parquet")) if given.is_dir() else [given]
        if not inside:
            raise BadInput(
                f"{given} holds no Parquet file", "name trajectories that were collected"
            )
        files += inside
    return group(s for f in files for s in read_file(f, vocabulary))


def read_file(path: Path, vocabulary: int = 0) -> list[Sample]:
    """Returns the samples of one Parquet file."""
    remake = "make it anew, or leave it out"
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInput(f"{path} cannot be read as Parquet: {str(error)[:200]}", remake) from error
    for name in SCHEMA.names:
        if name not in table.column_names and name not in OPTIONAL:
            raise BadInput(f"{path} has no column {name}", remake)
    samples = []
    for at, row in enumerate(table.to_pylist()):
        row = {k: v for k, v in row.items() if k in SCHEMA.names and v is not None}
        row.setdefault("reward", None)
        try:
            if isinstance(row.get("verdict"), str):
                row["verdict"] = json.loads(row["verdict"] or "null")
            sample = Sample(**{**row, "policy_version": str(row.get("policy_version", ""))})
        except (TypeError, ValueError) as error:
            raise BadInput(f"{path}, row {at} is not a sample: {error}", remake) from error
        wrong = _wrong(sample, vocabulary)
        if wrong:
            raise BadInput(f"{path}, row {at}: {wrong}", remake)
        samples.append(sample)
    return samples


def _wrong(s: Sample, vocabulary: int) -> str:
    """Returns what is wrong with a sample, empty where nothing is."""
    n = len(s.response_ids)
    if len(s.response_mask) != n or len(s.rollout_logprobs) != n:
        return (
            f"{n} response_ids, {len(s.response_mask)} of response_mask, "
            f"{len(s.rollout_logprobs)} rollout_logprobs"
        )
    if not s.prompt_ids:
        return "the prompt is empty"
    ids = s.prompt_ids + s.response_ids
    if vocabulary and not 0 <= min(ids) <= max(ids) < vocabulary:
        return f"a token id is not within the model's vocabulary of {vocabulary}"
    return ""
