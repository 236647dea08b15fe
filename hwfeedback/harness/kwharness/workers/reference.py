"""The reference worker: runs the reference file, somebody's code, and gives what it computes.

Operations, besides ``window`` (timing/window_worker.py): ``import``, ``init_inputs`` and
``construct``, which load it, ``carry``, ``map``, ``draw``, ``state``, ``set_state``, ``forward``,
``inspect``, ``capture``. All tensors travel in blocks that the referee has mapped by name;
``forward`` reads block ``in``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import torch

from kwharness.base import trees
from kwharness.base.protocol import Channel
from kwharness.base.tensors import MAX_TENSORS, layout_of, orders_of
from kwharness.machine import allocator
from kwharness.machine import device as devices
from kwharness.machine.device import Device, SharedBlock
from kwharness.model import state
from kwharness.model.state import Carried
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
        self.window_tree: Any = None
        self.output_tree: Any = None
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

    def import_(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Runs the file. Nothing stays of what was loaded before."""
        self._reached = []
        return self._loaded.import_(msg)

    def init_inputs(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Has the file make what its model is constructed with."""
        return self._loaded.init_inputs()

    def construct(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any] | None:
        """Constructs Model under a seed; nothing stays of one that was there before."""
        self._reached = []
        found, tensors = self._loaded.construct(msg)
        block, layout = devices.block_of(self.device, tensors)
        try:
            return self._give(block, {**found, "layout": layout, "size": block.size})
        finally:
            block.close()

    def carry(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Says what the model carries from call to call: from here on it is behind the inputs, and
        the outputs.
        """
        self._reached = []
        self._loaded.set_carried(Carried.from_json(msg["carried"]))
        return {}

    def _give(self, block: SharedBlock, answer: dict[str, Any], parts: int = 1) -> Any:
        """Answers with a block, made in so many parts. Returns what an operation returns that has
        answered by itself.
        """
        self.device.synchronize()
        self._spare(block.size // parts)
        self.channel.send({"ok": True, **answer}, [block.fd])
        return None

    def _begin_sparing(self, msg: dict[str, Any]) -> None:
        self.sparing = bool(msg.get("sparing"))
        if self.sparing and not self._apart:
            self._apart = True
            self.device.keep_apart()

    def _spare(self, size: int) -> None:
        """Gives back what is free where others may need it: a block of ``size`` is to be made, or
        was, and the referee and a candidate have tensors as large as that, and as the inputs.
        """
        if self.sparing:
            devices.give_back(self.device, max(size, self._given))

    def draw(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Draws inputs under a seed, or under several: their tensors one after the other.

        ``reseeded``: what get_inputs() seeds by itself gets that seed, too (input_seeds.py).
        """
        self._begin_sparing(msg)
        reseeded = bool(msg.get("reseeded"))
        tensors: list[torch.Tensor] = []
        for seed in map(int, msg["seeds"]):
            tree, drawn = self._loaded.draw(seed, reseeded)
            tensors += [*drawn, *self._state_drawn(seed, bool(msg.get("last")))]
        layout, size = layout_of(tensors)
        own = tensors[: len(tensors) // len(msg["seeds"])]
        answer = {"tree": tree, "layout": layout, "size": size, "orders": orders_of(own)}
        _fits(tensors, "inputs")
        if size > msg.get("room", 0):
            self._spare(2 * size)
            with _room_for("inputs"):
                block, layout = devices.block_of(self.device, tensors)
            del tensors, own
            try:
                return self._give(block, answer)
            finally:
                block.close()
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

    def state(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        state = list(self._loaded.tensors().values())
        block, layout = devices.block_of(self.device, state)
        try:
            return self._give(block, {"layout": layout, "size": block.size})
        finally:
            block.close()

    def set_state(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        views = self.blocks.views("state", msg["layout"])
        self._loaded.take(views)
        return {}

    def forward(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
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
        self._begin_sparing(msg)
        inputs = self.blocks.views(str(msg.get("in") or "in"), msg["layout"])
        parts = int(msg.get("parts") or 1)
        self._given = sum(t.numel() * t.element_size() for t in inputs) // parts
        if parts > 1:
            return self._in_parts(msg, inputs, parts)
        results: list[dict[str, Any]] = []
        kept: list[torch.Tensor] = []
        self._forms.begin()
        for mode in msg["modes"]:
            try:
                entry, tensors = self._forms.asked(mode, msg, inputs)
            except BaseException as e:
                results.append({"mode": mode, "error": serving.error_of(e, FILENAME)})
                continue
            entry["at"] = len(kept)
            entry["count"] = len(tensors)
            kept.extend(tensors)
            results.append({"mode": mode, **entry})
        self._forms.begin()
        layout, size = layout_of(kept)
        _fits(kept, "output")
        if size > msg.get("room", 0):
            self._spare(size)
            with _room_for("forward"):
                block, layout = devices.block_of(self.device, kept)
            tensors = []
            kept.clear()
            try:
                return self._give(block, {"results": results, "layout": layout, "size": size})
            finally:
                block.close()
        for view, t in zip(self.blocks.views(msg["out"], layout), kept, strict=True):
            view.copy_(t)
        return {"results": results, "layout": layout, "size": size}

    def _in_parts(self, msg: dict[str, Any], inputs: list[torch.Tensor], parts: int) -> Any:
        """``forward`` in one mode and in parts, whose outputs are put together in a new block."""
        cut = set(msg["cut"])
        rows = inputs[msg["cut"][0]].shape[0]
        (mode,) = msg["modes"]
        block: SharedBlock | None = None
        result: dict[str, Any] = {}
        views: list[torch.Tensor] = []
        layout, size = layout_of([])
        try:
            n = -(-rows // parts)
            for i, at in enumerate(range(0, rows, n)):
                at = min(at, rows - n)  # all are as large: their memory is used again
                part = [t[at : at + n] if j in cut else t for j, t in enumerate(inputs)]
                result, out = self._forms.run(_for_part(mode, i), msg["tree"], part, False)
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
            result |= {"mode": mode, "at": 0, "count": len(views)}
        except BaseException as e:
            result = {"mode": mode, "error": serving.error_of(e, FILENAME)}
            if block is not None:
                block.close()
            block, (layout, size) = None, layout_of([])
        views = []
        if block is None:
            block = self.device.create(size)
        try:
            return self._give(block, {"results": [result], "layout": layout, "size": size}, parts)
        finally:
            block.close()

    def inspect(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """See Inspection."""
        return Inspection(self._loaded).of(int(msg["seed"]))

    def capture(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        tree, inputs = self._loaded.draw(int(msg.get("seed", 0)))
        from kwharness.task.capture import capture

        graph, note = capture(self._loaded.model, trees.build(tree, inputs))
        return {"graph": graph, "note": note}

    def window(self, msg: dict[str, Any], fds: list[int]) -> None:
        model = self._loaded.form(str(msg.get("mode") or "eager"))
        forward = window_worker.forward_of(model, self.window_tree, self.output_tree)
        side = gpu_worker.side_of(self.device)
        window_worker.serve(self.channel, msg, fds, forward, side, self._loaded.carrier)
        fds.clear()  # serve closed them

    def timed(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Says in which containers the tensors of timed calls go, and come."""
        self.window_tree = msg["tree"]
        self.output_tree = msg["output_tree"]
        return {}

    def compiled(self, _msg: dict[str, Any], _: list[int]) -> None:
        """Gives what torch.compile has made in this process."""
        fd = inductor.packed()
        try:
            self.channel.send({"ok": True}, [fd] if fd >= 0 else [])
        finally:
            if fd >= 0:
                os.close(fd)

    def precompiled(self, _: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Takes what another process of this file has compiled."""
        inductor.unpack(fds[0])
        return {}

    def release(self, _msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        self.device.release()
        return {}

    def map(self, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.blocks.map(str(msg["name"]), fds.pop(), int(msg["size"]))
        return {}


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


def main(channel: Channel, config: dict[str, Any], fds: list[int]) -> None:
    if config.get("inductor_cache"):
        inductor.use(config["inductor_cache"])
    allocator.keep_freed_memory()
    # Of a copy neither the work nor the answer is ours. Programs may be started: compilers are.
    os.fork = os.forkpty = fork
    device = serving.device_of(channel, config)
    r = Reference(channel, device)
    lease = serving.Lease(fds)

    def hold(msg: dict[str, Any], given: list[int]) -> dict[str, Any]:
        answer = lease.hold(msg, given)
        if not lease.fds:
            device.let_go()
        return answer

    ops = {"import": r.import_, "hold": hold} | {
        n: getattr(r, n)
        for n in (
            "init_inputs",
            "construct",
            "carry",
            "map",
            "release",
            "draw",
            "state",
            "set_state",
            "forward",
            "inspect",
            "capture",
            "window",
            "timed",
            "compiled",
            "precompiled",
        )
    }
    serving.serve(channel, ops, FILENAME, device)
