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
    """Draws the next tokens of rows, and keeps them there. Rows are independent of each other: each
    has its generator. As a logits processor and a stopping criterion of transformers it leaves the
    drawn token alone possible, and ends a row. ``breathe`` is called before each token.
    """

    def __init__(
        self, rows: Sequence[Work], end: int, breathe: Callable[[], None] = lambda: None
    ) -> None:
        self.breathe = breathe
        self.rows = rows
        self.end = end
        self.generators = [torch.Generator().manual_seed(w.seed) for w in rows]

    def next(self, logits: Tensor, at: Sequence[int]) -> Tensor:
        """Returns the tokens [n] that follow in the n rows ``at``, of logits [n, vocabulary]. A row
        that is finished does not keep its own.
        """
        self.breathe()
        drawn, said = self._draw(logits, at)
        for i, token, log in zip(at, drawn.tolist(), said.tolist(), strict=True):
            row = self.rows[i]
            if not row.finished:
                row.ids.append(token)
                row.logprobs.append(log)
                row.ended = token == self.end
        return drawn

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        """Returns scores [rows, vocabulary] of which the drawn token's alone is finite."""
        drawn = self.next(scores, range(len(self.rows)))
        only = torch.full_like(scores, -torch.inf)
        return only.scatter(-1, drawn[:, None], 0.0)

    def stop(self, input_ids: Tensor, _: Any, **__: Any) -> Tensor:
        """Returns which rows are done [rows]."""
        return torch.tensor([w.finished for w in self.rows], device=input_ids.device)

    def _draw(self, logits: Tensor, at: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns a token of each row, and its log-probability."""
        rows, generators = [self.rows[i] for i in at], [self.generators[i] for i in at]
        points = torch.tensor([torch.rand((), generator=g).item() for g in generators])
        heat = torch.tensor([w.temperature for w in rows], device=logits.device)
        top = None
        if any(w.top_p < 1 for w in rows):
            top = torch.tensor([w.top_p for w in rows], device=logits.device)
        return pick(logits, points.to(logits.device), heat, top)


def pick(logits: Tensor, points: Tensor, heat: Tensor, top: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns a token of each row [n] of logits [n, vocabulary] by inversion, and its
    log-probability at temperature 1. ``points`` [n] in [0, 1) decide; ``heat`` [n] are
    temperatures, of which 0 takes the likeliest; ``top`` [n] is the top_p of each row. Nothing here
    waits for a GPU.
    """
    logits = logits.float()
    p = torch.softmax(logits / heat.clamp(min=1e-6)[:, None], dim=-1).double()
    if top is not None:
        p = _nucleus(p, top)
    sums = p.cumsum(-1)
    aims = points.double()[:, None] * sums[:, -1:]
    found = torch.searchsorted(sums, aims, right=True)[:, 0].clamp(max=p.shape[-1] - 1)
    tokens = torch.where(heat == 0, logits.argmax(-1), found)
    return tokens, torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, None])[:, 0]


def _nucleus(p: Tensor, most: Tensor) -> Tensor:
    """Returns probabilities [rows, vocabulary] without those beyond the likeliest that make up
    ``most`` [rows]. The likeliest always stays.
    """
    ordered, at = p.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(p).scatter(-1, at, ordered.masked_fill(before >= most[:, None], 0.0))
