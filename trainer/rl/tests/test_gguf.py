"""A GGUF file becomes the policy that it was written from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import CORPUS

from rl import policy, tiny
from rl.errors import BadInput
from rl.settings import Lora

LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleaved(weight: Any, heads: int) -> Any:
    """GGUF has the two halves of a rotary pair beside each other."""
    rows, columns = weight.shape
    split = weight.reshape(heads, 2, rows // heads // 2, columns)
    return split.transpose(0, 2, 1, 3).reshape(rows, columns)


def write_gguf(folder: Path, path: Path) -> None:
    """Writes a Llama's folder as llama.cpp's converter does."""
    import gguf

    model = policy.load_actor(folder, Lora())
    c = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(c.vocab_size)
    told = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = sorted(told["model"]["vocab"], key=told["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if t.startswith("<|") else 1 for t in vocabulary])
    merges = [" ".join(m) if isinstance(m, list) else m for m in told["model"]["merges"]]
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(policy.load_tokenizer(folder).chat_template)
    for name, tensor in model.state_dict().items():
        value = tensor.numpy()
        if name == "lm_head.weight":
            continue  # tied
        if name.startswith("model.layers."):
            layer, rest = name.removeprefix("model.layers.").split(".", 1)
            given = LAYER[rest.removesuffix(".weight")]
            if given in ("attn_q", "attn_k"):
                value = interleaved(value, c.num_attention_heads)
            name = f"blk.{layer}.{given}.weight"
        else:
            name = {"model.embed_tokens.weight": "token_embd.weight"}.get(
                name, "output_norm.weight"
            )
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_becomes_a_plain_folder(tmp_path: Path) -> None:
    base = tmp_path / "base"
    tiny.make(base, CORPUS, 8_000, 270, 1, 256)
    path = tmp_path / "model.gguf"
    write_gguf(base, path)
    folder = policy.resolve(str(path), tmp_path / "out")
    assert folder == (tmp_path / "out" / "base").resolve()
    ids = torch.arange(3, 60)[None]
    expected = policy.load_actor(base, Lora())(input_ids=ids).logits
    model = policy.load_actor(folder, Lora())
    got = model(input_ids=ids).logits
    assert torch.allclose(got, expected, atol=1e-5)
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
    tokenizer, before = policy.load_tokenizer(folder), policy.load_tokenizer(base)
    policy.check_fit(model, tokenizer, folder)
    for text in ("say 12\n", "float4 x;  // ü"):
        assert (
            tokenizer(text, add_special_tokens=False)["input_ids"]
            == (before(text, add_special_tokens=False)["input_ids"])
        )
    assert tokenizer.eos_token_id == 2
    path.unlink()  # it is read once
    assert policy.resolve(str(path), tmp_path / "out") == folder


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and then nothing")
    with pytest.raises(BadInput, match=r"model.gguf cannot be read as GGUF"):
        policy.resolve(str(path), tmp_path / "out")
