"""Completions with their token ids and log-probabilities: by transformers, or by a server.

Temperature 1, top-p 1, top-k off: what is sampled from is what the trainer computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl.errors import BadInput, Unreachable
from rl.http import Client, HTTPError
from rl.lease import FREE, Lease
from rl.policy import computing, unwrapped


@dataclass
class Completion:
    """``logprobs`` has one entry an id. ``finish_reason``: "stop", or "length" at a limit."""

    ids: list[int]
    logprobs: list[float]
    finish_reason: str


class Recorder:
    """A logits processor that changes nothing and keeps the log-probability of what was sampled:
    that of a step is known when the next begins.
    """

    def __init__(self, breathe: Callable[[], None]) -> None:
        self.breathe = breathe
        self.last: Tensor | None = None
        self.kept: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.breathe()
        self.take(input_ids)
        self.last = torch.log_softmax(scores.float(), dim=-1)
        return scores

    def take(self, input_ids: Tensor) -> None:
        """Notes the last id of each row."""
        if self.last is not None:
            self.kept.append(self.last.gather(1, input_ids[:, -1:])[:, 0])


class LocalSampler:
    """transformers' generate, on the weights that are trained. It holds the device by itself."""

    def __init__(
        self, model: Any, tokenizer: Any, most: int, batch: int, lease: Lease = FREE
    ) -> None:
        self.model = model
        self.lease = lease
        self.end = int(tokenizer.eos_token_id)
        pad = tokenizer.pad_token_id
        self.pad = int(pad if pad is not None else tokenizer.eos_token_id)
        self.most = most
        self.batch = batch

    def sample(self, prompts: Sequence[list[int]], seed: int) -> list[Completion]:
        """Returns a completion of each prompt. The same prompts and the same seed give the same
        ones; PyTorch's own generator stays where it is.
        """
        out: list[Completion | None] = [None] * len(prompts)
        context = int(getattr(unwrapped(self.model).config, "max_position_embeddings", 1 << 30))
        fits = [i for i, p in enumerate(prompts) if len(p) < context]
        for i in set(range(len(prompts))) - set(fits):
            out[i] = Completion([], [], "length")
        fits.sort(key=lambda i: (len(prompts[i]), i))
        with self.lease.held(), torch.random.fork_rng(), torch.no_grad(), sampling(self.model):
            torch.manual_seed(seed)
            for begin in range(0, len(fits), self.batch):
                lot = fits[begin : begin + self.batch]
                got = self._generate([prompts[i] for i in lot], context)
                for i, completion in zip(lot, got, strict=True):
                    out[i] = completion
        return [c for c in out if c is not None]

    def _generate(self, prompts: list[list[int]], context: int) -> list[Completion]:
        from transformers import GenerationConfig

        longest = max(map(len, prompts))
        device = unwrapped(self.model).device
        ids = torch.full((len(prompts), longest), self.pad)
        there = torch.zeros_like(ids)
        for i, prompt in enumerate(prompts):
            ids[i, longest - len(prompt) :] = torch.tensor(prompt)
            there[i, longest - len(prompt) :] = 1
        recorder = Recorder(self.lease.breathe)
        config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_new_tokens=max(1, min(self.most, context - longest)),
            eos_token_id=self.end,
            pad_token_id=self.pad,
        )
        with computing(device):
            done = self.model.generate(
                input_ids=ids.to(device),
                attention_mask=there.to(device),
                generation_config=config,
                logits_processor=[recorder],
            )
        recorder.take(done)
        logs = torch.stack(recorder.kept, dim=1).tolist()
        return [
            self._cut(row, log) for row, log in zip(done[:, longest:].tolist(), logs, strict=True)
        ]

    def _cut(self, ids: list[int], logs: list[float]) -> Completion:
        if self.end not in ids:
            return Completion(ids, logs, "length")
        n = ids.index(self.end) + 1
        return Completion(ids[:n], logs[:n], "stop")


@contextlib.contextmanager
def sampling(model: Any) -> Iterator[None]:
    """Keeps a model in evaluation mode, in which keys and values are cached."""
    trains = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(trains)


class ServerSampler:
    """An OpenAI-compatible server that takes prompts as ids and gives ids with log-probabilities:
    vLLM does by ``return_token_ids``.
    """

    def __init__(
        self, url: str, model: str, most: int, token: str = "", parallel: int = 64
    ) -> None:
        self.client = Client(url, token)
        self.model = model
        self.most = most
        self.parallel = parallel

    def sample(self, prompts: Sequence[list[int]], seed: int) -> list[Completion]:
        """Returns a completion of each prompt."""
        with ThreadPoolExecutor(self.parallel) as pool:
            return list(pool.map(self._one, prompts, range(seed, seed + len(prompts))))

    def load_adapter(self, name: str, folder: str) -> None:
        """Has vLLM serve an adapter under a new name, by which it is sampled from then on."""
        before = self.model
        self._ask("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
        self.model = name
        if before.startswith("kw-"):
            self._ask("/v1/unload_lora_adapter", {"lora_name": before})

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        try:
            return self.client.post(path, body)
        except HTTPError as error:
            raise Unreachable(
                f"the sampler's server at {self.client.url} failed: {error}",
                "see that it runs and start the stage again",
            ) from error

    def _one(self, prompt: list[int], seed: int) -> Completion:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.most,
            "temperature": 1.0,
            "top_p": 1.0,
            "seed": seed & 0x7FFFFFFF,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        answer = self._ask("/v1/completions", body)
        try:
            choice = answer["choices"][0]
            logs = [float(x) for x in choice["logprobs"]["token_logprobs"]]
            ids = choice.get("token_ids")
            if ids is None:
                ids = [int(t.removeprefix("token_id:")) for t in choice["logprobs"]["tokens"]]
            ids = [int(i) for i in ids]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise BadInput(
                f"the server at {self.client.url} gives no token ids with log-probabilities",
                "use vLLM 0.10.2 or later, or sample locally",
            ) from error
        if len(ids) != len(logs):
            raise BadInput(
                f"the server at {self.client.url} gave {len(ids)} ids and {len(logs)} "
                "log-probabilities",
                "use vLLM 0.10.2 or later, or sample locally",
            )
        return Completion(
            ids, logs, "length" if choice.get("finish_reason") == "length" else "stop"
        )
