"""The reference worker: runs the reference file, somebody's code, and gives what it computes.

Operations, besides ``window`` (timing/window_worker.py): ``import``, ``init_inputs`` and
``construct``, which load it, ``carry``, ``map``, ``draw``, ``state``, ``set_state``, ``forward``,
``inspect``, ``capture``. All tensors travel in blocks that the referee has mapped by name;
``forward`` reads block ``in``.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from kwharness.base import trees
from kwharness.base.protocol import Channel
from kwharness.base.tensors import DTYPE_NAMES, MAX_TENSORS, Block, layout_of, orders_of
from kwharness.machine import allocator
from kwharness.machine import device as devices
from kwharness.machine.device import Device, GpuBlock
from kwharness.model import construction, input_seeds, state
from kwharness.model.state import Before, Carried, Carrier
from kwharness.numerics import decisions
from kwharness.numerics.rounding import Float32Noise, Sources, one_ulp
from kwharness.task.operator_counts import Counter
from kwharness.timing import process_use, window_worker, windows_cuda
from kwharness.torch_compile import inductor
from kwharness.workers import serving
from kwharness.workers.serving import Blocks, StageError, specs_of

FILENAME = "reference.py"
THREAD_S = 0.2  # how long a thread may outlive the call that started it
COMPILED = {
    "compile": {},
    "max-autotune": {"mode": "max-autotune"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "cudagraphs": {"backend": "cudagraphs"},  # eager's kernels, replayed
}
TRANSPOSED = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Reference:
    """The loaded reference and the forms in which it can be run."""

    def __init__(self, channel: Channel, device: Device) -> None:
        self.channel = channel
        self.device = device
        self.blocks = Blocks(device)
        self.module: Any = None
        self.model: torch.nn.Module
        self.init: list[Any] = []
        self._wide: torch.nn.Module | None = None
        self._compiled: dict[str, Any] = {}
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._constants: list[float | None] = []  # in whose place its state was drawn
        self.window_tree: Any = None
        self.output_tree: Any = None
        self._carried = state.NOTHING
        self._carrier: Carrier | None = None  # of the model, where it carries something,
        self._wide_carrier: Carrier | None = None  # and of its copy in float64
        self._reached: list[list[torch.Tensor]] = []  # states that draws begin with
        self.sparing = False  # as little of the device's memory is held as can be
        self._apart = False  # its device keeps large tensors apart
        self._given = 0  # bytes of the inputs of the last forward
        self._lanes: decisions.Lanes | None = None  # of the inputs of this forward
        self._threads = 1  # of timed calls

    # Loading.

    def import_(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Runs the file. Here and below every failure says at which stage it was.

        Nothing stays of what was loaded before.
        """
        self._wide, self._compiled, self._buffers = None, {}, []
        self._carried, self._carrier, self._wide_carrier = state.NOTHING, None, None
        self._reached = []
        torch.set_num_threads(int(msg.get("threads") or 1))
        try:
            self.module = serving.run_source(msg["source"], "reference", FILENAME)
        except BaseException as e:
            raise StageError("import", e) from e
        missing = [
            n for n in ("Model", "get_inputs", "get_init_inputs") if not hasattr(self.module, n)
        ]
        if missing:
            raise StageError("names", ", ".join(missing))
        model = self.module.Model
        if not inspect.isclass(model):
            raise StageError("model", f"Model is {trees.named(type(model))}")
        if not issubclass(model, torch.nn.Module):
            raise StageError("model", "Model is a plain class")
        for name in ("get_inputs", "get_init_inputs"):
            if not callable(getattr(self.module, name)):
                what = trees.named(type(getattr(self.module, name)))
                raise StageError("function", f"{name} is {what}")
        _nothing_left_running()
        return {}

    def init_inputs(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        construction.seed_everything(construction.CONSTRUCTION_SEED)
        try:
            with self._placing():
                init = self.module.get_init_inputs()
        except BaseException as e:
            raise StageError("init_inputs", e) from e
        if not isinstance(init, (list, tuple)):
            raise StageError("init_type", trees.named(type(init)))
        self.init = list(init)
        return {}

    def construct(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Constructs Model under a seed; nothing stays of one that was there before. ``breaks``:
        the names of weights of which what every construction gives them is moved.
        """
        usual = torch.get_num_threads()
        self._threads = int(msg.get("threads") or usual)
        torch.set_num_threads(self._threads)
        try:
            return self._construct(msg)
        finally:
            torch.set_num_threads(usual)

    def _construct(self, msg: dict[str, Any]) -> dict[str, Any]:
        seed, names = int(msg["seed"]), list(msg.get("breaks") or [])
        known: dict[str, dict[str, Any]] = {}  # by digest, as copies are one content
        if names:
            self._made(seed, None)
            for name, t in self._state().items():
                if name in names and bool(t.isfinite().all()):
                    found = construction.to_break(t)
                    known.setdefault(found["digest"], {**found, "names": []})["names"].append(name)
        breaks = construction.Breaks(list(known.values()))
        drawn = self._made(seed, breaks if names else None)
        if msg.get("eval"):
            self.model.eval()
        _nothing_left_running()
        for name, t in self._state().items():
            if what := self._unfit(t):
                raise StageError("state", f"Model's {name} is {what}")
        self._constants = [drawn.of(t) for t in self._state().values()]
        self._buffers = [(b, b.detach().clone()) for b in self.model.buffers()]
        self._carry(self._carried)
        try:
            tree, tensors = trees.flatten(self.init)
        except trees.TreeError as e:
            raise StageError("init_content", str(e)) from e
        tensors = [t.to(self.device.torch) for t in tensors]
        for t in tensors:
            if what := self._unfit(t):
                raise StageError("init_content", f"holds {what}")
        block, layout = devices.block_of(self.device, tensors)
        try:
            answer = {"init": tree, "layout": layout, "size": block.size, **self._weights()}
            times = zip(known.values(), breaks.times, strict=True)
            answer["breaks"] = [{**one, "times": n} for one, n in times]
            return self._give(block, answer)
        finally:
            block.close()

    def _made(self, seed: int, breaks: construction.Breaks | None) -> construction.Constants:
        """Makes a model in place of the one that is there."""
        self._wide, self._compiled, self._buffers = None, {}, []
        self.__dict__.pop("model", None)
        try:
            with construction.under(seed, breaks) as drawn, self._placing():
                self.model = self.module.Model(*self.init)
                if self.device.kind == "cuda":
                    self.model.to(self.device.torch)
                drawn.finish(self.model)
        except BaseException as e:
            raise StageError("construct", e) from e
        return drawn

    def carry(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Says what the model carries from call to call: from here on it is behind the inputs, and
        the outputs.
        """
        self._carry(Carried.from_json(msg["carried"]))
        return {}

    def _carry(self, carried: Carried) -> None:
        self._carried = carried
        self._wide, self._wide_carrier, self._reached = None, None, []
        self._carrier = Carrier(self.model, carried) if carried else None

    def _give(self, block: Block | GpuBlock, answer: dict[str, Any], parts: int = 1) -> Any:
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

    def _weights(self) -> dict[str, Any]:
        state = self._state()
        parameters = {n for n, _ in self.model.named_parameters(remove_duplicate=False)}
        moved = parameters | self._statistics()
        return {
            "names": list(state),
            "state": specs_of(list(state.values())),
            "trainable": [n in parameters for n in state],
            "moved": [n in moved for n in state],
            "tied": _tied(list(state.values())),
            "constants": self._constants,
            "training": any(m.training for m in self.model.modules()),
            "arguments": _argument_names(self.model),
            "forward": _signature(self.model.forward),
            "constructor": _signature(self.module.Model),
        }

    def _statistics(self) -> set[str]:
        """The names of buffers that training fills, of batch normalisation."""
        return {
            f"{name}.{of}".lstrip(".")
            for name, m in self.model.named_modules(remove_duplicate=False)
            if isinstance(m, torch.nn.modules.batchnorm._NormBase)
            for of in ("running_mean", "running_var")
        }

    def _state(self) -> dict[str, torch.Tensor]:
        return {
            n: t.detach() for n, t in self.model.state_dict().items() if isinstance(t, torch.Tensor)
        }

    def draw(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Draws inputs under a seed, or under several: their tensors one after the other.

        ``reseeded``: what get_inputs() seeds by itself gets that seed, too (input_seeds.py).
        """
        self._begin_sparing(msg)
        reseeded = bool(msg.get("reseeded"))
        tensors: list[torch.Tensor] = []
        for seed in map(int, msg["seeds"]):
            tree, drawn = self._draw(seed, reseeded)
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

    def _draw(self, seed: int, reseeded: bool = False) -> tuple[Any, list[torch.Tensor]]:
        construction.seed_everything(seed)
        seeds = input_seeds.ours(seed) if reseeded else contextlib.nullcontext()
        try:
            with self._placing(), seeds:
                inputs = self.module.get_inputs()
        except BaseException as e:
            raise StageError("inputs", e) from e
        if not isinstance(inputs, (list, tuple)):
            raise StageError("inputs_type", trees.named(type(inputs)))
        try:
            tree, tensors = trees.flatten(inputs if isinstance(inputs, list) else list(inputs))
        except trees.TreeError as e:
            raise StageError("inputs_content", str(e)) from e
        for t in tensors:
            if t.device.type not in ("cpu", self.device.kind):
                raise StageError("inputs_device", str(t.device))
        tensors = [t.detach().to(self.device.torch) for t in tensors]
        for t in tensors:
            if what := self._unfit(t):
                raise StageError("inputs_content", f"holds {what}")
        return tree, tensors

    def _state_drawn(self, seed: int, last: bool = False) -> list[torch.Tensor]:
        """Returns a state that calls may begin with, the same whenever it is asked for. ``last``:
        one from which a position soon comes to its end.
        """
        if self._carrier is None or not self._carried.names:
            return []
        if not self._reached:
            self._reached = state.reach(self._carrier, self._goes_on, time.monotonic)
        few = self._reached[-state.BEFORE_THE_END :] if last else self._reached
        return state.perturbed(few[seed % len(few)], seed)

    def _goes_on(self, k: int) -> None:
        """Calls the model on a draw, with the state that it has."""
        assert self._carrier is not None
        tree, given = self._draw(k)
        args = self._carrier.prepare(given, goes_on=True)
        try:
            self.call(tree, args, "eager")
        except StageError:
            raise
        except Exception as e:
            raise StageError("forward", e) from e
        self._carrier.settle(args)

    def _placing(self) -> contextlib.AbstractContextManager[Any]:
        """Has the file make its tensors on the device, where it names none."""
        return self.device.torch if self.device.kind == "cuda" else contextlib.nullcontext()

    def _unfit(self, t: torch.Tensor) -> str:
        """Returns what a tensor is that cannot be shared with another process, or ""."""
        if t.device.type != self.device.kind:
            return f"a tensor on {t.device}"
        if t.layout is not torch.strided:
            return f"a tensor of layout {t.layout}"
        if t.dtype not in DTYPE_NAMES:
            return f"a tensor of dtype {str(t.dtype).removeprefix('torch.')}"
        return ""

    # Weights.

    def state(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        state = list(self._state().values())
        block, layout = devices.block_of(self.device, state)
        try:
            return self._give(block, {"layout": layout, "size": block.size})
        finally:
            block.close()

    def set_state(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        views = self.blocks.views("state", msg["layout"])
        with torch.no_grad():
            for t, view in zip(self._state().values(), views, strict=True):
                t.copy_(view)
        self._buffers = [(b, b.detach().clone()) for b in self.model.buffers()]
        if self._carrier is not None:
            self._carrier.begin_with_this()
        self._wide = None
        return {}

    # Running.

    def _pure(self) -> None:
        """Puts back what a forward has changed."""
        if self._carrier is not None:
            self._carrier.put_back()
        with torch.no_grad():
            for t, before in self._buffers:
                t.copy_(before)

    def _wide_model(self) -> torch.nn.Module:
        """A copy of the model in float64."""
        if self._wide is None:
            try:
                wide = copy.deepcopy(self.model)
            except Exception:
                construction.seed_everything(construction.CONSTRUCTION_SEED)
                wide = self.module.Model(*copy.deepcopy(self.init))
                wide.train(self.model.training)
                wide.load_state_dict(self.model.state_dict())
            wide = wide.double()
            for slot in state.slots(wide).values():
                if (t := slot.get()).is_floating_point():
                    slot.put(t.double())
            self._wide = wide
            carried = self._carried
            self._wide_carrier = Carrier(wide, carried, wide=True) if carried else None
        return self._wide

    def call(
        self, tree: Any, tensors: list[torch.Tensor], mode: str
    ) -> tuple[Any, list[torch.Tensor]]:
        """Runs one forward and returns tree and tensors of its output."""
        with torch.no_grad():
            if mode == "wide":
                args = trees.build(
                    tree, [t.double() if t.is_floating_point() else t for t in tensors]
                )
                wide = self._wide_model()
                with _default_dtype(torch.float64), self._own_transposed(wide):
                    out = wide(*args)
            else:
                out = self._form(mode)(*trees.build(tree, tensors))
        try:
            return trees.flatten(out, numbers=True)
        except trees.TreeError as e:
            raise StageError("output_content", str(e)) from e

    @contextlib.contextmanager
    def _own_transposed(self, wide: torch.nn.Module) -> Iterator[None]:
        """Has PyTorch do transposed convolutions, by products of matrices: cuDNN takes many times
        as long for them in float64.
        """
        asked = torch.backends.cudnn.enabled
        if self.device.kind == "cuda" and any(isinstance(m, TRANSPOSED) for m in wide.modules()):
            torch.backends.cudnn.enabled = False  # and nothing else: TF32 stays as it is
        try:
            yield
        finally:
            torch.backends.cudnn.enabled = asked

    def _form(self, mode: str) -> Callable[..., Any]:
        """Returns the model as it is, or compiled."""
        if mode not in COMPILED:
            return self.model
        if mode not in self._compiled:
            inductor.write_for(self._threads)
            self._compiled[mode] = torch.compile(self.model, **COMPILED[mode])
        return self._compiled[mode]

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
        self._lanes = None
        for mode in msg["modes"]:
            try:
                entry, tensors = self._asked(mode, msg, inputs)
            except BaseException as e:
                results.append({"mode": mode, "error": serving.error_of(e, FILENAME)})
                continue
            entry["at"] = len(kept)
            entry["count"] = len(tensors)
            kept.extend(tensors)
            results.append({"mode": mode, **entry})
        self._lanes = None
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
        block: Block | GpuBlock | None = None
        result: dict[str, Any] = {}
        views: list[torch.Tensor] = []
        layout, size = layout_of([])
        try:
            n = -(-rows // parts)
            for i, at in enumerate(range(0, rows, n)):
                at = min(at, rows - n)  # all are as large: their memory is used again
                part = [t[at : at + n] if j in cut else t for j, t in enumerate(inputs)]
                result, out = self._mode(_for_part(mode, i), msg["tree"], part, False)
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

    def _asked(
        self, mode: str, msg: dict[str, Any], inputs: list[torch.Tensor]
    ) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Returns what one mode gives: what is said of its tensors, and these."""
        name, *more = mode.split(":")
        tree = msg["tree"]
        if name == "aim":
            run = self._deciding(tree)
            aimed = decisions.aim(run, inputs, [int(j) for j in msg["free"]], int(more[0]))
            if aimed is None:
                raise StageError("forward", "it decides on nothing that is made of its inputs")
            return {"tree": tree, "sources": [None] * len(aimed), "aliases": []}, aimed
        if name == "decides":
            lanes = self._lanes_on(tree, inputs)
            entry = {"tree": tree, "sources": [None] * len(inputs), "aliases": []}
            return {**entry, "decisions": len(lanes.made)}, list(inputs)
        if name != "lane":
            decided = inputs if msg.get("decided") and name in ("noise", "moved") else None
            return self._mode(mode, tree, inputs, bool(msg.get("sources")), decided)
        out_tree, out = self._lanes_on(tree, inputs).lane(int(more[0]), int(more[1]))
        out = list(out)
        entry = {"tree": trees.renumbered(out_tree), "sources": [None] * len(out)}
        return {**entry, "aliases": [_alias(t, inputs) for t in out]}, out

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
            carrier = self._ready(True)
            if carrier is not None:
                given = carrier.prepare(given)
            with contextlib.ExitStack() as stack:
                for m in modes:
                    stack.enter_context(m)
                out_tree, out = self.call(tree, given, "wide")
            if carrier is not None:
                self._carried_out(out)
                out = [t.clone() for t in [*out, *carrier.collect(given)]]
            self._pure()
            return out_tree, out

        return run

    def _mode(
        self,
        mode: str,
        tree: Any,
        inputs: list[torch.Tensor],
        want_sources: bool,
        decided: list[torch.Tensor] | None = None,
    ) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """``decided``: inputs on which float64 decides for this mode."""
        moved = mode.startswith("moved:")
        wide = mode == "wide" or mode.startswith("noise:") or moved
        if moved:
            by_a_unit = one_ulp(inputs, int(mode.split(":")[1]))
            inputs = [
                m if t.is_floating_point() else t.clone()
                for m, t in zip(by_a_unit, inputs, strict=True)
            ]
        elif mode == "scalar":
            inputs = [_spread(t) for t in inputs]
        elif self.sparing:
            inputs = list(inputs)  # ``call`` makes float64 of them
        else:  # own copies: a forward that writes into an input changes it for no other mode
            inputs = [
                t.to(torch.float64, copy=True) if wide and t.is_floating_point() else t.clone()
                for t in inputs
            ]
        lanes = None if decided is None else self._lanes_on(tree, decided)  # which may run it
        carrier = self._ready(wide)
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
            out_tree, out = self.call(tree, inputs, "wide" if wide else mode)
        if carrier is not None:
            self._carried_out(out)
            out = [*out, *carrier.collect(inputs)]
        found: list[dict[str, Any] | None] = [None] * len(out)
        extra: list[torch.Tensor] = []
        if sources is not None:
            for i, t in enumerate(out):
                source = None if t.is_floating_point() else sources.of(t)
                if source is not None:
                    rest = {k: v for k, v in source.items() if k != "values"}
                    found[i] = {**rest, "at": len(out) + len(extra)}
                    extra.append(source["values"])
        aliases = [_alias(t, inputs) for t in out]
        if carrier is not None:
            rest = self._carried.state.stop  # inputs that are written lie in inputs
            aliases[rest:] = [-1] * (len(out) - rest)
            out = [t.clone() for t in out]  # they may lie in what the next call writes into
        self._pure()
        entry = {"tree": trees.renumbered(out_tree), "sources": found, "aliases": aliases}
        return entry, [*out, *extra]

    def _ready(self, wide: bool) -> Carrier | None:
        """Returns what puts state into the model that is called."""
        if wide and self._carried:
            self._wide_model()
            return self._wide_carrier
        return self._carrier

    def _carried_out(self, out: list[torch.Tensor]) -> None:
        if len(out) != self._carried.returned:
            raise StageError("output_content", "differs in number from one call to the next")

    # Inspection.

    def inspect(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Runs the model on one draw:

        what its operators are, how long it takes, whether it keeps state.
        """
        tree, inputs = self._draw(int(msg["seed"]))
        before = Before(self.model)
        given = [t.clone() for t in inputs]
        versions = [t._version for t in given]
        counter = Counter()
        try:
            with counter:
                _, out = self.call(tree, given, "eager")
        except BaseException as e:
            if isinstance(e, StageError):
                raise
            raise StageError("forward", e) from e
        _nothing_left_running()
        if not out:
            raise StageError("no_output", "no tensor")
        for t in out:
            if type(t) is not torch.Tensor and not isinstance(t, torch.nn.Parameter):
                raise StageError("output_content", f"holds {trees.named(type(t))}")
            if what := self._unfit(t):
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
        names = _argument_names(self.model)
        if len(names) < len(inputs):
            names = [f"input{i}" for i in range(len(inputs))]
        return {
            "inputs": specs_of(inputs),
            "input_names": names[: len(inputs)],
            "outputs": outputs,
            "operators": counter.operators,
            "operations": counter.operations,
            "linear": counter.linear,
            "lengths": sorted(counter.lengths - {0}),
            "products": sorted(counter.products),
            "carried": self._found(before, inputs, names, written, len(outputs)).to_json(),
            "unkept": before.unkept,
            "shared": before.shared(),
            "eager_ms": min(times),  # whatever else was at work
            **self._weights(),
        }

    def _times(self, tree: Any, inputs: list[torch.Tensor]) -> list[float]:
        """Returns what a few calls take, ms."""
        times: list[float] = []
        start = time.perf_counter()
        while len(times) < 5 and (not times or time.perf_counter() - start < 0.3):
            given = [t.clone() for t in inputs]
            self.device.synchronize()
            began = time.perf_counter()
            self.call(tree, given, "eager")
            self.device.synchronize()
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
        specs = specs_of(list(before.changed.values()))
        for name, t in before.changed.items():
            if what := self._unfit(t):
                raise StageError("state", f"Model's {name} is {what}")
        return Carried(
            tuple(before.changed),
            tuple((s["dtype"], tuple(s["shape"])) for s in specs),
            tuple(written),
            tuple(names[i] for i in written),
            len(inputs),
            returned,
        )

    def capture(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        tree, inputs = self._draw(int(msg.get("seed", 0)))
        from kwharness.task.capture import capture

        graph, note = capture(self.model, trees.build(tree, inputs))
        return {"graph": graph, "note": note}

    def window(self, msg: dict[str, Any], fds: list[int]) -> None:
        model = self._form(str(msg.get("mode") or "eager"))
        forward = window_worker.forward_of(model, self.window_tree, self.output_tree)
        side = windows_cuda.OnGpu if self.device.kind == "cuda" else window_worker.Host
        window_worker.serve(self.channel, msg, fds, forward, side, self._carrier)
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


def _end_progress_bars() -> None:
    """Ends tqdm's thread, which looks at progress bars now and then. What PyTorch compiles may have
    begun it, too.
    """
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if isinstance(bars, type) and getattr(bars, "monitor", None) is not None:
        bars.monitor_interval = 0  # type: ignore[attr-defined]
        bars.monitor.exit()  # type: ignore[attr-defined]
        bars.monitor = None  # type: ignore[attr-defined]


def _nothing_left_running() -> None:
    """Raises for threads and processes that would compute while something is timed."""
    _end_progress_bars()
    for t in threading.enumerate():
        if t is not threading.main_thread():
            t.join(THREAD_S)
            if t.is_alive():
                raise StageError("threads", "".join(c for c in t.name[:80] if c.isprintable()))
    end = time.monotonic() + THREAD_S
    while program := _program() or _program():  # one whose parent has just ended hides in a look
        if time.monotonic() > end:
            raise StageError("processes", program)
        time.sleep(0.01)


def _tied(tensors: list[torch.Tensor]) -> list[int]:
    """Returns, of each, the number of the first that is the same memory."""
    first: dict[Any, int] = {}
    return [
        first.setdefault((t.data_ptr(), t.dtype, t.shape, t.stride()) if t.numel() else i, i)
        for i, t in enumerate(tensors)
    ]


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


def _program() -> str:
    """Returns the name of a process below this one that has not ended, "" where there is none."""
    with contextlib.suppress(OSError):  # in weak mode /proc is the host's, and out of reach
        for pid in process_use.tree(os.getpid())[1:]:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as f:
                name, _, rest = f.read().partition("(")[2].rpartition(")")
                if rest.split()[0] not in "ZXx":
                    return "".join(c for c in name if c.isprintable())
    return ""


def _fork() -> NoReturn:
    raise Forked("a reference computes in one process")


class Forked(OSError):
    """The reference tried to make a copy of its process."""


def _for_part(mode: str, i: int) -> str:
    """Returns the mode for part i: what is random in it is so for each part."""
    name, *more = mode.split(":")
    if not more:
        return name
    seed = (int(more[0]) + i * 0x9E3779B1) % (1 << 32)  # a CPU's generator takes no more of it
    return ":".join([name, str(seed), *more[1:]])


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


def _argument_names(model: torch.nn.Module) -> list[str]:
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _signature(f: Any) -> dict[str, Any]:
    """Returns what a call may name, as JSON: the names of its parameters, those among them that are
    given by keyword alone, and their defaults, as trees, where these are plain values. ``any``:
    whether it takes more than it names.
    """
    said: dict[str, Any] = {"names": [], "keywords": [], "defaults": {}, "any": False}
    try:
        found = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return said | {"any": True}
    for p in found:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            said["any"] = True
            continue
        said["names"].append(p.name)
        if p.kind == p.KEYWORD_ONLY:
            said["keywords"].append(p.name)
        if p.default is not p.empty:
            with contextlib.suppress(trees.TreeError):
                tree, tensors = trees.flatten(p.default)
                said["defaults"] |= {} if tensors else {p.name: tree}
    return said


def main(channel: Channel, config: dict[str, Any], fds: list[int]) -> None:
    if config.get("inductor_cache"):
        inductor.use(config["inductor_cache"])
    allocator.keep_freed_memory()
    # Of a copy neither the work nor the answer is ours. Programs may be started: compilers are.
    os.fork = os.forkpty = _fork
    device = serving.device_of(channel, config)
    r = Reference(channel, device)
    held = list(fds)

    def hold(_: dict[str, Any], given: list[int]) -> dict[str, Any]:
        """Keeps these descriptors open, and no others: whoever has one has the device."""
        for fd in held:
            os.close(fd)
        held[:] = given
        given.clear()
        if not held and device.kind == "cuda":
            torch.cuda.empty_cache()
        return {}

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
