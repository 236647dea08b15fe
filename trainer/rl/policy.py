"""Policies and critics: what is loaded from a folder, what it computes of a batch, how it is saved.

A policy is a folder of a Hugging Face causal language model, of a PEFT adapter, or a GGUF file; a
critic is a token-classification folder with one label, an adapter of such a one, or a value head on
the policy's own hidden states. Weights are read as safetensors alone, never as pickles, and no code
of a folder is run. Weights are float32; on a GPU the layers compute in bfloat16, the logits and all
that follows in float32.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rl import losses
from rl.errors import BadInput
from rl.settings import Lora

if TYPE_CHECKING:
    from rl.batch import Batch  # which reads Parquet: a server starts sooner without

CHUNK = 1024  # tokens whose logits are in memory at once: 200 MB at a vocabulary of 49,152
KEPT = 1 << 24  # logits of a batch that are kept for going back: 64 MB, and what is made of them
ADAPTER = "adapter_config.json"
ACTOR_TASK, CRITIC_TASK = "CAUSAL_LM", "TOKEN_CLS"  # as an adapter's config has it
HEAD = "value_head.safetensors"
VALUE_HEADS = ("score", "classifier")  # what token classifiers call theirs
MEND = "name a folder that transformers' save_pretrained wrote, with safetensors"


class Actor(nn.Module):
    """A causal language model that gives the log-probabilities of the policy's tokens.

    Parameters: ``model`` as transformers or PEFT made it.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.split = _splits(model)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the log-probability and the entropy [n] of each policy token of a batch, float32.
        Logits exist of those positions alone, a chunk at a time; where they are many, they are
        computed again when going back.
        """
        inner = unwrapped(self.model)
        with computing(batch.input_ids.device):
            if self.split:
                states = inner.base_model(**_inputs(batch)).last_hidden_state
                states = states[batch.at[0], batch.at[1]]
            else:
                states = inner(**_inputs(batch)).logits[batch.at[0], batch.at[1]]
        head = inner.get_output_embeddings() if self.split else nn.Identity()
        logs, entropies = [], []
        vocabulary = head.weight.shape[0] if self.split else states.shape[-1]
        many = len(states) * vocabulary > KEPT
        for part, targets in zip(states.split(CHUNK), batch.targets.split(CHUNK), strict=True):
            if torch.is_grad_enabled() and many:
                got = checkpoint(_chunk, head, part, targets, use_reentrant=False)
            else:
                got = _chunk(head, part, targets)
            logs.append(got[0])
            entropies.append(got[1])
        return torch.cat(logs), torch.cat(entropies)


class Critic(nn.Module):
    """A token classifier with one label that gives the value of the state before each token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the values before each policy token [n] and after each row [rows], float32."""
        inner = unwrapped(self.model)
        with computing(batch.input_ids.device):
            states = inner.base_model(**_inputs(batch)).last_hidden_state
        head = value_head(inner)
        before = head(states[batch.at[0], batch.at[1]].float())[:, 0]
        return before, head(states[batch.ends[0], batch.ends[1]].float())[:, 0]


class HeadCritic(nn.Module):
    """A linear value head on the hidden states of an actor, which it leaves as it is."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor = [actor]  # in a list: its parameters are not the critic's
        self.score = nn.Linear(unwrapped(actor.model).config.hidden_size, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns what Critic does."""
        inner = unwrapped(self.actor[0].model)
        with torch.no_grad(), computing(batch.input_ids.device):
            states = inner.base_model(**_inputs(batch)).last_hidden_state.float()
        at = self.score(states[batch.at[0], batch.at[1]])[:, 0]
        return at, self.score(states[batch.ends[0], batch.ends[1]])[:, 0]


def value_head(model: Any) -> Any:
    """Returns the layer of a token classifier that makes a value of a hidden state."""
    for name in VALUE_HEADS:
        if hasattr(model, name):
            return getattr(model, name)
    raise BadInput(f"a {type(model).__name__} has no value head to train", "name another critic")


def unwrapped(model: Any) -> Any:
    """Returns the transformers model within a PEFT one."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


@contextlib.contextmanager
def computing(device: torch.device) -> Iterator[None]:
    """Layers compute in bfloat16 on a GPU, and in float32 on a CPU."""
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        yield


def _inputs(batch: Batch) -> dict[str, Any]:
    return {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "use_cache": False,
    }


def _chunk(head: Any, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast(states.device.type, enabled=False):
        logits = head(states.float())
    logs = torch.log_softmax(logits.float(), dim=-1)
    return logs.gather(-1, targets[:, None])[:, 0], losses.entropy_of(logs)


@torch.no_grad()
def _splits(model: Any) -> bool:
    """Reports whether logits are the output embedding of the last hidden state and nothing more:
    some models scale or cap them.
    """
    inner = unwrapped(model)
    head = inner.get_output_embeddings()
    if head is None or inner.base_model is inner:
        return False
    ids = torch.arange(4, device=inner.device)[None] % inner.config.vocab_size
    whole = inner(input_ids=ids, use_cache=False).logits.float()
    states = inner.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return torch.allclose(whole, head(states).float(), rtol=1e-4, atol=1e-4)


def load_tokenizer(folder: Path) -> Any:
    """Returns the tokenizer of a folder, of the base where it is an adapter's without one."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer_config.json").exists() and (folder / ADAPTER).exists():
        folder = _base_of(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # of many kinds: files that are missing, cut or of another version
        why = first_line(error)
        if "backend tokenizer" in why:  # and then a list of how it might have been
            why = "there is no tokenizer.json, nor a tokenizer of another form"
        raise BadInput(f"{folder} holds no tokenizer that can be read: {why}", MEND) from error
    if tokenizer.eos_token_id is None:
        raise BadInput(f"the tokenizer of {folder} has no end-of-text token", "set eos_token in it")
    return tokenizer


def load_actor(folder: Path, lora: Lora, seed: int = 0) -> Any:
    """Returns a causal model with weights that can be trained, on the CPU. ``lora.rank`` above 0
    puts a new adapter on a full model.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig

    if (folder / ADAPTER).exists():
        model = _adapted(AutoModelForCausalLM, folder)
    else:
        model = _loaded(AutoModelForCausalLM, folder)
        if lora.rank > 0:
            model = _with_adapter(model, lora, ACTOR_TASK, seed)
    # Sampling is by what the trainer computes: no penalty or cut of the folder's.
    unwrapped(model).generation_config = GenerationConfig()
    return _steady(model)


def load_critic(folder: Path, lora: Lora, seed: int = 0) -> Any:
    """Returns a token classifier with one label. A folder of a causal model gives the layers, and a
    head of zeros.
    """
    from transformers import AutoModelForTokenClassification

    if (folder / ADAPTER).exists():
        if _task_of(folder) == ACTOR_TASK:
            return _steady(_critic_of(folder))
        return _steady(_adapted(AutoModelForTokenClassification, folder, num_labels=1))
    model = _loaded(AutoModelForTokenClassification, folder, VALUE_HEADS, num_labels=1)
    if not _is_critic(folder):
        for p in value_head(model).parameters():
            nn.init.zeros_(p)
    if lora.rank > 0:
        model = _with_adapter(model, lora, CRITIC_TASK, seed)
    return _steady(model)


def check_fit(model: Any, tokenizer: Any, folder: Path) -> None:
    """Raises BadInput where a tokenizer has ids that a model has no embedding for."""
    rows = unwrapped(model).get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise BadInput(
            f"the tokenizer does not fit the model in {folder}: it has {len(tokenizer)} tokens, "
            f"and the model {rows} embeddings",
            "name the tokenizer that the model was trained with",
        )


def save(model: Any, tokenizer: Any, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Writes a model, or its adapter alone, with its tokenizer. ``state``: its weights where they
    are spread over processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, HeadCritic):
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / HEAD)
        return
    inner = unwrapped(model)
    if state is not None and model is inner and inner.config.tie_word_embeddings:
        tied = set(inner._tied_weights_keys or ())  # of one storage no more, as they were gathered
        state = {k: v for k, v in state.items() if k not in tied}
    model.save_pretrained(folder, state_dict=state)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def load_head(critic: HeadCritic, folder: Path) -> None:
    """Reads the weights of a value head."""
    try:
        critic.load_state_dict(load_file(folder / HEAD))
    except Exception as error:
        raise BadInput(
            f"{folder / HEAD} is no value head of this policy: {first_line(error)}"
        ) from error


def from_gguf(path: Path, into: Path) -> Path:
    """Writes a GGUF file's model as a plain folder, once, and returns it. The model that
    transformers makes of a GGUF file cannot be saved or cast itself.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if (into / "config.json").exists() and (into / "tokenizer_config.json").exists():
        return into
    if not path.is_file():
        raise BadInput(f"{path} is not there", "name a GGUF file, or a model's folder")
    given = {"gguf_file": path.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **given)
        source = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **given)
    except Exception as error:
        raise BadInput(
            f"{path} cannot be read as GGUF: {first_line(error)}", "name another file"
        ) from error
    config = type(source.config).from_dict(
        {k: v for k, v in source.config.to_dict().items() if k != "quantization_config"}
    )
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(source.state_dict(), strict=False)
    plain.tie_weights()
    for name in ("bos", "eos", "pad"):  # as the file says: transformers 5.17 takes bos for eos
        told = getattr(config, f"{name}_token_id", None)
        if isinstance(told, int):
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(told))
    tokenizer.save_pretrained(into)
    _without_tokens_from(into / "tokenizer.json", plain.get_input_embeddings().weight.shape[0])
    plain.save_pretrained(into)
    return into


def _without_tokens_from(path: Path, rows: int) -> None:
    """Takes those special tokens out of a tokenizer that the model has no embedding for:
    transformers adds GPT-2's to every one of a GGUF file.
    """
    told = json.loads(path.read_text())
    told["added_tokens"] = [t for t in told["added_tokens"] if t["id"] < rows]
    path.write_text(json.dumps(told, ensure_ascii=False))


def resolve(given: str, work: Path) -> Path:
    """Returns the folder of a policy that settings name: itself, or a GGUF file's made plain."""
    path = Path(given)
    if path.suffix == ".gguf":
        return from_gguf(path, work / "base").resolve()
    if not path.is_dir():
        raise BadInput(f"there is no model folder {path}", MEND)
    return path.resolve()  # adapters name their base by it


def _loaded(kind: Any, folder: Path, new: Sequence[str] = (), **more: Any) -> Any:
    """Returns the model of a folder, all of whose weights are there. ``new``: what a name begins or
    ends with whose weights may be drawn.
    """
    try:
        model, found = kind.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **more,
        )
    except Exception as error:
        why, hint = first_line(error), MEND
        if "trust_remote_code" in str(error):
            why, hint = "it needs code of its own, which is never run", "name another model"
        raise BadInput(f"the model in {folder} cannot be loaded: {why}", hint) from error
    lacks = sorted(k for k in found["missing_keys"] if not any(n in k for n in new))
    other = sorted(str(k[0]) for k in found["mismatched_keys"])
    for what, names in (("it lacks", lacks), ("its config.json tells another shape of", other)):
        if names:
            more_of = f" and {len(names) - 1} others" if len(names) > 1 else ""
            raise BadInput(
                f"the model in {folder} cannot be loaded: {what} {names[0]}{more_of}", MEND
            )
    return model


def _adapted(kind: Any, folder: Path, **more: Any) -> Any:
    from peft import PeftModel

    base = _loaded(kind, _base_of(folder), VALUE_HEADS if more else (), **more)
    try:
        return PeftModel.from_pretrained(base, str(folder), is_trainable=True)
    except Exception as error:
        raise BadInput(
            f"the adapter in {folder} cannot be loaded: {first_line(error)}", MEND
        ) from error


def _critic_of(folder: Path) -> Any:
    """Returns a critic with the layers of a policy that is an adapter, and a head of zeros."""
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict
    from peft.utils import load_peft_weights, set_peft_model_state_dict
    from transformers import AutoModelForTokenClassification

    base = _loaded(AutoModelForTokenClassification, _base_of(folder), VALUE_HEADS, num_labels=1)
    for p in value_head(base).parameters():
        nn.init.zeros_(p)
    try:
        config = PeftConfig.from_pretrained(str(folder))
        config.task_type, config.inference_mode = CRITIC_TASK, False
        config.exclude_modules = list(VALUE_HEADS)
        model = get_peft_model(base, config)
        layers = load_peft_weights(str(folder), device="cpu")
        set_peft_model_state_dict(model, {**get_peft_model_state_dict(model), **layers})
        return model
    except Exception as error:
        raise BadInput(
            f"the adapter in {folder} cannot be loaded: {first_line(error)}", MEND
        ) from error


def _task_of(folder: Path) -> str:
    try:
        return str(json.loads((folder / ADAPTER).read_text()).get("task_type"))
    except (OSError, ValueError, AttributeError):
        return ""  # what loads it says why


def _base_of(folder: Path) -> Path:
    try:
        base = Path(json.loads((folder / ADAPTER).read_text())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{folder / ADAPTER} names no base model", MEND) from error
    if not base.is_absolute() and (folder / base).is_dir():
        return folder / base  # as a policy's folder has it
    if not base.is_dir():
        raise BadInput(
            f"the base model {base} of the adapter in {folder} is not there",
            "put it back, or correct base_model_name_or_path",
        )
    return base


def _with_adapter(model: Any, lora: Lora, task: str, seed: int) -> Any:
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules=lora.modules,
            task_type=task,
            lora_dropout=0.0,
            # A value head is trained as it is.
            exclude_modules=list(VALUE_HEADS) if task == CRITIC_TASK else None,
        )
        return get_peft_model(model, config)


def _is_critic(folder: Path) -> bool:
    try:
        kinds = json.loads((folder / "config.json").read_text()).get("architectures") or []
    except (OSError, ValueError):
        return False
    return any("TokenClassification" in k for k in kinds)


def _steady(model: Any) -> Any:
    """Turns off all that is drawn at random in a forward pass: the ratio of a policy to itself must
    be 1.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    for p in (*model.parameters(), *model.buffers()):
        # Into memory of PyTorch's own: products differ in the last bit by how a file's tensors are
        # aligned, and a stage that goes on must give the same bits.
        p.data = p.data.clone()
    return model.eval()


def recompute_activations(model: Any) -> None:
    """Keeps no activations of layers for the backward pass: less memory, a third more time."""
    unwrapped(model).gradient_checkpointing_enable({"use_reentrant": False})
    model.train()  # without dropout: see _steady


def first_line(error: Exception) -> str:
    """Returns the first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
