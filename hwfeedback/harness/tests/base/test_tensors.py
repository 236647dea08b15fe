"""How tensors lie in shared blocks."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from kwharness.base.protocol import ProtocolError
from kwharness.base.tensors import Entry, LayoutError, dense, layout_of, orders_of
from kwharness.machine import device


def test_whatever_has_no_gaps_is_dense() -> None:
    for shape in itertools.product((1, 2, 3), repeat=3):
        for order in itertools.permutations(range(3)):
            t = torch.empty(shape).permute(order).contiguous()
            back = t.permute([order.index(i) for i in range(3)])
            assert dense(back.shape, back.stride())
    gaps = torch.empty(4, 6)
    assert not dense(gaps[:, ::2].shape, gaps[:, ::2].stride())
    assert not dense(gaps[::2].shape, gaps[::2].stride())
    assert not dense((3, 4), torch.empty(1, 4).expand(3, 4).stride())
    assert not dense((3, 4), (1,))


def test_a_tensor_keeps_its_order_and_what_has_gaps_becomes_contiguous() -> None:
    r = random.Random(3)
    for _ in range(50):
        shape = [r.randint(0, 4) for _ in range(r.randint(0, 4))]
        order = r.sample(range(len(shape)), len(shape))
        t = torch.randn(shape).permute(order)
        gaps = torch.randn(3, 8)[:, ::2]
        block, layout = device.block_of(device.CPU, [t, gaps], orders_of([t, gaps]))
        one, other = block.views(layout)
        assert torch.equal(one, t) and torch.equal(other, gaps) and other.is_contiguous()
        if t.numel() and not t.is_contiguous():
            assert one.stride() == t.stride()
        assert layout_of([t])[0][0].strides is None, "nobody asked for it"


def test_another_shape_gets_the_same_order() -> None:
    like = torch.empty(8, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    half = torch.randn(4, 3, 7, 5)
    block, layout = device.block_of(
        device.CPU, [half, torch.randn(3)], [like.stride(), like.stride()]
    )
    one, other = block.views(layout)
    assert one.is_contiguous(memory_format=torch.channels_last) and torch.equal(one, half)
    assert other.is_contiguous()


@pytest.mark.parametrize(
    "strides", [[1, 1], [4, 2], [0, 1], [-4, 1], [1], "x", [1.0, 4.0], [4, 1, 1]]
)
def test_strides_that_do_not_cover_a_tensor_are_no_layout(strides: object) -> None:
    block, layout = device.block_of(device.CPU, [torch.randn(3, 4)])
    with pytest.raises((LayoutError, ProtocolError)):
        block.views([Entry.from_json({**layout[0].to_json(), "strides": strides})])
