"""Who did the work: custom functions are seen however the candidate reaches them."""

from __future__ import annotations

import math
import threading
import time
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import library

from kwharness.attribution import trace
from kwharness.base.for_candidate import Spent, Traced
from kwharness.base.records import ProtocolError

x = torch.randn(64, 64)


def kernel(t: torch.Tensor) -> torch.Tensor:
    return t


def closure() -> Callable[[], Any]:
    held = kernel
    return lambda: held(torch.relu(x))


def attribute() -> Callable[[], Any]:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return self.kernel(torch.relu(t))

    net = Net()
    return lambda: net(x)


def default_argument() -> Callable[[], Any]:
    def forward(run: Any = kernel) -> Any:
        return run(torch.relu(x))

    return forward


@pytest.mark.parametrize("how", [closure, attribute, default_argument])
def test_a_function_is_seen_wherever_it_is_kept(how: Callable[[], Callable[[], Any]]) -> None:
    seen = trace.observe(how(), {"kernel": kernel})
    assert seen.native["kernel"].calls == 1
    assert "relu" in seen.operators


def test_a_built_in_function_is_seen() -> None:
    # load_inline's functions are of this type.
    held = types.SimpleNamespace(run=math.sin)
    seen = trace.observe(lambda: [held.run(0.5) for _ in range(3)], {"sin": math.sin})
    assert seen.native["sin"].calls == 3


def test_an_operator_of_another_library_is_custom() -> None:
    lib = library.Library("kernelwright_test", "DEF")
    lib.define("double(Tensor x) -> Tensor")
    lib.impl("double", spinning, "CPU")
    seen = trace.observe(lambda: torch.ops.kernelwright_test.double(x), {})
    assert seen.native["kernelwright_test::double"].calls == 1
    work, calls = trace.report(seen, True)
    assert calls == 1 and work.custom > 0.5


def spinning(t: torch.Tensor) -> torch.Tensor:
    end = time.perf_counter() + 0.05  # beside which nothing counts that this waits for a core
    while time.perf_counter() < end:
        pass
    return t.clone()


def products(t: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        t = torch.softmax(t @ t, 1)
    return t


def elsewhere(t: torch.Tensor) -> torch.Tensor:
    out: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: out.append(products(t)))
    thread.start()
    thread.join()
    return out[0]


def mostly_pytorchs(forward: Callable[[], Any], given: dict[str, Any], numel: int) -> Traced:
    """Fails unless ``products`` in a forward is seen as PyTorch's work. Returns what was seen."""
    shares = []
    for _ in range(3):  # seconds are those of one forward each: a busy machine may disturb one
        seen = trace.observe(forward, given)
        assert seen.operators["mm"].calls == seen.operators["_softmax"].calls == 20
        assert seen.met["mm"] == 2 * seen.met["_softmax"] == 20 * 2 * numel
        work, calls = trace.report(seen, True)
        assert calls == 1
        shares.append(work.custom)
    assert min(shares) < 0.5, shares
    return seen


def test_operators_that_another_library_calls_are_pytorchs() -> None:
    lib = library.Library("kernelwright_hides", "DEF")
    lib.define("products(Tensor x) -> Tensor")
    lib.impl("products", products, "CPU")
    large = torch.randn(256, 256)
    hides = torch.ops.kernelwright_hides.products
    seen = mostly_pytorchs(lambda: hides(large), {}, large.numel())
    assert not trace.covers(seen, ["aten.mm", "aten._softmax"])


def test_operators_on_another_thread_are_pytorchs() -> None:
    large = torch.randn(512, 512)  # a busy machine is slow to start a thread
    mostly_pytorchs(lambda: elsewhere(large), {"elsewhere": elsewhere}, large.numel())


def test_a_sum_of_partial_sums_is_given_less_than_the_task() -> None:
    def parts(t: torch.Tensor) -> torch.Tensor:
        return t[0] * len(t)

    large = torch.ones(256, 256)
    given = trace.observe(lambda: parts(large.t()).sum(), {"parts": parts})
    assert not trace.covers(given, ["aten.t", "aten.sum"])
    assert not trace.as_much(given, ["aten.t", "aten.sum"], large.numel())
    assert trace.as_much(replace(given, met={}), ["aten.sum"], large.numel())
    whole = trace.observe(lambda: parts(large).sum() + large.sum(), {"parts": parts})
    assert trace.as_much(whole, ["aten.sum"], large.numel())
    halves = trace.observe(lambda: large[:64].sum() + large[64:128].sum(), {"parts": parts})
    assert trace.as_much(halves, ["aten.sum"], large.numel())


HONEST: dict[str, Callable[[torch.Tensor], Any]] = {
    "linear": torch.nn.Linear(64, 64),
    "softmax": lambda t: torch.softmax(t.t().contiguous(), -1),
    "norms": torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.GELU()),
    "attention": lambda t: torch.nn.functional.scaled_dot_product_attention(
        t[None, None], t[None, None], t[None, None]
    ),
    "conv": lambda t: torch.nn.functional.conv2d(t[None, None], torch.ones(3, 1, 3, 3)),
    "views": lambda t: t.reshape(8, -1).flatten().view(4, -1).to(torch.float64).sum().item(),
    "loss": lambda t: torch.nn.functional.cross_entropy(t, torch.arange(64)),
    "pool": lambda t: torch.nn.functional.max_pool2d(t[None], 2).mean(dim=(1, 2)),
    "recurrent": torch.nn.LSTM(64, 8),
    "pool of one dimension": lambda t: torch.nn.functional.max_pool1d(t[None], 2),
}


@pytest.mark.parametrize("name", HONEST)
def test_nothing_is_hidden_in_plain_pytorch(name: str) -> None:
    forward = HONEST[name]
    with torch.no_grad():
        alone = trace._Operators(trace.Clock())
        with alone:
            forward(x)
        seen = trace.observe(lambda: forward(x), {})
    before: dict[str, int] = {}
    for _, op, _, _ in alone.calls:
        before[op] = before.get(op, 0) + 1
    assert {n: s.calls for n, s in seen.operators.items()} == before


def test_which_tasks_multiply() -> None:
    assert trace.multiplies(["aten.relu", "aten.addmm"]) and trace.multiplies(["aten._cudnn_rnn"])
    assert not trace.multiplies(["aten._softmax", "aten.mul"]) and not trace.multiplies([])


def test_operators_within_a_custom_function_are_not_its_own_time() -> None:
    def slow(t: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            t = t @ t
        return t

    seen = trace.observe(lambda: slow(x), {"slow": slow})
    products = sum(s.seconds for n, s in seen.operators.items() if n == "mm")
    assert products > 0 and seen.native["slow"].seconds < seen.total
    assert seen.native["slow"].calls == 1


def test_nothing_custom_ran() -> None:
    seen = trace.observe(lambda: torch.relu(x), {"kernel": kernel})
    assert seen.native == {}
    assert trace.report(seen, True)[1] == 0


def test_figures_of_a_trace_stay_within_what_a_verdict_can_hold() -> None:
    said = {"f": Spent(1.0, 1 << 40), "g": Spent(1e7, 1), "h": Spent(2.0, 3), "i": Spent(-1.0, 1)}
    work, calls = trace.report(Traced(2.0, {}, said, {}, 0.0, {}), True)
    assert calls == 3 and [o.name for o in work.operators or ()] == ["h"]


@pytest.mark.parametrize("odd", [[1.0, 1], {"seconds": 1.0, "calls": -1}, {"seconds": "1"}])
def test_a_trace_that_makes_no_sense_is_not_read(odd: Any) -> None:
    told = Traced(2.0, {}, {"f": Spent(1.0, 1)}, {}, 0.0, {}).to_json()
    assert Traced.from_json(told).native["f"].calls == 1
    with pytest.raises(ProtocolError, match=r"Traced\.native\.f"):
        Traced.from_json(told | {"native": {"f": odd}})
