"""Parts of a batch, one of which is computed at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kwharness.machine.device import Device

# Bytes in float64, of inputs and outputs, that are computed at once where a batch is cut.
PART = {"cpu": 1 << 26, "cuda": 1 << 32}


@dataclass(frozen=True)
class Parts:
    """In which parts a forward is computed whose rows, along dimension 0, have nothing to do with
    each other: it takes a part of the memory, over and over, instead of new memory each time.
    """

    shapes: list[torch.Size]  # of the inputs
    cut: list[int]  # numbers of those that have the rows
    count: int
    room: int  # bytes of the device that one forward needs besides what its process keeps

    @classmethod
    def of(
        cls, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], device: Device
    ) -> Parts | None:
        """Returns how a forward could be cut, None where it cannot, or is small.

        Whole numbers may count rows: one that no part has ends a GPU's context.
        """
        numbers = any(not t.is_floating_point() and t.dtype is not torch.bool for t in inputs)
        if numbers or not outputs or not all(t.dim() and t.is_floating_point() for t in outputs):
            return None
        rows = len(outputs[0])
        cut = [i for i, t in enumerate(inputs) if t.dim() and len(t) == rows]
        given, made = (8 * sum(t.numel() for t in ts) for ts in (inputs, outputs))
        shared = given - 8 * sum(inputs[i].numel() for i in cut)  # each part takes all of it
        most = PART[device.kind]
        count = min(-(-(given - shared + made) // most), rows)
        if not cut or count < 2 or shared > most or any(len(t) != rows for t in outputs):
            return None
        room = made + 2 * (shared + -(-(given - shared + made) // count))
        return cls([t.shape for t in inputs], cut, count, room)

    def fit(self, inputs: Sequence[torch.Tensor]) -> bool:
        return [t.shape for t in inputs] == self.shapes
