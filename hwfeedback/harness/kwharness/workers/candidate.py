"""The candidate worker: one candidate, which is believed in nothing.

It gets raw inputs and gives raw outputs: what is asked of it, and what it answers, are the messages
of base/for_candidate.py. Whatever is answered here, the referee decides by the bytes in block
``out`` alone.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import torch

from kwharness.attribution import trace
from kwharness.base import for_candidate, operations, trees
from kwharness.base.carried import NOTHING
from kwharness.base.configs import CandidateConfig, Config
from kwharness.base.operations import Done
from kwharness.base.protocol import Channel
from kwharness.base.records import Message
from kwharness.base.tensors import DTYPE_NAMES, specs_of
from kwharness.build import forbidden
from kwharness.export import file_loader, inline_loader
from kwharness.machine import allocator
from kwharness.machine import device as devices
from kwharness.machine.device import Device
from kwharness.model import construction
from kwharness.model.state import Carrier
from kwharness.timing import gpu_trace_clock, gpu_worker, window_worker
from kwharness.torch_compile import called_cache, called_languages, inductor, program_answers
from kwharness.workers import serving
from kwharness.workers.serving import Blocks, StageError
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
        self._timed: operations.Trees | None = None  # of timed calls
        self._carried = NOTHING
        self._others: list[str] = []  # the reference's weights that are no state
        self._carrier: Carrier | None = None

    def load(self, request: for_candidate.Load, fds: list[int]) -> Done:
        """Imports the candidate, with what the builder made of its C++ in place of building."""
        torch.set_num_threads(request.threads)
        from kwharness.build import artifacts, form

        workshop = fds.pop() if request.asks else -1
        given, text = request.artifacts, request.source
        objects = artifacts.Objects(given, fds, request.failed, workshop)
        artifacts.of_file(text, handed_out=request.handed_out)
        recorder = None
        kernels = [fd for a, fd in zip(given, fds, strict=True) if a["kind"] == form.CALLED]
        if request.stand_in:
            artifacts.stand_in(objects)
            text = inline_loader.read_as(
                text
            )  # the loader in an exported file is stood in for, too
            if kernels:
                called_languages.stand_in()
        elif request.elsewhere:
            recorder = artifacts.record(objects)
            text = inline_loader.read_as(text)
        else:
            artifacts.install(objects)
            for fd in kernels:
                called_cache.unpack(fd, forbids=request.forbids)
        if not request.stand_in:
            stand_in_for_the_compiler(objects)
        if self._compiles:
            program_answers.note()
        self._forbids = request.forbids
        if self._forbids:
            forbidden.forbid()
        fds.clear()  # they stay open: the objects are loaded through them
        try:
            self.module = serving.run_source(text, "candidate", FILENAME)
        except BaseException as e:
            if recorder is not None and recorder.called:
                return Done()  # where a stand-in was called its nothing may be the cause
            raise StageError("import", e) from e
        made = getattr(self.module, "ModelNew", None)
        if not isinstance(made, type):
            kind = "" if made is None else f": its ModelNew is a {type(made).__name__}"
            raise StageError("import", NameError(f"the file defines no class ModelNew{kind}"))
        return Done()

    def init(self, request: for_candidate.Init, _: list[int]) -> for_candidate.Initialised:
        """Constructs ModelNew as the reference was constructed, under the same seed, with the same
        contents moved. Answers how often each was.
        """
        tensors = self.blocks.views("init", request.layout) if request.layout else []
        args = trees.build(request.tree, [t.clone() for t in tensors])
        placed = self.device.placing()
        try:
            known = request.breaks
            breaks = construction.Breaks(known)
            with construction.under(request.seed, breaks if known else None) as drawn, placed:
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
        if request.eval:
            self.model.eval()
        return for_candidate.Initialised(breaks.times)

    def _own(self) -> dict[str, torch.Tensor]:
        """Its parameters and buffers: the tensors themselves."""
        return {
            str(n): t.detach()
            for n, t in self.model.state_dict().items()
            if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.dtype in DTYPE_NAMES
        }

    def describe(self, request: for_candidate.Describe, _: list[int]) -> for_candidate.Described:
        try:
            own = self._own()
            specs = specs_of(list(own.values()))
            takes = _takes_weights_by(self.model)
            return for_candidate.Described(takes, list(own), specs, self._constants)
        except BaseException as e:
            raise StageError("weights", e) from e

    def show(self, request: for_candidate.Show, _: list[int]) -> Done:
        try:
            own = self._own()
            views = self.blocks.views("own", request.layout)
            for name, view in zip(request.names, views, strict=True):
                view.copy_(own[name])
            return Done()
        except BaseException as e:
            raise StageError("weights", e) from e

    def carry(self, request: operations.Carry, _: list[int]) -> Done:
        """Comes before weights."""
        self._carried = request.carried
        self._carrier = None
        return Done()

    def carrier(self) -> Carrier | None:
        """Returns what puts state into the model, once it has its weights."""
        if self._carrier is None and self._carried:
            self._carrier = Carrier(self.model, self._carried, others=self._others)
        return self._carrier

    def take(self, request: for_candidate.Take, _: list[int]) -> for_candidate.Taken:
        """Takes the reference's weights: as a state_dict, or what it has of them in place."""
        views = self.blocks.views("state", request.layout) if request.layout else []
        weights = {n: v.clone() for n, v in zip(request.names, views, strict=True)}
        self._others = [n for n in weights if n not in self._carried.names]
        own = getattr(self.model, "load_reference_state", None)
        try:
            with torch.no_grad():
                if request.own or request.in_place:
                    mine = self._own()
                    if not set(weights) <= set(mine):
                        return for_candidate.Taken(False)
                    for name, value in weights.items():
                        mine[name].copy_(value)
                    return for_candidate.Taken(True)
                if callable(own):
                    own(weights)
                elif weights or self.model.state_dict():
                    self.model.load_state_dict(weights)
        except BaseException as e:
            raise StageError("weights", e) from e
        return for_candidate.Taken()

    def map(self, request: operations.Map, fds: list[int]) -> Done:
        self.blocks.map(request.name, fds.pop(), request.size)
        return Done()

    def call(self, request: for_candidate.Call, _: list[int]) -> for_candidate.Called:
        inputs = self.blocks.views("in", request.layout)
        if self._poisons:
            self.device.poison()
        tree, out, carried = self._call(request.tree, inputs, request.goes_on)
        wanted = self.blocks.views("out", request.outputs)
        specs = specs_of(out)
        fits = trees.same_shape(trees.renumbered(tree), request.output_tree)
        if fits:
            out = [out[i] for i in trees.ordered_like(tree, request.output_tree)] + carried
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
        if request.sparing:
            out.clear()
            call = sum(t.numel() * t.element_size() for t in [*inputs, *wanted])
            devices.give_back(self.device, call)
        return for_candidate.Called(specs, fits, aliases)

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

    def trace(self, request: for_candidate.Trace, _: list[int]) -> for_candidate.Traced:
        from kwharness.build import artifacts

        inputs = self.blocks.views("in", request.layout)
        clock = gpu_trace_clock.clock_of(self.device)

        def forward() -> None:
            for t in self._call(request.tree, inputs)[1]:
                t.contiguous()  # as where it is timed

        forward()  # after which all its extensions are loaded
        custom = called_languages.functions() | self._of_own_loader() | artifacts.functions()
        apart = trace.regions(compiled=not self._forbids)
        return trace.observe(forward, custom, clock, apart)

    def _of_own_loader(self) -> dict[str, Any]:
        """Returns the functions of libraries that the loader in an exported file has made."""
        found: dict[str, Any] = {}
        for value in list(vars(self.module).values()):
            if type(value).__name__ in ("Library", file_loader.NATIVE):
                found |= {n: f for n, f in vars(value).items() if n[0] != "_" and callable(f)}
        return found

    def settle(self, request: for_candidate.Settle, _: list[int]) -> Done:
        allocator.poison(False)
        self._poisons = False
        return Done()

    def give_compiled(self, request: operations.GiveCompiled, _: list[int]) -> None:
        """Gives what was compiled in this process when it was called."""
        data = called_cache.packed()
        if not data:
            self._give(for_candidate.CompiledKernels(), [])
            return
        fd = os.memfd_create("kernels", os.MFD_CLOEXEC)
        with open(fd, "wb", closefd=False) as f:
            f.write(data)
        self._give(for_candidate.CompiledKernels(len(called_cache.libraries())), [fd])

    def give_libraries(self, request: for_candidate.GiveLibraries, _: list[int]) -> None:
        made = list(called_cache.libraries().items())
        some = made[request.after :][: called_cache.AT_ONCE]
        fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for _, path in some]
        self._give(for_candidate.Libraries([name for name, _ in some]), fds)

    def _give(self, answer: Message, fds: list[int]) -> None:
        try:
            self.channel.send(serving.answered(answer), fds)
        finally:
            for fd in fds:
                os.close(fd)

    def take_libraries(self, request: for_candidate.TakeLibraries, fds: list[int]) -> Done:
        for name, fd in zip(request.names, fds, strict=True):
            called_cache.link(name, fd)
        fds.clear()  # they stay open: the libraries are loaded through them
        return Done()

    def timed(self, request: operations.Trees, _: list[int]) -> Done:
        self._timed = request
        return Done()

    def window(self, request: operations.Windows, fds: list[int]) -> None:
        assert self._timed is not None
        forward = window_worker.forward_of(self.model, self._timed)
        side = gpu_worker.side_of(self.device)
        request = replace(request, aliases=self._timed.aliases)
        window_worker.serve(self.channel, request, fds, forward, side, self.carrier())
        fds.clear()  # serve closed them

    def ops(self) -> dict[type[operations.Request], serving.Op]:
        """Returns what can be asked of it."""
        return {
            for_candidate.Load: self.load,
            for_candidate.Init: self.init,
            operations.Carry: self.carry,
            for_candidate.Describe: self.describe,
            for_candidate.Show: self.show,
            for_candidate.Take: self.take,
            operations.Map: self.map,
            for_candidate.Call: self.call,
            for_candidate.Trace: self.trace,
            for_candidate.Settle: self.settle,
            operations.Trees: self.timed,
            operations.Windows: self.window,
            operations.GiveCompiled: self.give_compiled,
            for_candidate.GiveLibraries: self.give_libraries,
            for_candidate.TakeLibraries: self.take_libraries,
        }


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


def prepare() -> None:
    """For the fork server, which does it once for all candidates' processes."""
    if os.path.exists("/dev/nvidiactl"):
        called_languages.prepare()


def main(channel: Channel, config: CandidateConfig, fds: list[int]) -> None:
    serve(channel, config, fds, poison=config.poison)


def serve(
    channel: Channel,
    config: Config,
    fds: list[int],
    *,
    poison: bool = False,
    compiles: bool = False,
) -> None:
    """Serves a candidate. ``poison``: memory holds no zeros; ``compiles``: see Candidate."""
    allocator.keep_freed_memory()
    if poison:
        allocator.poison(True)
    # The file that holds the reference's rules is no secret, but a candidate has no business
    # importing it.
    sys.modules.pop(f"{__package__}.reference", None)
    vars(sys.modules[str(__package__)]).pop("reference", None)
    if config.inductor_cache:
        inductor.use(config.inductor_cache)
    device = serving.device_of(channel, config)
    c = Candidate(channel, device, poison, compiles)
    # Which comes before anything of the candidate's.
    hold: dict[type[operations.Request], serving.Op] = {operations.Hold: serving.Lease(fds).hold}
    serving.serve(channel, serving.answering(hold | c.ops()), FILENAME, device)
