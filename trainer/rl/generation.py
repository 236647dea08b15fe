"""Answers requests together by a causal model, each drawn by its own seed: by a decoder of our own
where the model fits it, else by transformers' generate, which gives the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from rl.decoder import Decoder
from rl.draw import Draw, Work
from rl.llama import unfit
from rl.policy import computing, unwrapped

ENGINES = ("auto", "transformers")


class Generator(Protocol):
    """Answers requests by the weights that a model had when this was made. The model must be in
    evaluation mode.
    """

    def answer(
        self, lot: Sequence[Work], end: int, breathe: Callable[[], None] = lambda: None
    ) -> None:
        """Writes into each request that has not ended what the model answers, to the token ``end``
        or its limit. ``breathe`` is called every few tokens.
        """
        ...


class ByTransformers:
    """Answers by any model, at most ``slots`` requests at a time."""

    def __init__(self, model: Any, slots: int, pad: int) -> None:
        self.inner = unwrapped(model)
        self.slots = slots
        self.pad = pad

    @torch.no_grad()
    def answer(
        self, lot: Sequence[Work], end: int, breathe: Callable[[], None] = lambda: None
    ) -> None:
        """Does what Generator says."""
        left = [w for w in lot if not w.finished]
        with computing(self.inner.device):
            for i in range(0, len(left), self.slots):
                self._answer(left[i : i + self.slots], end, breathe)

    def _answer(self, lot: Sequence[Work], end: int, breathe: Callable[[], None]) -> None:
        from transformers import GenerationConfig

        longest = max(len(w.prompt) for w in lot)
        ids = torch.full((len(lot), longest), self.pad)
        there = torch.zeros_like(ids)
        for i, work in enumerate(lot):
            ids[i, longest - len(work.prompt) :] = torch.tensor(work.prompt)
            there[i, longest - len(work.prompt) :] = 1
        draw = Draw(lot, end, breathe)
        self.inner.generate(
            input_ids=ids.to(self.inner.device),
            attention_mask=there.to(self.inner.device),
            generation_config=GenerationConfig(
                do_sample=False, max_new_tokens=max(w.most for w in lot), pad_token_id=self.pad
            ),
            logits_processor=[draw],
            stopping_criteria=[draw.stop],
        )


def generator(
    model: Any,
    slots: int,
    pad: int,
    note: Callable[[str], None] = lambda _: None,
    engine: str = "auto",
) -> Generator:
    """Returns what answers by a model, at most ``slots`` requests at once. ``note`` is told where
    the model does not fit the decoder; ``engine`` "transformers" wants no decoder.
    """
    if engine == "auto":
        why = unfit(unwrapped(model))
        if not why:
            return Decoder(unwrapped(model), slots)
        note(f"transformers' generate samples, which is slower: {why}")
    return ByTransformers(model, slots, pad)
