"""Composes tasks: one to five operators in sequence, whose shapes fit because they were run.

Everything is drawn from a seed and an index: the same catalogue, seed and settings give the same
files. Shapes are found on the meta device; a copy with a small batch is run for real, and what is
silly is drawn again: a step that changes nothing, or leaves one value nearly everywhere.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import cost
from catalogue import DOMAINS, result_fault
from rules import NoFit
from step import Step, draw_step, seeded

# How often the first operator is of a family, and any later one.
FIRST = {"product": 35, "row": 30, "pointwise": 35, "shape": 0}
LATER = {"product": 10, "row": 37, "pointwise": 48, "shape": 5}
# How often an operator is drawn beside others of its family: most are not used in models.
COMMON = """
    relu gelu silu sigmoid tanh softmax logsoftmax layernorm rmsnorm groupnorm batchnorm
    instancenorm linear conv1d conv2d conv3d convtranspose1d convtranspose2d convtranspose3d
    matmul leakyrelu elu mish softplus hardswish hardsigmoid add mul sub div maximum minimum
    sum mean max min logsumexp norm normalize maxpool1d maxpool2d maxpool3d avgpool1d
    avgpool2d avgpool3d clamp exp abs adaptiveavgpool2d adaptiveavgpool1d cumsum attention
    multiheadattention glu var std sqrt pow crossentropy mse prelu
    """.split()  # noqa: SIM905
# Of torch's functions that are in no torch.nn, those that models use at all.
ORDINARY = """
    sin cos erf log log1p expm1 log2 tan atan prod cumprod cummax rsqrt reciprocal lerp
    addcmul addcdiv hypot logaddexp remainder cdist flip roll transpose tril triu cat stack
    neg sinh cosh asinh logcumsumexp floor round ceil square atan2 copysign trace norm
    median outer exp2 sort logit bmm
    """.split()  # noqa: SIM905
COMMON_WEIGHT, OTHER_WEIGHT, RARE_WEIGHT = 6.0, 2.0, 0.1
RARE = ("torch.special.", "torch.linalg.")
MAX_INPUTS = 2  # further tensors that a task's forward takes
# The dimensions of an input, by rank: choices for each, the batch first, and their names.
DIMS: dict[int, list[tuple[str, tuple[int, ...]]]] = {
    2: [
        ("batch_size", (16,)),
        ("features", (64, 96, 128, 256, 384, 512, 768, 1000, 1024, 2048, 4096)),
    ],
    3: [
        ("batch_size", (8,)),
        ("seq_length", (32, 64, 100, 128, 256)),
        ("features", (32, 64, 96, 128, 256, 512)),
    ],
    4: [
        ("batch_size", (4,)),
        ("channels", (8, 16, 32, 48, 64)),
        ("height", (14, 16, 28, 32, 56)),
        ("width", (14, 16, 28, 32, 56)),
    ],
    5: [
        ("batch_size", (2,)),
        ("channels", (4, 8, 16)),
        ("depth", (8, 12, 16)),
        ("height", (8, 12, 16)),
        ("width", (8, 12, 16)),
    ],
}
RANKS = (2, 2, 2, 3, 3, 4, 4, 4, 5)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ATTEMPTS = 60  # sequences that are drawn for one task
STEP_ATTEMPTS = 20  # operators that are drawn for one place
SMALL_BATCH = 3
MAX_ELEMENTS = 1 << 31
SMALL_ELEMENTS = 1 << 23  # of the copy that is run
NEARLY_ALL = 0.9  # a step that leaves one value in so many places says nothing
QUIET = {"reshape"}  # kinds that are no operator of a task


class NoTask(Exception):
    """No sequence came out. ``reason`` is the one met most often."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Drawn:
    """A task as it was composed."""

    steps: list[Step]
    names: list[str]  # of the first input's dimensions
    shape: tuple[int, ...]
    dtype: str
    domain: str
    outputs: list[tuple[int, ...]]  # after each step
    estimate_ms: float
    primitives: list[str]

    def kinds(self) -> list[str]:
        return [s.kind for s in self.steps]


@dataclass
class Wish:
    """What is to be composed."""

    operators: int
    low_ms: float
    high_ms: float
    machine: cost.Machine
    without: frozenset[str]  # kinds that must not occur
    one_of: frozenset[str]  # of these one must, unless there are none
    only: frozenset[str]  # what is not one of these is of these; empty: of all
    dtypes: dict[str, float]
    ranks: tuple[int, ...]  # of the first input, each as often


class Composer:
    """Draws tasks from a catalogue."""

    def __init__(self, operators: list[dict[str, Any]]) -> None:
        self.operators = [e for e in operators if e["kind"] not in QUIET]

    def compose(self, rng: random.Random, wish: Wish) -> Drawn:
        """Returns a task. Raises NoTask."""
        why: Counter[str] = Counter()
        for _ in range(ATTEMPTS):
            try:
                return self._attempt(rng, wish)
            except NoFit as e:
                why[str(e)] += 1
        raise NoTask(why.most_common(1)[0][0])

    def _attempt(self, rng: random.Random, wish: Wish) -> Drawn:
        dims = DIMS[rng.choice(wish.ranks)]
        shape = tuple(rng.choice(choices) for _, choices in dims)
        dtype = rng.choices(list(wish.dtypes), list(wish.dtypes.values()))[0]
        place = rng.randrange(wish.operators) if wish.one_of else -1
        steps: list[Step] = []
        at, domain, seen = shape, "any", set()
        for i in range(wish.operators):
            entry, step, after = self._next(rng, wish, at, i == place, steps)
            if i == 0:
                domain = entry["domain"]
            seen |= set(entry["primitives"])
            steps.append(step)
            at = after
        if sum(not t.weight for s in steps for t in s.tensors.values()) > MAX_INPUTS:
            raise NoFit("takes too many inputs")
        if seen and all(e == "shape" for e in self._families(steps)):
            raise NoFit("moves values only")
        full, ms = _fit_batch(rng, steps, shape, DTYPES[dtype], wish)
        outputs = [tuple(t.shape) for t in shapes(steps, full, DTYPES[dtype])]
        check(steps, full, domain, rng)
        return Drawn(steps, [n for n, _ in dims], full, dtype, domain, outputs, ms, sorted(seen))

    def _families(self, steps: list[Step]) -> list[str]:
        known = {e["path"]: e["family"] for e in self.operators}
        return [known[s.path] for s in steps]

    def _next(
        self, rng: random.Random, wish: Wish, at: tuple[int, ...], held: bool, before: list[Step]
    ) -> tuple[dict[str, Any], Step, tuple[int, ...]]:
        """Returns an operator that fits a shape, and the shape after it."""
        why = "no operator fits"
        for _ in range(STEP_ATTEMPTS):
            entry = self._pick(rng, wish, before, len(at), held)
            if entry is None:
                raise NoFit("no operator fits the rank")
            try:
                step = draw_step(entry, at, rng)
                after = tuple(shapes([step], at, torch.float32)[0].shape)
            except NoFit as e:
                why = str(e)
                continue
            except Exception:
                why = "raises on its shape"
                continue
            if len(before) + 1 < wish.operators and (len(after) < 2 or math.prod(after[1:]) < 2):
                why = "leaves nothing for the next operator"
                continue
            return entry, step, after
        raise NoFit(why)

    def _pick(
        self, rng: random.Random, wish: Wish, before: list[Step], rank: int, held: bool
    ) -> dict[str, Any] | None:
        """Draws a family, then a kind of it, then a spelling. No kind comes twice, and no product
        right after another. With kinds that are wished alone, all is of their families.
        """
        i, used = len(before), {s.kind for s in before}
        products = self._families(before[-1:]) == ["product"]
        usual = {e["family"] for e in self.operators if e["kind"] in wish.only}
        fits = [
            e
            for e in self.operators
            if rank in e["ranks"]
            and (i == 0 or e["domain"] == "any" or rng.random() < 0.3)
            and (e["kind"] in wish.one_of if held else e["kind"] not in wish.without)
            and (not wish.only or (e["family"] in usual and (held or e["kind"] in wish.only)))
            and e["kind"] not in used
            and not (products and e["family"] == "product")
        ]
        if not fits:
            return None
        shares = FIRST if i == 0 else LATER
        families = sorted({e["family"] for e in fits})
        family = rng.choices(families, [shares[f] or 0.5 for f in families])[0]
        kinds: dict[str, list[dict[str, Any]]] = {}
        for e in fits:
            if e["family"] == family:
                kinds.setdefault(e["kind"], []).append(e)
        names = sorted(kinds)
        kind = rng.choices(names, [weight(kinds[n]) for n in names])[0]
        return rng.choice(kinds[kind])


def weight(spellings: list[dict[str, Any]]) -> float:
    kind = spellings[0]["kind"]
    if kind in COMMON:
        return COMMON_WEIGHT
    ordinary = kind in ORDINARY or any(e["path"].startswith("torch.nn.") for e in spellings)
    return OTHER_WEIGHT if ordinary else RARE_WEIGHT


def shapes(steps: list[Step], shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns what each step gives on the meta device."""
    x = torch.empty(shape, device="meta", dtype=dtype)
    return list(run(steps, x, dtype))


def run(steps: list[Step], x: torch.Tensor, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yields each step's result on x. Raises NoFit where one gives no floating tensor."""
    device = "meta" if x.is_meta else "cpu"
    with torch.no_grad():
        for step in steps:
            extra = {n: t.make(x, dtype) for n, t in step.tensors.items()}
            x = step.run(x, extra, step.bind(dtype, device))
            if not isinstance(x, torch.Tensor) or x.dtype != dtype:
                raise NoFit("gives no tensor of the same dtype")
            if x.numel() == 0 or x.numel() > MAX_ELEMENTS:
                raise NoFit("gives no tensor of a usable size")
            yield x


def _fit_batch(
    rng: random.Random, steps: list[Step], shape: tuple[int, ...], dtype: torch.dtype, wish: Wish
) -> tuple[tuple[int, ...], float]:
    """Returns the shape with a batch that takes about a time drawn in the window, and that time.

    The estimate can be off by two and more, so it is drawn from the middle of the window, on a
    logarithmic scale.
    """
    batch, ms = fitted(
        rng,
        shape[0],
        lambda batch: _estimate(steps, (batch, *shape[1:]), dtype, wish.machine),
        wish.low_ms,
        wish.high_ms,
    )
    return (batch, *shape[1:]), ms


def fitted(
    rng: random.Random, batch: int, estimate: Callable[[int], float], low: float, high: float
) -> tuple[int, float]:
    """Returns a batch whose estimate is about a time drawn in the window, and that estimate."""
    middle = math.log(low * (high / low) ** 0.15), math.log(low * (high / low) ** 0.8)
    target = math.exp(rng.uniform(*middle))
    for _ in range(3):
        ms = estimate(batch)
        if 0.7 <= ms / target <= 1.4:
            break
        batch = _round(max(1, min(1 << 20, batch * target / ms)))
    ms = estimate(batch)
    if not low <= ms <= high:
        raise NoFit("no batch takes as long as is asked for")
    return batch, ms


def _round(batch: float) -> int:
    """Returns a number of samples as people write them."""
    if batch < 8:
        return max(1, round(batch))
    power = 2 ** int(math.log2(batch))
    return power if batch < 1.4 * power else 3 * power // 2


def _estimate(
    steps: list[Step], shape: tuple[int, ...], dtype: torch.dtype, machine: cost.Machine
) -> float:
    try:
        with cost.Counting() as counted:
            shapes(steps, shape, dtype)
    except NoFit:
        raise
    except Exception as e:
        raise NoFit("does not fit another batch") from e
    return counted.ms(machine)


def check(steps: list[Step], shape: tuple[int, ...], domain: str, rng: random.Random) -> None:
    """Runs the steps with a small batch, twice. Raises NoFit where they make a silly task."""
    small = (min(shape[0], SMALL_BATCH), *shape[1:])
    if math.prod(small) > SMALL_ELEMENTS:
        small = (1, *shape[1:])
    seeded(rng.randrange(1 << 30))
    x = DOMAINS[domain](small)
    try:
        first = [x, *run(steps, x, torch.float32)]
    except NoFit:
        raise
    except Exception as e:
        raise NoFit("raises when it is run") from e
    for before, after in itertools.pairwise(first):
        if fault := _silly(before, after):
            raise NoFit(fault)


def _silly(before: torch.Tensor, after: torch.Tensor) -> str:
    """Returns why a step is not worth a task, "" where nothing is wrong with it."""
    if not bool(torch.isfinite(after).all()):
        return "is not finite after what comes before it"
    if before.numel() == after.numel() and torch.allclose(
        before.reshape(-1), after.reshape(-1), 1e-6, 1e-7
    ):
        return "a step changes nothing"
    if after.numel() > 1:
        flat = after.reshape(-1)[: 1 << 18]
        one = (flat - flat[flat.numel() // 2]).abs() <= 1e-6 * flat.abs().max()
        if one.float().mean() > NEARLY_ALL:
            return "a step leaves one value nearly everywhere"
    largest = float(after.abs().max())
    if not 1e-5 < largest < 1e5:
        return "a step leaves the range of ordinary numbers"
    return ""


def silly_result(a: Any, b: Any, c: Any, x: torch.Tensor) -> str:
    """Returns why a module is no task by its results: twice on x, and on another input."""
    if fault := result_fault(a, b, c, x):
        return fault
    return _silly(x, a)


# Shapes on which operators are measured, by rank: what is dear shows on some 10,000 elements.
MEASURED = {2: (32, 256), 3: (4, 32, 64), 4: (2, 16, 16, 16), 5: (2, 4, 8, 8, 16)}
USES = 2


def rates(operators: list[dict[str, Any]], told: Callable[[int, int], None]) -> dict[str, float]:
    """Returns what core operators take on this machine's CPU: see ``cost.Timing``. ``told`` hears
    how many of how many were run.
    """
    torch.set_num_threads(1)
    seeded(1)
    timing = cost.Timing()
    ordinary = [e for e in operators if weight([e]) > RARE_WEIGHT]
    kinds = {e["kind"]: e for e in reversed(ordinary)}  # one spelling of each
    for n, entry in enumerate(kinds.values()):
        for use in range(USES):
            rank = entry["ranks"][use % len(entry["ranks"])]
            rng = random.Random(f"rate {entry['path']} {use}")
            try:
                step = draw_step(entry, MEASURED[rank], rng)
                x = DOMAINS[entry["domain"]](MEASURED[rank])
                extra = {name: t.make(x, torch.float32) for name, t in step.tensors.items()}
                bound = step.bind(torch.float32, "cpu")
                with torch.no_grad(), timing:
                    step.run(x, extra, bound)
            except Exception:
                continue  # it does not take this shape
        told(n + 1, len(kinds))
    return timing.rates()


def held_kinds(operators: list[dict[str, Any]], seed: int, share: float) -> list[str]:
    """Returns the operator kinds that are never trained on: a share of each family.

    Kinds whose core ATen primitives others have too come first; the commonest kinds stay, so that
    training tasks look like models.
    """
    rng = random.Random(f"held kinds {seed}")
    families: dict[str, dict[str, set[str]]] = {}
    for e in operators:
        if e["kind"] not in QUIET and weight([e]) > RARE_WEIGHT:
            families.setdefault(e["family"], {}).setdefault(e["kind"], set()).update(
                e["primitives"]
            )
    held: list[str] = []
    for family in sorted(families):
        kinds = families[family]
        uses = Counter(p for found in kinds.values() for p in found)
        free = sorted(k for k in kinds if k not in BASIC)
        rng.shuffle(free)
        free.sort(key=lambda k: any(uses[p] == 1 for p in kinds[k]))
        held += free[: round(share * len(kinds))]
    return sorted(held)


# What nearly every model has: always trained on.
BASIC = {
    "relu",
    "sigmoid",
    "tanh",
    "linear",
    "conv2d",
    "matmul",
    "add",
    "mul",
    "sub",
    "div",
    "softmax",
    "layernorm",
    "sum",
    "mean",
    "max",
    "exp",
    "batchnorm",
    "maxpool2d",
    "avgpool2d",
    "attention",
}
