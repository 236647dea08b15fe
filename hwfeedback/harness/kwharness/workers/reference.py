"""The reference worker: runs the reference file, somebody's code, and gives what it computes.

What is asked of it, and what it answers, are the messages of base/for_reference.py. All
tensors travel in blocks that the referee has mapped by name.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from kwharness.base import for_reference, operations, trees
from kwharness.base.configs import ReferenceConfig
from kwharness.base.for_reference import ModeResult
from kwharness.base.operations import Done, Tensors
from kwharness.base.protocol import Channel
from kwharness.base.records import Message
from kwharness.base.tensors import MAX_TENSORS, layout_of, orders_of
from kwharness.machine import allocator
from kwharness.machine import device as devices
from kwharness.machine.device import Device, SharedBlock
from kwharness.model import state
from kwharness.timing import gpu_worker, window_worker
from kwharness.torch_compile import inductor
from kwharness.workers import serving
from kwharness.workers.forms import Forms
from kwharness.workers.left_running import fork
from kwharness.workers.loaded import FILENAME, Loaded
from kwharness.workers.reference_inspection import Inspection
from kwharness.workers.serving import Blocks, StageError


class Reference:
    """Answers requests about a reference."""

    def __init__(self, channel: Channel, device: Device) -> None:
        self.channel = channel
        self.device = device
        self.blocks = Blocks(device)
        self._loaded = Loaded(device)
        self._forms = Forms(self._loaded)
        self._timed: operations.Trees | None = None  # of timed calls
        self._reached: list[list[torch.Tensor]] = []  # states that draws begin with
        self._apart = False  # its device keeps large tensors apart
        self._given = 0  # bytes of the inputs of the last forward

    @property
    def sparing(self) -> bool:
        """Whether as little of the device's memory is held as can be."""
        return self._forms.sparing

    @sparing.setter
    def sparing(self, spares: bool) -> None:
        self._forms.sparing = spares

    # Loading.

    def import_(self, request: for_reference.Import, _: list[int]) -> Done:
        self._reached = []
        self._loaded.import_(request.source, request.threads)
        return Done()

    def init_inputs(self, request: for_reference.InitInputs, _: list[int]) -> Done:
        self._loaded.init_inputs()
        return Done()

    def construct(self, request: for_reference.Construct, _: list[int]) -> None:
        self._reached = []
        tree, tensors, breaks = self._loaded.construct(request)
        block, layout = devices.block_of(self.device, tensors)
        try:
            given, said = Tensors(layout, block.size), self._loaded.weights()
            self._give(block, for_reference.Constructed(tree, given, said, breaks))
        finally:
            block.close()

    def carry(self, request: operations.Carry, _: list[int]) -> Done:
        self._reached = []
        self._loaded.set_carried(request.carried)
        return Done()

    def _give(self, block: SharedBlock, answer: Message, parts: int = 1) -> None:
        """Answers with a block, made in so many parts."""
        self.device.synchronize()
        self._spare(block.size // parts)
        self.channel.send(serving.answered(answer), [block.fd])

    def _begin_sparing(self, sparing: bool) -> None:
        self.sparing = sparing
        if self.sparing and not self._apart:
            self._apart = True
            self.device.keep_apart()

    def _spare(self, size: int) -> None:
        """Gives back what is free where others may need it: a block of ``size`` is to be made, or
        was, and the referee and a candidate have tensors as large as that, and as the inputs.
        """
        if self.sparing:
            devices.give_back(self.device, max(size, self._given))

    def draw(self, request: for_reference.Draw, _: list[int]) -> for_reference.Drawn | None:
        """Draws inputs under each seed: their tensors one after the other."""
        self._begin_sparing(request.sparing)
        tensors: list[torch.Tensor] = []
        for seed in request.seeds:
            tree, drawn = self._loaded.draw(seed, request.reseeded)
            tensors += [*drawn, *self._state_drawn(seed, request.last)]
        layout, size = layout_of(tensors)
        own = tensors[: len(tensors) // len(request.seeds)]
        answer = for_reference.Drawn(tree, Tensors(layout, size), orders_of(own))
        _fits(tensors, "inputs")
        if size > request.room:
            self._spare(2 * size)
            with _room_for("inputs"):
                block, _layout = devices.block_of(self.device, tensors)
            del tensors, own
            try:
                self._give(block, answer)
            finally:
                block.close()
            return None
        for view, t in zip(self.blocks.views("draw", layout), tensors, strict=True):
            view.copy_(t)
        return answer

    def _state_drawn(self, seed: int, last: bool = False) -> list[torch.Tensor]:
        """Returns a state that calls may begin with, the same whenever it is asked for. ``last``:
        one from which a position soon comes to its end.
        """
        if self._loaded.carrier is None or not self._loaded.carried.names:
            return []
        if not self._reached:
            self._reached = state.reach(self._loaded.carrier, self._goes_on, time.monotonic)
        few = self._reached[-state.BEFORE_THE_END :] if last else self._reached
        return state.perturbed(few[seed % len(few)], seed)

    def _goes_on(self, k: int) -> None:
        """Calls the model on a draw, with the state that it has."""
        assert self._loaded.carrier is not None
        tree, given = self._loaded.draw(k)
        args = self._loaded.carrier.prepare(given, goes_on=True)
        try:
            self._loaded.call(tree, args, "eager")
        except StageError:
            raise
        except Exception as e:
            raise StageError("forward", e) from e
        self._loaded.carrier.settle(args)

    def state(self, request: for_reference.State, _: list[int]) -> None:
        block, layout = devices.block_of(self.device, list(self._loaded.tensors().values()))
        try:
            self._give(block, Tensors(layout, block.size))
        finally:
            block.close()

    def set_state(self, request: for_reference.SetState, _: list[int]) -> Done:
        self._loaded.take(self.blocks.views("state", request.layout))
        return Done()

    def forward(self, request: for_reference.Forward, _: list[int]) -> for_reference.Results | None:
        """Runs the modes asked for, one after the other, on block ``in`` or the one that it names.

        Their outputs follow each other in block ``out``, or in a new one where that lacks ``room``.

        A mode is ``eager``, ``compile``, ``max-autotune``, ``scalar`` (eager on strided inputs,
        where vectorised loops step aside), ``wide`` (float64), ``moved:<seed>`` (float64 on inputs
        that were moved by a unit), or ``noise:<seed>``, ``:coherent`` behind it or not. With
        ``sources`` the wide and noise modes add the tensors behind indices and booleans. With
        ``decided`` noise and moved inputs change no decision. ``lane:<sign>:<seed>`` is float64
        with what is decided on moved by its bound; ``decides`` counts decisions; ``aim:<seed>``
        gives inputs, of those that are ``free`` some elements moved to boundaries (decisions.py).
        A mode that fails has ``error`` instead of a layout. With ``parts`` one in float64 is
        computed for so many parts of a batch, one after the other, which inputs ``cut`` have in
        dimension 0.
        """
        self._begin_sparing(request.sparing)
        inputs = self.blocks.views(request.block, request.layout)
        self._given = sum(t.numel() * t.element_size() for t in inputs) // request.parts
        if request.parts > 1:
            self._in_parts(request, inputs)
            return None
        results: list[ModeResult] = []
        kept: list[torch.Tensor] = []
        self._forms.begin()
        for mode in request.modes:
            try:
                entry, tensors = self._forms.asked(mode, request, inputs)
            except BaseException as e:
                results.append(ModeResult(mode, serving.error_of(e, FILENAME)))
                continue
            results.append(replace(entry, at=len(kept), count=len(tensors)))
            kept.extend(tensors)
        self._forms.begin()
        layout, size = layout_of(kept)
        _fits(kept, "output")
        answer = for_reference.Results(results, Tensors(layout, size))
        if size > request.room:
            self._spare(size)
            with _room_for("forward"):
                block, _layout = devices.block_of(self.device, kept)
            tensors = []
            kept.clear()
            try:
                self._give(block, answer)
            finally:
                block.close()
            return None
        for view, t in zip(self.blocks.views(request.out, layout), kept, strict=True):
            view.copy_(t)
        return answer

    def _in_parts(self, request: for_reference.Forward, inputs: list[torch.Tensor]) -> None:
        """``forward`` in one mode and in parts, whose outputs are put together in a new block."""
        cut, parts = set(request.cut), request.parts
        rows = inputs[request.cut[0]].shape[0]
        (mode,) = request.modes
        block: SharedBlock | None = None
        result = ModeResult(mode)
        views: list[torch.Tensor] = []
        layout, size = layout_of([])
        try:
            n = -(-rows // parts)
            for i, at in enumerate(range(0, rows, n)):
                at = min(at, rows - n)  # all are as large: their memory is used again
                part = [t[at : at + n] if j in cut else t for j, t in enumerate(inputs)]
                result, out = self._forms.run(_for_part(mode, i), request.tree, part, False)
                if any(not t.dim() or len(t) != n for t in out):
                    raise StageError("forward", "its outputs have other rows than its inputs")
                if block is None:
                    whole = [t.new_empty((rows, *t.shape[1:]), device="meta") for t in out]
                    layout, size = layout_of(whole)
                    with _room_for("forward"):
                        block = self.device.create(size)
                    views = block.views(layout)
                if [(v.shape[1:], v.dtype) for v in views] != [(t.shape[1:], t.dtype) for t in out]:
                    raise StageError("forward", "its outputs differ from one part to the next")
                for view, t in zip(views, out, strict=True):
                    view[at : at + n].copy_(t)
                del part, out, view, t
            result = replace(result, mode=mode, at=0, count=len(views))
        except BaseException as e:
            result = ModeResult(mode, serving.error_of(e, FILENAME))
            if block is not None:
                block.close()
            block, (layout, size) = None, layout_of([])
        views = []
        if block is None:
            block = self.device.create(size)
        try:
            self._give(block, for_reference.Results([result], Tensors(layout, size)), parts)
        finally:
            block.close()

    def inspect(self, request: for_reference.Inspect, _: list[int]) -> for_reference.Inspected:
        return Inspection(self._loaded).of(request.seed)

    def capture(self, request: for_reference.Capture, _: list[int]) -> for_reference.Captured:
        tree, inputs = self._loaded.draw(request.seed)
        from kwharness.task.capture import capture

        return for_reference.Captured(*capture(self._loaded.model, trees.build(tree, inputs)))

    def window(self, request: operations.Windows, fds: list[int]) -> None:
        assert self._timed is not None
        forward = window_worker.forward_of(self._loaded.form(request.mode), self._timed)
        side = gpu_worker.side_of(self.device)
        window_worker.serve(self.channel, request, fds, forward, side, self._loaded.carrier)
        fds.clear()  # serve closed them

    def timed(self, request: operations.Trees, _: list[int]) -> Done:
        self._timed = request
        return Done()

    def give_compiled(self, request: operations.GiveCompiled, _: list[int]) -> None:
        fd = inductor.packed()
        try:
            self.channel.send(serving.answered(Done()), [fd] if fd >= 0 else [])
        finally:
            if fd >= 0:
                os.close(fd)

    def take_compiled(self, request: for_reference.TakeCompiled, fds: list[int]) -> Done:
        inductor.unpack(fds[0], tuned=request.tuned)
        return Done()

    def release(self, request: for_reference.Release, _: list[int]) -> Done:
        self.device.release()
        return Done()

    def map(self, request: operations.Map, fds: list[int]) -> Done:
        self.blocks.map(request.name, fds.pop(), request.size)
        return Done()


def _fits(tensors: list[torch.Tensor], part: str) -> None:
    """Raises for more tensors than can be told of."""
    if len(tensors) > MAX_TENSORS:
        raise StageError(f"{part}_content", "holds too many tensors")


@contextlib.contextmanager
def _room_for(stage: str) -> Iterator[None]:
    """Where a block is made: a file of memory may not be as large as that."""
    try:
        yield
    except OSError as e:
        raise StageError(stage, MemoryError(str(e))) from e


def _for_part(mode: str, i: int) -> str:
    """Returns the mode for part i: what is random in it is so for each part."""
    name, *more = mode.split(":")
    if not more:
        return name
    seed = (int(more[0]) + i * 0x9E3779B1) % (1 << 32)  # a CPU's generator takes no more of it
    return ":".join([name, str(seed), *more[1:]])


def main(channel: Channel, config: ReferenceConfig, fds: list[int]) -> None:
    if config.inductor_cache:
        inductor.use(config.inductor_cache)
    allocator.keep_freed_memory()
    # Of a copy neither the work nor the answer is ours. Programs may be started: compilers are.
    os.fork = os.forkpty = fork
    device = serving.device_of(channel, config)
    r = Reference(channel, device)
    lease = serving.Lease(fds)

    def hold(request: operations.Hold, given: list[int]) -> Done:
        answer = lease.hold(request, given)
        if not lease.fds:
            device.let_go()
        return answer

    ops: dict[type[operations.Request], serving.Op] = {
        for_reference.Import: r.import_,
        for_reference.InitInputs: r.init_inputs,
        for_reference.Construct: r.construct,
        operations.Carry: r.carry,
        operations.Map: r.map,
        for_reference.Release: r.release,
        for_reference.Draw: r.draw,
        for_reference.State: r.state,
        for_reference.SetState: r.set_state,
        for_reference.Forward: r.forward,
        for_reference.Inspect: r.inspect,
        for_reference.Capture: r.capture,
        operations.Windows: r.window,
        operations.Trees: r.timed,
        operations.GiveCompiled: r.give_compiled,
        for_reference.TakeCompiled: r.take_compiled,
        operations.Hold: hold,
    }
    serving.serve(channel, serving.answering(ops), FILENAME, device)
