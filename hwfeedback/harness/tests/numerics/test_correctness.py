"""The gate by itself: bounds, masks, indices, with values known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kwharness.base import trees
from kwharness.base.calibration import Noise, Scale
from kwharness.clients import candidate_client
from kwharness.numerics import correctness, families, norms
from kwharness.numerics.correctness import Expected, compare, complete
from kwharness.numerics.planted_nan import Effect
from kwharness.numerics.rounding import SUM_UNIT, Float32Noise, Sources, one_ulp
from kwharness.verify import secret_draws


def softmax_case(rows: int = 64, columns: int = 1024) -> tuple[torch.Tensor, Expected, Noise]:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    wide = torch.softmax(x.double(), -1)
    with Float32Noise(1):
        noisy = torch.softmax(x.double(), -1)
    moved = torch.softmax(one_ulp([x], 2)[0], -1)
    n = Noise(
        error=norms.error_of(noisy, wide, None),
        moved=norms.error_of(moved, wide, None),
        scale=norms.scale_of(wide),
    )
    return x, complete(Expected([wide], [torch.softmax(x, -1)], [None])), n


def all_depend(wide: torch.Tensor, excused: torch.Tensor) -> Effect:
    """Everything depends on what was planted, and nothing is what a far number would give."""
    bad, nan = ~wide.isfinite(), wide.isnan()
    nothing = torch.full((int(nan.sum()),), math.nan, dtype=torch.float64)
    everywhere = torch.ones_like(bad)
    return Effect(excused, everywhere, bad, wide[bad], nan, [nothing, nothing])


def floor_of(n: Noise) -> float:
    return correctness.FLOOR * n.scale.rms


def test_masks_are_counted_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "CHUNK", 5)
    for shape in ((3, 7), (0,), (1,)):
        for seed in range(20):
            g = torch.Generator().manual_seed(seed)
            mask = torch.rand(shape, generator=g) < seed / 40
            where = mask.reshape(-1).nonzero().view(-1).tolist()
            assert norms.count(mask) == len(where)
            assert norms.first(mask) == (where[0] if where else -1)
            turned = mask.t() if mask.dim() == 2 else mask
            assert norms.count(turned) == len(where)


ODD = [0.0, 1.0, -3e38, 1e-300, 1e200, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("shape", [(1,), (5,), (3, 7), (4, 16)])
def test_a_gpu_that_is_asked_once_says_the_same(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "CHUNK", 5)
    monkeypatch.setattr(norms, "GPU_CHUNK", 5)
    by_chunks, asked_once = norms._over_chunks, norms._asked_once
    given_up = []

    def both(*args: Any) -> Scale:
        expected, found = by_chunks(*args), asked_once(*args)
        given_up.append(found is None)
        if found is not None and math.isfinite(expected.max):
            assert found.max == expected.max and found.rms == pytest.approx(expected.rms, rel=1e-14)
        elif found is not None:
            assert not math.isfinite(found.max) and not math.isfinite(found.rms)
        return expected

    monkeypatch.setattr(norms, "_over_chunks", both)
    for seed in range(60):
        g = torch.Generator().manual_seed(seed)
        a, b = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))
        odd = torch.rand(shape, generator=g) < seed / 120
        which = torch.randint(0, len(ODD), shape, generator=g)
        a = torch.where(odd, torch.tensor(ODD, dtype=torch.float64)[which], a)
        skip = torch.rand(shape, generator=g) < 0.2
        norms.scale_of(a)
        for got in (b, b.float()):
            norms.error_of(got, a, None)
            norms.error_of(got, a, skip)
            norms.error_where_finite(got, a, skip)
    assert True in given_up and False in given_up


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64]
)
def test_a_digest_tells_of_every_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_client, "DIGESTED", 10)
    t = (torch.arange(35).view(5, 7) % 3).to(dtype)
    same = candidate_client.digest(t, 7)
    assert (
        candidate_client.digest(t.clone(), 7)
        == same
        == candidate_client.digest(t.t().contiguous().t(), 7)
    )
    assert candidate_client.digest(t, 8) != same
    for at in range(35):
        other = t.clone()
        raw = other.view(-1).view(torch.uint8)
        raw[at * t.element_size()] ^= 1
        assert candidate_client.digest(other, 7) != same
    assert candidate_client.digest(torch.tensor([0.0]), 1) != candidate_client.digest(
        torch.tensor([-0.0]), 1
    )


def test_one_wrong_integer_of_thousands_is_wrong() -> None:
    wide = torch.arange(4096)
    e = complete(Expected([wide], [wide.clone()], [None]))
    assert compare(wide.clone(), e, 0, Noise(), 0.0).passed
    o = compare(torch.where(wide == 77, 78, wide), e, 0, Noise(), 0.0)
    assert not o.passed and "1 of 4096 elements differ" in o.reason


def test_fourteen_bits_are_too_few_where_nothing_rounds() -> None:
    wide = 1 + torch.rand(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    e = complete(Expected([wide], [wide.float()], [None]))
    n = Noise(scale=norms.scale_of(wide))
    assert compare(wide.float(), e, 0, n, floor_of(n)).passed
    assert not compare((wide * (1 + 2**-14)).float(), e, 0, n, floor_of(n)).passed


def test_no_number_stands_for_what_overflows() -> None:
    wide = torch.tensor([1.0, 1e45], dtype=torch.float64)
    e = complete(Expected([wide], [torch.tensor([1.0, math.inf])], [None]))
    n = Noise(scale=Scale(1.0, 1.0))
    assert compare(torch.tensor([1.0, math.inf]), e, 0, n, 1e-6).passed
    o = compare(torch.tensor([1.0, 3e38]), e, 0, n, 1e-6)
    assert not o.passed and "which float32 does not hold" in o.reason


def test_tensors_of_one_axis_are_permuted_together() -> None:
    a, b = torch.arange(192).view(3, 64), torch.arange(128).view(64, 2)
    x, y = families.permuted([a, b], [[(0, 1), (1, 0)]], torch.Generator().manual_seed(3))
    order = x[0]  # the first row was its own order
    assert order.tolist() != a[0].tolist() and sorted(order.tolist()) == a[0].tolist()
    assert torch.equal(x, a[:, order]) and torch.equal(y, b[order])


def test_honest_orders_of_summation_pass() -> None:
    x, e, n = softmax_case()
    e1 = torch.exp(x - x.amax(-1, keepdim=True))
    one_by_one = torch.zeros(x.shape[0], 1)
    for j in range(x.shape[1]):
        one_by_one += e1[:, j : j + 1]
    for got in (
        e1 / one_by_one,
        e1 * (1 / e1.flip(-1).sum(-1, keepdim=True)),
        torch.softmax(x, -1),
    ):
        o = compare(got, e, 0, n, floor_of(n))
        assert o.passed, o.reason


def test_zeros_and_less_precision_are_wrong() -> None:
    x, e, n = softmax_case()
    half = torch.softmax(x.bfloat16(), -1).float()
    half16 = torch.softmax(x.half(), -1).float()
    for got in (torch.zeros_like(x), half, half16, torch.softmax(x.half().float(), -1)):
        o = compare(got, e, 0, n, floor_of(n))
        assert not o.passed
        assert "element [" in o.reason


@pytest.mark.parametrize("k", [64, 1024, 16384])
def test_tf32_products_are_wrong_and_blocked_ones_right(k: int) -> None:
    g = torch.Generator().manual_seed(3)
    a, b = torch.randn(16, k, generator=g), torch.randn(k, 16, generator=g)
    wide = a.double() @ b.double()
    with Float32Noise(1):
        noisy = a.double() @ b.double()
    n = Noise(error=norms.error_of(noisy, wide, None), scale=norms.scale_of(wide))
    e = complete(Expected([wide], [a @ b], [None]))

    def tf32(t: torch.Tensor) -> torch.Tensor:
        bits = t.contiguous().view(torch.int32)
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)

    o = compare((tf32(a).double() @ tf32(b).double()).float(), e, 0, n, floor_of(n))
    assert not o.passed
    one_by_one = torch.zeros(16, 16)
    for j in range(k):
        one_by_one += a[:, j : j + 1] * b[j : j + 1]
    assert compare(one_by_one, e, 0, n, floor_of(n)).passed


def test_a_scalar_mean_has_no_lucky_bound() -> None:
    failed = 0
    for seed in range(60):
        x = torch.randn(4096, generator=torch.Generator().manual_seed(seed))
        wide = x.double().mean()
        with Float32Noise(seed):
            noisy = x.double().mean()
        n = Noise(error=norms.error_of(noisy, wide, None), scale=norms.scale_of(wide))
        e = complete(Expected([wide], [x.mean()], [None]))
        lanes = x.view(-1, 32)
        total = torch.zeros(32)
        for row in lanes:
            total += row
        failed += not compare(total.sum() / 4096, e, 0, n, floor_of(n)).passed
    assert failed == 0


def test_error_of_leaves_its_arguments_alone() -> None:
    a, b = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    assert norms.error_of(a, b, None) == Scale(1.0, 1.0)
    assert bool((a == 1).all()) and bool((b == 0).all())
    assert norms.error_of(torch.tensor([math.nan]), b[:1], None).max == math.inf
    assert norms.scale_of(torch.tensor([3e200, 4e200], dtype=torch.float64)).rms == pytest.approx(
        math.sqrt(12.5) * 1e200
    )


def test_elements_that_the_reference_gets_wrong_are_skipped_and_counted() -> None:
    wide = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    eager = torch.tensor([1.0, math.inf, 3.0, 5.0])
    e = complete(Expected([wide], [eager], [None]))
    o = compare(torch.tensor([1.0, 77.0, 3.0, 77.0]), e, 0, Noise(scale=Scale(4.0, 2.7)), 1e-6)
    assert o.passed and o.skipped == 2
    assert not compare(
        torch.tensor([1.1, 2.0, 3.0, 4.0]), e, 0, Noise(scale=Scale(4.0, 2.7)), 1e-6
    ).passed


def test_non_finite_values_must_be_where_they_belong() -> None:
    wide = torch.tensor([math.nan, math.inf, 1.0], dtype=torch.float64)
    e = complete(Expected([wide], [wide.float()], [None]))
    n = Noise(scale=Scale(1.0, 1.0))
    assert compare(wide.float(), e, 0, n, 1e-6, mask=True).passed
    o = compare(torch.tensor([0.0, math.inf, 1.0]), e, 0, n, 1e-6, mask=True)
    assert not o.passed and "element [0] is a finite value, expected NaN" in o.reason


def test_where_eager_itself_has_other_nan_they_tell_nothing() -> None:
    """A running product reaches 0 in float32 long before float64 does, and 0 * Inf is NaN: where
    depends on the order of the products.
    """
    x = torch.full((1, 400), 0.5)
    x[0, 20] = math.inf
    x = x.repeat(5, 1)
    x[4, 20] = 0.5
    wide = torch.cumprod(x.double(), 1)
    # Two halves, each by itself, then the second times what the first comes to.
    halves = torch.cumprod(x.view(5, 2, 200), 2)
    mine = torch.cat([halves[:, 0], halves[:, 1] * halves[:, 0, -1:]], 1)
    assert bool(mine.isnan().any()) and not bool(wide.isnan().any())
    n = Noise(scale=Scale(1.0, 1.0))
    none = torch.zeros(wide.shape, dtype=torch.bool)

    def passes(got: torch.Tensor, eager: torch.Tensor, excused: torch.Tensor | None) -> bool:
        e = complete(Expected([wide], [eager], [None]))
        e.effects = None if excused is None else [all_depend(wide, excused)]
        o = compare(got, e, 0, n, 1e-6, mask=True)
        return o.passed and not o.lost

    assert not passes(mine, wide.float(), none)
    other = wide.float()
    other[:4, 380:] = math.nan
    assert passes(mine, other, none)
    assert not passes(mine + 1, other, none), "what is finite is compared"
    assert not passes(mine, other, other.isnan()), "eager is as float64 is, but for what is excused"
    assert not passes(mine, other, None), "nobody has looked what is excused"
    other = wide.float()
    other[0, 399] = math.nan
    assert not passes(mine, other, none), "one is not many"


@pytest.mark.parametrize(
    ("wrong", "passes"),
    [
        ({0: math.inf}, True),
        ({0: math.inf, 1: -math.inf}, True),
        ({0: math.inf, 1: math.inf, 2: math.inf}, False),
        ({0: 1.0}, False),
        ({64: math.nan}, True),
        ({64: -math.inf}, False),
        ({199: math.nan}, False),
    ],
)
def test_one_in_many_nan_may_be_infinite(wrong: dict[int, float], passes: bool) -> None:
    """Of 128 that are not finite: 64 NaN, and 64 +Inf. The others are 1."""
    wide = torch.tensor([math.nan] * 64 + [math.inf] * 64 + [1.0] * 72, dtype=torch.float64)
    e = complete(Expected([wide], [wide.float()], [None]))
    got = wide.float()
    for i, value in wrong.items():
        got[i] = value
    n = Noise(scale=Scale(1.0, 1.0))
    assert not compare(got, e, 0, n, 1e-6, mask=True).passed, "nobody has looked what is excused"
    e.effects = [all_depend(wide, torch.zeros(200, dtype=torch.bool))]
    assert compare(got, e, 0, n, 1e-6, mask=True).passed == passes


def argmax_case(x: torch.Tensor) -> Expected:
    with Sources() as sources:
        wide = torch.argmax(x.double(), -1)
    return complete(Expected([wide], [torch.argmax(x, -1)], [sources.of(wide)]))


def test_ties_are_no_mistake_and_other_indices_are() -> None:
    x = torch.tensor([[1.0, 5.0, 5.0], [7.0, 2.0, 1.0]])
    e = argmax_case(x)
    assert compare(torch.tensor([2, 0]), e, 0, Noise(), 0.0).passed
    assert not compare(torch.tensor([0, 0]), e, 0, Noise(), 0.0).passed
    assert "indices run from" in compare(torch.tensor([3, 0]), e, 0, Noise(), 0.0).reason


def test_top_k_must_name_each_index_once() -> None:
    x = torch.tensor([[4.0, 4.0, 1.0]])
    with Sources() as sources:
        wide = torch.topk(x.double(), 2, dim=-1).indices
    e = complete(Expected([wide], [wide], [sources.of(wide)]))
    assert compare(torch.tensor([[1, 0]]), e, 0, Noise(), 0.0).passed
    assert compare(torch.tensor([[0, 0]]), e, 0, Noise(), 0.0).passed is False


def test_indices_of_pooling_are_compared_by_their_values() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 3.0, 1.0, 9.0]]).expand(2, 5, 2, 4)
    with Sources() as sources:
        _, wide = torch.nn.functional.max_pool2d(x.double(), 2, return_indices=True)
    e = complete(Expected([wide], [wide], [sources.of(wide)]))
    assert wide.unique().tolist() == [1, 7]
    assert compare(torch.where(wide == 1, 5, wide), e, 0, Noise(), 0.0).passed
    assert not compare(torch.where(wide == 1, 4, wide), e, 0, Noise(), 0.0).passed
    assert "dimension 2 has 8" in compare(wide + 4, e, 0, Noise(), 0.0).reason


def test_indices_of_running_maxima_are_compared_by_their_values() -> None:
    x = torch.tensor([[1.0, 5.0, 5.0, 2.0]])
    with Sources() as sources:
        wide = torch.cummax(x.double(), -1).indices
    e = complete(Expected([wide], [wide], [sources.of(wide)]))
    assert wide.tolist() == [[0, 1, 2, 2]]
    assert compare(torch.tensor([[0, 1, 1, 1]]), e, 0, Noise(), 0.0).passed
    assert not compare(torch.tensor([[0, 1, 1, 3]]), e, 0, Noise(), 0.0).passed


@pytest.mark.parametrize("coherent", [False, True])
def test_products_err_with_every_factor(coherent: bool) -> None:
    g = torch.Generator().manual_seed(5)
    x = torch.rand((), generator=g) * 0.01 + 1.0 if coherent else torch.rand(256, generator=g) + 0.5
    x = x.expand(256)
    wide = x.double().prod()
    with Float32Noise(1, coherent=coherent):
        noisy = x.double().prod()
    n = Noise(error=norms.error_of(noisy, wide, None), scale=norms.scale_of(wide))
    e = complete(Expected([wide], [wide.float()], [None]))
    squared = x.clone()
    while squared.numel() > 1:
        squared = squared[::2] * squared[1::2]
    assert compare(squared[0], e, 0, n, floor_of(n)).passed
    assert not compare(x.bfloat16().prod().float(), e, 0, n, floor_of(n)).passed


def test_a_draw_that_is_worse_conditioned_than_any_before_has_its_own_bound() -> None:
    wide = torch.ones(100, dtype=torch.float64)
    e = complete(Expected([wide], [wide.float()], [None]))
    n = Noise(moved=Scale(1e-6, 1e-6), scale=Scale(1.0, 1.0))
    off = torch.ones(100)
    off[7] += 3e-3
    assert not compare(off, e, 0, n, 1e-6).passed
    e.moved = [Scale(1e-3, 1e-4)]
    assert compare(off, e, 0, n, 1e-6).passed
    off[8:] += 1e-3
    assert not compare(off, e, 0, n, 1e-6).passed


def test_booleans_are_exact_outside_the_margin() -> None:
    x = torch.tensor([1.0, 1e-9, -1.0])
    with Sources() as sources:
        wide = x.double() > 0
    e = complete(Expected([wide], [x > 0], [sources.of(wide)]))
    n = Noise(source=1e-8)
    assert compare(torch.tensor([True, False, False]), e, 0, n, 0.0).passed
    assert not compare(torch.tensor([False, True, False]), e, 0, n, 0.0).passed


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda f: f.name)
def test_families_map_floating_inputs_only(family: families.Family) -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    index = torch.arange(5)
    a, b = families.apply(family, [x, index], 7)
    assert a.shape == x.shape and a.dtype == x.dtype and b is index
    assert torch.equal(x, before)
    again, _ = families.apply(family, [x, index], 7)
    assert torch.equal(a.nan_to_num(), again.nan_to_num())
    assert bool(torch.isfinite(a).all()) != family.planted


def test_trees_hold_what_models_take_and_give() -> None:
    x, y = torch.ones(2), torch.zeros(3)
    value = [x, {"a": (y, 3), 1: None}, "s", True, math.inf]
    tree, tensors = trees.flatten(value)
    back = trees.build(tree, tensors)
    assert back[0] is x and back[1]["a"] == (y, 3) and back[1][1] is None and back[4] == math.inf
    assert trees.same_shape(trees.flatten((x, y))[0], trees.flatten([x, y])[0])
    assert not trees.same_shape(trees.flatten((x, y))[0], trees.flatten(x)[0])
    a, b = trees.flatten({"p": x, "q": y})[0], trees.flatten({"q": y, "p": x})[0]
    assert trees.ordered_like(b, a) == [1, 0]
    with pytest.raises(trees.TreeError):
        trees.flatten({1, 2})
    with pytest.raises(trees.TreeError):
        trees.build({"t": 4}, [x])


@pytest.mark.parametrize(
    "sums",
    [
        lambda x: x.mean(),
        lambda x: x.sum(-1),
        lambda x: torch.nn.functional.mse_loss(x, torch.zeros_like(x)),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    ],
    ids=["mean", "sum", "mse_loss", "layer_norm"],
)
def test_noise_covers_long_sums_in_few_lanes(sums: Any) -> None:
    """As a worker runs it: in float64, with float64 as the default for what the model makes."""
    x = 3 + torch.randn(2, 1 << 18, generator=torch.Generator().manual_seed(5)).pow(3)
    torch.set_default_dtype(torch.float64)
    try:
        wide = sums(x.double())
        with Float32Noise(1):
            noisy = sums(x.double())
    finally:
        torch.set_default_dtype(torch.float32)
    relative = norms.error_of(noisy, wide, None).max / norms.scale_of(wide).max
    assert 1e-7 < relative < 1e-3


@pytest.mark.parametrize(
    "product",
    [
        lambda a, b: a @ b,
        lambda a, b: (a @ b.expand(-1, 3))[:, :1],
        lambda a, b: torch.mv(a, b[:, 0])[:, None],
        lambda a, b: torch.addmm(torch.zeros(1, dtype=a.dtype), a, b),
        lambda a, b: torch.addmv(torch.zeros(2, dtype=a.dtype), a, b[:, 0])[:, None],
        lambda a, b: torch.bmm(a[None], b[None])[0],
        lambda a, b: torch.baddbmm(a.new_zeros(1, 1, 1), a[None], b[None])[0],
        lambda a, b: torch.addbmm(a.new_zeros(1, 1), *(t[None] for t in (a, b))),
        lambda a, b: torch.stack([torch.dot(r, b[:, 0]) for r in a])[:, None],
        lambda a, b: torch.einsum("ij,jk->ik", a, b),
        lambda a, b: torch.nn.functional.linear(a, b.t()),
        lambda a, b: torch.conv1d(a[None], b.t()[None].expand(1, 2, -1))[0, :, :1].expand(2, 1) / 2,
        lambda a, b: torch.conv_transpose1d(a.t()[None], b[:, :, None])[0].t(),
    ],
    ids=[
        "mm",
        "columns",
        "mv",
        "addmm",
        "addmv",
        "bmm",
        "baddbmm",
        "addbmm",
        "dot",
        "einsum",
        "linear",
        "conv",
        "transposed",
    ],
)
def test_long_products_of_equal_numbers_may_err_as_sums_in_lanes_do(product: Any) -> None:
    """As max-autotune's one for a row of a million did on a GPU: 107 roundings off."""
    n = 1 << 17
    a, b = torch.full((2, n), 0.7316), torch.full((n, 1), 1.1177)
    wide = product(a.double(), b.double())
    with Float32Noise(1, coherent=True):
        noisy = product(a.double(), b.double())
    noise = Noise(error=norms.error_of(noisy, wide, None), scale=norms.scale_of(wide))
    e = complete(Expected([wide], [wide.float()], [None]))
    added = torch.zeros(32)
    for terms in (a[0] * b[:, 0]).view(-1, 32):
        added += terms
    got = added.sum().expand(2, 1)
    outcome = compare(got, e, 0, noise, floor_of(noise))
    assert outcome.passed and outcome.error.max > 30 * SUM_UNIT * float(wide.max())
    assert not compare(got * 1.1, e, 0, noise, floor_of(noise)).passed


def test_decompositions_work_on_what_they_take_apart() -> None:
    """What fails to be taken apart would silently have the noise of one rounding."""
    x = torch.full((4, 4096), 3333.0, dtype=torch.float64)
    with Float32Noise(1, coherent=True):
        noisy = torch.nn.functional.layer_norm(x, (4096,))
    assert float(noisy.abs().max()) > 0.05


class Allocated(TorchDispatchMode):
    """Counts the bytes of all that is made as large as an output, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.data_ptr() for t in [*args, *(kwargs or {}).values()] if torch.is_tensor(t)}
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if torch.is_tensor(t) and t.numel() > norms.CHUNK and t.data_ptr() not in given:
                self.bytes += t.numel() * t.element_size()
        return out


def test_huge_outputs_are_compared_without_others_beside_them() -> None:
    n = 5 * norms.CHUNK + 3
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    x[[7, -1]] = torch.tensor([math.nan, math.inf])
    wide = x.double()
    off = x.clone()
    off[n - 2] += 1
    e = complete(Expected([wide], [x], [None]))
    known = Noise(scale=Scale(4.0, 1.0))

    def bytes_of(f: Callable[[], Any]) -> float:
        with Allocated() as seen:
            f()
        return seen.bytes / n

    assert bytes_of(lambda: torch.add(x, x)) == 4
    assert bytes_of(lambda: norms.scale_of(wide)) == 0
    assert bytes_of(lambda: correctness.untrusted(x, wide, Scale(1.0, 1.0))) == 1
    assert bytes_of(lambda: correctness.kinds(wide)) == 1
    assert bytes_of(lambda: complete(Expected([wide], [x], [None]))) == 1
    assert bytes_of(lambda: compare(off, e, 0, known, 1e-6)) == 0
    assert bytes_of(lambda: compare(off, e, 0, known, 1e-6, mask=True)) <= 5
    assert bytes_of(lambda: correctness.near(off, x, 1e-3)) == 0
    assert bytes_of(lambda: correctness.close(x, x)) == 0
    assert bytes_of(lambda: correctness.kernelbench_passes([off], [x])) == 0
    o = compare(off, e, 0, known, 1e-6, mask=True)
    assert f"1 of {n} elements are off" in o.reason and f"element [{n - 2}] is" in o.reason
    for family in families.FAMILIES:
        used = bytes_of(lambda f=family: families.apply(f, [x], 1, families.Traits([((0, 0),)])))
        assert used <= 13 if family is families.PERMUTED else used <= 6, family.name
    assert bytes_of(lambda: secret_draws.perturbed([x], [True], [0], 1)) <= 8
    assert torch.equal(secret_draws.perturbed([x], [False], [0], 1)[0].nan_to_num(), x.nan_to_num())


def test_families_are_what_they_say() -> None:
    x = torch.tensor([-2.0, 0.0, 3.0])
    made = {f.name: families.apply(f, [x], 1)[0].tolist() for f in families.FAMILIES}
    assert made["base"] == x.tolist()
    assert made["scaled_up"] == [-200.0, 0.0, 300.0]
    assert made["scaled_down"] == pytest.approx([-2 * families.DOWN, 0.0, 3 * families.DOWN])
    assert families.DOWN < 0.1
    assert made["negated"] == [2.0, 0.0, -3.0]
    assert made["zeros"] == [0.0, 0.0, 0.0] and len(set(made["all_equal"])) == 1
    assert sorted(made["shifted"]) == made["shifted"] and made["shifted"][1] != 0
    assert made["heavy_tails"] == [-8.0, 0.0, 27.0]
    assert made["near_overflow"] == pytest.approx([-2 / 3 * 1e30, 0.0, 1e30], rel=1e-6)
    assert made["denormals"] == pytest.approx([-3e-40, 0.0, 4e-40], rel=1e-4, abs=0)
    assert made["zero_one"] == [0.0, 0.0, 1.0]
    assert made["permuted"] == x.tolist()


def test_a_quick_yes_needs_every_element() -> None:
    n = 2 * norms.CHUNK
    eager = torch.zeros(n)
    eager[3] = math.nan
    got = eager.clone()
    got[3] = 1.0  # where eager is not finite nothing is known
    assert correctness.near(got, eager, 1e-6)
    for value in (1e-3, math.nan, math.inf):
        got[n - 1] = value
        assert not correctness.near(got, eager, 1e-6)
    assert not correctness.near(torch.tensor([1, 2]), torch.tensor([1, 3]), 10.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_runs_are_close_or_not_chunk_by_chunk(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(3)
    a = torch.randn(3 * norms.CHUNK + 7, generator=g).mul(300).to(dtype)
    a[5], a[9] = math.nan, math.inf
    assert correctness.close(a, a.clone())
    near = a.double() * (1 + 4e-6)
    assert correctness.close(a.double(), near)
    for at in (0, norms.CHUNK, a.numel() - 1):
        other = a.clone()
        other[at] += 1
        assert not correctness.close(a, other)
    other = a.clone()
    other[9] = 0
    assert not correctness.close(a, other)
    counts = torch.arange(9)
    assert correctness.close(counts, counts.clone()) and not correctness.close(counts, counts + 1)
