"""What decides a training run of the embedded pair: the recipe and the two network shapes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from jot.models import DreamConfig, DreamModel, LLaDAConfig, LLaDAModelLM
from pocket.rows import WIDTHS, Row


@dataclass
class Recipe:
    """Everything that decides a training run but the hardware."""

    WIDTHS: ClassVar[dict[str, int]] = WIDTHS
    ALL: ClassVar[tuple[str, ...]] = ("choice",)  # groups of which a share ``choice_all`` of the rows is all masked
    family: str = "llada"
    seed: int = 0
    steps: int = 20000
    horizon: int = 0  # steps that the learning rate of the first 400 steps assumes; 0 for the same as ``steps``
    batch_compact: int = 640
    batch_long: int = 256
    batch_choice: int = 512
    mix_compact: str = "pocket_gsm8k:0.88,pocket_humaneval:0.12"
    mix_long: str = "pocket_gsm8k:0.62,pocket_humaneval:0.08,pocket_prose:0.30"
    mix_choice: str = "pocket_mmlu:0.15,pocket_mmlu+verdicts:0.35,pocket_hellaswag:0.15,pocket_hellaswag+verdicts:0.35"
    long_share: float = 0.15  # share of the problems that fit a compact canvas which still get a long one
    choice_all: float = 0.5  # share of multiple-choice rows with every maskable token masked, as decoding starts
    choice_weight: float = 1.0
    lr: float = 3e-3
    warmup: int = 200
    weight_decay: float = 0.05
    shard: int = 8  # batches in a shard
    repeats: int = 2  # passes over a shard, each with fresh masks
    size: str = "5m"  # one of ``SIZES``
    leading: float = 0.0  # share of the rows hidden from a place on, see ``train.corrupt``
    tail: float = 1.0  # share of the ends of text behind the first that are asked for
    start: str = ""  # a checkpoint's folder to begin with, in place of random weights

    @property
    def tokenizer(self) -> str:
        """The model whose tokenizer it takes."""
        return f"pocket-{self.family}"

    def network(self):
        """A freshly initialized model."""
        if self.size not in SIZES:
            raise SystemExit(f"size {self.size!r} is none of {', '.join(SIZES)}")
        hidden, layers, heads = SIZES[self.size]
        return network(self.family, hidden=hidden, layers=layers, heads=heads)

    def rows(self, index: int, group: str, total: int, tok, rng: random.Random) -> list[Row]:
        """The rows of shard ``index`` of a group."""
        from pocket.stream import mixed

        return mixed(self, index, group, total, tok, rng)

    def measure(self, model, tasks, limit: int, device: str) -> tuple[dict, dict]:
        """Held-out loss and dev accuracy by task."""
        from pocket.evaluate import accuracy, heldout_loss
        from pocket.stream import tokenizer

        dev = dict(limit=limit, device=device)
        return heldout_loss(model, tokenizer(), **dev), accuracy(model, tokenizer(), tasks=tasks, **dev)


# In the same proportions, by parameters: width, layers, heads. The shipped models are of 5m.
SIZES = {"1m": (96, 6, 4), "2m": (160, 7, 4), "5m": (256, 6, 4), "10m": (384, 6, 6), "20m": (512, 7, 8)}


def network(
    family: str, vocabulary: int = 2048, mask_id: int = 2041, eos_id: int = 2040, bos_id: int = 2044, *,
    hidden: int = 256, layers: int = 6, heads: int = 4, inner: int | None = None, positions: int = 512,
):  # fmt: skip
    """A freshly initialized model of the family, by default of at most 5 M parameters and with an inner width of twice
    ``hidden``; Dream's is a little wider, as it has fewer heads for keys and values.
    """
    ids = dict(mask_token_id=mask_id, eos_token_id=eos_id, pad_token_id=eos_id, bos_token_id=bos_id, rope_theta=10000.0)
    inner = inner or 2 * hidden
    if family == "llada":
        shape = dict(d_model=hidden, n_layers=layers, n_heads=heads, n_kv_heads=heads, mlp_hidden_size=inner)
        return LLaDAModelLM(
            LLaDAConfig(vocab_size=vocabulary, embedding_size=vocabulary, max_sequence_length=positions, **shape, **ids)
        )
    shape = dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads)
    shape |= dict(num_key_value_heads=heads // 2, intermediate_size=inner + hidden // 4)
    return DreamModel(DreamConfig(vocab_size=vocabulary, max_position_embeddings=positions, **shape, **ids))
