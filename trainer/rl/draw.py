"""Draws the next tokens of requests that are answered together, each by its own seed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class Refused(Exception):
    """A request that cannot be answered: a status of HTTP, a word for programs, a sentence."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


@dataclass
class Work:
    """A request to sample, and what came of it. ``most`` bounds the answer's tokens. ``gone``:
    nobody waits for it any more.
    """

    prompt: list[int]
    most: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False  # by the end-of-text token
    gone: bool = False
    failed: Refused | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def finished(self) -> bool:
        """Whether no further token is wanted."""
        return self.ended or self.gone or len(self.ids) >= self.most


class Draw:
    """A logits processor that draws the next token of each row and leaves it alone possible, and
    the criterion that ends a row. Rows are independent of each other: each has its generator.
    """

    def __init__(
        self, rows: Sequence[Work], end: int, breathe: Callable[[], None] = lambda: None
    ) -> None:
        self.breathe = breathe
        self.rows = rows
        self.end = end
        self.generators = [torch.Generator().manual_seed(w.seed) for w in rows]

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        """Returns scores [rows, vocabulary] of which the drawn token's alone is finite."""
        self.breathe()
        logits = scores.float()
        logs = torch.log_softmax(logits, dim=-1)
        drawn = self._draw(logits)
        at = drawn[:, None]
        for row, token, log in zip(
            self.rows, drawn.tolist(), logs.gather(-1, at)[:, 0].tolist(), strict=True
        ):
            if not row.finished:
                row.ids.append(token)
                row.logprobs.append(log)
                row.ended = token == self.end
        only = torch.full_like(scores, -torch.inf)
        return only.scatter(-1, at, 0.0)

    def stop(self, input_ids: Tensor, _: Any, **__: Any) -> Tensor:
        """Returns which rows are done [rows]."""
        return torch.tensor([w.finished for w in self.rows], device=input_ids.device)

    def _draw(self, logits: Tensor) -> Tensor:
        """Returns a token of each row by inversion: temperature 0 takes the likeliest."""
        points = torch.tensor([torch.rand((), generator=g).item() for g in self.generators])
        heat = torch.tensor([w.temperature for w in self.rows], device=logits.device)
        p = torch.softmax(logits / heat.clamp(min=1e-6)[:, None], dim=-1).double()
        if any(w.top_p < 1 for w in self.rows):
            p = _nucleus(p, torch.tensor([w.top_p for w in self.rows], device=p.device))
        sums = p.cumsum(-1)
        points = points.double().to(p.device)[:, None] * sums[:, -1:]
        found = torch.searchsorted(sums, points, right=True)[:, 0].clamp(max=p.shape[-1] - 1)
        return torch.where(heat == 0, logits.argmax(-1), found)


def _nucleus(p: Tensor, most: Tensor) -> Tensor:
    """Returns probabilities [rows, vocabulary] without those beyond the likeliest that make up
    ``most`` [rows]. The likeliest always stays.
    """
    ordered, at = p.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(p).scatter(-1, at, ordered.masked_fill(before >= most[:, None], 0.0))
