"""Layouts from another process: tensors that lie within their block, or LayoutError."""

from __future__ import annotations

import json

import torch

from kwharness.base import operations, protocol, tensors

_SIZE = 1 << 12
_BLOCK = tensors.Block.create(_SIZE)


def seeds() -> list[bytes]:
    given = [torch.zeros(3, 5), torch.zeros(7, dtype=torch.bool), torch.zeros(0, 4)]
    entry = {"dtype": "float64", "shape": [4], "offset": 64}
    return [
        json.dumps(v).encode()
        for v in (
            [e.to_json() for e in tensors.layout_of(given)[0]],
            [],
            [entry, {**entry, "offset": 128}],
            [{**entry, "shape": [0, 1 << 40, 1 << 40]}],
            [{**entry, "shape": [1] * 70}],
            [entry] * 200,
            [e.to_json() for e in tensors.layout_of(given, orders=[[1, 3], [], [1, 1]])[0]],
            [{**entry, "shape": [2, 2], "strides": [1, 4]}],
        )
    ]


def one(data: bytes) -> None:
    try:
        msg = protocol.decode(b'{"v":1,"size":1,"layout":' + data + b"}")
        layout = operations.Tensors.from_json(msg).layout
    except protocol.ProtocolError:
        return
    try:
        views = _BLOCK.views(layout)
    except tensors.LayoutError as e:
        assert len(str(e)) < 400
        return
    start = _BLOCK.bytes().data_ptr()
    assert sum(v.numel() * v.element_size() for v in views) <= _SIZE
    for v, entry in zip(views, layout, strict=True):
        assert list(v.shape) == entry.shape
        if v.numel():
            at = v.data_ptr() - start
            assert at >= 0 and at + v.numel() * v.element_size() <= _SIZE
        v.clone()
