"""Answers requests together by a causal model, each drawn by its own seed.

A Llama is gone through here: prompts that are the same are read once, keys and values stay where
they are, and a request that has ended soon costs nothing more. Any other model goes through
transformers' generate, which gives the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rl.draw import Draw, Work
from rl.policy import computing, unwrapped

BLOCK = 128  # tokens that there is more room for, each time
READ = 16_384  # tokens of prompts that go through the model at once, padding included
IDLE = 8  # of so many requests one may have ended before what is kept of it is let go

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@torch.no_grad()
def generate(
    model: Any, lot: Sequence[Work], end: int, pad: int, breathe: Callable[[], None] = lambda: None
) -> None:
    """Writes into each request what the model answers. The model must be in evaluation mode.
    ``breathe`` is called before each token.
    """
    draw = Draw(lot, end, breathe)
    with computing(unwrapped(model).device):
        if _known(unwrapped(model)):
            _Llama(unwrapped(model), [w.prompt for w in lot]).run(lot, draw)
        else:
            by_transformers(model, lot, draw, pad)


def by_transformers(model: Any, lot: Sequence[Work], draw: Draw, pad: int) -> None:
    """Does what generate does, of any model."""
    from transformers import GenerationConfig

    longest = max(len(w.prompt) for w in lot)
    ids = torch.full((len(lot), longest), pad)
    there = torch.zeros_like(ids)
    for i, work in enumerate(lot):
        ids[i, longest - len(work.prompt) :] = torch.tensor(work.prompt)
        there[i, longest - len(work.prompt) :] = 1
    inner = unwrapped(model)
    inner.generate(
        input_ids=ids.to(inner.device),
        attention_mask=there.to(inner.device),
        generation_config=GenerationConfig(
            do_sample=False, max_new_tokens=max(w.most for w in lot), pad_token_id=pad
        ),
        logits_processor=[draw],
        stopping_criteria=[draw.stop],
    )


def _known(inner: Any) -> bool:
    """Reports whether a model is a Llama whose places do not depend on how long a text becomes."""
    rope = getattr(inner.config, "rope_parameters", None) or {}
    return type(inner).__name__ == "LlamaForCausalLM" and rope.get("rope_type") not in (
        "dynamic",
        "longrope",
    )


class _Llama:
    """A Llama with what it keeps of n texts that go on: keys and values of each layer [n, heads of
    keys, room, width of a head], and ``at`` [n], how many tokens of each text are there.
    """

    def __init__(self, inner: Any, prompts: Sequence[list[int]]) -> None:
        self.inner = inner
        self.device = inner.device
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        lengths = [len(p) for p in prompts]
        self.at = torch.tensor(lengths, device=self.device)
        self.longest = max(lengths)
        self.logits = self._read(prompts)

    def run(self, lot: Sequence[Work], draw: Draw) -> None:
        """Draws tokens until all requests are finished."""
        live = list(range(len(lot)))
        logits = self.logits
        while True:
            tokens = draw.next(logits, live)
            left = [j for j, i in enumerate(live) if not lot[i].finished]
            if not left:
                return
            if IDLE * (len(live) - len(left)) >= len(live):
                live = [live[j] for j in left]
                kept = torch.tensor(left, device=self.device)
                tokens, self.at = tokens[kept], self.at[kept]
                self.longest = int(self.at.max())
                self._move(kept)
            logits = self._next(tokens)

    def _read(self, prompts: Sequence[list[int]]) -> Tensor:
        """Returns what follows each prompt, as logits [n, vocabulary]."""
        numbers: dict[tuple[int, ...], int] = {}
        which = [numbers.setdefault(tuple(p), len(numbers)) for p in prompts]
        texts = list(numbers)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        layers = len(self.inner.model.layers)
        read: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(layers)]
        last = []
        for part in _parts(order, [len(t) for t in texts]):
            n = len(texts[part[-1]])
            ids = torch.zeros((len(part), n), dtype=torch.long)
            for row, i in enumerate(part):
                ids[row, : len(texts[i])] = torch.tensor(texts[i])

            # What stands behind a shorter prompt comes after all that is asked for.
            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                read[layer].append((k, v))
                k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
                return scaled_dot_product_attention(q, k, v, is_causal=True)

            places = torch.arange(n, device=self.device)[None]
            states = self._pass(ids.to(self.device), places, attend)
            ends = torch.tensor([len(texts[i]) - 1 for i in part], device=self.device)
            last.append(states[torch.arange(len(part), device=self.device), ends])
        row_of = {i: row for row, i in enumerate(order)}
        rows = torch.tensor([row_of[i] for i in which], device=self.device)
        for parts in read:
            for kept, of in ((self.keys, 0), (self.values, 1)):
                kept.append(self._spread([p[of] for p in parts], rows))
            parts.clear()
        return self._logits(torch.cat(last))[rows]

    def _spread(self, parts: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Returns what was kept of distinct prompts for each text, with room to go on."""
        _, heads, _, width = parts[0].shape
        out = parts[0].new_zeros(len(rows), heads, self.longest + BLOCK, width)
        begin = 0
        for part in parts:
            mine = ((rows >= begin) & (rows < begin + len(part))).nonzero()[:, 0]
            out[mine, :, : part.shape[2]] = part[rows[mine] - begin]
            begin += len(part)
        return out

    def _move(self, kept: Tensor) -> None:
        """Lets go of all texts but those of some numbers, and has room for the next tokens."""
        room = self.longest + BLOCK
        for all_of in (self.keys, self.values):
            for i, x in enumerate(all_of):
                new = x.new_zeros(len(kept), x.shape[1], room, x.shape[3])
                new[:, :, : self.longest] = x[kept, :, : self.longest]
                all_of[i] = new

    def _next(self, tokens: Tensor) -> Tensor:
        """Returns what follows one more token [n] of each text, as logits [n, vocabulary]."""
        n = len(tokens)
        every = torch.arange(n, device=self.device)
        if self.longest >= self.keys[0].shape[2]:
            self._move(every)
        self.longest += 1
        places = torch.arange(self.longest, device=self.device)
        mask = (places <= self.at[:, None])[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys[every, :, self.at] = k[:, :, 0]
            values[every, :, self.at] = v[:, :, 0]
            here = slice(self.longest)
            # Heads that share keys are as queries of one head.
            grouped = q.view(n, keys.shape[1], -1, q.shape[-1])
            said = scaled_dot_product_attention(
                grouped, keys[:, :, here], values[:, :, here], attn_mask=mask
            )
            return said.reshape(q.shape)

        states = self._pass(tokens[:, None], self.at[:, None], attend)
        self.at = self.at + 1
        return self._logits(states[:, 0])

    def _pass(self, ids: Tensor, places: Tensor, attend: Attend) -> Tensor:
        """Returns the last hidden states [n, length, width] of ids [n, length]."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        model = self.inner.model
        x = model.embed_tokens(ids)
        turned = model.rotary_emb(x, places)
        for i, layer in enumerate(model.layers):
            own = layer.self_attn
            h = layer.input_layernorm(x)
            q, k, v = (
                p(h).unflatten(-1, (-1, own.head_dim)).transpose(1, 2)
                for p in (own.q_proj, own.k_proj, own.v_proj)
            )
            q, k = apply_rotary_pos_emb(q, k, *turned)
            said = attend(i, q.to(v.dtype), k.to(v.dtype), v)
            x = x + own.o_proj(said.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return model.norm(x)

    def _logits(self, states: Tensor) -> Tensor:
        """Returns logits as the trainer computes them: in float32."""
        with torch.autocast(states.device.type, enabled=False):
            return self.inner.get_output_embeddings()(states.float())


def _parts(order: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Returns numbers of prompts, the shortest first, in lots of at most READ tokens."""
    out: list[list[int]] = []
    for i in order:
        if not out or (len(out[-1]) + 1) * lengths[i] > READ:
            out.append([])
        out[-1].append(i)
    return out
