"""Policies and critics: what they compute of a batch, and what their folders may be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import CORPUS, tiny_policy
from torch import Tensor

from rl import losses, policy, tiny
from rl.batch import Row, collate, micro_batches, number, rows_of
from rl.errors import BadInput
from rl.sampler import LocalSampler
from rl.settings import Lora
from rl.trajectories import Episode, Sample

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "base", layers=2)


def sample(call: int, prompt: list[int], response: list[int]) -> Sample:
    n = len(response)
    return Sample("e", call, prompt, response, [1] * n, [-1.0] * n, None, "stop", "v")


def some_rows() -> list[Row]:
    """Rows of several lengths, with the environment's tokens between the policy's."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for n, start in ((9, 3), (20, 1), (5, 4), (14, 6)):
        ids = torch.randint(3, 250, (n,), generator=generator).tolist()
        mask = [int(i % 3 != 1) for i in range(n - start)]
        rows.append(Row(ids, start, mask, [0.0] * len(mask), [0] * len(mask)))
    number(rows)
    return rows


def naive(model: Any, row: Row) -> Tensor:
    logits = model(input_ids=torch.tensor([row.ids])).logits[0].double()
    logs = torch.log_softmax(logits, dim=-1)
    at = [row.start + i for i, m in enumerate(row.mask) if m]
    return torch.stack([logs[i - 1, row.ids[i]] for i in at])


def said(module: Any, rows: list[Row], most: int, packed: bool) -> Tensor:
    out = torch.zeros(sum(r.count for r in rows))
    for lot in micro_batches(rows, most, packed):
        batch = collate(lot, CPU, packed)
        out[batch.tokens] = module(batch)[0].detach()
    return out


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("most", [1, 30, 1000])
def test_neither_padding_nor_packing_changes_anything(base: Path, most: int, packed: bool) -> None:
    model = policy.load_actor(base, Lora())
    rows = some_rows()
    expected = torch.cat([naive(model, row) for row in rows]).detach()
    got = said(policy.Actor(model), rows, most, packed)
    assert torch.allclose(got.double(), expected, atol=1e-5)
    critic = policy.load_critic(base, Lora())
    torch.nn.init.normal_(critic.score.weight)
    alone = said(policy.Critic(critic), rows, 1, False)
    assert alone.abs().max() > 0.01
    assert torch.allclose(said(policy.Critic(critic), rows, most, packed), alone, atol=1e-5)


def test_micro_batches_hold_each_row_once_and_no_more_tokens_than_allowed() -> None:
    rows = some_rows()
    for packed in (False, True):
        lots = micro_batches(rows, 30, packed)
        assert sorted(r.first for lot in lots for r in lot) == [r.first for r in rows]
        for lot in lots:
            lengths = [len(r.ids) for r in lot]
            cost = sum(lengths) if packed else max(lengths) * len(lot)
            assert cost <= 30 or len(lot) == 1


def gradient(module: Any, rows: list[Row], packed: bool = False) -> Tensor:
    module.zero_grad()
    n = number(rows)
    for lot in micro_batches(rows, 1000, packed):
        batch = collate(lot, CPU, packed)
        logs, _ = module(batch)
        advantages = torch.sin(batch.tokens.float())
        every = torch.ones(len(logs), dtype=torch.bool)
        loss = losses.policy_loss(logs, logs.detach() - 0.1, advantages, every, losses.Clip(), n)
        loss.backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def test_turns_in_one_row_give_the_gradients_of_the_same_turns_in_rows_of_their_own(
    base: Path,
) -> None:
    first, second, third = [5, 6, 7], [11, 12, 13, 14], [30, 31]
    p1 = [3, 4]
    p2 = [*p1, *first, 8, 9, 10]  # continues
    p3 = [20, 21]  # replaces
    calls = [sample(0, p1, first), sample(1, p2, second), sample(2, p3, third)]
    episode = Episode("e", calls)
    joined, apart = rows_of(episode), rows_of(episode, join=False)
    assert [len(r.ids) for r in joined] == [12, 4]
    assert joined[0].mask == [1, 1, 1, 0, 0, 0, 1, 1, 1, 1]
    assert len(apart) == 3
    module = policy.Actor(policy.load_actor(base, Lora()))
    expected = gradient(module, apart)
    assert expected.abs().max() > 1e-3
    for rows, packed in ((joined, False), (joined, True), (apart, True)):
        assert torch.allclose(gradient(module, rows, packed), expected, atol=1e-6)


def test_logits_that_a_model_caps_are_what_is_trained_on(tmp_path: Path) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=260,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=0.05,
    )
    model = Gemma2ForCausalLM(config).eval()
    actor = policy.Actor(model)
    assert not actor.split
    rows = some_rows()
    expected = torch.cat([naive(model, row) for row in rows]).detach()
    assert torch.allclose(said(actor, rows, 1000, False).double(), expected, atol=1e-5)


def test_an_adapter_is_trained_saved_and_loaded(base: Path, tmp_path: Path) -> None:
    model = policy.load_actor(base, Lora(rank=4), seed=3)
    actor = policy.Actor(model)
    trained = [n for n, p in actor.named_parameters() if p.requires_grad]
    assert trained and all("lora" in n for n in trained)
    optimiser = torch.optim.SGD([p for p in actor.parameters() if p.requires_grad], lr=1.0)
    for _ in range(3):
        gradient(actor, some_rows())
        optimiser.step()
    expected = said(actor, some_rows(), 1000, False)
    policy.save(model, policy.load_tokenizer(base), tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    again = policy.load_actor(tmp_path / "adapter", Lora())
    assert any(p.requires_grad for p in again.parameters())
    got = said(policy.Actor(again), some_rows(), 1000, False)
    assert torch.equal(got, expected)
    plain = said(policy.Actor(policy.load_actor(base, Lora())), some_rows(), 1000, False)
    assert not torch.allclose(plain, expected, atol=1e-3)


def test_a_critic_begins_with_the_layers_of_a_policy_that_is_an_adapter(
    base: Path, tmp_path: Path
) -> None:
    model = policy.load_actor(base, Lora(rank=4), seed=3)
    for n, p in model.named_parameters():
        if "lora_B" in n:  # else it were the base
            torch.nn.init.normal_(p)
    policy.save(model, policy.load_tokenizer(base), tmp_path / "adapter")
    begun = policy.load_critic(tmp_path / "adapter", Lora(rank=4))
    critic = policy.Critic(begun)
    assert said(critic, some_rows(), 1000, False).abs().max() == 0
    trained = {n for n, p in critic.named_parameters() if p.requires_grad}
    assert any("lora" in n for n in trained) and any("score" in n for n in trained)
    layers = {n: p for n, p in begun.named_parameters() if "lora" in n}
    of_policy = {n: p for n, p in model.named_parameters() if "lora" in n}
    assert all(torch.equal(layers[n], of_policy[n]) for n in of_policy)
    for p in critic.parameters():
        if p.requires_grad:
            p.data.normal_(std=0.1)
    expected = said(critic, some_rows(), 1000, False)
    policy.save(begun, policy.load_tokenizer(base), tmp_path / "critic")
    again = policy.Critic(policy.load_critic(tmp_path / "critic", Lora(rank=4)))
    assert torch.equal(said(again, some_rows(), 1000, False), expected)


def test_an_adapter_whose_base_is_gone_is_named(base: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(base, moved)
    policy.save(policy.load_actor(moved, Lora(rank=2)), None, tmp_path / "adapter")
    shutil.rmtree(moved)
    with pytest.raises(BadInput, match=r"base model .*moved .*is not there"):
        policy.load_actor(tmp_path / "adapter", Lora())


def test_a_critic_begins_at_zero_and_is_loaded_as_it_was_saved(base: Path, tmp_path: Path) -> None:
    for lora in (Lora(), Lora(rank=2)):
        model = policy.load_critic(base, lora)
        critic = policy.Critic(model)
        assert said(critic, some_rows(), 1000, False).abs().max() == 0
        for p in critic.parameters():
            if p.requires_grad:
                torch.nn.init.normal_(p, std=0.1)
        expected = said(critic, some_rows(), 1000, False)
        assert expected.abs().max() > 0
        folder = tmp_path / f"critic{lora.rank}"
        policy.save(model, None, folder)
        again = policy.Critic(policy.load_critic(folder, Lora()))
        assert torch.equal(said(again, some_rows(), 1000, False), expected)


def test_a_value_head_leaves_the_policy_as_it_is(base: Path, tmp_path: Path) -> None:
    actor = policy.Actor(policy.load_actor(base, Lora()))
    critic = policy.HeadCritic(actor)
    assert len(list(critic.parameters())) == 2
    torch.nn.init.normal_(critic.score.weight)
    batch = collate(some_rows(), CPU)
    values, ends = critic(batch)
    assert ends.shape == (4,)
    values.square().sum().backward()
    assert all(p.grad is None for p in actor.parameters())
    policy.save(critic, None, tmp_path / "head")
    again = policy.HeadCritic(actor)
    policy.load_head(again, tmp_path / "head")
    assert torch.equal(again(batch)[0], values)


def test_completions_have_the_log_probabilities_that_the_trainer_computes(base: Path) -> None:
    model = policy.load_actor(base, Lora())
    tokenizer = policy.load_tokenizer(base)
    with torch.no_grad():  # so that it is not the same of all tokens
        generator = torch.Generator().manual_seed(1)
        model.get_output_embeddings().weight.normal_(std=0.5, generator=generator)
    sampler = LocalSampler(model, tokenizer, most=12, batch=3)
    sampler.end = sampler.sample([[5, 6, 7]], 5)[0].ids[8]  # one that comes up
    prompts = [[5, 6, 7], [8] * 30, [9, 10], [11, 12, 13, 14], [15]] * 2
    before = torch.get_rng_state()
    done = sampler.sample(prompts, 5)
    assert torch.equal(torch.get_rng_state(), before)
    assert [c.ids for c in sampler.sample(prompts, 5)] == [c.ids for c in done]
    assert [c.ids for c in sampler.sample(prompts, 6)] != [c.ids for c in done]
    reasons = {c.finish_reason for c in done}
    assert reasons == {"stop", "length"}
    rows = []
    for prompt, c in zip(prompts, done, strict=True):
        assert (c.ids[-1] == sampler.end) == (c.finish_reason == "stop")
        assert sampler.end not in c.ids[:-1]
        n = len(c.ids)
        rows.append(Row(prompt + c.ids, len(prompt), [1] * n, c.logprobs, [0] * n))
    number(rows)
    got = said(policy.Actor(model), rows, 1000, False)
    sampled = torch.tensor([x for r in rows for x in r.sampler])
    assert torch.allclose(got, sampled, atol=1e-4)


def test_a_prompt_that_fills_the_context_is_cut(base: Path) -> None:
    sampler = LocalSampler(policy.load_actor(base, Lora()), policy.load_tokenizer(base), 50, 4)
    full, nearly = sampler.sample([[5] * 256, [5] * 250], 1)
    assert (full.ids, full.finish_reason) == ([], "length")
    assert 0 < len(nearly.ids) <= 6


def test_the_generation_settings_of_a_folder_do_not_change_what_is_sampled(
    base: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(base, other)
    told = {"repetition_penalty": 5.0, "temperature": 0.1, "top_k": 1, "do_sample": True}
    (other / "generation_config.json").write_text(json.dumps(told))
    done = [
        LocalSampler(policy.load_actor(f, Lora()), policy.load_tokenizer(base), 20, 4).sample(
            [[5, 6]], 1
        )[0]
        for f in (base, other)
    ]
    assert done[0] == done[1]


def broken(folder: Path, how: str) -> None:
    if how == "no config":
        (folder / "config.json").unlink()
    if how == "weights cut short":
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:1000])
    if how == "pickle":
        (folder / "model.safetensors").unlink()
        torch.save({}, folder / "pytorch_model.bin")
    if how == "config is no JSON":
        (folder / "config.json").write_text("{")
    changes: dict[str, dict[str, Any]] = {
        "a layer too few": {"num_hidden_layers": 3},
        "another width": {"hidden_size": 64},
        "an encoder": {"model_type": "bert", "architectures": ["BertModel"]},
        "code of its own": {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}},
    }
    if how in changes:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes[how]))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no config", "model_type"),
        ("weights cut short", "header"),
        ("pickle", "no file named model.safetensors"),
        ("config is no JSON", "not a valid JSON file"),
        ("a layer too few", r"it lacks model.layers.2.input_layernorm.weight and 8 others"),
        ("another width", r"its config.json tells another shape of model.embed_tokens.weight"),
        ("an encoder", "it lacks bert"),
        ("code of its own", "it needs code of its own, which is never run"),
    ],
)
def test_a_broken_model_folder_is_named(base: Path, tmp_path: Path, how: str, said: str) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(base, folder)
    broken(folder, how)
    with pytest.raises(BadInput, match=r"the model in .*broken cannot be loaded: .*" + said):
        policy.load_actor(folder, Lora())


def test_a_tokenizer_that_does_not_fit_is_named(base: Path, tmp_path: Path) -> None:
    tokenizer = tiny.train_tokenizer([f"word{i} " * 3 for i in range(500)], 600)
    tokenizer.save_pretrained(tmp_path)
    model = policy.load_actor(base, Lora())
    with pytest.raises(BadInput, match=r"does not fit .* embeddings"):
        policy.check_fit(model, policy.load_tokenizer(tmp_path), base)
    policy.check_fit(model, policy.load_tokenizer(base), base)


def test_a_folder_without_a_tokenizer_is_named(base: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no tokenizer that can be read"):
        policy.load_tokenizer(tmp_path)
    with pytest.raises(BadInput, match="there is no model folder"):
        policy.resolve(str(tmp_path / "nowhere"), tmp_path)


def test_a_tokenizer_gives_back_any_text() -> None:
    shared = "import torch\n\n\n    return x  # ü\n"
    tokenizer = tiny.train_tokenizer([*CORPUS, *[shared] * len(CORPUS)], 290)
    assert len(tokenizer(shared, add_special_tokens=False)["input_ids"]) == 4
    for text in (
        "float4 x = *(const float4*)p;\n\t// ü €",
        "\x00\x7f",
        "",
        2 * shared,
        "import torch",
    ):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize("parameters", [100_000, 1_000_000, 4_000_000])
def test_a_tiny_policy_has_about_as_many_parameters_as_asked(parameters: int) -> None:
    model = tiny.make_model(300, parameters, 4, 128, 0)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(parameters, rel=0.25)
