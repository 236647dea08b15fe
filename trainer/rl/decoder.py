"""Decodes requests in slots by a Llama-like model: where one has ended, the next that waits takes
its slot.

Keys and values have a fixed place, so on a GPU a step is one CUDA graph, drawing included. A prompt
that several requests share is read once. Keys that queries share are read once, too: the queries of
a group are rows of one query. A step computes what the trainer's forward does, in the same types;
what stands in other slots changes no more than the last bits of it.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from rl.draw import Work, pick
from rl.llama import Weights

BLOCK = 256  # places come in so many
AHEAD = 1024  # places of an answer that there is room for at first
READ = 16_384  # tokens of prompts that go through the model at once, padding included
STEPS = 8  # of a GPU between two looks at what has ended
FEWEST = 16  # rows that a GPU computes as fast as one

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Key = tuple[int, int, bool]  # rows, places that are seen, whether top_p is heeded


class Decoder:
    """Answers at most ``slots`` requests at once, by the weights that a model has now.

    The first slots are in use. Each has the ``token`` that goes in next, its place ``at``, and for
    each place the point in [0, 1) by which the token after it is drawn. ``cache`` is [2, layers,
    slots, length, heads of keys, width of a head].
    """

    def __init__(self, inner: Any, slots: int) -> None:
        self.device = inner.device
        self.on_gpu = self.device.type == "cuda"
        self.weights = w = Weights(inner, torch.bfloat16 if self.on_gpu else torch.float32)
        self.slots = slots
        # One stream for all graphs, that they share memory.
        self.stream = torch.cuda.Stream(self.device) if self.on_gpu else None
        self.flash = self.on_gpu and w.width % 8 == 0 and w.width <= 256
        if self.flash:  # as PyTorch's FlashAttention is made for
            recent = torch.cuda.get_device_capability(self.device) >= (8, 0)
            self.flash = recent and torch.version.hip is None
        self._clear()

    def _clear(self) -> None:
        w = self.weights
        self.room = self.length = self.limit = 0
        self.cache = torch.zeros(2, len(w.layers), 0, 0, w.keys, w.width, dtype=w.dtype)
        self.shared: dict[tuple[int, ...], Tensor] = {}
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        self.graphs: dict[Key, Any] = {}
        self.pool: Any = None  # one without graphs must not be taken again

    @torch.no_grad()
    def answer(
        self, lot: Sequence[Work], end: int, breathe: Callable[[], None] = lambda: None
    ) -> None:
        """Writes into each request what the model answers. ``breathe`` is called every few tokens.
        After an error nothing is kept of the requests that have not ended.
        """
        waiting = deque(w for w in lot if not w.finished)
        if not waiting:
            return
        on = torch.cuda.device(self.device) if self.on_gpu else contextlib.nullcontext()
        try:
            with on:
                self._run(waiting, end, breathe)
        except BaseException:
            self._clear()
            raise
        finally:
            self.shared = {}

    def _run(self, waiting: deque[Work], end: int, breathe: Callable[[], None]) -> None:
        self._make_room(waiting)
        uses = Counter(_read_of(w) for w in waiting)
        live: list[Work] = []
        free = list(range(min(self.slots, len(waiting))))
        while True:
            coming: dict[int, Work] = {}
            while free and waiting:
                work = waiting.popleft()
                if work.finished:  # nobody waits for it any more
                    uses[_read_of(work)] -= 1
                    continue
                coming[free.pop(0)] = work
            self._admit(coming, uses)
            live += [w for slot, w in coming.items() if slot >= len(live)]
            for slot, work in coming.items():
                live[slot] = work
            # What is in use stays together: a step computes the first slots alone.
            for slot in sorted((s for s in free if s < len(live)), reverse=True):
                last = live.pop()
                if slot < len(live):
                    self._move(len(live), slot, len(last.prompt) + len(last.ids))
                    live[slot] = last
            if not live:
                return
            breathe()
            self._decode(live, end)
            free = [i for i, w in enumerate(live) if w.finished]

    def _decode(self, live: Sequence[Work], end: int) -> None:
        """Draws the next tokens of the requests in the first slots."""
        steps = min(STEPS if self.on_gpu else 1, max(w.most - len(w.ids) for w in live))
        seen = min(max(len(w.prompt) + len(w.ids) for w in live) + steps - 1, self.limit)
        if seen > self.length:
            self._grow(min(max(seen, 2 * self.length), self.limit))
        tokens, logs = [], []
        for _ in range(steps):
            self._go(len(live), seen, any(w.top_p < 1 for w in live))
            tokens.append(self.token[: len(live)].clone())
            logs.append(self.log[: len(live)].clone())
        drawn, said = torch.stack(tokens, 1).tolist(), torch.stack(logs, 1).tolist()
        for work, ids, of in zip(live, drawn, said, strict=True):
            for token, log in zip(ids, of, strict=True):
                if work.finished:
                    break
                work.ids.append(token)
                work.logprobs.append(log)
                work.ended = token == end

    def _make_room(self, lot: Sequence[Work]) -> None:
        """Has slots for requests, and places for their prompts and the first tokens of answers."""
        room = max(self.room, min(self.slots, len(lot)))
        limit = max(self.limit, _up(max(len(w.prompt) + w.most for w in lot)))
        if (room, limit) != (self.room, self.limit):
            if room > self.room:
                self._clear()
            self._forget_graphs()
            self.room, self.limit = room, limit
            kept = {"dtype": torch.long, "device": self.device}
            self.rows = torch.arange(room + 1, **kept)
            self.token, self.at = torch.zeros(room, **kept), torch.zeros(room, **kept)
            self.log, self.heat, self.top = torch.zeros(3, room, device=self.device)
            self.points = torch.zeros(room, limit, device=self.device)
            self.cos, self.sin = self.weights.rotations(limit)
        first = _up(max(len(w.prompt) + min(w.most, AHEAD) for w in lot))
        if first > self.length:
            self._grow(first)

    def _grow(self, length: int) -> None:
        """Has as many places in each slot, and keeps what is in them."""
        self._forget_graphs()
        _, layers, *_, keys, width = self.cache.shape
        new = torch.zeros(
            2, layers, self.room, _up(length), keys, width,
            dtype=self.weights.dtype, device=self.device,
        )  # fmt: skip
        if self.length:
            new[:, :, :, : self.length] = self.cache
        self.cache, self.length = new, _up(length)
        self.edges = (self.rows * self.length).int()
        self.query_edges = (self.rows * self.weights.groups).int()

    def _admit(self, coming: dict[int, Work], uses: Counter[tuple[int, ...]]) -> None:
        """Puts requests into slots. ``uses`` counts those that wait, by what is read of their
        prompts: all but the last token.
        """
        if not coming:
            return
        texts: dict[tuple[int, ...], list[int]] = {}
        for slot, work in coming.items():
            texts.setdefault(_read_of(work), []).append(slot)
        fresh = sorted((t for t in texts if t and t not in self.shared), key=len)
        known = [t for t in texts if t in self.shared]
        for part in [known, *_parts(fresh)]:
            if part is not known:
                read = self._read(part)
                self.shared |= {t: read[:, :, i, : len(t)] for i, t in enumerate(part)}
            for text in part:
                for slot in texts[text]:
                    self.cache[:, :, slot, : len(text)] = self.shared[text]
                uses[text] -= len(texts[text])
                if not uses[text]:
                    del self.shared[text]
        slots = torch.tensor(list(coming), device=self.device)
        works = list(coming.values())
        points = torch.zeros(len(works), self.limit)
        for row, work in zip(points, works, strict=True):
            n = len(work.prompt) - 1
            generator = torch.Generator().manual_seed(work.seed)
            row[n : n + work.most] = torch.rand(work.most, generator=generator)
        self.points[slots] = points.to(self.device)
        for kept, of in (
            (self.token, [w.prompt[-1] for w in works]),
            (self.at, [len(w.prompt) - 1 for w in works]),
            (self.heat, [w.temperature for w in works]),
            (self.top, [w.top_p for w in works]),
        ):
            kept[slots] = torch.tensor(of, dtype=kept.dtype, device=self.device)

    def _move(self, source: int, to: int, used: int) -> None:
        """Puts what is in one slot into another; ``used``: how many places it has."""
        self.cache[:, :, to, :used] = self.cache[:, :, source, :used]
        for kept in (self.token, self.at, self.heat, self.top, self.points):
            kept[to] = kept[source]

    def _read(self, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """Returns keys and values [2, layers, texts, longest, heads, width] of the longest last."""
        w, n = self.weights, len(texts[-1])
        ids = torch.zeros(len(texts), n, dtype=torch.long)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = torch.tensor(text)
        kept = torch.empty(
            2, len(w.layers), len(texts), n, w.keys, w.width, dtype=w.dtype, device=self.device
        )

        # What stands behind a shorter text comes after all that is kept of it.
        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = k.unflatten(0, (-1, n)), v.unflatten(0, (-1, n))
            kept[0, i], kept[1, i] = k, v
            # [texts, n, groups, keys, width] to heads, those of a key beside each other
            q = q.unflatten(1, (w.groups, w.keys)).unflatten(0, (-1, n)).permute(0, 3, 2, 1, 4)
            said = scaled_dot_product_attention(
                q.flatten(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                enable_gqa=True,
            )  # fmt: skip
            said = said.unflatten(1, (w.keys, w.groups)).permute(0, 3, 2, 1, 4)
            return said.reshape(len(texts) * n, -1)

        places = torch.arange(n, device=self.device).repeat(len(texts))
        self._pass(ids.flatten().to(self.device), places, attend)
        return kept

    def _go(self, rows: int, seen: int, nucleus: bool) -> None:
        """Makes one step. On a GPU it is a graph, for all slots, a quarter of them, and so on. One
        that attends by a mask sees as many places as it was made for.
        """
        if not self.on_gpu:
            self._step(rows, seen, nucleus)
            return
        width = self.room
        while width > FEWEST and -(-width // 4) >= rows:
            width = -(-width // 4)
        key = (width, self.length if self.flash else min(_up(seen), self.length), nucleus)
        if key not in self.graphs:
            self.graphs[key] = self._capture(key)
        self.graphs[key].replay()

    def _capture(self, key: Key) -> Any:
        """Returns the graph of a step."""
        before = self.token.clone(), self.at.clone()
        stream, now = self.stream, torch.cuda.current_stream(self.device)
        assert stream is not None
        stream.wait_stream(now)
        with torch.cuda.stream(stream):
            self._step(*key)  # libraries make their workspaces now
        now.wait_stream(stream)
        self.token.copy_(before[0])
        self.at.copy_(before[1])
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.pool, stream, capture_error_mode="thread_local"):
            self._step(*key)
        return graph

    def _step(self, rows: int, seen: int, nucleus: bool) -> None:
        """Sends the tokens of the first slots through the model and draws those after them."""
        w = self.weights
        # One that has ended may go on at its last place until somebody looks.
        at = self.at[:rows].clamp(max=self.length - 1)
        place = self.rows[:rows] * self.length + at
        if self.flash:
            used = (at + 1).int()
        else:
            mask = (torch.arange(seen, device=self.device) <= at[:, None])[:, None, None]

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache[0, i], self.cache[1, i]
            keys.flatten(0, 1).index_copy_(0, place, k)
            values.flatten(0, 1).index_copy_(0, place, v)
            if self.flash:
                return self._flash(q, keys[:rows], values[:rows], used)
            said = scaled_dot_product_attention(
                q.unflatten(1, (w.groups, w.keys)).transpose(1, 2),
                keys[:rows, :seen].transpose(1, 2), values[:rows, :seen].transpose(1, 2),
                attn_mask=mask,
            )  # fmt: skip
            return said.transpose(1, 2).reshape(rows, -1)

        logits = w.logits(self._pass(self.token[:rows], at, attend))
        points = self.points[:rows].gather(1, at[:, None])[:, 0]
        token, log = pick(logits, points, self.heat[:rows], self.top[:rows] if nucleus else None)
        self.token[:rows], self.log[:rows] = token, log
        self.at[:rows] = at + 1

    def _flash(self, q: Tensor, keys: Tensor, values: Tensor, used: Tensor) -> Tensor:
        """Returns what queries [rows, groups x keys, width] attend to: of each row the first
        ``used`` places [rows]. It is FlashAttention 2 as PyTorch has it, by its own operator: no
        public function takes lengths that are on the device.
        """
        w, rows = self.weights, len(q)
        said = torch.ops.aten._flash_attention_forward(
            q.reshape(rows * w.groups, w.keys, w.width), keys.flatten(0, 1), values.flatten(0, 1),
            self.query_edges[: rows + 1], self.edges[: rows + 1], w.groups, self.length,
            0.0, False, False, seqused_k=used,
        )[0]  # fmt: skip
        return said.reshape(rows, -1)

    def _pass(self, ids: Tensor, places: Tensor, attend: Attend) -> Tensor:
        """Returns the last hidden states [n, size] of ids [n] at places [n]."""
        w = self.weights
        heads = w.groups * w.keys
        x = w.embedding[ids].float()
        cos, sin = self.cos[places][:, None], self.sin[places][:, None]
        for i, layer in enumerate(w.layers):
            said = layer.qkv(layer.before(x).to(w.dtype)).unflatten(1, (-1, w.width))
            qk, v = said.split([heads + w.keys, w.keys], dim=1)
            if layer.of_heads:
                q, k = qk.split([heads, w.keys], dim=1)
                qk = torch.cat([layer.of_heads[0](q), layer.of_heads[1](k)], dim=1)
            qk = torch.addcmul(qk * cos, qk.roll(w.width // 2, -1), sin)
            q, k = (part.to(w.dtype) for part in qk.split([heads, w.keys], dim=1))
            x = x + layer.out(attend(i, q, k, v))
            gate, up = layer.gate_up(layer.after(x).to(w.dtype)).chunk(2, dim=-1)
            x = x + layer.down(silu(gate) * up)
        return x


def _read_of(work: Work) -> tuple[int, ...]:
    """Returns what is read of a prompt before a step: its last token goes in with the first."""
    return tuple(work.prompt[:-1])


def _up(n: int) -> int:
    return -(-n // BLOCK) * BLOCK


def _parts(texts: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Returns texts, the shortest first, in lots of at most READ tokens."""
    out: list[list[tuple[int, ...]]] = []
    for text in texts:
        if not out or (len(out[-1]) + 1) * len(text) > READ:
            out.append([])
        out[-1].append(text)
    return out
