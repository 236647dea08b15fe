"""What is sampled is what transformers would sample, whoever is answered beside."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl import decoder, llama, sampler
from rl.batch import collate, number, rows_of
from rl.decoder import Decoder
from rl.draw import Work
from rl.errors import OutOfMemory
from rl.generation import ByTransformers, generator
from rl.policy import Actor, _with_adapter, unwrapped
from rl.settings import Lora
from rl.trajectories import Episode, Sample

END = 7
SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# A kind of model, and what sets each apart.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "as many heads of keys": ("Llama", {"num_key_value_heads": 4}),
    "one head of keys": ("Llama", {"num_key_value_heads": 1, "rope_parameters": LLAMA3}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def made(kind: str, **more: Any) -> Any:
    import transformers

    name, own = KINDS.get(kind, (kind, {}))
    config = getattr(transformers, f"{name}Config")(**SMALL | own | more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
        for p in model.parameters():  # so that it is sure of something
            torch.nn.init.normal_(p, std=0.3)
    # As policies are loaded: another end of text.
    model.generation_config = transformers.GenerationConfig()
    return model


def adapted(model: Any) -> Any:
    model = _with_adapter(model, Lora(rank=2), "CAUSAL_LM", 1).eval()
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(4))
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
    lot[4].temperature, lot[5].top_p, lot[6].temperature = 0.5, 0.8, 0.0
    return [*lot, Work([21, 22], 1, seed=3)]  # which nothing but its limit ends


def same(got: Sequence[Work], want: Sequence[Work]) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a.ids, a.ended) == (b.ids, b.ended)
        assert torch.allclose(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-4)


@pytest.mark.parametrize("kind", [*KINDS, "adapter"])
def test_the_decoder_answers_as_transformers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapted(made("qwen2")) if kind == "adapter" else made(kind)
    monkeypatch.setattr(decoder, "BLOCK", 16)
    monkeypatch.setattr(decoder, "AHEAD", 4)  # there has to be made room several times
    monkeypatch.setattr(decoder, "READ", 40)  # prompts are read in several parts
    got, want = asked(90), asked(90)
    mine = generator(model, 3, 0)
    assert isinstance(mine, Decoder)
    mine.answer(got, END)
    ByTransformers(model, 8, 0).answer(want, END)
    same(got, want)
    assert {w.ended for w in got} == {True, False}
    assert all(END not in w.ids[:-1] for w in got)
    assert all(len(w.ids) == w.most for w in got if not w.ended)


@pytest.mark.parametrize("kind", [*KINDS, "adapter"])
def test_logits_are_those_of_transformers(kind: str) -> None:
    model = adapted(made("qwen3")) if kind == "adapter" else made(kind)
    text = [5, 6, 8, 9, 30, 2, 17, 39]
    mine = Decoder(unwrapped(model), 2)
    mine._make_room([Work(text, 4)])
    with torch.no_grad():
        want = model(input_ids=torch.tensor([text])).logits[0]
        seen: list[torch.Tensor] = []
        logits_of = mine.weights.logits

        def keep(states: torch.Tensor) -> torch.Tensor:
            seen.append(logits_of(states)[0])
            return logits_of(states)

        mine.weights.logits = keep  # type: ignore[method-assign]
        for place, token in enumerate(text):
            mine.token[0] = token
            mine._step(1, place + 1, False)
    assert torch.allclose(torch.stack(seen), want, atol=1e-4, rtol=1e-4)


def apart(model: Any, lot: Sequence[Work]) -> torch.Tensor:
    """Returns what log-probabilities of answers differ from the trainer's."""
    rows = []
    for i, w in enumerate(lot):
        mask = [1] * len(w.ids)
        said = Sample(str(i), 0, w.prompt, w.ids, mask, w.logprobs, 1.0, "stop", "p-0")
        rows += rows_of(Episode(str(i), [said]), i)
    number(rows)
    with torch.no_grad():
        logs, _ = Actor(model)(collate(rows, model.device))
    return (logs.cpu() - torch.tensor([x for w in lot for x in w.logprobs])).abs()


@pytest.mark.parametrize("rank", [0, 2])
def test_log_probabilities_are_the_trainers(rank: int) -> None:
    model = adapted(made("llama")) if rank else made("llama")
    lot = [Work([5, 6, 8 + i // 3], 20, seed=i) for i in range(9)]
    generator(model, 4, 0).answer(lot, END)
    assert float(apart(model, lot).max()) < 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("flash", [True, False])
def test_graphs_say_what_the_trainer_says(flash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "FEWEST", 2)
    monkeypatch.setattr(decoder, "AHEAD", 4)
    model = adapted(made("qwen3")).cuda()
    lot = [Work([5, 6, 8 + i // 8] * 30, 400 - 9 * i, seed=i) for i in range(40)]
    mine = Decoder(unwrapped(model), 16)
    mine.flash = mine.flash and flash
    mine.answer(lot, END)
    assert len(mine.graphs) > 1
    gap = apart(model, lot)
    print(f"mean {gap.mean():.2g}, largest {gap.max():.2g}")
    assert float(gap.mean()) < 0.05 and float(gap.max()) < 1


def test_an_answer_hangs_on_nobody_beside() -> None:
    mine = Decoder(made("llama"), 3)
    together = asked(40)
    mine.answer(together, END)
    for i, w in enumerate(together):
        alone = asked(40)[i]
        mine.answer([alone], END)
        same([alone], [w])


class Counting:
    """Counts the rows of each step of a decoder, and the tokens of prompts that it reads."""

    def __init__(self, mine: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self.read: list[int] = []
        step, read = mine._step, mine._read
        monkeypatch.setattr(mine, "_step", lambda *a: (self.rows.append(a[0]), step(*a)))
        monkeypatch.setattr(mine, "_read", lambda t: (self.read.extend(map(len, t)), read(t))[1])


def test_who_waits_takes_the_place_of_who_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Decoder(made("llama"), 4)
    count = Counting(mine, monkeypatch)
    lot = [Work([5, 6], 4 * (i % 4 + 1), seed=i) for i in range(16)]
    mine.answer(lot, 1 << 20)
    assert [len(w.ids) for w in lot] == [w.most for w in lot]
    tokens = sum(w.most for w in lot)
    assert sum(count.rows) == tokens  # nothing is computed of who has ended
    full = [n for n in count.rows if n == 4]
    assert len(full) * 4 >= tokens - 3 * 16  # no slot is empty while somebody waits
    assert count.rows == sorted(count.rows, reverse=True)


def test_a_shared_prompt_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Decoder(made("llama"), 3)
    count = Counting(mine, monkeypatch)
    prompts = [[5, 6, 8, 9], [5, 6, 8, 9], [11, 12], [5, 6, 8, 9], [11, 12], [5, 6, 8, 9], [3]]
    lot = [Work(p, 9, seed=i) for i, p in enumerate(prompts)]
    mine.answer(lot, END)
    assert sorted(count.read) == [1, 3]
    for i, w in enumerate(lot):
        alone = Work(prompts[i], 9, seed=i)
        Decoder(made("llama"), 1).answer([alone], END)
        same([alone], [w])


def test_nobody_waits_any_more() -> None:
    lot = [Work([5, 6], 30, seed=i) for i in range(5)]
    lot[1].gone = lot[4].gone = True
    beats: list[int] = []

    def breathe() -> None:
        beats.append(len(lot[0].ids))
        lot[2].gone = len(beats) == 3 or lot[2].gone

    Decoder(made("llama"), 2).answer(lot, 1 << 20, breathe)
    assert [len(w.ids) for w in lot] == [30, 0, 2, 30, 0]
    assert beats[:3] == [0, 1, 2]


@pytest.mark.parametrize(
    "model, why",
    [
        (other, "a GPT2LMHeadModel is none of LlamaForCausalLM"),
        (lambda: made("Mistral", sliding_window=8), "do not attend to the whole text"),
        (
            lambda: made("llama", rope_parameters={**YARN, "rope_type": "dynamic"}),
            "depends on how long a text becomes",
        ),
        (lambda: made("llama", hidden_act="gelu"), "its activation is gelu, not silu"),
    ],
)
def test_another_model_is_sampled_by_transformers(model: Any, why: str) -> None:
    policy, notes, lot = model(), list[str](), asked(12)
    generator(policy, 3, 0, notes.append).answer(lot, END)
    assert len(notes) == 1
    assert notes[0].startswith("transformers' generate samples, which is slower: ")
    assert why in notes[0]
    for w in lot:
        with torch.no_grad():
            logits = policy(input_ids=torch.tensor([w.prompt + w.ids])).logits[0]
        said = torch.log_softmax(logits, -1)[len(w.prompt) - 1 : -1]
        want = said.gather(-1, torch.tensor(w.ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(w.logprobs), want, atol=1e-4)


def test_an_adapter_of_another_kind_does_not_fit() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", use_dora=True)
    assert "LoRA" in llama.unfit(get_peft_model(made("llama"), config).get_base_model())


class Short:
    """Stands for a device that has memory for so many answers at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.slots: list[int] = []

    def __call__(self, model: Any, slots: int, *more: Any) -> Any:
        self.slots.append(slots)
        return SimpleNamespace(answer=self._answer)

    def _answer(self, lot: list[Work], end: int, breathe: Any) -> None:
        lot[0].ids, lot[0].logprobs = [9] * lot[0].most, [-1.0] * lot[0].most  # one is done
        for work in lot[1:]:
            work.ids.append(9)
        if min(self.slots[-1], len(lot)) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        for work in lot:
            work.ids, work.logprobs = [9] * work.most, [-1.0] * work.most


def test_out_of_memory_halves_the_answers_at_once_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, notes = made("llama"), list[str]()
    tokenizer = SimpleNamespace(eos_token_id=END, pad_token_id=0)
    local = sampler.LocalSampler(model, tokenizer, 5, 8, note=notes.append)
    monkeypatch.setattr(sampler, "generator", short := Short(4))
    done = local.sample([[1, 2]] * 10, 1)
    assert short.slots == [8, 4]
    assert [c.ids for c in done] == [[9] * 5] * 10  # nothing that was cut short
    assert notes == ["out of memory: 4 answers are sampled at once, not 8"]
    short.most = 3
    with pytest.raises(OutOfMemory, match="where 4 answers are sampled at once"):
        local.sample([[1, 2]] * 10, 1)
