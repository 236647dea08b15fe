"""A module with its optimiser: gradients in micro-batches, updates, guards, and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl import policy
from rl.batch import Batch, Row, collate, micro_batches
from rl.errors import BadInput, OutOfMemory, out_of_memory
from rl.guards import Guard
from rl.settings import Machine, Optimiser
from rl.stage import Stage

# Stands in for rows where another process has more, and weighs nothing.
FILLER = Row([0, 0], 1, [1], [0.0], [0])


class Learner:
    """An actor or a critic in training.

    ``name`` is what messages and files call it. ``updates``: how many a schedule spans; 0 where it
    is constant.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        settings: Optimiser,
        machine: Machine,
        stage: Stage,
        updates: int = 0,
    ) -> None:
        if settings.schedule not in ("constant", "cosine"):
            raise BadInput(f"schedule cannot be {settings.schedule}", "say constant or cosine")
        if machine.gradient_checkpointing and hasattr(module, "model"):
            policy.recompute_activations(module.model)
        self.name = name
        self.module = stage.world.wrap(module)
        self.settings = settings
        self.stage = stage
        self.world = stage.world
        self.packed = machine.packing
        self.micro_tokens = machine.micro_tokens
        self.halved = False
        self.span = updates
        self.done = 0
        self.optimiser = torch.optim.AdamW(
            self.parameters(),
            lr=settings.lr,
            betas=(settings.betas[0], settings.betas[1]),
            weight_decay=settings.weight_decay,
        )

    def parameters(self) -> list[nn.Parameter]:
        """Returns what is trained."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def rate(self) -> float:
        """Returns the learning rate of the next update."""
        s = self.settings
        rate = s.lr * min(1.0, (self.done + 1) / s.warmup) if s.warmup else s.lr
        if s.schedule == "cosine" and self.span:
            share = min(1.0, self.done / self.span)
            rate *= 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * share))
        return rate

    def forward_all(self, rows: Sequence[Row]) -> list[tuple[Batch, Any]]:
        """Returns what the module says of rows, without gradients, in batches with theirs."""

        def go() -> list[tuple[Batch, Any]]:
            out = []
            with torch.no_grad():
                for lot, real in self._lots(rows):
                    batch = collate(lot, self.world.device, self.packed)
                    got = self.module(batch)
                    if real:
                        out.append((batch, tuple(x.cpu() for x in got)))
            return out

        return self._sparing(go)

    def accumulate(self, rows: Sequence[Row], loss_of: Callable[[Batch, Any], Tensor]) -> float:
        """Adds the gradients of a loss over rows and returns the loss, this process's share.

        ``loss_of`` gets a micro-batch and what the module says of it. It may be called again for
        the same rows, when memory was short. The loss is a sum over rows: nothing is averaged.
        """

        def go() -> float:
            self.optimiser.zero_grad(set_to_none=True)
            total = 0.0
            for lot, real in self._lots(rows):
                batch = collate(lot, self.world.device, self.packed)
                got = self.module(batch)
                if real:
                    loss = loss_of(batch, got)
                    total += float(loss.detach())
                else:
                    loss = got[0].sum() * 0.0
                (loss * self.world.scale).backward()
            return total

        return self._sparing(go)

    def apply(self, guard: Guard) -> tuple[float, bool]:
        """Updates the weights by the gradients of all processes. Returns the gradient's norm before
        it was cut, and whether the update was made: a spike is passed over.
        """
        self.world.add_gradients(self.parameters())
        limit = self.settings.gradient_norm or math.inf
        norm: Any = torch.nn.utils.clip_grad_norm_(self.parameters(), limit)
        norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        spike = guard.spike(norm, self.name)
        if not spike:
            for group in self.optimiser.param_groups:
                group["lr"] = self.rate()
            self.optimiser.step()
            self.done += 1
        self.optimiser.zero_grad(set_to_none=True)
        return norm, not spike

    def write(self, folder: Path, tokenizer: Any) -> None:
        """Writes weights and optimiser into a checkpoint's folder. All processes must call it."""
        self.write_weights(folder / self.name, tokenizer)
        optimiser = self.world.optimiser_state(self.module, self.optimiser)
        if self.stage.first:
            torch.save({"optimiser": optimiser, "done": self.done}, folder / f"{self.name}.pt")

    def write_weights(self, folder: Path, tokenizer: Any) -> None:
        """Writes the weights as transformers and PEFT read them. All processes must call it."""
        state = self.world.model_state(self.module)
        if state is not None:
            state = {k.removeprefix("model."): v for k, v in state.items()}
        if self.stage.first:
            model = getattr(self.module, "model", self.module)
            policy.save(model, tokenizer, folder, state)

    def read(self, folder: Path) -> None:
        """Puts back the optimiser of a checkpoint; the weights were loaded from it before."""
        found = torch.load(folder / f"{self.name}.pt", map_location="cpu", weights_only=True)
        self.world.load_optimiser(self.module, self.optimiser, found["optimiser"])
        self.done = int(found["done"])

    def _lots(self, rows: Sequence[Row]) -> Iterator[tuple[list[Row], bool]]:
        """Yields micro-batches, and whether each is real: where weights are spread every process
        must have as many as the others. Between two of them who waits for the device has it.
        """
        lots = [(lot, True) for lot in micro_batches(rows, self.micro_tokens, self.packed)]
        if self.world.spreads:
            most = max(self.world.gather(len(lots)))
            lots += [([FILLER], False)] * (most - len(lots))
        for lot in lots:
            self.world.lease.breathe()
            yield lot

    def _sparing(self, go: Callable[[], Any]) -> Any:
        """Runs go, and once more with half the micro-batch where memory was short."""
        while True:
            try:
                return go()
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                if self.halved or self.world.spreads:
                    raise OutOfMemory(
                        f"out of memory in the {self.name} with micro-batches of "
                        f"{self.micro_tokens} tokens",
                        "lower machine.micro_tokens, or shorten the sequences",
                    ) from error
            self._halve()

    def _halve(self) -> None:
        self.halved = True
        self.micro_tokens = max(1, self.micro_tokens // 2)
        self.optimiser.zero_grad(set_to_none=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.stage.note(
            f"out of memory in the {self.name}: micro-batches are halved to "
            f"{self.micro_tokens} tokens"
        )
