"""Looks at a reference: what its operators are, how long it takes, whether it keeps state."""

from __future__ import annotations

import time
from typing import Any

import torch

from kwharness.base import trees
from kwharness.base.carried import Carried
from kwharness.base.for_reference import Inspected
from kwharness.base.tensors import specs_of
from kwharness.model import state
from kwharness.model.state import Before
from kwharness.task.operator_counts import Counter
from kwharness.workers.left_running import nothing_left_running
from kwharness.workers.loaded import Loaded
from kwharness.workers.serving import StageError
from kwharness.workers.signatures import argument_names


class Inspection:
    """One look at a loaded reference."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def of(self, seed: int) -> Inspected:
        """Runs the model on one draw, some times."""
        tree, inputs = self._loaded.draw(seed)
        before = Before(self._loaded.model)
        given = [t.clone() for t in inputs]
        versions = [t._version for t in given]
        counter = Counter()
        try:
            with counter:
                _, out = self._loaded.call(tree, given, "eager")
        except BaseException as e:
            if isinstance(e, StageError):
                raise
            raise StageError("forward", e) from e
        nothing_left_running()
        if not out:
            raise StageError("no_output", "no tensor")
        for t in out:
            if type(t) is not torch.Tensor and not isinstance(t, torch.nn.Parameter):
                raise StageError("output_content", f"holds {trees.named(type(t))}")
            if what := self._loaded.unfit(t):
                raise StageError("output_content", f"holds {what}")
        if not any(t.numel() for t in out):
            raise StageError("no_output", "no element")
        outputs = specs_of(out)
        before.look()
        written = [
            i
            for i, (a, b, v) in enumerate(zip(given, inputs, versions, strict=True))
            if a._version != v or not state.same(a, b)
        ]
        times = self._times(tree, inputs)
        before.look()
        before.put_back()
        names = argument_names(self._loaded.model)
        if len(names) < len(inputs):
            names = [f"input{i}" for i in range(len(inputs))]
        return Inspected(
            inputs=specs_of(inputs),
            input_names=names[: len(inputs)],
            outputs=outputs,
            operators=counter.operators,
            operations=counter.operations,
            linear=counter.linear,
            lengths=sorted(counter.lengths - {0}),
            products=sorted(counter.products),
            carried=self._found(before, inputs, names, written, len(outputs)),
            unkept=before.unkept,
            shared=before.shared(),
            eager_ms=min(times),  # whatever else was at work
        )

    def _times(self, tree: Any, inputs: list[torch.Tensor]) -> list[float]:
        """Returns what a few calls take, ms."""
        times: list[float] = []
        start = time.perf_counter()
        while len(times) < 5 and (not times or time.perf_counter() - start < 0.3):
            given = [t.clone() for t in inputs]
            self._loaded.device.synchronize()
            began = time.perf_counter()
            self._loaded.call(tree, given, "eager")
            self._loaded.device.synchronize()
            times.append(1e3 * (time.perf_counter() - began))
        return times

    def _found(
        self,
        before: Before,
        inputs: list[torch.Tensor],
        names: list[str],
        written: list[int],
        returned: int,
    ) -> Carried:
        for name, t in before.changed.items():
            if what := self._loaded.unfit(t):
                raise StageError("state", f"Model's {name} is {what}")
        return Carried(
            list(before.changed),
            specs_of(list(before.changed.values())),
            written,
            [names[i] for i in written],
            len(inputs),
            returned,
        )
