"""The processes of a stage: one, or several under torchrun.

"ddp": each process has all weights and a part of the rows; gradients are added up once an update,
after the last micro-batch, so processes may have different numbers of rows and micro-batches.
"fsdp": weights, gradients and optimiser are spread over the processes (FSDP2).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rl.errors import BadInput
from rl.lease import Lease
from rl.policy import unwrapped
from rl.settings import Machine

T = TypeVar("T")
# How long a process may go on when another one has ended: all may be about to end.
GRACE_S = 5.0


class World:
    """All processes of a stage; of one process alone where torchrun started none.

    ``rank`` of ``size``; ``device`` is this process's.
    """

    def __init__(self, machine: Machine) -> None:
        if machine.parallel not in ("ddp", "fsdp"):
            raise BadInput(f"parallel cannot be {machine.parallel}", "say ddp or fsdp")
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.device = self._device(machine)
        self.lease = Lease(machine.leases, str(self.device), self._finish)
        self.lease.hold()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.spreads = machine.parallel == "fsdp"
        self._began = False
        self._over = threading.Event()
        if (self.size > 1 or self.spreads) and not dist.is_initialized():
            if "MASTER_ADDR" not in os.environ:
                raise BadInput("fsdp needs torchrun", "start the stage by torchrun, or say ddp")
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend)
            self._began = True
        # By the processor: who waits for the others must not have a kernel on its GPU.
        self._meeting = dist.new_group(backend="gloo") if self.size > 1 else None

    @staticmethod
    def _device(machine: Machine) -> torch.device:
        name = machine.device
        if name not in ("auto", "cpu", "cuda"):
            raise BadInput(f"device cannot be {name}", "say auto, cpu or cuda")
        there = torch.cuda.is_available()
        if name == "cuda" and not there:
            raise BadInput("PyTorch finds no GPU here", "set device to cpu or auto")
        if name == "cpu" or not there:
            return torch.device("cpu")
        number = int(os.environ.get("LOCAL_RANK", "0"))
        if machine.gpus:
            if number >= len(machine.gpus):
                raise BadInput(
                    f"machine.gpus has no GPU for process {number}", "name one for each process"
                )
            number = machine.gpus[number]
        if number >= torch.cuda.device_count():
            raise BadInput(f"PyTorch finds no GPU {number} here", "start fewer processes")
        return torch.device("cuda", number)

    def _finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Leaves the device to who measures, in a block in which this process uses it only within
        ``lease.held()``. All processes must take part: none goes on before all have done.
        """
        self.lease.let_go()
        try:
            yield
            if self._meeting is not None:
                dist.barrier(group=self._meeting)
        finally:
            self.lease.hold()

    def watch(self, alone: Callable[[], None]) -> None:
        """Has a thread call ``alone`` some seconds after another process of this host has ended,
        unless over or close was called: what waits for its part on a GPU would wait for minutes.
        All processes must call it.
        """
        here, mine = socket.gethostname(), os.getpid()
        try:
            others = [
                os.pidfd_open(pid)
                for host, pid in self.gather((here, mine))
                if host == here and pid != mine
            ]
        except OSError:  # an old kernel has none
            return

        def wait() -> None:
            select.select(others, [], [])
            if not self._over.wait(GRACE_S):
                alone()

        if others:
            threading.Thread(target=wait, daemon=True).start()

    def left_by(self, error: Exception) -> bool:
        """Reports whether an error is that another process answers no more."""
        said = str(error)
        return self.size > 1 and (
            isinstance(error, dist.DistError)
            or "Connection closed by peer" in said
            or "Connection reset by peer" in said
        )

    def over(self) -> None:
        """Says that this process is about to end."""
        self._over.set()

    def close(self) -> None:
        """Waits until all processes have come to their end, and leaves the device and the group
        that it made.
        """
        self.lease.let_go()
        if self._began:
            self.any(False)
        self.over()
        if self._began:
            dist.destroy_process_group()

    def sum(self, x: Tensor) -> Tensor:
        """Returns x added over all processes, where it was. Every process must call it."""
        if self.size == 1:
            return x
        moved = x.to(self.device)
        dist.all_reduce(moved)
        return moved.to(x.device)

    def gather(self, x: T) -> list[T]:
        """Returns what each process has, in the order of ranks."""
        if self.size == 1:
            return [x]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, x)
        return found

    def any(self, x: bool) -> bool:
        """Reports whether one of the processes says so."""
        return bool(self.sum(torch.tensor(float(x)))) if self.size > 1 else x

    def wrap(self, module: nn.Module) -> nn.Module:
        """Returns a module on this process's device, spread over all where that is asked for."""
        module.to(self.device)
        if not self.spreads:
            return module
        from torch.distributed.fsdp import fully_shard

        model = getattr(module, "model", None)
        if model is None:
            raise BadInput(
                "a value head cannot be spread by fsdp", "use a critic of its own, or ddp"
            )
        whole = set(unwrapped(model)._no_split_modules or [])
        for layer in list(module.modules()):
            if type(layer).__name__ in whole:
                fully_shard(layer)
        fully_shard(module)
        return module

    @property
    def scale(self) -> float:
        """What a loss is multiplied by, so that gradients are sums: FSDP2 takes the mean over
        processes.
        """
        return float(self.size) if self.spreads else 1.0

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Adds up the gradients of all processes in one go."""
        wanted = [p for p in parameters if p.requires_grad]
        for p in wanted:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if self.size == 1 or self.spreads:
            return
        flat = torch.cat([p.grad.flatten() for p in wanted if p.grad is not None])
        dist.all_reduce(flat)
        at = 0
        for p in wanted:
            assert p.grad is not None
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()

    def model_state(self, module: nn.Module) -> dict[str, Tensor] | None:
        """Returns the whole weights where they are spread, else None."""
        if not self.spreads:
            return None
        from rl import spread

        return spread.model_state(module)

    def optimiser_state(
        self, module: nn.Module, optimiser: torch.optim.Optimizer
    ) -> dict[str, Any]:
        """Returns the whole state of an optimiser."""
        if not self.spreads:
            return optimiser.state_dict()
        from rl import spread

        return spread.optimiser_state(module, optimiser)

    def load_optimiser(
        self, module: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        """Puts back what optimiser_state returned."""
        if not self.spreads:
            optimiser.load_state_dict(state)
            return
        from rl import spread

        spread.load_optimiser(module, optimiser, state)
