"""What is sampled is what transformers would sample, whoever is answered beside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl import generation, sampler
from rl.draw import Work
from rl.errors import OutOfMemory
from rl.policy import _with_adapter
from rl.settings import Lora

END = 7


def llama(heads: int, of_keys: int) -> Any:
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=of_keys,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = LlamaForCausalLM(config).eval()
        for p in model.parameters():  # so that it is sure of something
            torch.nn.init.normal_(p, std=0.3)
    model.generation_config = GenerationConfig()  # as policies are loaded: another end of text
    return model


def other() -> Any:
    from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=40, n_embd=32, n_layer=1, n_head=2, n_positions=512)
    model = GPT2LMHeadModel(config).eval()
    model.generation_config = GenerationConfig()
    return model


def asked(most: int) -> list[Work]:
    prompts = [[5, 6, 8], [9] * 30, [5, 6, 8], [11], [12, 13, 14, 15], [9] * 30, [20] * 7]
    lot = [Work(p, most - i, seed=i) for i, p in enumerate(prompts)]
    return [*lot, Work([21, 22], 1, seed=3)]  # which nothing but its limit ends


@pytest.mark.parametrize("kind", ["as many heads of keys", "fewer", "adapter"])
def test_a_llama_answers_as_by_transformers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(4, 4 if kind == "as many heads of keys" else 2)
    if kind == "adapter":
        model = _with_adapter(model, Lora(rank=2), "CAUSAL_LM", 1).eval()
        for name, p in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(4))
    monkeypatch.setattr(generation, "BLOCK", 16)  # there has to be made room several times
    monkeypatch.setattr(generation, "READ", 40)  # prompts are read in several parts
    got, want = asked(90), asked(90)
    generation.generate(model, got, END, 0)
    monkeypatch.setattr(generation, "_known", lambda _: False)
    generation.generate(model, want, END, 0)
    for a, b in zip(got, want, strict=True):
        assert (a.ids, a.ended) == (b.ids, b.ended)
        assert torch.allclose(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-4)
    assert {w.ended for w in got} == {True, False}
    assert all(END not in w.ids[:-1] for w in got)
    assert all(len(w.ids) == w.most for w in got if not w.ended)


def test_an_answer_hangs_on_nobody_beside() -> None:
    model = llama(4, 2)
    together = asked(40)
    generation.generate(model, together, END, 0)
    for i, w in enumerate(together):
        alone = asked(40)[i]
        generation.generate(model, [alone], END, 0)
        assert alone.ids == w.ids


def test_what_has_ended_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(4, 2)
    rows: list[int] = []
    step = generation._Llama._next

    def counting(self: Any, tokens: torch.Tensor) -> torch.Tensor:
        rows.append(len(tokens))
        return step(self, tokens)

    monkeypatch.setattr(generation._Llama, "_next", counting)
    lot = [Work([5, 6], 4 * (i + 1), seed=i) for i in range(16)]
    generation.generate(model, lot, 1 << 20, 0)
    assert [len(w.ids) for w in lot] == [w.most for w in lot]
    assert rows == sorted(rows, reverse=True) and rows[-1] <= 2


def test_another_model_is_sampled_by_transformers() -> None:
    model = other()
    lot = asked(12)
    generation.generate(model, lot, END, 0)
    for w in lot:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([w.prompt + w.ids])).logits[0]
        said = torch.log_softmax(logits, -1)[len(w.prompt) - 1 : -1]
        want = said.gather(-1, torch.tensor(w.ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(w.logprobs), want, atol=1e-4)


class Short:
    """Stands for what answers, and has memory for so many requests at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.lots: list[int] = []

    def __call__(self, model: Any, lot: list[Work], end: int, pad: int, *more: Any) -> None:
        self.lots.append(len(lot))
        for work in lot:
            work.ids.append(9)
        if len(lot) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        for work in lot:
            work.logprobs = [-1.0] * len(work.ids)


def test_out_of_memory_halves_the_answers_at_once_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, notes = llama(4, 2), list[str]()
    tokenizer = SimpleNamespace(eos_token_id=END, pad_token_id=0)
    local = sampler.LocalSampler(model, tokenizer, 5, 8, note=notes.append)
    monkeypatch.setattr(sampler, "generate", short := Short(4))
    done = local.sample([[1, 2]] * 10, 1)
    assert short.lots == [8, 4, 4, 2]
    assert [c.ids for c in done] == [[9]] * 10  # nothing of the lot that failed
    assert notes == ["out of memory: 4 answers are sampled at once, not 8"]
    short.most = 3
    with pytest.raises(OutOfMemory, match="where 4 answers are sampled at once"):
        local.sample([[1, 2]] * 10, 1)
