"""A Llama's GGUF file as a checkpoint in Dream's layout, with a low-rank adapter added (``jot/models/smol.py`` fetches
the file)."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from jot.errors import UserError

MASK, FORMAT = "<|mask|>", "jot-low-rank-1"
PARTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
FIELDS = {  # of a LlamaConfig, by their names in a GGUF file
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}  # fmt: skip
IDS = {"eos_token_id": "eos", "bos_token_id": "bos", "pad_token_id": "padding"}
Weights = dict[str, Tensor]


def convert(gguf: Path, adapter: Path | None, folder: Path) -> None:
    """Write the checkpoint of a GGUF file to ``folder``, with the adapter added where there is one."""
    state, fields, tokenizer = llama(gguf)
    state, fields = dream(state, fields)
    save(apply(state, adapter) if adapter else state, fields, tokenizer, folder)


def llama(file: Path) -> tuple[Weights, dict, PreTrainedTokenizerFast]:
    """State dict under transformers' names in float32, fields of a ``LlamaConfig`` and tokenizer of a Llama's GGUF."""
    from gguf import GGUFReader, dequantize  # of the extra "smol"

    reader = GGUFReader(file)
    read = {name: field.contents() for name, field in reader.fields.items()}
    fields = {ours: read[f"llama.{name}"] for ours, name in FIELDS.items()}
    fields |= {ours: read[f"tokenizer.ggml.{name}_token_id"] for ours, name in IDS.items()}
    heads = {"attn_q": fields["num_attention_heads"], "attn_k": fields["num_key_value_heads"]}
    state = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        *block, part, _ = tensor.name.split(".")
        if part in heads:  # llama.cpp rotates neighbors, the others halves
            value = value.unflatten(0, (heads[part], -1, 2)).swapaxes(1, 2).flatten(0, 2)
        state[f"model.layers.{block[1]}.{PARTS[part]}.weight" if block else f"{ENDS[part]}.weight"] = value
    words, kinds = read["tokenizer.ggml.tokens"], read["tokenizer.ggml.token_type"]
    special = [word for word, kind in zip(words, kinds, strict=True) if kind != 1]
    merges = [tuple(pair.split(" ")) for pair in read["tokenizer.ggml.merges"]]
    named = {name.removesuffix("_id"): words[fields[name]] for name in IDS}
    return state, fields, byte_tokenizer(words, merges, special, named, read["tokenizer.chat_template"])


def byte_tokenizer(
    words: list[str], merges: list[tuple[str, str]], special: list[str], named: dict[str, str], template: str
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with single digits, as SmolLM2 has it, and the mask token as its last entry."""
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence(split), decoders.ByteLevel()
    made.add_special_tokens([*special, MASK])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, mask_token=MASK, **named)
    tokenizer.chat_template = template
    return tokenizer


def dream(state: Weights, fields: dict) -> tuple[Weights, dict]:
    """A Llama in Dream's layout: zero biases of q, k and v, an untied head, a last row for the mask token.

    The row is the mean of the embeddings, and zero in the head. Every size is read from ``fields``.

    Raises:
        UserError: a switch of Llama's that Dream's layout has no place for.
    """
    rows = len(state["model.embed_tokens.weight"])
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    rope = fields.get("rope_parameters") or {"rope_theta": fields.get("rope_theta")}
    odd = (fields.get("head_dim") or width // heads) != width // heads or rope.get("rope_type", "default") != "default"
    if odd or fields.get("hidden_act", "silu") != "silu" or any(name.endswith("o_proj.bias") for name in state):
        raise UserError("this Llama has heads, rotations, an activation or biases that Dream's layout has no place for")
    made = {k: v.float() for k, v in state.items()}
    head = made.pop("lm_head.weight", made["model.embed_tokens.weight"])
    for name in [name for name in made if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        made.setdefault(name.replace(".weight", ".bias"), torch.zeros(len(made[name])))
    table = made["model.embed_tokens.weight"]
    made["model.embed_tokens.weight"] = torch.cat((table, table.mean(0, keepdim=True)))
    made["lm_head.weight"] = torch.cat((head, head.new_zeros(1, width)))
    config = {name: fields.get(name) for name in (*FIELDS, *IDS)} | {"rope_theta": rope["rope_theta"]}
    return made, config | {"model_type": "Dream", "vocab_size": rows + 1, "mask_token_id": rows}


def apply(state: Weights, file: Path) -> Weights:
    """``state`` with the changes of an adapter added (``data/smol/adapter.py`` says how it is written)."""
    try:
        with safe_open(file, framework="pt") as handle:
            if (handle.metadata() or {}).get("format") != FORMAT:
                raise UserError(f"{file} is no adapter of the format {FORMAT}; check it out again")
            parts = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 - no mapping
        for name in {name.rpartition("::")[0] for name in parts}:
            if f"{name}::a" in parts:
                a, b, scale = (parts[f"{name}::{part}"] for part in "abs")
                state[name] += (wide(a, 1) * scale) @ wide(b, 0)
            elif name != "mask":
                state[name] += parts[f"{name}::change"]
        state["model.embed_tokens.weight"][-1] = parts["mask::row"]
    except (SafetensorError, OSError, KeyError, RuntimeError, IndexError) as error:
        raise UserError(f"{file} is no adapter of these weights ({error}); check it out again") from error
    return state


def wide(part: Tensor, along: int) -> Tensor:
    """Factors as floats: int8 as they are, uint8 holds two of 4 bits, neighbors ``along`` that dimension."""
    if part.dtype == torch.int8:
        return part.float()
    return torch.stack((part & 15, part >> 4), along + 1).flatten(along, along + 1).float() - 8


def save(state: Weights, fields: dict, tokenizer, folder: Path) -> None:
    """Write the checkpoint folder, in bfloat16."""
    folder.mkdir()
    try:
        save_file({k: v.to(torch.bfloat16).contiguous() for k, v in state.items()}, folder / "model.safetensors")
    except SafetensorError as error:
        raise UserError(f"cannot write {folder} ({error}); make room, or name another XDG_CACHE_HOME") from error
    tokenizer.save_pretrained(folder)
    fields = fields | {"architectures": ["DreamModel"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
