"""Who did the work: custom functions are seen however the candidate reaches them."""

from __future__ import annotations

import math
import trace
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

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
    assert seen["native"]["kernel"][1] == 1
    assert "relu" in seen["operators"]


def test_a_built_in_function_is_seen() -> None:
    # load_inline's functions are of this type.
    held = types.SimpleNamespace(run=math.sin)
    seen = trace.observe(lambda: [held.run(0.5) for _ in range(3)], {"sin": math.sin})
    assert seen["native"]["sin"][1] == 3


def test_an_operator_of_another_library_is_custom() -> None:
    lib = torch.library.Library("kernelwright_test", "DEF")
    lib.define("double(Tensor x) -> Tensor")
    lib.impl("double", lambda t: t + t, "CPU")
    seen = trace.observe(lambda: torch.ops.kernelwright_test.double(x), {})
    assert seen["native"]["kernelwright_test::double"][1] == 1
    work, calls = trace.report(seen, True)
    assert calls == 1 and work["custom"] > 0.5


def test_operators_within_a_custom_function_are_not_its_own_time() -> None:
    def slow(t: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            t = t @ t
        return t

    seen = trace.observe(lambda: slow(x), {"slow": slow})
    products = sum(s for n, (s, _) in seen["operators"].items() if n == "mm")
    assert products > 0 and seen["native"]["slow"][0] < seen["total"]
    assert seen["native"]["slow"][1] == 1


def test_nothing_custom_ran() -> None:
    seen = trace.observe(lambda: torch.relu(x), {"kernel": kernel})
    assert seen["native"] == {}
    assert trace.report(seen, True)[1] == 0
