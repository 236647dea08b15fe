"""The kinds of launches of a forward, and what was measured of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kwharness.base.verdicts import KernelProfile
from kwharness.profile import ncu

MAX_COUNT = 1 << 31
LONG_MS = 1e9
# Columns that say what the GPU is and not what a kernel does.
OF_THE_GPU = ("device__", "nvlink__", "c2clink__", "numa__", "pcie__", "profiler__", "context__")
TIME = "gpu__time_duration.sum"  # ns
COPIES = ("Memcpy ", "Memset ")


@dataclass(frozen=True)
class Kind:
    """Launches that differ in nothing but their arguments."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    count: int
    ms: float = 0.0  # of all of them; 0: not known

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        return ncu.base(self.name), tuple(self.grid), tuple(self.block)

    @property
    def is_copy(self) -> bool:
        return self.name.startswith(COPIES)


@dataclass
class Seen:
    """What is known of the launches of one forward."""

    kinds: list[Kind] = field(default_factory=list)
    report: ncu.Report = field(default_factory=ncu.Report)
    why: str = ""
    more: int = 0  # launches of kernels of other kinds
    more_ms: float = 0.0  # of all of those; 0: not known
    whole: bool = True  # whether that is every launch


def three(sizes: Sequence[int]) -> list[int]:
    return [min(int(n), MAX_COUNT) for n in (*sizes, 0, 0, 0)][:3]


def kinds_of(launches: Any) -> list[Kind]:
    """Reads the launches that a worker listed: its word, which may be the candidate's."""
    found: list[Kind] = []
    if not isinstance(launches, list):
        return found
    for entry in launches[:1000]:
        try:
            name, grid, block, count = entry
            sizes = [size_of(n) for n in (*grid, *block)]
            if isinstance(name, str) and len(grid) == len(block) == 3 and size_of(count) > 0:
                found.append(Kind(name[: ncu.MAX_NAME], tuple(sizes[:3]), tuple(sizes[3:]), count))
        except (TypeError, ValueError):
            continue
    return found


def count_of(n: Any) -> int:
    """Reads a number of launches, 0 for what is none."""
    return n if type(n) is int and 0 <= n < MAX_COUNT else 0


def ms_of(n: Any) -> float:
    return float(n) if type(n) in (int, float) and 0 <= n < LONG_MS else 0.0


def size_of(n: Any) -> int:
    if type(n) is not int or not 0 <= n < MAX_COUNT:
        raise ValueError("no size")
    return n


def rows_of(kinds: Sequence[Kind], rows: Sequence[ncu.Row]) -> list[list[ncu.Row]]:
    """Returns the rows of each kind. Profilers write names differently, so that two instances of a
    template look alike, and some have a name of their own: both come in the order of launches, and
    the first that fits is taken.
    """
    groups: dict[tuple[str, Any, Any], list[ncu.Row]] = {}
    for r in rows:
        groups.setdefault((r.name, r.grid, r.block), []).append(r)
    known = {k.key[0] for k in kinds}
    found: list[list[ncu.Row]] = []
    for kind in kinds:
        base, *size = kind.key
        sized = [g for g in groups if [*g[1:]] == size]
        alike = [g for g in sized if ncu.base(g[0]) == base]
        alike = alike or [g for g in sized if ncu.base(g[0]) not in known]
        best = next((g for g in alike if g[0] == kind.name), alike[0] if alike else None)
        found.append(groups.pop(best) if best is not None else [])
    return found


def untimed(seen: Seen) -> set[int]:
    """Returns which kinds are of kernels whose time nobody has measured."""
    measured = rows_of(seen.kinds, seen.report.rows)
    return {
        i
        for i, (kind, rows) in enumerate(zip(seen.kinds, measured, strict=True))
        if not kind.ms and not kind.is_copy and not any(r.metrics.get(TIME) for r in rows)
    }


def fill_in(seen: Seen, listed: Seen) -> None:
    """Gives the kernels whose time nobody has measured the times that PyTorch's profiler listed.
    Two instances of a template may look alike there: each of its entries is used once.
    """
    left: dict[tuple[Any, ...], Kind] = {}
    for e in listed.kinds:  # names that were cut may be the same
        same = left.get((e.name, e.grid, e.block))
        both = replace(e, count=e.count + same.count, ms=e.ms + same.ms) if same else e
        left[e.name, e.grid, e.block] = both
    entries = [e for e in left.values() if not e.is_copy]
    found: dict[int, Kind] = {}
    alike: Sequence[Callable[[Kind], Any]]
    alike = (lambda k: (k.name, k.grid, k.block)), (lambda k: (k.key, k.count)), (lambda k: k.key)
    for form in alike:
        groups: dict[Any, list[Kind]] = {}
        for e in entries:
            groups.setdefault(form(e), []).append(e)
        for i, kind in enumerate(seen.kinds):
            if i not in found and groups.get(form(kind)):
                found[i] = groups[form(kind)].pop(0)
        entries = [e for group in groups.values() for e in group]
    for i in untimed(seen) & found.keys():
        kind = seen.kinds[i]
        ms = found[i].ms * kind.count / found[i].count
        seen.kinds[i] = replace(kind, ms=min(ms, LONG_MS))
    if seen.more and sum(e.count for e in entries) + listed.more >= seen.more:
        seen.more_ms = sum(e.ms for e in entries) + listed.more_ms


def is_whole(rows: Sequence[ncu.Row]) -> bool:
    """Whether ncu has measured every launch: of none alike as many as it looks at."""
    alike = Counter((r.grid, r.block) for r in rows)
    return len(rows) < ncu.MAX_ROWS and max(alike.values(), default=0) < ncu.EACH


def kinds_in(rows: Sequence[ncu.Row]) -> list[Kind]:
    """Returns what was measured as kinds, each as often as it was."""
    counts: dict[tuple[str, Any, Any], int] = {}
    for r in rows:
        key = r.name, r.grid, r.block
        counts[key] = counts.get(key, 0) + 1
    return [Kind(*key, count) for key, count in counts.items()]


def is_sum(metric: str) -> bool:
    """Whether several launches have the sum of what each has."""
    return metric.endswith(".sum")


def of_a_forward(kernels: Sequence[KernelProfile]) -> dict[str, float]:
    """Returns the metrics of kernels together."""
    return together([(k.ms, k.metrics or {}) for k in kernels])


def together(measured: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Returns metrics together: sums, and means weighted by time, which stands before each."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(m for _, metrics in measured for m in metrics):
        having = [(ms, metrics[name]) for ms, metrics in measured if name in metrics]
        values = [value for _, value in having]
        weights = [ms for ms, _ in having]
        if is_sum(name):
            found[name] = sum(values)
        elif sum(weights) > 0:
            # From the first one on: where all are the same, so is the mean, to the last bit.
            beyond = sum((v - values[0]) * w for v, w in zip(values, weights, strict=True))
            found[name] = values[0] + beyond / sum(weights)
        else:
            found[name] = sum(values) / len(values)
    return found
