"""The reference as it was loaded: its file, its model, and the forms in which that can be run."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from kwharness.base import trees
from kwharness.base.breaks import Break
from kwharness.base.carried import NOTHING, Carried
from kwharness.base.for_reference import Construct, Weights
from kwharness.base.tensors import DTYPE_NAMES, specs_of
from kwharness.machine.device import Device
from kwharness.model import construction, input_seeds, slots
from kwharness.model.state import Carrier
from kwharness.torch_compile import inductor
from kwharness.workers import serving
from kwharness.workers.left_running import nothing_left_running
from kwharness.workers.serving import StageError
from kwharness.workers.signatures import argument_names, signature

FILENAME = "reference.py"
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


class Loaded:
    """The reference's file, its model, and the forms in which that can be run."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.module: Any = None
        self.model: torch.nn.Module
        self.init: list[Any] = []
        self.constants: list[float | None] = []  # in whose place its state was drawn
        self.carried = NOTHING
        self.carrier: Carrier | None = None  # of the model, where it carries something,
        self.wide_carrier: Carrier | None = None  # and of its copy in float64
        self.threads = 1  # of timed calls
        self._wide: torch.nn.Module | None = None
        self._compiled: dict[str, Any] = {}
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def import_(self, source: str, threads: int) -> None:
        """Runs the file. Here and below every failure says at which stage it was.

        Nothing stays of what was loaded before.
        """
        self._wide, self._compiled, self._buffers = None, {}, []
        self.carried, self.carrier, self.wide_carrier = NOTHING, None, None
        torch.set_num_threads(threads)
        try:
            self.module = serving.run_source(source, "reference", FILENAME)
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
        nothing_left_running()

    def init_inputs(self) -> None:
        """Makes what the model is constructed with."""
        construction.seed_everything(construction.CONSTRUCTION_SEED)
        try:
            with self.placing():
                init = self.module.get_init_inputs()
        except BaseException as e:
            raise StageError("init_inputs", e) from e
        if not isinstance(init, (list, tuple)):
            raise StageError("init_type", trees.named(type(init)))
        self.init = list(init)

    def construct(self, request: Construct) -> tuple[Any, list[torch.Tensor], list[Break]]:
        """Constructs Model under a seed; nothing stays of one that was there before. Returns the
        tree and the tensors that it was constructed with, and what was moved.
        """
        usual = torch.get_num_threads()
        self.threads = request.threads or usual
        torch.set_num_threads(self.threads)
        try:
            return self._construct(request)
        finally:
            torch.set_num_threads(usual)

    def _construct(self, request: Construct) -> tuple[Any, list[torch.Tensor], list[Break]]:
        seed, names = request.seed, request.breaks
        known: dict[str, Break] = {}  # by digest, as copies are one content
        if names:
            self._made(seed, None)
            for name, t in self.tensors().items():
                if name in names and bool(t.isfinite().all()):
                    found = construction.to_break(t)
                    known.setdefault(found.digest, found).names.append(name)
        breaks = construction.Breaks(list(known.values()))
        drawn = self._made(seed, breaks if names else None)
        if request.eval:
            self.model.eval()
        nothing_left_running()
        for name, t in self.tensors().items():
            if what := self.unfit(t):
                raise StageError("state", f"Model's {name} is {what}")
        self.constants = [drawn.of(t) for t in self.tensors().values()]
        self._buffers = [(b, b.detach().clone()) for b in self.model.buffers()]
        self.set_carried(self.carried)
        try:
            tree, tensors = trees.flatten(self.init)
        except trees.TreeError as e:
            raise StageError("init_content", str(e)) from e
        tensors = [t.to(self.device.torch) for t in tensors]
        for t in tensors:
            if what := self.unfit(t):
                raise StageError("init_content", f"holds {what}")
        times = zip(known.values(), breaks.times, strict=True)
        return tree, tensors, [replace(one, times=n) for one, n in times]

    def _made(self, seed: int, breaks: construction.Breaks | None) -> construction.Constants:
        """Makes a model in place of the one that is there."""
        self._wide, self._compiled, self._buffers = None, {}, []
        self.__dict__.pop("model", None)
        try:
            with construction.under(seed, breaks) as drawn, self.placing():
                self.model = self.module.Model(*self.init)
                self.device.place(self.model)
                drawn.finish(self.model)
        except BaseException as e:
            raise StageError("construct", e) from e
        return drawn

    def set_carried(self, carried: Carried) -> None:
        """Tells what the model carries from call to call."""
        self.carried = carried
        self._wide, self.wide_carrier = None, None
        self.carrier = Carrier(self.model, carried) if carried else None

    def weights(self) -> Weights:
        """Returns what is said of weights, buffers and signatures."""
        state = self.tensors()
        parameters = {n for n, _ in self.model.named_parameters(remove_duplicate=False)}
        moved = parameters | self._statistics()
        return Weights(
            names=list(state),
            state=specs_of(list(state.values())),
            trainable=[n in parameters for n in state],
            moved=[n in moved for n in state],
            tied=_tied(list(state.values())),
            constants=self.constants,
            training=any(m.training for m in self.model.modules()),
            arguments=argument_names(self.model),
            forward=signature(self.model.forward),
            constructor=signature(self.module.Model),
        )

    def _statistics(self) -> set[str]:
        """The names of buffers that training fills, of batch normalisation."""
        return {
            f"{name}.{of}".lstrip(".")
            for name, m in self.model.named_modules(remove_duplicate=False)
            if isinstance(m, torch.nn.modules.batchnorm._NormBase)
            for of in ("running_mean", "running_var")
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns weights and buffers by name."""
        return {
            n: t.detach() for n, t in self.model.state_dict().items() if isinstance(t, torch.Tensor)
        }

    def take(self, views: list[torch.Tensor]) -> None:
        """Takes other weights and buffers."""
        with torch.no_grad():
            for t, view in zip(self.tensors().values(), views, strict=True):
                t.copy_(view)
        self._buffers = [(b, b.detach().clone()) for b in self.model.buffers()]
        if self.carrier is not None:
            self.carrier.begin_with_this()
        self._wide = None

    def draw(self, seed: int, reseeded: bool = False) -> tuple[Any, list[torch.Tensor]]:
        """Draws inputs under a seed; ``reseeded``: see Reference.draw."""
        construction.seed_everything(seed)
        seeds = input_seeds.ours(seed) if reseeded else contextlib.nullcontext()
        try:
            with self.placing(), seeds:
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
            if not self.device.takes(t):
                raise StageError("inputs_device", str(t.device))
        tensors = [t.detach().to(self.device.torch) for t in tensors]
        for t in tensors:
            if what := self.unfit(t):
                raise StageError("inputs_content", f"holds {what}")
        return tree, tensors

    def placing(self) -> contextlib.AbstractContextManager[Any]:
        """Has the file make its tensors on the device, where it names none."""
        return self.device.placing()

    def unfit(self, t: torch.Tensor) -> str:
        """Returns what a tensor is that cannot be shared with another process, or ""."""
        if not self.device.holds(t):
            return f"a tensor on {t.device}"
        if t.layout is not torch.strided:
            return f"a tensor of layout {t.layout}"
        if t.dtype not in DTYPE_NAMES:
            return f"a tensor of dtype {str(t.dtype).removeprefix('torch.')}"
        return ""

    def put_back(self) -> None:
        """Puts back what a forward has changed."""
        if self.carrier is not None:
            self.carrier.put_back()
        with torch.no_grad():
            for t, before in self._buffers:
                t.copy_(before)

    def wide_model(self) -> torch.nn.Module:
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
            for slot in slots.slots(wide).values():
                if (t := slot.get()).is_floating_point():
                    slot.put(t.double())
            self._wide = wide
            carried = self.carried
            self.wide_carrier = Carrier(wide, carried, wide=True) if carried else None
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
                wide = self.wide_model()
                with _default_dtype(torch.float64), self._own_transposed(wide):
                    out = wide(*args)
            else:
                out = self.form(mode)(*trees.build(tree, tensors))
        try:
            return trees.flatten(out, numbers=True)
        except trees.TreeError as e:
            raise StageError("output_content", str(e)) from e

    @contextlib.contextmanager
    def _own_transposed(self, wide: torch.nn.Module) -> Iterator[None]:
        """Has PyTorch do transposed convolutions, by products of matrices: cuDNN takes many times
        as long for them in float64.
        """
        some = any(isinstance(m, TRANSPOSED) for m in wide.modules())
        with self.device.own_convolutions() if some else contextlib.nullcontext():
            yield

    def form(self, mode: str) -> Callable[..., Any]:
        """Returns the model as it is, or compiled."""
        if mode not in COMPILED:
            return self.model
        if mode not in self._compiled:
            inductor.write_for(self.threads)
            self._compiled[mode] = torch.compile(self.model, **COMPILED[mode])
        return self._compiled[mode]

    def ready(self, wide: bool) -> Carrier | None:
        """Returns what puts state into the model that is called."""
        if wide and self.carried:
            self.wide_model()
            return self.wide_carrier
        return self.carrier

    def check_carried(self, out: list[torch.Tensor]) -> None:
        """Raises for outputs of another number than a call before gave."""
        if len(out) != self.carried.returned:
            raise StageError("output_content", "differs in number from one call to the next")


def _tied(tensors: list[torch.Tensor]) -> list[int]:
    """Returns, of each, the number of the first that is the same memory."""
    first: dict[Any, int] = {}
    return [
        first.setdefault((t.data_ptr(), t.dtype, t.shape, t.stride()) if t.numel() else i, i)
        for i, t in enumerate(tensors)
    ]
