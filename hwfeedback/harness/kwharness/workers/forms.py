"""Runs a reference in the modes in which it is asked for: see Reference.forward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from kwharness.base import trees
from kwharness.base.for_reference import Forward, ModeResult, SourceAt
from kwharness.numerics import decisions
from kwharness.numerics.rounding import Float32Noise, Sources, one_ulp
from kwharness.workers.loaded import Loaded
from kwharness.workers.serving import StageError


class Forms:
    """One loaded reference, and the inputs of one request."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.sparing = False  # as little of the device's memory is held as can be
        self._lanes: decisions.Lanes | None = None  # of the inputs of this forward

    def begin(self) -> None:
        """Nothing is known of the inputs of a request."""
        self._lanes = None

    def asked(
        self, mode: str, request: Forward, inputs: list[torch.Tensor]
    ) -> tuple[ModeResult, list[torch.Tensor]]:
        """Returns what one mode gives: what is said of its tensors, and these."""
        name, *more = mode.split(":")
        tree = request.tree
        if name == "aim":
            run = self._deciding(tree)
            aimed = decisions.aim(run, inputs, request.free, int(more[0]))
            if aimed is None:
                raise StageError("forward", "it decides on nothing that is made of its inputs")
            return ModeResult(mode, sources=[None] * len(aimed), tree=tree), aimed
        if name == "decides":
            lanes = self._lanes_on(tree, inputs)
            nothing: list[SourceAt | None] = [None] * len(inputs)
            counted = len(lanes.made)
            return ModeResult(mode, sources=nothing, tree=tree, decisions=counted), list(inputs)
        if name != "lane":
            decided = inputs if request.decided and name in ("noise", "moved") else None
            return self.run(mode, tree, inputs, request.sources, decided)
        out_tree, out = self._lanes_on(tree, inputs).lane(int(more[0]), int(more[1]))
        out = list(out)
        aliases = [_alias(t, inputs) for t in out]
        found: list[SourceAt | None] = [None] * len(out)
        tree = trees.renumbered(out_tree)
        return ModeResult(mode, sources=found, aliases=aliases, tree=tree), out

    def _lanes_on(self, tree: Any, inputs: list[torch.Tensor]) -> decisions.Lanes:
        if self._lanes is None:
            run = self._deciding(tree)
            self._lanes = decisions.Lanes(lambda *modes: run(inputs, *modes))
        return self._lanes

    def _deciding(self, tree: Any) -> Callable[..., tuple[Any, list[torch.Tensor]]]:
        """Returns how to run a forward in float64 under dispatch modes."""

        def run(inputs: list[torch.Tensor], *modes: Any) -> tuple[Any, list[torch.Tensor]]:
            given = [
                t.to(torch.float64, copy=True) if t.is_floating_point() else t.clone()
                for t in inputs
            ]
            carrier = self._loaded.ready(True)
            if carrier is not None:
                given = carrier.prepare(given)
            with contextlib.ExitStack() as stack:
                for m in modes:
                    stack.enter_context(m)
                out_tree, out = self._loaded.call(tree, given, "wide")
            if carrier is not None:
                self._loaded.check_carried(out)
                out = [t.clone() for t in [*out, *carrier.collect(given)]]
            self._loaded.put_back()
            return out_tree, out

        return run

    def _given(self, mode: str, inputs: list[torch.Tensor], wide: bool) -> list[torch.Tensor]:
        """Returns the inputs of a mode."""
        if mode.startswith("moved:"):
            by_a_unit = one_ulp(inputs, int(mode.split(":")[1]))
            return [
                m if t.is_floating_point() else t.clone()
                for m, t in zip(by_a_unit, inputs, strict=True)
            ]
        if mode == "scalar":
            return [_spread(t) for t in inputs]
        if self.sparing:
            return list(inputs)  # ``call`` makes float64 of them
        # Own copies: a forward that writes into an input changes it for no other mode.
        return [
            t.to(torch.float64, copy=True) if wide and t.is_floating_point() else t.clone()
            for t in inputs
        ]

    def run(
        self,
        mode: str,
        tree: Any,
        inputs: list[torch.Tensor],
        want_sources: bool,
        decided: list[torch.Tensor] | None = None,
    ) -> tuple[ModeResult, list[torch.Tensor]]:
        """``decided``: inputs on which float64 decides for this mode."""
        wide = mode == "wide" or mode.startswith(("noise:", "moved:"))
        inputs = self._given(mode, inputs, wide)
        lanes = None if decided is None else self._lanes_on(tree, decided)  # which may run it
        carrier = self._loaded.ready(wide)
        if carrier is not None:
            inputs = carrier.prepare(inputs)
        sources = Sources() if want_sources and wide else None
        noise = None
        if mode.startswith("noise:"):
            noise = Float32Noise(int(mode.split(":")[1]), coherent=mode.endswith(":coherent"))
        with contextlib.ExitStack() as stack:
            if sources is not None and decided is None:
                stack.enter_context(sources)
            if noise is not None:
                stack.enter_context(noise)
            if lanes is not None:
                stack.enter_context(lanes.forced())
                if sources is not None:
                    stack.enter_context(sources)
            out_tree, out = self._loaded.call(tree, inputs, "wide" if wide else mode)
        if carrier is not None:
            self._loaded.check_carried(out)
            out = [*out, *carrier.collect(inputs)]
        found, extra = _behind(out, sources)
        aliases = [_alias(t, inputs) for t in out]
        if carrier is not None:
            rest = self._loaded.carried.state.stop  # inputs that are written lie in inputs
            aliases[rest:] = [-1] * (len(out) - rest)
            out = [t.clone() for t in out]  # they may lie in what the next call writes into
        self._loaded.put_back()
        tree = trees.renumbered(out_tree)
        return ModeResult(mode, sources=found, aliases=aliases, tree=tree), [*out, *extra]


def _behind(
    out: list[torch.Tensor], sources: Sources | None
) -> tuple[list[SourceAt | None], list[torch.Tensor]]:
    """Returns what is said of the tensors behind each output, and these."""
    found: list[SourceAt | None] = [None] * len(out)
    extra: list[torch.Tensor] = []
    if sources is not None:
        for i, t in enumerate(out):
            source = None if t.is_floating_point() else sources.of(t)
            if source is not None:
                at = len(out) + len(extra)
                found[i] = SourceAt(source.kind, at, source.dim, source.several)
                extra.append(source.values)
    return found, extra


def _spread(t: torch.Tensor) -> torch.Tensor:
    """Returns a copy whose elements lie apart from each other."""
    if t.dim() == 0 or not t.is_floating_point():
        return t.clone()
    return torch.stack([t, t], dim=-1)[..., 0]


def _alias(t: torch.Tensor, inputs: list[torch.Tensor]) -> int:
    """Returns the number of the input whose memory the output shares, or -1."""
    at = t.untyped_storage().data_ptr()
    for i, x in enumerate(inputs):
        if t.numel() and x.untyped_storage().data_ptr() == at:
            return i
    return -1
