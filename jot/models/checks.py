"""What the fields of a checkpoint's ``config.json`` may be: a table for each family, one sentence for each refusal."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedConfig

from jot.errors import Kind, UserError

AGAIN = "fetch the checkpoint again"
# Fields that change no forward pass: of transformers, of training, and of sizes that another field gives. Those of
# transformers' own that it would act on are not handed to it.
UNUSED = (
    "model_type", "auto_map", "torch_dtype", "dtype", "num_labels", "attn_implementation", "_attn_implementation",
    "experts_implementation", "_experts_implementation",
)  # fmt: skip
IDLE = {
    *UNUSED, *PreTrainedConfig().to_dict(), "alibi_bias_max", "attention_dropout", "attention_layer_norm_with_affine",
    "embedding_dropout", "flash_attention", "init_cutoff_factor", "init_device", "init_fn", "init_std",
    "initializer_range", "max_window_layers", "mlp_ratio", "precision", "residual_dropout", "sliding_window",
}  # fmt: skip
LAYERS, SIZE = 1_000, 1 << 24  # far beyond any model; a module is made for each layer, on no device
COUNT, ANY_COUNT, LENGTH = Kind(int, 1, SIZE), Kind(int, 1, SIZE, optional=True), Kind(int, 1)
SHARED = {
    "vocab_size": COUNT,
    "rope_theta": Kind(float, 0, 1e30, open=True),  # float32 ends at 3e38
    "rms_norm_eps": Kind(float, 0, 1),
    **{f"{name}_token_id": Kind(int, -1, optional=True) for name in ("mask", "eos", "pad", "bos", "eot")},
}
FIELDS: dict[str, dict[str, Kind]] = {
    "llada": SHARED | {
        "d_model": COUNT, "n_layers": Kind(int, 1, LAYERS), "n_heads": COUNT, "mlp_hidden_size": COUNT,
        "n_kv_heads": ANY_COUNT, "embedding_size": ANY_COUNT,
        "max_sequence_length": LENGTH, "include_qkv_bias": Kind(bool, optional=True),
    },
    "Dream": SHARED | {
        "hidden_size": COUNT, "num_hidden_layers": Kind(int, 1, LAYERS), "num_attention_heads": COUNT,
        "num_key_value_heads": COUNT, "intermediate_size": COUNT, "max_position_embeddings": LENGTH,
        "initializer_range": Kind(float, 0, 1e30),
    },
}  # fmt: skip


def check_fields(raw: Mapping[str, object], file: Path) -> None:
    """Refuse a field of the wrong type or out of range; a field that is absent has its default."""
    for name, field in FIELDS[raw["model_type"]].items():
        if name in raw and not field.fits(raw[name]):
            raise UserError(f"{name}={reprlib.repr(raw[name])} in {file} must be {field.wanted(raw[name])}; {AGAIN}")


def with_rope(raw: dict[str, object], file: Path) -> dict[str, object]:
    """The fields with ``rope_theta`` where the two families have it: transformers 5 writes ``rope_parameters``."""
    raw = dict(raw)
    if (rope := raw.pop("rope_parameters", None)) is None:
        return raw
    known = {"rope_theta", "rope_type"}
    if not isinstance(rope, Mapping) or rope.keys() - known or rope.get("rope_type", "default") != "default":
        raise UserError(f"rope_parameters={reprlib.repr(rope)} in {file} is not supported; only rope_type 'default' is")
    if raw.setdefault("rope_theta", rope.get("rope_theta")) != rope.get("rope_theta"):
        raise UserError(f"{file} gives rope_theta in two places that differ; {AGAIN}")
    return raw


def check_unread(raw: Mapping[str, object], read: set[str], file: Path) -> None:
    """Refuse a field that is switched on and that nothing here reads: it may belong to another network."""
    for name in raw.keys() - read - IDLE:
        if raw[name] and not name.startswith("_") and not name.endswith("_version"):
            raise UserError(
                f"{name}={reprlib.repr(raw[name])} in {file} may change the network and is not supported; "
                "delete the field if it does not"
            )


def check_heads(config, file: Path) -> None:
    """Refuse a width that does not divide into heads, and heads that do not divide into groups."""
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads")
    width, heads, groups = (config.attribute_map.get(name, name) for name in names)
    wide, many, few = (getattr(config, name) for name in (width, heads, groups))
    if wide % (2 * many):  # a head is rotated by halves
        raise UserError(f"{width}={wide} in {file} must be a multiple of twice {heads}={many}; {AGAIN}")
    if many % (few or many):
        raise UserError(f"{heads}={many} in {file} must be a multiple of {groups}={few}; {AGAIN}")
