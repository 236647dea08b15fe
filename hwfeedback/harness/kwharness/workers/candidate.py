"""The candidate worker: one candidate, which is believed in nothing.

It gets raw inputs and gives raw outputs.

Operations, besides ``window`` (timing/window_worker.py): ``load``, ``init``, ``carry``,
``describe``, ``map``, ``set_state``, ``forward``, ``trace``, ``settle``, ``timed``, ``compiled``,
``libraries``. Whatever is answered here, the referee decides by the bytes in block ``out`` alone.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from kwharness.attribution import trace
from kwharness.base import trees
from kwharness.base.protocol import Channel
from kwharness.base.tensors import DTYPE_NAMES
from kwharness.build import forbidden
from kwharness.export import file_loader, inline_loader
from kwharness.machine import allocator
from kwharness.machine import device as devices
from kwharness.machine.device import Device
from kwharness.model import construction, state
from kwharness.model.state import Carried, Carrier
from kwharness.timing import gpu_trace_clock, gpu_worker, window_worker
from kwharness.torch_compile import called_cache, called_languages, inductor, program_answers
from kwharness.workers import serving
from kwharness.workers.serving import Blocks, StageError, specs_of
from kwharness.workers.stand_in_compiler import stand_in_for_the_compiler

FILENAME = "candidate.py"


class Candidate:
    """The loaded candidate."""

    def __init__(
        self, channel: Channel, device: Device, poison: bool, compiles: bool = False
    ) -> None:
        """``compiles``: what is compiled in here goes to other processes of the candidate."""
        self.channel = channel
        self.device = device
        self._compiles = compiles
        self._forbids = True  # policy asks for custom code
        self.blocks = Blocks(device)
        self._poisons = poison
        self.module: Any = None
        self.model: Any = None
        self._constants: list[float | None] = []  # in whose place its state was drawn
        self.window_tree: Any = None
        self.output_tree: Any = None
        self.aliases: list[int] | None = None
        self._carried = state.NOTHING
        self._others: list[str] = []  # the reference's weights that are no state
        self._carrier: Carrier | None = None

    def load(self, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Imports the candidate, with what the builder made of its C++ in place of building."""
        torch.set_num_threads(int(msg.get("threads") or 1))
        from kwharness.build import artifacts, form

        workshop = fds.pop() if msg.get("asks") else -1
        given, text = msg.get("artifacts") or [], msg["source"]
        objects = artifacts.Objects(given, fds, msg.get("failed") or [], workshop)
        artifacts.of_file(text, handed_out=msg.get("handed_out") is True)
        recorder = None
        kernels = [fd for a, fd in zip(given, fds, strict=True) if a["kind"] == form.CALLED]
        if msg.get("stand_in"):
            artifacts.stand_in(objects)
            text = inline_loader.read_as(
                text
            )  # the loader in an exported file is stood in for, too
            if kernels:
                called_languages.stand_in()
        elif msg.get("elsewhere"):
            recorder = artifacts.record(objects)
            text = inline_loader.read_as(text)
        else:
            artifacts.install(objects)
            for fd in kernels:
                called_cache.unpack(fd, forbids=msg.get("forbids") is True)
        if not msg.get("stand_in"):
            stand_in_for_the_compiler(objects)
        if self._compiles:
            program_answers.note()
        self._forbids = msg.get("forbids") is True
        if self._forbids:
            forbidden.forbid()
        fds.clear()  # they stay open: the objects are loaded through them
        try:
            self.module = serving.run_source(text, "candidate", FILENAME)
        except BaseException as e:
            if recorder is not None and recorder.called:
                return {}  # where a stand-in was called its nothing may be the cause
            raise StageError("import", e) from e
        made = getattr(self.module, "ModelNew", None)
        if not isinstance(made, type):
            kind = "" if made is None else f": its ModelNew is a {type(made).__name__}"
            raise StageError("import", NameError(f"the file defines no class ModelNew{kind}"))
        return {"flags": _flags()}

    def init(self, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Constructs ModelNew as the reference was constructed, under the same seed, with the same
        contents moved. Answers how often each was.
        """
        tensors = self.blocks.views("init", msg["layout"]) if msg["layout"] else []
        args = trees.build(msg["tree"], [t.clone() for t in tensors])
        placed = self.device.placing()
        try:
            known = msg.get("breaks") or []
            breaks = construction.Breaks(known)
            with construction.under(int(msg["seed"]), breaks if known else None) as drawn, placed:
                self.model = self.module.ModelNew(*args)
                if isinstance(self.model, torch.nn.Module):
                    drawn.finish(self.model)
        except BaseException as e:
            raise StageError("construct", e) from e
        if not isinstance(self.model, torch.nn.Module):
            raise StageError(
                "construct", f"ModelNew is no torch.nn.Module but a {type(self.model).__name__}"
            )
        self.device.place(self.model)
        try:
            self._constants = [drawn.of(t) for t in self._own().values()]
        except BaseException as e:  # its state_dict() is its own
            raise StageError("weights", e) from e
        if msg.get("eval"):
            self.model.eval()
        return {"broken": breaks.times}

    def _own(self) -> dict[str, torch.Tensor]:
        """Its parameters and buffers: the tensors themselves."""
        return {
            str(n): t.detach()
            for n, t in self.model.state_dict().items()
            if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.dtype in DTYPE_NAMES
        }

    def describe(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Says which parameters and buffers it has as it was constructed; or, of those that are
        ``wanted``, writes the content to block ``own``.
        """
        try:
            own = self._own()
            if "wanted" in msg:
                views = self.blocks.views("own", msg["layout"])
                for name, view in zip(msg["wanted"], views, strict=True):
                    view.copy_(own[name])
                return {}
            return {
                "takes": _takes_weights_by(self.model),
                "names": list(own),
                "specs": specs_of(list(own.values())),
                "constants": self._constants,
            }
        except BaseException as e:
            raise StageError("weights", e) from e

    def carry(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Says what the reference carries from call to call: it is behind inputs and outputs.
        Comes before weights.
        """
        self._carried = Carried.from_json(msg["carried"])
        self._carrier = None
        return {}

    def carrier(self) -> Carrier | None:
        """Returns what puts state into the model, once it has its weights."""
        if self._carrier is None and self._carried:
            self._carrier = Carrier(self.model, self._carried, others=self._others)
        return self._carrier

    def set_state(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Gives the candidate the reference's weights:

        as a state_dict, or what it has of them in place (``in_place``, ``own``).
        """
        views = self.blocks.views("state", msg["layout"]) if msg["layout"] else []
        weights = {n: v.clone() for n, v in zip(msg["names"], views, strict=True)}
        self._others = [n for n in weights if n not in self._carried.names]
        own = getattr(self.model, "load_reference_state", None)
        try:
            with torch.no_grad():
                if msg.get("own") or msg.get("in_place"):
                    mine = self._own()
                    if not set(weights) <= set(mine):
                        return {"changed": False}
                    for name, value in weights.items():
                        mine[name].copy_(value)
                    return {"changed": True}
                if callable(own):
                    own(weights)
                elif weights or self.model.state_dict():
                    self.model.load_state_dict(weights)
        except BaseException as e:
            raise StageError("weights", e) from e
        return {}

    def map(self, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.blocks.map(str(msg["name"]), fds.pop(), int(msg["size"]))
        return {}

    def forward(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Runs one forward on block ``in`` and copies what fits ``outputs`` to block ``out``.

        ``goes_on``: with the state that the last one has left, not with that in the block.
        """
        inputs = self.blocks.views("in", msg["layout"])
        if self._poisons:
            self.device.poison()
        tree, out, carried = self._call(msg["tree"], inputs, bool(msg.get("goes_on")))
        wanted = self.blocks.views("out", msg["outputs"])
        specs = specs_of(out)
        fits = trees.same_shape(trees.renumbered(tree), msg["output_tree"])
        if fits:
            out = [out[i] for i in trees.ordered_like(tree, msg["output_tree"])] + carried
            specs = specs_of(out)
            for view, t in zip(wanted, out, strict=True):
                if t.shape == view.shape and t.dtype == view.dtype:
                    view.copy_(t)
                del t
        own = len(out) - len(self._carried.written) if fits else len(out)
        aliases = [_inside(t, inputs) for t in out[:own]]
        if self._carrier is not None:
            self._carrier.settle(inputs)
        del carried
        if msg.get("sparing"):
            out.clear()
            call = sum(t.numel() * t.element_size() for t in [*inputs, *wanted])
            devices.give_back(self.device, call)
        return {"fits": fits, "outputs": specs, "aliases": aliases, "flags": _flags()}

    def _call(
        self, tree: Any, tensors: list[torch.Tensor], goes_on: bool = False
    ) -> tuple[Any, list[torch.Tensor], list[torch.Tensor]]:
        """Returns tree and tensors of the outputs, and what is carried after the call."""
        carrier = self.carrier()
        if carrier is not None:
            tensors = carrier.prepare(tensors, copies=False, goes_on=goes_on)
        args = trees.build(tree, tensors)
        try:
            with torch.no_grad():
                out = self.model(*args)
            self.device.synchronize()  # what a kernel does wrong is said here
        except BaseException as e:
            raise StageError("forward", e) from e
        carried = [] if carrier is None else carrier.collect(tensors)
        try:
            tree, found = trees.flatten(out, numbers=True)
        except trees.TreeError as e:
            raise StageError("output", f"forward's result {e}") from e
        for t in found:
            if type(t) not in (torch.Tensor, torch.nn.Parameter):
                raise StageError(
                    "output", f"forward returns a {type(t).__name__}, not a plain tensor"
                )
            if t.layout is not torch.strided or not self.device.holds(t):
                raise StageError("output", f"forward returns a {t.layout} tensor on {t.device}")
        return tree, found, carried

    def trace(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        from kwharness.build import artifacts

        inputs = self.blocks.views("in", msg["layout"])
        clock = gpu_trace_clock.clock_of(self.device)

        def forward() -> None:
            for t in self._call(msg["tree"], inputs)[1]:
                t.contiguous()  # as where it is timed

        forward()  # after which all its extensions are loaded
        custom = called_languages.functions() | self._of_own_loader() | artifacts.functions()
        apart = trace.regions(compiled=not self._forbids)
        return {"trace": trace.observe(forward, custom, clock, apart)}

    def _of_own_loader(self) -> dict[str, Any]:
        """Returns the functions of libraries that the loader in an exported file has made."""
        found: dict[str, Any] = {}
        for value in list(vars(self.module).values()):
            if type(value).__name__ in ("Library", file_loader.NATIVE):
                found |= {n: f for n, f in vars(value).items() if n[0] != "_" and callable(f)}
        return found

    def settle(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Ends the poisoning of memory: from here on the candidate is timed."""
        allocator.poison(False)
        self._poisons = False
        return {}

    def compiled(self, msg: dict[str, Any], _: list[int]) -> None:
        """Gives what was compiled in this process when it was called: an archive, and in
        further answers (``after`` so many) the libraries that are not in it.
        """
        made = list(called_cache.libraries().items())
        if "after" in msg:
            some = made[int(msg["after"]) :][: called_cache.AT_ONCE]
            fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for _, path in some]
            self._give({"names": [name for name, _ in some]}, fds)
            return
        data = called_cache.packed()
        if not data:
            self.channel.send({"ok": True, "libraries": 0})
            return
        fd = os.memfd_create("kernels", os.MFD_CLOEXEC)
        with open(fd, "wb", closefd=False) as f:
            f.write(data)
        self._give({"libraries": len(made)}, [fd])

    def _give(self, answer: dict[str, Any], fds: list[int]) -> None:
        try:
            self.channel.send({"ok": True} | answer, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def libraries(self, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Takes libraries that were made in another process of this candidate."""
        for name, fd in zip(msg["names"], fds, strict=True):
            called_cache.link(name, fd)
        fds.clear()  # they stay open: the libraries are loaded through them
        return {}

    def timed(self, msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Says in which containers the tensors of timed calls go, and come, and which of those
        may lie in an input.
        """
        self.window_tree = msg["tree"]
        self.output_tree = msg["output_tree"]
        self.aliases = msg.get("aliases")
        return {}

    def window(self, msg: dict[str, Any], fds: list[int]) -> None:
        forward = window_worker.forward_of(self.model, self.window_tree, self.output_tree)
        side = gpu_worker.side_of(self.device)
        msg = msg | {"aliases": self.aliases}
        window_worker.serve(self.channel, msg, fds, forward, side, self.carrier())
        fds.clear()  # serve closed them


def _takes_weights_by(model: torch.nn.Module) -> str:
    """Returns the method by which it says itself what becomes of the reference's weights, or ""."""
    if callable(getattr(model, "load_reference_state", None)):
        return "load_reference_state"
    ways = {"load_state_dict", "_load_from_state_dict"}
    for m in model.modules():
        own = [c for c in type(m).__mro__ if c.__module__.partition(".")[0] != "torch"]
        # A norm of PyTorch's own has a way, too, and its subclass inherits it.
        if any(ways & vars(c).keys() for c in own) or (
            type(m) in own and m._load_state_dict_pre_hooks
        ):
            return "load_state_dict"
    return ""


def _inside(t: torch.Tensor, inputs: list[torch.Tensor]) -> int:
    """Returns the number of the input in whose memory the output lies, or -1."""
    if not t.numel():
        return -1
    at = t.data_ptr()
    for i, x in enumerate(inputs):
        if x.numel() and x.data_ptr() <= at < x.data_ptr() + x.numel() * x.element_size():
            return i
    return -1


def _flags() -> dict[str, Any]:
    """The global switches that change what PyTorch computes."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set by the older switches and by the newer ones
        precision = "mixed"
    return {
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "matmul_precision": precision,
        "threads": torch.get_num_threads(),
    }


OPERATIONS = (
    "load", "init", "carry", "describe", "set_state", "map", "forward", "trace", "settle", "timed",
    "window", "compiled", "libraries",
)  # fmt: skip


def prepare() -> None:
    """For the fork server, which does it once for all candidates' processes."""
    if os.path.exists("/dev/nvidiactl"):
        called_languages.prepare()


def main(channel: Channel, config: dict[str, Any], fds: list[int]) -> None:
    allocator.keep_freed_memory()
    if config.get("poison"):
        allocator.poison(True)
    # The file that holds the reference's rules is no secret, but a candidate has no business
    # importing it.
    sys.modules.pop(f"{__package__}.reference", None)
    vars(sys.modules[str(__package__)]).pop("reference", None)
    if config.get("inductor_cache"):
        inductor.use(config["inductor_cache"])
    device = serving.device_of(channel, config)
    c = Candidate(channel, device, bool(config.get("poison")), bool(config.get("runs")))
    ops = {n: getattr(c, n) for n in OPERATIONS}
    ops["hold"] = serving.Lease(fds).hold  # comes before anything of the candidate's
    serving.serve(channel, ops, FILENAME, device)
