"""Completions with their token ids and log-probabilities: by the model here, or by a server.

Temperature 1, top-p 1, top-k off: what is sampled from is what the trainer computes.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from rl.draw import Work
from rl.errors import BadInput, OutOfMemory, Unreachable, out_of_memory
from rl.generation import Generator, generator
from rl.http import Client, HTTPError
from rl.lease import FREE, Lease
from rl.policy import unwrapped


@dataclass
class Completion:
    """``logprobs`` has one entry an id. ``finish_reason``: "stop", or "length" at a limit."""

    ids: list[int]
    logprobs: list[float]
    finish_reason: str


class LocalSampler:
    """Samples from the weights that are trained, as they are when it is made or renewed. It holds
    the device by itself. ``batch``: the most answers at once; ``engine`` as rl.generation has it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        most: int,
        batch: int,
        note: Callable[[str], None] = lambda _: None,
        lease: Lease = FREE,
        engine: str = "auto",
    ) -> None:
        self.model = model
        self.engine = engine
        self.note = note
        self.lease = lease
        self.end = int(tokenizer.eos_token_id)
        pad = tokenizer.pad_token_id
        self.pad = int(pad if pad is not None else tokenizer.eos_token_id)
        self.most = most
        self.batch = batch
        self.halved = False
        self._told = ""
        self._generator: Generator | None = None

    def renew(self, model: Any) -> None:
        """Samples from the weights that a model has now."""
        self.model = model
        self.release()

    def release(self) -> None:
        """Lets go of the memory that sampling takes, until the next answer."""
        self._generator = None

    def sample(self, prompts: Sequence[list[int]], seed: int) -> list[Completion]:
        """Returns a completion of each prompt, none where a prompt leaves no room. The same prompts
        and the same seed give the same ones; PyTorch's own generator stays where it is.
        """
        context = int(getattr(unwrapped(self.model).config, "max_position_embeddings", 1 << 30))
        draws = random.Random(seed)
        works = [
            Work(p, min(self.most, context - len(p)), seed=draws.getrandbits(62)) for p in prompts
        ]
        # Prompts that are the same beside each other: they are read once.
        fits = sorted((w for w in works if w.most > 0), key=lambda w: (len(w.prompt), w.prompt))
        with self.lease.held(), sampling(self.model):
            while left := [w for w in fits if not w.finished]:
                self._answer(left)
        return [Completion(w.ids, w.logprobs, "stop" if w.ended else "length") for w in works]

    def _answer(self, left: list[Work]) -> None:
        """Answers requests. Where memory is short, half as many are answered at once from then on,
        and those that had not ended begin again; a second time it is OutOfMemory.
        """
        at_once = min(self.batch, len(left))
        try:
            if self._generator is None:
                self._generator = generator(
                    self.model, self.batch, self.pad, self._tell, self.engine
                )
            self._generator.answer(left, self.end, self.lease.breathe)
            return
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if self.halved or at_once == 1:
                raise OutOfMemory(
                    f"out of memory where {at_once} answers are sampled at once",
                    "lower sampling.batch or sampling.tokens",
                ) from error
        for work in left:
            if not work.finished:
                work.ids, work.logprobs = [], []
        self.halved, self.batch = True, at_once // 2
        self.release()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.note(f"out of memory: {self.batch} answers are sampled at once, not {at_once}")

    def _tell(self, text: str) -> None:
        if text != self._told:
            self.note(text)
        self._told = text


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
