"""Nsight Compute: what it is asked for, and what it answers.

What is asked for is data: ``metrics.toml``, and ``metrics_sm_NN.toml`` for each family of GPUs.
``read`` takes what ncu has written apart; that lies where a candidate's code runs, so all of it may
be the candidate's own word: it is bounded, and what is no figure is left out.

The forms are those of release 2025.3: ``--csv --page raw`` writes a row of names, a row of units
and a row for each launch; lines that begin with ``==`` are ncu's own words.
"""

from __future__ import annotations

import csv
import functools
import math
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict, cast

FULL = "full"  # beside the selection: what ncu calls its full set
# That are measured of launches alike. By their names ncu does not tell them apart: several kernels
# of one size are hidden by no more than so many launches of the first.
EACH = 8
# The kernel of a launch that nobody asks about: ncu's first takes a second more than others.
WARMING = "spin_kernel"
MAX_REPORT = 4 << 20  # characters of a report that are read
MAX_ROWS = 1000
MAX_COLUMNS = 10_000
MAX_NAME = 300  # characters of a kernel's name
MAX_WORDS = 4000  # characters of ncu's own words
HERE = os.path.dirname(os.path.realpath(__file__))
# It would copy its sections into a home, which takes longer than a measurement.
ENVIRONMENT = {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}

_METRIC = re.compile(r"[a-z][a-z0-9]*__[A-Za-z0-9_.]{1,120}")
_NUMBER = re.compile(r"\d{1,30}(\.\d{0,30})?([eE][+-]?\d{1,3})?", re.ASCII)
_DIMENSIONS = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)", re.ASCII)
_WORDS = re.compile(r"==(PROF|WARNING|ERROR)==\s*(.*)")
_LARGEST = 1e18
# Should a release not know --print-units, its units are these times the base's.
_SCALES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BYTES = re.compile(r"([KMGT]?)byte(?:/([num]?)(?:s|second))?")
_TIMES = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}
_TIMES |= {"s": 1e9, "second": 1e9}


@dataclass(frozen=True)
class Row:
    """What ncu measured of one launch. Times are in ns, what is moved in bytes."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: dict[str, float]

    @property
    def warms(self) -> bool:
        """Whether nobody asked about it: see WARMING."""
        return base(self.name) == WARMING and self.grid == self.block == (1, 1, 1)


@dataclass
class Report:
    """What ncu wrote. ``errors`` and ``warnings`` are its own words, a sentence each."""

    rows: list[Row] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Asked(TypedDict, total=False):
    """A file of metrics."""

    metrics: list[str]
    tensor_operations: list[str]  # metrics that count the tensor cores' operations
    named: dict[str, str]  # metrics of the selection that have another name there
    replaced: dict[str, list[str]]  # CudaForge's metrics, and what is asked for instead


@functools.cache
def families() -> dict[int, str]:
    """Returns the files by the least compute capability that each is for, as 90 for 9.0."""
    names = [n for n in os.listdir(HERE) if re.fullmatch(r"metrics_sm_\d+\.toml", n)]
    return {int(re.findall(r"\d+", n)[0]): os.path.join(HERE, n) for n in names}


@functools.cache
def shared() -> Asked:
    """Returns what is the same for all families."""
    return _data(os.path.join(HERE, "metrics.toml"))


@functools.cache
def selection(capability: int, *, products: bool = True) -> dict[str, str]:
    """Returns the metrics that a GPU of this compute capability is asked for, each with the name
    that it has there, by the last family that is not above it, or the first. ``products``: with the
    tensor cores' operations. What a GPU has not ncu leaves out.
    """
    nearest = max((c for c in families() if c <= capability), default=min(families()))
    own = _data(families()[nearest])
    named, more = own.get("named", {}), own.get("tensor_operations", ()) if products else ()
    return {m: named.get(m, m) for m in [*shared()["metrics"], *own.get("metrics", ()), *more]}


def _data(path: str) -> Asked:
    with open(path, "rb") as f:
        return cast("Asked", tomllib.load(f))


def command(program: str, metrics: Sequence[str], *, full: bool = False) -> list[str]:
    """Returns what to put before a command, so that what it launches between cudaProfilerStart and
    cudaProfilerStop is measured: the first EACH launches of one grid, block and size of shared
    memory. ``full``: these metrics and ncu's full set, which has not all of them. The report's
    path is the worker's own (workers/profiler.py).
    """
    asked = ["--set", FULL] if full else []
    asked += ["--metrics", ",".join(metrics)] if metrics else []
    return [
        program, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--profile-from-start", "off", "--target-processes", "application-only",
        "--filter-mode", "per-launch-config", "--launch-count", str(EACH), *asked,
    ]  # fmt: skip


def read(text: str) -> Report:
    """Takes a report apart. What makes no sense in it is left out."""
    report = Report()
    table: list[str] = []
    if len(text) >= MAX_REPORT:  # it was cut, as like as not within a number
        text = text[: text.rfind("\n", 0, MAX_REPORT) + 1]
    for line in text.replace("\0", "").splitlines():
        said = _WORDS.match(line)
        if said is None:
            if line.startswith('"'):
                table.append(line)
        elif said[1] != "PROF":
            into = report.errors if said[1] == "ERROR" else report.warnings
            if sum(map(len, into)) < MAX_WORDS:
                into.append(said[2].strip()[:MAX_WORDS])
    header: list[str] = []
    units: list[str] = []
    try:
        for cells in csv.reader(table, strict=False):
            if cells[:1] == ["ID"]:  # kernels with other columns have a table of their own
                header, units = cells[:MAX_COLUMNS], []
            elif header and not units:
                units = [*cells, *[""] * len(header)]
            elif header and len(report.rows) < MAX_ROWS:
                row = _row(header, units, cells)
                if row is not None and not row.warms:
                    report.rows.append(row)
    except csv.Error:
        pass  # what came before it holds
    return report


def _row(header: list[str], units: list[str], cells: list[str]) -> Row | None:
    named = dict(zip(header, cells, strict=False))
    name = named.get("Kernel Name", "").strip()
    if not name:
        return None
    metrics: dict[str, float] = {}
    for column, unit, cell in zip(header, units, cells, strict=False):
        if _METRIC.fullmatch(column) is None:
            continue
        value = number(cell, unit)
        if value is not None:
            metrics[column] = value
    return Row(
        name[:MAX_NAME],
        dimensions(named.get("Grid Size", "")),
        dimensions(named.get("Block Size", "")),
        metrics,
    )


def number(cell: str, unit: str = "") -> float | None:
    """Returns a value in base units, None for what is none: "n/a", NaN, infinity, a word, what is
    below zero.
    """
    text = cell.strip().replace(",", "")
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text) * _scale(unit)
    return value if math.isfinite(value) and value < _LARGEST else None


def _scale(unit: str) -> float:
    if unit in _TIMES:
        return _TIMES[unit]
    m = _BYTES.fullmatch(unit)
    if m is None:
        return 1.0
    return _SCALES[m[1]] / (_SCALES[m[2]] if m[2] else 1.0)


def dimensions(text: str) -> tuple[int, int, int]:
    """Reads "(64, 2, 1)", zeros where it is none."""
    m = _DIMENSIONS.search(text[:100])
    if m is None or any(len(n) > 10 for n in m.groups()):
        return (0, 0, 0)
    return (int(m[1]), int(m[2]), int(m[3]))


def base(name: str) -> str:
    """Returns a kernel's own name: profilers write scopes, templates and parameters differently.
    Of a namespace without a name ncu 2025.3 has "unnamed>".
    """
    text = re.sub(r"\(anonymous namespace\)|<?unnamed>|\{anonymous\}", "", name)
    m = re.match(r"\s*(?:void\s+)?([\w:~$.]+)", text)
    return (m[1].rpartition("::")[2] if m else "") or name[:MAX_NAME]


_UNKNOWN = "ailed to find metric"
# What ncu says when it cannot measure: a part of its words, ours, and whether it may go another
# time. The first that fits is taken.
_SAID = (
    (
        "ERR_NVGPUCTRPERM",
        "ncu may not read this GPU's counters: its driver gives them to administrators alone, "
        "which no sandbox is (NVreg_RestrictProfilingToAdminUsers=0 gives them to all)",
        False,
    ),
    (
        "resource was unavailable",
        "the GPU's counters are busy: another profiler or a monitor such as DCGM holds them",
        True,
    ),
    ("interprocess lock", "the GPU's counters are busy: another ncu holds them", True),
    (_UNKNOWN, "this ncu does not know all metrics that it is asked for", False),
    ("nrecognised option", "this ncu is too old: it does not know an option", False),
    ("nrecognized option", "this ncu is too old: it does not know an option", False),
    ("not supported", "this ncu does not support this GPU or its driver", False),
)


def complaint(report: Report) -> tuple[str, bool]:
    """Returns in a sentence what ncu itself says is wrong, "" for nothing, and whether it may go
    another time.
    """
    words = " ".join([*report.errors, *report.warnings])
    for part, ours, passing in _SAID:
        if part in words:
            first = next((w for w in (*report.errors, *report.warnings) if part in w), "")
            more = f": {first}" if part in (_UNKNOWN, "not supported") else ""
            return ours + more, passing
    if report.errors:
        return f"ncu says: {report.errors[0]}", True
    return "", True


def unknown(report: Report, asked: Sequence[str]) -> list[str]:
    """Returns which of the metrics that it was asked for ncu says it does not know. It may leave
    out what comes after a metric's base, ".sum" and the like.
    """
    words = [w for w in (*report.errors, *report.warnings) if _UNKNOWN in w]
    named = {m[0].rstrip(".") for w in words for m in _METRIC.finditer(w)}
    return [m for m in asked if m in named or m.partition(".")[0] in named]
