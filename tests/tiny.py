"""A random checkpoint of either family with the pocket tokenizer, for tests of what is around it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from jot.models import FAMILIES, home

CONFIGS = {
    "llada": {
        "model_type": "llada", "d_model": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2,
        "mlp_hidden_size": 48, "vocab_size": 2048, "embedding_size": 2048, "max_sequence_length": 320,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
        "mask_token_id": 2041, "eos_token_id": 2040, "pad_token_id": 2040,
    },
    "dream": {
        "model_type": "Dream", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 48, "vocab_size": 2048, "max_position_embeddings": 320,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "mask_token_id": 2041, "eos_token_id": 2040,
        "pad_token_id": 2040, "bos_token_id": 2040,
    },
}  # fmt: skip


def build(folder: Path, family: str = "llada", seed: int = 0) -> Path:
    """Writes the checkpoint and returns its folder. Its head is scaled: some margins clear a threshold."""
    config_class, model_class, _ = FAMILIES[CONFIGS[family]["model_type"]]
    raw = CONFIGS[family]
    torch.manual_seed(seed)
    with torch.random.fork_rng():
        model = model_class(config_class(**{k: v for k, v in raw.items() if k != "model_type"}))
        state = {
            k: torch.randn(v.shape) * (0.2 if v.dim() > 1 else 0) + (v.dim() == 1)
            for k, v in model.state_dict().items()
        }
    model.load_state_dict(state)
    with torch.no_grad():
        model.head.mul_(6)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home() / "data" / "models" / f"pocket-{family}" / name, folder / name)
    return folder
