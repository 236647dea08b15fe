"""A small policy from nothing: a Llama architecture and a tokenizer trained on a corpus.

python -m rl.tiny --config tiny.json
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rl import policy
from rl.pairs import read_pairs, texts_of
from rl.settings import require

STEP = 16  # between widths
HEAD = 48  # about how wide a head is: on a CPU many narrow ones cost more, and learn no better
# No token reaches beyond one of these, but for phrases that many texts have.
PIECES = r"\d|\n *| ?[A-Za-z_]+|[^\n\dA-Za-z_]+"
# A phrase is a line, or what lies between numbers in one.
PHRASE = re.compile(r"(?:(?!(?<![A-Za-z_\d])\d)[^\n])+\n?")
SHARED = 0.1  # of the texts have a phrase that is one token
END, BEGIN, PAD = "<|im_end|>", "<|im_start|>", "<|pad|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Settings:
    """``corpus``: JSON lines with prompt and answer, as pairs.py reads them. ``parameters``: about
    how many, 0.1 to 4 million by intent. ``context``: the longest sequence.
    """

    corpus: str
    out: str
    parameters: int = 1_000_000
    vocabulary: int = 1024
    layers: int = 4
    context: int = 4096
    seed: int = 0


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Returns a byte-level BPE tokenizer with at most ``vocabulary`` tokens: any text goes through
    it and comes back as it was. A token holds a word or one digit at most, so that names and sizes
    can be copied, but for phrases that many texts have: these are what is always written, and a
    token each, which halves what a small model reads and writes.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    require(
        vocabulary > 259, f"a vocabulary of {vocabulary} does not hold all bytes", "use 260 or more"
    )
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    phrases = shared_phrases(texts, (vocabulary - 259) // 2)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(phrases),
        special_tokens=[PAD, BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator(texts, trainer)
    built.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=built, eos_token=END, pad_token=PAD, bos_token=BEGIN
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def shared_phrases(texts: Sequence[str], most: int) -> list[str]:
    """Returns the phrases that a tenth of the texts have, the most frequent first and ``most`` at
    most. Numbers are in none, so that they are copied by the same tokens wherever they stand.
    """
    known = Counter(phrase for t in texts for phrase in set(PHRASE.findall(t)))
    wanted = [
        (-n, phrase)
        for phrase, n in known.items()
        if n >= max(2, SHARED * len(texts)) and len(phrase) > 4
    ]
    return [phrase for _, phrase in sorted(wanted)[:most]]


def count(width: int, layers: int, vocabulary: int) -> int:
    """Returns the parameters of a model ``width`` wide: tied embedding, four square projections, an
    MLP of three products of 2 x width, norms.
    """
    return vocabulary * width + layers * (10 * width * width + 2 * width) + width


def make_model(tokens: int, parameters: int, layers: int, context: int, seed: int) -> Any:
    """Returns a Llama with about as many parameters, its weights drawn by the seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    widths = range(STEP, 4096, STEP)
    width = min(widths, key=lambda w: abs(count(w, layers, tokens) - parameters))
    whole = [n for n in range(width // STEP, 0, -1) if width % (2 * n) == 0]
    heads = min(whole, key=lambda n: abs(width / n - HEAD))
    config = LlamaConfig(
        vocab_size=tokens,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def make(
    folder: Path,
    texts: Sequence[str],
    parameters: int = 100_000,
    vocabulary: int = 300,
    layers: int = 2,
    context: int = 512,
    seed: int = 0,
) -> int:
    """Writes a policy's folder and returns how many parameters it has."""
    tokenizer = train_tokenizer(texts, vocabulary)
    model = make_model(len(tokenizer), parameters, layers, context, seed)
    policy.save(model, tokenizer, folder)
    return sum(p.numel() for p in model.parameters())


def run(settings: Settings, stage: Any) -> dict[str, Any]:
    """Makes what the settings ask for."""
    texts = texts_of(read_pairs(Path(settings.corpus)))
    folder = Path(settings.out) / "policy"
    made = make(
        folder,
        texts,
        settings.parameters,
        settings.vocabulary,
        settings.layers,
        settings.context,
        settings.seed,
    )
    return {"parameters": made, "policy": str(folder)}


if __name__ == "__main__":
    from rl.stage import main

    sys.exit(main(Settings, run))
