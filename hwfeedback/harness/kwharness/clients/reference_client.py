"""The referee's side of the reference's worker."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from kwharness.base import for_reference, operations, trees
from kwharness.base.carried import NOTHING, Carried
from kwharness.base.tensors import Layout
from kwharness.clients import client, errors
from kwharness.clients.answers import ModeAnswer, reshaped, weight_entries
from kwharness.clients.batch_parts import Parts
from kwharness.machine.device import CPU, Device
from kwharness.model import weights
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.numerics.rounding import Source

# Modes of a forward whose tensors are inputs.
GIVE_INPUTS = ("aim", "decides")


def _wide(modes: Sequence[str]) -> bool:
    """Whether one mode is asked for, which computes in float64."""
    return len(modes) == 1 and modes[0].partition(":")[0] in ("wide", "noise", "moved")


class ReferenceClient(client.Client):
    """The reference worker."""

    def __init__(self, worker: errors.Spawned, timeout: float = 60.0, device: Device = CPU) -> None:
        super().__init__(worker, device)
        self.timeout = timeout
        self.key = ""  # processes of the same key are alike
        self.warm = False  # it has served an evaluation before
        self.constructed: for_reference.Constructed  # what it says of its model
        self.seed = CONSTRUCTION_SEED  # under which it is constructed
        self.breaks: list[str] = []  # weights that are moved as it is constructed
        self._making = 1  # threads, as it is constructed
        self.init: list[torch.Tensor] = []
        self.carried = NOTHING
        # A task so large that as little of its memory is held as can be: one mode after the other,
        # in blocks that are gone when nobody needs their tensors any more.
        self.sparing = False
        self.parts: Parts | None = None  # in which float64 is computed, on inputs that fit
        self._parts: Parts | None = None  # of the forward that is asked for
        self.had_parts = False  # a forward was computed in parts since it was loaded
        self._keeping = False  # see ``keeping``
        self._room = {"out0": 0, "out1": 0, "draw": 0}
        self._lent: tuple[list[torch.Tensor], Layout] | None = None  # see ``lend``
        self._modes: list[str] = []
        self._later: list[str] = []  # modes that are asked for one by one
        self._request: for_reference.Forward  # what is asked of each mode
        self._out = "out0"

    def load(
        self,
        source: str,
        *,
        threads: int,
        eval_mode: bool,
        seed: int = CONSTRUCTION_SEED,
        breaks: Sequence[str] = (),
        making: int = 0,
    ) -> None:
        """``making``: threads with which a candidate is constructed, if these are others: what
        factorises a matrix gives other bits with others.
        """
        self.parts, self.had_parts = None, False
        self.carried = NOTHING
        self._making = making or threads
        # Part by part, so that whoever waits knows for what.
        self.tell(
            for_reference.Import(source, threads),
            timeout=self.timeout,
            doing="importing the file",
        )
        self.tell(for_reference.InitInputs(), timeout=self.timeout, doing="get_init_inputs()")
        self.construct(seed, eval_mode=eval_mode, breaks=breaks)

    def construct(self, seed: int, *, eval_mode: bool, breaks: Sequence[str] = ()) -> None:
        """Has Model constructed under a seed: anew, where it was before. ``breaks``: the names of
        weights of which what every construction gives them is moved.
        """
        self.constructed, fds = self.ask(
            for_reference.Construct(seed, eval_mode, list(breaks), self._making),
            for_reference.Constructed,
            timeout=self.timeout,
            doing="Model's constructor",
            fds_wanted=1,
        )
        self.seed, self.breaks = seed, list(breaks)
        with self._understood():
            self.init = client.private(self.device, fds, self.constructed.given)
            trees.build(self.constructed.init, self.init)
            own = self.info
            count = len(own.names)
            each = (own.state, own.trainable, own.moved, own.tied, own.constants)
            if any(len(entries) != count for entries in each):
                raise ValueError("names and weights do not match")
            if any(b.times is None for b in self.constructed.breaks):
                raise ValueError("a content of which nobody says how often it came to be")
            if any(first > i for i, first in enumerate(own.tied)):
                raise ValueError("weights that are tied to later ones")

    @property
    def info(self) -> for_reference.Weights:
        """What it says of weights, buffers and signatures."""
        return self.constructed.weights

    def weights(self, state: Sequence[torch.Tensor]) -> weights.Reference:
        """Returns what there is to be taken, as it was constructed."""
        own = self.info
        entries = weight_entries(own.names, state, own.constants)
        return weights.Reference(entries, own.moved, own.tied, self.carried.names)

    def carry(self, carried: Carried) -> None:
        """Has what the model carries from call to call behind its inputs and its outputs."""
        self.carried = carried
        self.tell(operations.Carry(carried), timeout=self.timeout, doing="Model's state")

    def hold(self, fds: Sequence[int]) -> None:
        """Has it keep these descriptors open, and no others."""
        self.tell(operations.Hold(), fds, timeout=self.timeout)

    def draw(
        self, seed: int, *, reseeded: bool = False, last: bool = False
    ) -> tuple[Any, list[torch.Tensor]]:
        """Returns the tree and the tensors of one draw. What is carried is behind them: ``last``, a
        state from which a position soon comes round.
        """
        tree, draws = self.draws([seed], reseeded=reseeded, last=last)
        return tree, draws[0]

    def draws(
        self, seeds: Sequence[int], *, reseeded: bool = False, last: bool = False
    ) -> tuple[Any, list[list[torch.Tensor]]]:
        """Returns the tree of all draws, and the tensors of each. ``reseeded``: what get_inputs()
        seeds by itself gets these seeds, too.
        """
        request = for_reference.Draw(
            list(seeds), self._room_in("draw"), self._passing, reseeded, last
        )
        self._release()
        drawn, fds = self.ask(
            request, for_reference.Drawn, self.timeout, "get_inputs()", fds_wanted=1
        )
        with self._understood():
            if fds:
                tensors = client.private(self.device, fds, drawn.tensors, self.sparing)
            else:
                views = self._blocks["draw"].views(drawn.tensors.layout)
                tensors = views if self.sparing else [v.clone() for v in views]
            self.orders = drawn.orders
            each, rest = divmod(len(tensors), len(seeds))
            if rest:
                raise ValueError("draws of different numbers of tensors")
            draws = [tensors[i * each : (i + 1) * each] for i in range(len(seeds))]
            for draw in draws:
                trees.build(drawn.tree, draw)
                if self.carried and len(draw) != self.carried.given + len(self.carried.names):
                    raise ValueError("a draw of other tensors")
        if fds and not self._passing:
            self._room["draw"] = self.block("draw", drawn.tensors.size).size
        return drawn.tree, draws

    def state(self) -> list[torch.Tensor]:
        told, fds = self.ask(
            for_reference.State(),
            operations.Tensors,
            self.timeout,
            "Model's state_dict()",
            fds_wanted=1,
        )
        with self._understood():
            tensors = client.private(self.device, fds, told)
            if len(tensors) != len(self.info.names):
                raise ValueError("names and weights do not match")
        return tensors

    def inspect(self, seed: int) -> for_reference.Inspected:
        """Returns what one forward on a draw shows."""
        seen, _ = self.ask(
            for_reference.Inspect(seed),
            for_reference.Inspected,
            self.timeout,
            "Model's forward",
        )
        with self._understood():
            if len(seen.inputs) != len(seen.input_names):
                raise ValueError("inputs and names do not match")
            if (seen.carried.given, seen.carried.returned) != (len(seen.inputs), len(seen.outputs)):
                raise ValueError("state beside other inputs and outputs")
        return seen

    def capture(self, timeout: float) -> for_reference.Captured:
        """Returns the graph of a forward, and a note."""
        return self.ask(
            for_reference.Capture(),
            for_reference.Captured,
            timeout,
            "capturing the graph",
        )[0]

    def compiled(self) -> int:
        """Returns a descriptor of what torch.compile has made in it, the caller's to close, or -1:
        its own word, for processes of the same file alone.
        """
        _, fds = self.ask(operations.GiveCompiled(), operations.Done, self.timeout, fds_wanted=1)
        return fds[0] if fds else -1

    def precompiled(self, fd: int, *, tuned: bool) -> None:
        """Gives it what another process of the same file has compiled. ``tuned``: and measured."""
        self.tell(for_reference.TakeCompiled(tuned), [fd], timeout=self.timeout)

    def set_state(self, state: Sequence[torch.Tensor]) -> None:
        if state:
            request = for_reference.SetState(self.put("state", state))
            self.tell(request, timeout=self.timeout, doing="changing Model's weights")

    def kill(self) -> None:
        self._lent = None
        super().kill()

    def lend(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns inputs as they lie in memory that the reference has, too, where memory is spared:
        a forward on them copies nothing. They hold until the next are lent.
        """
        if not self.sparing:
            return list(inputs)
        self._lent = None
        self._replace("in")
        layout = self.put("lent", inputs, orders=self.orders)
        views = self._blocks["lent"].views(layout)
        self._lent = views, layout
        return list(views)

    def _given(self, inputs: Sequence[torch.Tensor]) -> tuple[str, Layout]:
        """Has the inputs in the reference's memory, and says where: block and layout."""
        if self._lent is not None:
            views, layout = self._lent
            if len(views) == len(inputs) and all(map(operator.is_, views, inputs)):
                self._replace("in")
                return "lent", layout
        return "in", self.put("in", inputs, orders=self.orders)

    def begin_forward(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        modes: Sequence[str],
        *,
        sources: bool = False,
        decided: bool = False,
        free: Sequence[int] = (),
    ) -> None:
        """``decided``: simulated rounding and moved inputs change no decision; ``free``: the inputs
        that an aim may change (decisions.py).
        """
        block, layout = self._given(inputs)
        self._request = for_reference.Forward(
            tree, [], layout, block, sources=sources, decided=decided, free=list(free)
        )
        self._parts = self.parts if self.parts is not None and self.parts.fit(inputs) else None
        self._later = list(modes[1:]) if self.sparing else []
        self._ask_modes(modes[:1] if self.sparing else modes)

    def _ask_modes(self, modes: Sequence[str]) -> None:
        self._modes = list(modes)
        self._out = "out1" if self._out == "out0" else "out0"
        request = replace(
            self._request,
            modes=self._modes,
            out=self._out,
            room=self._room_in(self._out),
            sparing=self._passing,
        )
        parts = self._parts
        if parts is not None and self._passing and _wide(modes):
            request = replace(request, cut=list(parts.cut), parts=parts.count)
            self.had_parts = True
            if self.device.free_bytes() < parts.room:
                self._release()
        else:
            self._release()
        self.begin(request, (), self.timeout, "Model's forward")

    def _room_in(self, block: str) -> int:
        """The bytes that a block has for tensors: none where memory is spared, and none is used
        again.
        """
        return 0 if self._passing else self._room[block]

    @property
    def _passing(self) -> bool:
        """Whether blocks are gone when nobody needs their tensors."""
        return self.sparing and not self._keeping

    def _release(self) -> None:
        if self._passing:
            self.device.release()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Has nothing computed in parts."""
        parts, self.parts = self.parts, None
        try:
            yield
        finally:
            self.parts = parts

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Has blocks used again, although memory is spared: a draw is there until the next draw
        inside this, an answer until the next but one. ``let_go`` gives the blocks back.
        """
        self._keeping = True
        try:
            yield
        finally:
            self._keeping = False

    def give_back(self) -> None:
        """Has it keep no free memory."""
        self.tell(for_reference.Release(), timeout=self.timeout)

    def let_go(self) -> None:
        """Gives back the blocks that were kept, and the memory that its process keeps."""
        self._lent = None
        self._keeping = False
        self.drain(self.timeout)
        if self.sparing:
            kept = [name for name, room in self._room.items() if room]
            self._room.update(dict.fromkeys(kept, 0))
            self._replace(*kept, "in", "lent")
            self.give_back()
            self._release()

    def finish_forward(self) -> list[ModeAnswer]:
        """Returns an answer per mode.

        The tensors live in memory shared with the reference and hold until the next but one
        forward ends, or for as long as they are needed where memory is spared; no candidate ever
        sees that memory.
        """
        answers = self._finish_modes()
        for mode in self._later:
            self._ask_modes([mode])
            answers += self._finish_modes()
        first: list[torch.Tensor] = next((a.tensors for a in answers if a.error is None), [])
        return [self._of_shapes(first, a) for a in answers]

    def _of_shapes(self, first: Sequence[torch.Tensor], answer: ModeAnswer) -> ModeAnswer:
        """Returns a mode's answer, an error where its shapes are others than the first mode's:
        rounding moves values, and shapes with them.
        """
        error = reshaped(first, answer.tensors) if answer.error is None else None
        if error is None:
            return answer
        error.client = self
        return ModeAnswer(answer.mode, error)

    def _finish_modes(self) -> list[ModeAnswer]:
        told, fds = self.finish(for_reference.Results, 1)
        with self._understood():
            if fds:
                tensors = client.private(self.device, fds, told.tensors, self.sparing)
            else:
                tensors = self._blocks[self._out].views(told.tensors.layout)
            answers = self._answers(told.results, tensors)
        if fds and not self._passing and self._room[self._out] < told.tensors.size:
            # As large as the other: modes that give less alternate with some that give more.
            size = max(told.tensors.size, self._room["out0"], self._room["out1"])
            self._room[self._out] = self.block(self._out, size).size
        return answers

    def _answers(
        self, told: Sequence[for_reference.ModeResult], tensors: list[torch.Tensor]
    ) -> list[ModeAnswer]:
        """Returns the modes that were asked for, in that order."""
        if [r.mode for r in told] != self._modes:
            raise ValueError("other modes than were asked for")
        answers: list[ModeAnswer] = []
        for r in told:
            if r.error is not None:
                error = errors.WorkerError(r.error, self)
                error.stage = error.stage or "forward"
                if error.ill:  # which is no mode's own
                    raise error
                answers.append(ModeAnswer(r.mode, error))
                continue
            own = tensors[r.at : r.at + r.count]
            n = len(r.sources)
            if len(own) != r.count or n > len(own):
                raise ValueError("a result without its tensors")
            gives_inputs = r.mode.partition(":")[0] in GIVE_INPUTS
            if self.carried and n != self.carried.all and not gives_inputs:
                raise ValueError("a result without its state")
            trees.build(r.tree, own[:n])
            sources = [
                None if s is None else Source(s.kind, own[s.at], s.dim, s.several)
                for s in r.sources
            ]
            answers.append(
                ModeAnswer(r.mode, None, own[:n], sources, r.tree, r.aliases, r.decisions)
            )
        return answers

    def forward(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        modes: Sequence[str],
        *,
        sources: bool = False,
    ) -> list[ModeAnswer]:
        """The same at once; the tensors are the caller's."""
        self.begin_forward(tree, inputs, modes, sources=sources)
        answers = self.finish_forward()
        return answers if self.sparing else [a.copied() for a in answers]

    def decides(self, tree: Any, inputs: Sequence[torch.Tensor]) -> int:
        """Returns how many operators decide in a forward (decisions.py), 0 where it raises."""
        self.begin_forward(tree, inputs, ["decides"])
        answer = self.finish_forward()[0]
        with self._understood():
            if answer.error is None and answer.decisions is None:
                raise ValueError("it was asked how many operators decide")
        return answer.decisions or 0

    def aimed(
        self, tree: Any, inputs: Sequence[torch.Tensor], free: Sequence[int], seed: int
    ) -> list[torch.Tensor] | None:
        """Returns inputs of which elements are moved to where the forward decides, of those among
        ``free`` alone; None where it decides on nothing that is made of these.
        """
        self.begin_forward(tree, inputs, [f"aim:{seed}"], free=free)
        answer = self.finish_forward()[0]
        if answer.error is not None:
            if errors.ran_out(answer.error):
                raise answer.error
            return None
        found = [t.clone() for t in answer.tensors]
        with self._understood():
            if [(t.shape, t.dtype) for t in found] != [(t.shape, t.dtype) for t in inputs]:
                raise ValueError("inputs of another form than those that it was given")
        return found

    def each(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        modes: Sequence[str],
        *,
        decided: bool = False,
    ) -> Iterator[ModeAnswer]:
        """Mode by mode, with sources, as finish_forward returns it: nothing is held of one when
        the next comes, where memory is spared. ``decided`` as in ``begin_forward``.
        """
        if not self.sparing:
            self.begin_forward(tree, inputs, modes, sources=True, decided=decided)
            yield from self.finish_forward()
            return
        first: list[torch.Tensor] = []
        for mode in modes:
            [answer] = self.forward(tree, inputs, [mode], sources=True)
            if not first:
                first = [t.to("meta") for t in answer.tensors]
            yield self._of_shapes(first, answer)
            del answer  # or it is still there while the next answer is made
