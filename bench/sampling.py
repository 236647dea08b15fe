"""Prints how many tokens a second a policy is sampled by: the decoder of trainer/rl beside
transformers' generate, in one run, with the same model, prompts and seeds.

    PYTHONPATH=trainer:.tools/training python bench/sampling.py

Eight samples are taken of each prompt, as in a step of PPO. Without ``--model`` the weights are
drawn at random: on a GPU in the shape of SmolLM2-135M, on a CPU in a tiny one. The gap is the
difference of the log-probabilities from those of the trainer's forward, in nats. Answers end at
their limit alone; in the last row limits differ, and there are twice as many answers as slots.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from rl.batch import Row, collate, micro_batches, number
from rl.draw import Work
from rl.generation import Generator, generator
from rl.policy import Actor, load_actor
from rl.settings import Lora

GROUP = 8  # samples of a prompt
NEVER = -1  # the end of a text
COMPARED = 64  # answers whose log-probabilities are computed again
TINY = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SMOL = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def model_of(args: argparse.Namespace) -> Any:
    """Returns the model to sample from, in evaluation mode."""
    if args.model:
        return load_actor(Path(args.model), Lora(args.lora), 0).to(args.device).eval()
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    from rl.policy import _with_adapter

    shape = SMOL if args.device == "cuda" else TINY
    config = LlamaConfig(**shape, max_position_embeddings=8192, tie_word_embeddings=True)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig()
    made = _with_adapter(model, Lora(args.lora), "CAUSAL_LM", 0) if args.lora else model
    return made.to(args.device).eval()


def asked(args: argparse.Namespace, vocabulary: int, n: int, uneven: bool) -> list[Work]:
    """Returns n requests."""
    g = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, vocabulary, (-(-n // GROUP), args.prompt), generator=g).tolist()
    least = args.tokens // 4
    spread = torch.randint(least, 2 * args.tokens - least, (n,), generator=g).tolist()
    limits = spread if uneven else [args.tokens] * n
    return [Work(prompts[i // GROUP], limits[i], seed=i) for i in range(n)]


def timed(by: Generator, lot: list[Work]) -> float:
    """Returns the seconds that answers take: of a CPU its processor's, whoever works beside."""
    clock = time.perf_counter if torch.cuda.is_initialized() else time.process_time
    begun = clock()
    by.answer(lot, NEVER)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return clock() - begun


def gap(model: Any, lot: list[Work]) -> tuple[float, float]:
    """Returns mean and maximum of what log-probabilities differ from the trainer's."""
    rows = [
        Row(w.prompt + w.ids, len(w.prompt), [1] * len(w.ids), w.logprobs, [0] * len(w.ids))
        for w in lot[:: max(1, len(lot) // COMPARED)]
    ]
    number(rows)
    said = torch.tensor([x for r in rows for x in r.sampler])
    logs, actor, device = torch.zeros(len(said)), Actor(model), next(model.parameters()).device
    with torch.no_grad():
        for part in micro_batches(rows, 16_384):
            batch = collate(part, device)
            logs[batch.tokens] = actor(batch)[0].cpu()
    apart = (logs - said).abs()
    return float(apart.mean()), float(apart.max())


def main() -> None:
    """Prints the table."""
    there = torch.cuda.is_available()
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default="", help="a policy's folder")
    p.add_argument("--lora", type=int, default=0, help="the rank of a new adapter")
    p.add_argument("--device", default="cuda" if there else "cpu", choices=["cpu", "cuda"])
    p.add_argument("--slots", type=int, default=256 if there else 16)
    p.add_argument("--prompt", type=int, default=512 if there else 128, help="tokens")
    p.add_argument("--tokens", type=int, default=256 if there else 64, help="of an answer")
    p.add_argument("--threads", type=int, default=1, help="of a CPU: on a busy one, two are slower")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    model = model_of(args)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    on = f"CPU, {torch.get_num_threads()} threads"
    if args.device == "cuda":
        on = torch.cuda.get_device_name()
    print(f"{on}, {args.slots} slots, prompts of {args.prompt} tokens, {GROUP} samples of each\n")
    print("| sampled by | answers | tokens | s | tokens/s | gap, mean | gap, largest |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    theirs = generator(model, args.slots, 0, engine="transformers")
    ours = generator(model, args.slots, 0, print)
    rates = []
    for name, by, n, uneven in (
        ("transformers' generate", theirs, args.slots, False),
        ("decoder, first time", ours, args.slots, False),
        ("decoder", ours, args.slots, False),
        ("decoder, uneven limits", ours, 2 * args.slots, True),
    ):
        lot = asked(args, vocabulary, n, uneven)
        seconds = timed(by, lot)
        tokens = sum(len(w.ids) for w in lot)
        mean, most = gap(model, lot)
        rates.append(tokens / seconds)
        print(
            f"| {name} | {n} | {tokens:,} | {seconds:.2f} | {tokens / seconds:,.0f} "
            f"| {mean:.2g} | {most:.2g} |",
            flush=True,
        )
    print(f"\nThe decoder is {rates[2] / rates[0]:.1f} times as fast as transformers.")


if __name__ == "__main__":
    main()
