"""The referee's side of a candidate's worker."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from kwharness.base import for_candidate, operations
from kwharness.base.breaks import Break
from kwharness.base.built import BuildRequest
from kwharness.base.carried import NOTHING, Carried
from kwharness.base.operations import A
from kwharness.base.tensors import Layout, layout_of
from kwharness.clients import answers, client, errors
from kwharness.clients.workshop import Desk, Workshop
from kwharness.machine.device import CPU, Device
from kwharness.model import weights
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.torch_compile import called_cache

COMPILED_S = 60.0  # that a process may take to hand over what it has compiled, all together
HANDING_OVER = "handing over what it compiled"
DIGESTED = 1 << 24  # elements at once


class Answer:
    """What a candidate gave for one forward."""

    def __init__(
        self, outputs: list[torch.Tensor], problem: str, wrote: list[int], outside: bool
    ) -> None:
        self.outputs = outputs  # private copies
        self.problem = (
            problem  # one sentence where structure, dtype, shape or aliasing is not the reference's
        )
        self.wrote = wrote  # numbers of the inputs that it changed
        self.outside = outside  # whether it wrote beside them


class CandidateClient(client.Client):
    """The candidate worker."""

    def __init__(self, worker: errors.Spawned, timeout: float, device: Device = CPU) -> None:
        super().__init__(worker, device)
        self.timeout = timeout  # of one forward
        self.desk: Desk | None = None  # where it asks for what it has built
        self.carried = NOTHING
        self.sparing = False  # see ReferenceClient
        self.plan: weights.Plan | None = None  # how it gets weights; None: as a state_dict
        self.broken: list[int] = []  # by its word, how often it moved which of the breaks
        self._called: for_candidate.Called  # what it says of its last forward
        self._pending: tuple[Layout, Sequence[torch.Tensor], Layout, list[int]] | None = None

    def kill(self) -> None:
        """Kills it, and learns before what it tried that is not its business."""
        self.worker.log()
        super().kill()
        if self.desk is not None:
            self.desk.close()

    def granted(self) -> float:
        return self.desk.granted() if self.desk is not None else 0.0

    def finish(self, answer: type[A], fds_wanted: int = 0) -> tuple[A, list[int]]:
        try:
            return super().finish(answer, fds_wanted)
        finally:
            if self.desk is not None and self.desk.trouble is not None:
                raise self.desk.trouble  # whatever it made of that

    def builds_on_its_own(self) -> None:
        """From here on what is built for it takes its own time."""
        if self.desk is not None:
            self.desk.no_more()

    def load(
        self,
        source: str,
        artifacts: list[BuildRequest],
        fds: Sequence[int],
        *,
        threads: int,
        timeout: float,
        stand_in: bool = False,
        workshop: Workshop | None = None,
        elsewhere: bool = False,
        forbids: bool = False,
        handed_out: bool = False,
    ) -> None:
        """Imports it. ``stand_in``: its custom code does nothing. ``workshop``: where it asks for
        what is not among the ``artifacts``. ``elsewhere``: they are for a device that is not here.
        ``forbids``: what policy forbids fails. ``handed_out``: it is the file that its user gets.
        """
        request = for_candidate.Load(
            source,
            artifacts,
            threads,
            stand_in=stand_in,
            elsewhere=elsewhere,
            forbids=forbids,
            asks=workshop is not None,
            handed_out=handed_out,
            failed=workshop.failed() if workshop is not None else [],
        )
        doing = "importing the candidate"
        if workshop is None:
            self.tell(request, fds, timeout, doing)
            return
        self.desk, theirs = workshop.desk([a["request"] for a in artifacts])
        with theirs:
            self.begin(request, [*fds, theirs.fileno()], timeout, doing)
        self.finish(operations.Done)

    def init(
        self,
        tree: Any,
        tensors: Sequence[torch.Tensor],
        *,
        eval_mode: bool,
        timeout: float,
        seed: int = CONSTRUCTION_SEED,
        breaks: Sequence[Break] = (),
    ) -> None:
        layout = self.put("init", tensors) if tensors else []
        request = for_candidate.Init(tree, layout, seed, eval_mode, list(breaks))
        told, _ = self.ask(request, for_candidate.Initialised, timeout, "constructing ModelNew")
        with self._understood():
            if len(told.broken) != len(breaks):
                raise ValueError("other contents than were to be moved")
        self.broken = told.broken

    def plan_for(self, reference: weights.Reference) -> weights.Plan:
        """Returns how it gets the weights of a reference that was constructed under the same seed,
        by what it says of its own as they were constructed.
        """
        timeout, doing = max(self.timeout, 30.0), "telling its weights"
        told, _ = self.ask(for_candidate.Describe(), for_candidate.Described, timeout, doing)
        with self._understood():
            if len(set(told.names)) < len(told.names):
                raise ValueError("two weights of one name")
            like = [answers.like_spec(s) for s in told.specs]
            own = answers.weight_entries(told.names, like, told.constants)
            if told.takes not in ("", weights.LOAD_REFERENCE_STATE, weights.LOAD_STATE_DICT):
                raise ValueError("no method that takes weights")
        if told.takes:
            return weights.whole(reference, told.takes)
        wanted = weights.to_look_at(reference, own)
        if wanted:
            layout, size = layout_of([own[i].value for i in wanted])
            block = self.block("own", size)
            show = for_candidate.Show([own[i].name for i in wanted], layout)
            self.tell(show, timeout=timeout, doing=doing)
            for i, view in zip(wanted, block.views(layout), strict=True):
                own[i] = replace(own[i], value=view.clone())
            self._replace("own")
        return weights.plan(reference, own)

    def carry(self, carried: Carried) -> None:
        """Says what the reference carries from call to call. Comes before weights."""
        self.carried = carried
        timeout = max(self.timeout, 30.0)
        self.tell(operations.Carry(carried), timeout=timeout, doing="taking the state")

    def set_state(
        self, names: Sequence[str], state: Sequence[torch.Tensor], *, in_place: bool = False
    ) -> bool:
        """Gives it the reference's weights, as its plan says. Returns False where an in-place
        change found other names.
        """
        own = self.plan is not None and not self.plan.whole
        if self.plan is not None:
            names, state = self.plan.given(names, state)
        layout = self.put("state", state) if state else []
        request = for_candidate.Take(list(names), layout, in_place, own)
        timeout = max(self.timeout, 30.0)
        told, _ = self.ask(request, for_candidate.Taken, timeout, "taking the weights")
        return told.changed is not False

    def begin_forward(
        self,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        output_tree: Any,
        aliases: Sequence[int],
        *,
        goes_on: bool = False,
    ) -> None:
        """``goes_on``: it has the state that its last forward left. What is behind the inputs then
        tells it nothing.
        """
        if goes_on:
            given = self.carried.given
            inputs = [*inputs[:given], *(torch.zeros_like(t) for t in inputs[given:])]
        wanted, size = layout_of(outputs)
        out = self.block("out", size)
        out.bytes().fill_(client.OUT_BYTE)
        layout = self.put("in", inputs, client.GUARD, self.orders)
        call = for_candidate.Call(tree, layout, wanted, output_tree, self.sparing, goes_on)
        self._pending = (layout, inputs, wanted, list(aliases))
        self.begin(call, (), self.timeout, "a forward")

    def let_go(self) -> None:
        """Gives back the memory that is shared with it, until it is asked again."""
        self._replace("in", "out")

    def finish_forward(self) -> Answer:
        self.wait_forward()
        return self.answer()

    def wait_forward(self) -> None:
        """Waits until the forward has ended."""
        self._called, _ = self.finish(for_candidate.Called)
        self.builds_on_its_own()

    def answer(self) -> Answer:
        """Returns what the forward gave, once it has ended."""
        assert self._pending is not None
        told = self._called
        layout, inputs, wanted, aliases = self._pending
        self._pending = None  # the inputs may be large, and nobody else's any more
        outputs = [v.clone() for v in self._blocks["out"].views(wanted)]
        views = self._blocks["in"].views(layout)
        wrote = [
            i
            for i, (v, t) in enumerate(zip(views, inputs, strict=True))
            if i not in self.carried.written and not same_bytes(v, t)
        ]
        outside = not client.guards(self._blocks["in"], layout, client.GUARD).intact(
            client.GUARD_BYTE
        )
        return Answer(outputs, _misfit(told, wanted, aliases, self.carried), wrote, outside)

    def compiled(self) -> tuple[int, dict[str, int]]:
        """Returns descriptors, the caller's to close, of what it has compiled when it was called,
        -1 where that is nothing, and of libraries that come with it, by name.
        """
        before, held = self.until, list[int]()
        self.until = min(before, time.monotonic() + COMPILED_S)
        try:
            told = self._handed(operations.GiveCompiled(), for_candidate.CompiledKernels, 1, held)
            if not held:
                return -1, {}
            self._plain(held, 2 * called_cache.MAX_BYTES)
            names = self._libraries(min(told.libraries, called_cache.MAX_LIBRARIES), held)
            return held[0], dict(zip(names, held[1:], strict=True))
        except BaseException:
            for fd in held:
                os.close(fd)
            raise
        finally:
            self.until = before

    def _libraries(self, count: int, held: list[int]) -> list[str]:
        """Returns the names of so many libraries that it has made; adds their descriptors."""
        names: list[str] = []
        while len(names) < count:
            request = for_candidate.GiveLibraries(len(names))
            some = self._handed(request, for_candidate.Libraries, called_cache.AT_ONCE, held)
            with self._understood():
                names += some.names
                if not some.names or not len(set(names)) == len(names) == len(held) - 1:
                    raise ValueError("other libraries than there are")
                if not all(map(called_cache.names_library, some.names)):
                    raise ValueError("a name that no library has")
            self._plain(held[1:], called_cache.MAX_LIBRARY_BYTES)
        return names

    def _plain(self, fds: Sequence[int], most: int) -> None:
        """Has all of them be files, of so many bytes together at most."""
        with self._understood():
            found = [os.fstat(fd) for fd in fds]
            if not all(stat.S_ISREG(f.st_mode) for f in found):
                raise ValueError("what is no file")
            if sum(f.st_size for f in found) > most:
                raise ValueError(f"files of over {most} bytes")

    def _handed(
        self, request: operations.Request, answer: type[A], most: int, held: list[int]
    ) -> A:
        """Asks for what it has compiled, and adds the descriptors that come."""
        if time.monotonic() > self.until:
            self.doing, self._allowed = HANDING_OVER, COMPILED_S
            raise self._late()
        told, fds = self.ask(request, answer, COMPILED_S, HANDING_OVER, most)
        held += fds
        return told

    def give_libraries(self, libraries: Sequence[tuple[str, int]]) -> None:
        """Gives it libraries that were made in another process of its: names and descriptors."""
        for at in range(0, len(libraries), called_cache.AT_ONCE):
            some = libraries[at : at + called_cache.AT_ONCE]
            request = for_candidate.TakeLibraries([name for name, _ in some])
            self.tell(request, [fd for _, fd in some])

    def trace(self, tree: Any, inputs: Sequence[torch.Tensor]) -> for_candidate.Traced:
        """Returns who did the work of a forward, by the worker's own word. Ends the poisoning."""
        self.tell(for_candidate.Settle(), timeout=self.timeout)
        layout = self.put("in", inputs, client.GUARD, self.orders)
        request = for_candidate.Trace(tree, layout)
        return self.ask(request, for_candidate.Traced, 3 * self.timeout, "a traced forward")[0]


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape are the same bit by bit."""
    if not a.numel():
        return True
    plain = a.is_contiguous() and b.is_contiguous() and a.is_cpu and b.is_cpu
    if plain and a.dtype == b.dtype and a.shape == b.shape:
        return client.libc.memcmp(a.data_ptr(), b.data_ptr(), a.numel() * a.element_size()) == 0
    if a.is_floating_point() or a.is_complex():
        words = {2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}[a.element_size()]
        return torch.equal(a.reshape(-1).view(words), b.reshape(-1).view(words))
    return torch.equal(a, b)


def digest(t: torch.Tensor, salt: int) -> int:
    """Returns a number by which tensors of one dtype and shape are the same bit by bit: it is
    another for others, but for one in 2^31 or so. A sum of their words times random odd numbers,
    modulo 2^64 (Carter and Wegman, Universal classes of hash functions, 1979).
    """
    if t.is_complex():
        t = torch.view_as_real(t)
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    g = torch.Generator(t.device).manual_seed(salt)
    total = 0
    for c in t.reshape(-1).view(words).split(DIGESTED):
        by = torch.randint(-(1 << 62), 1 << 62, c.shape, generator=g, device=t.device)
        total += int(by.bitwise_or_(1).mul_(c).sum())
    return total % (1 << 64)


def _misfit(
    told: for_candidate.Called, wanted: Layout, aliases: list[int], carried: Carried
) -> str:
    """Returns one sentence on what is not as the reference's, or ""."""
    if not told.fits:
        mine, theirs = len(told.outputs), carried.returned if carried else len(wanted)
        return f"it returns {mine} tensors in another structure, the reference returns {theirs}"
    if len(told.outputs) < len(wanted):
        return "its outputs are not described"
    for i, (got, w) in enumerate(zip(told.outputs, wanted, strict=False)):
        if got.shape != w.shape:
            shape = str(got.shape)[:100]
            return f"{carried.output(i)} has shape {shape}, the reference's has {w.shape}"
        if got.dtype != w.dtype:
            return f"{carried.output(i)} is {got.dtype[:20]}, the reference's is {w.dtype}"
    for i, (mine, theirs) in enumerate(zip(told.aliases, aliases, strict=False)):
        if mine >= 0 and theirs < 0:
            what = carried.output(i)
            return f"{what} lies in the memory of input {mine}, the reference's is its own"
    return ""
