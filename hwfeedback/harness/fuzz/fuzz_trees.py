"""Trees of containers, as they come from another process: a value that gives the same tree again,
or TreeError.
"""

from __future__ import annotations

import json

import torch

from kwharness.base import protocol, trees

_TENSORS = [torch.zeros(1), torch.ones(2)]


def seeds() -> list[bytes]:
    values = [
        {"list": [{"t": 0}, {"value": 3}, {"tuple": [{"t": 1}, {"float": "inf"}]}]},
        {"dict": [["a", {"t": 0}], [1, {"value": None}], ["b", {"dict": []}]]},
        {"dtype": "float32"},
        {"value": "x"},
        {"float": "nan"},
    ]
    return [json.dumps(v).encode() for v in values]


def one(data: bytes) -> None:
    try:
        tree = protocol.decode(b'{"v":1,"tree":' + data + b"}")["tree"]
    except (protocol.ProtocolError, KeyError):
        return
    try:
        value = trees.build(tree, _TENSORS)
        plain, tensors = trees.flatten(value)
    except trees.TreeError as e:
        assert len(str(e)) < 200
        return
    again, second = trees.flatten(trees.build(plain, tensors))
    assert again == plain and all(a is b for a, b in zip(tensors, second, strict=True))
    assert trees.same_shape(plain, plain)
    assert trees.renumbered(plain) == plain
    assert trees.ordered_like(plain, plain) == list(range(len(tensors)))
    protocol.encode({"tree": plain})
