"""Checkpoints: the published layout at full size, loading, and what a damaged or foreign one is told."""

from __future__ import annotations

import errno
import json
import lzma
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

import jot
from jot import models, tasks
from jot.errors import unpacked
from jot.models import DreamConfig, DreamModel, LLaDAConfig, LLaDAModelLM, fingerprint, home
from jot.models.base import linear_to

CHECKPOINTS = Path(__file__).parent / "golden" / "checkpoints"
FAMILIES = ("llada", "dream")


@pytest.fixture
def copy(tmp_path):
    """A writable copy of a tiny checkpoint, by family."""

    def make(family):
        return Path(shutil.copytree(CHECKPOINTS / f"tiny-{family}", tmp_path / family))

    return make


def edit(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def test_llada_8b_has_the_published_tensors():
    with torch.device("meta"):
        model = LLaDAModelLM(LLaDAConfig())
    state = {name: list(value.shape) for name, value in model.state_dict().items()}
    block = {
        "attn_norm.weight": [4096], "q_proj.weight": [4096, 4096], "k_proj.weight": [4096, 4096],
        "v_proj.weight": [4096, 4096], "attn_out.weight": [4096, 4096], "ff_norm.weight": [4096],
        "ff_proj.weight": [12288, 4096], "up_proj.weight": [12288, 4096], "ff_out.weight": [4096, 12288],
    }  # fmt: skip
    expect = {f"model.transformer.blocks.{n}.{name}": shape for n in range(32) for name, shape in block.items()}
    expect |= {
        "model.transformer.wte.weight": [126464, 4096], "model.transformer.ln_f.weight": [4096],
        "model.transformer.ff_out.weight": [126464, 4096],
    }  # fmt: skip
    assert state == expect
    assert len(state) == 291
    assert sum(p.numel() for p in model.parameters()) == 8_015_581_184


def test_dream_7b_has_the_published_tensors():
    with torch.device("meta"):
        model = DreamModel(DreamConfig())
    state = {name: list(value.shape) for name, value in model.state_dict().items()}
    d, kv, mlp, rows = 3584, 512, 18944, 152064
    layer = {
        "input_layernorm.weight": [d], "post_attention_layernorm.weight": [d],
        "self_attn.q_proj.weight": [d, d], "self_attn.q_proj.bias": [d], "self_attn.k_proj.weight": [kv, d],
        "self_attn.k_proj.bias": [kv], "self_attn.v_proj.weight": [kv, d], "self_attn.v_proj.bias": [kv],
        "self_attn.o_proj.weight": [d, d], "mlp.gate_proj.weight": [mlp, d], "mlp.up_proj.weight": [mlp, d],
        "mlp.down_proj.weight": [d, mlp],
    }  # fmt: skip
    expect = {f"model.layers.{n}.{name}": shape for n in range(28) for name, shape in layer.items()}
    expect |= {"model.embed_tokens.weight": [rows, d], "model.norm.weight": [d], "lm_head.weight": [rows, d]}
    assert state == expect
    assert len(state) == 339
    per_layer = 2 * d + 2 * d * d + d + 2 * kv * (d + 1) + 3 * mlp * d
    assert sum(p.numel() for p in model.parameters()) == 28 * per_layer + 2 * rows * d + d


@pytest.mark.parametrize("family", FAMILIES)
def test_load_equals_a_fresh_model_with_the_same_weights(family):
    model = jot.load(CHECKPOINTS / f"tiny-{family}", device="cpu")
    fresh = type(model)(model.config)
    fresh.load_state_dict(load_file(CHECKPOINTS / f"tiny-{family}" / "model.safetensors"))
    ours, theirs = dict(model.named_buffers()), dict(fresh.named_buffers())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    ids = torch.randint(0, 299, (2, 20), generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(ids).logits, fresh.eval()(ids).logits)


@pytest.mark.parametrize(("family", "kind"), [("llada", "llada"), ("dream", "Dream")])
def test_registered_with_transformers(family, kind, tmp_path):
    folder = CHECKPOINTS / f"tiny-{family}"
    ours = jot.load(folder, device="cpu")
    assert type(AutoConfig.from_pretrained(folder, trust_remote_code=False)) is type(ours.config)
    auto = AutoModel.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    assert type(auto) is type(ours) and auto.config.model_type == kind
    ids = torch.arange(12)[None]
    assert torch.equal(auto(ids).logits, ours(ids).logits)
    auto.save_pretrained(tmp_path / "saved")
    again = jot.load(tmp_path / "saved", device="cpu", dtype="float32")
    assert torch.equal(again(ids).logits, ours(ids).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_never_changes_a_real_row(family):
    model = jot.load(CHECKPOINTS / f"tiny-{family}", device="cpu")
    generator = torch.Generator().manual_seed(1)
    row = torch.randint(0, 299, (1, 11), generator=generator)
    alone = model.hidden(row)
    mask = torch.tensor([[True] * 11 + [False] * 6])
    padded = [
        model.hidden(torch.cat((row, torch.randint(0, 299, (1, 6), generator=generator)), 1), mask)[:, :11]
        for _ in range(3)
    ]
    assert torch.equal(padded[0], padded[1]) and torch.equal(padded[0], padded[2])
    torch.testing.assert_close(padded[0], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_predict_gives_the_asked_rows(family):
    model = jot.load(CHECKPOINTS / f"tiny-{family}", device="cpu")
    ids = torch.randint(0, 299, (2, 9), generator=torch.Generator().manual_seed(2))
    slot, position = torch.tensor([0, 0, 1]), torch.tensor([0, 5, 8])
    logits = model(ids).logits
    source = position if family == "llada" else (position - 1).clamp_min(0)
    torch.testing.assert_close(model.predict(ids, None, slot, position), logits[slot, source])
    assert model.predict(ids, None, slot[:0], position[:0]).shape == (0, 320)


def test_logits_leave_a_bfloat16_head_in_float32():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 64, generator=generator).bfloat16()
    weight = torch.randn(9000, 64, generator=generator).bfloat16()
    exact = x.double() @ weight.double().T
    out = linear_to(x, weight, torch.float32)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-4)
    assert linear_to(x, weight, torch.bfloat16).dtype == torch.bfloat16
    wide = linear_to(x, weight, torch.float64)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide, exact, rtol=1e-5, atol=1e-4)


def test_sharded_folder_loads(copy):
    folder = copy("llada")
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    save_file({n: tensors[n] for n in names[::2]}, folder / "model-00001-of-00002.safetensors")
    save_file({n: tensors[n] for n in names[1::2]}, folder / "model-00002-of-00002.safetensors")
    (folder / "model.safetensors").unlink()
    ids = torch.arange(10)[None]
    whole = jot.load(CHECKPOINTS / "tiny-llada", device="cpu")
    assert torch.equal(jot.load(folder, device="cpu")(ids).logits, whole(ids).logits)


def test_an_index_names_what_is_read(copy):
    """A stale shard of the same tensors, and files that are no part of the model, lie beside what it names."""
    folder = copy("llada")
    tensors = load_file(folder / "model.safetensors")
    names, whole = sorted(tensors), jot.load(CHECKPOINTS / "tiny-llada", device="cpu")
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, part in shards.items():
        save_file({n: tensors[n] for n in part}, folder / shard)
    stale = {n: torch.zeros_like(t) for n, t in tensors.items()}
    save_file(stale, folder / "model-00003-of-00003.safetensors")
    save_file(stale, folder / "model.safetensors")
    save_file({"lora_A.weight": torch.ones(2)}, folder / "adapter_model.safetensors")
    save_file({"tok_embeddings.weight": torch.ones(2)}, folder / "consolidated.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: shard for shard, part in shards.items() for n in part}}))
    ids, model = torch.arange(10)[None], jot.load(folder, device="cpu")
    assert torch.equal(model(ids).logits, whole(ids).logits)
    (folder / "model-00003-of-00003.safetensors").unlink()
    assert jot.load(folder, device="cpu").fingerprint == model.fingerprint
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused("names model-00002-of-00002.safetensors, which is not there", folder)
    for content in ("{", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {"x": 5}}'):
        index.write_text(content)
        refused("is no index of weights", folder)


def test_files_without_an_index(copy):
    folder = copy("llada")
    tensors = load_file(folder / "model.safetensors")
    whole, ids = jot.load(CHECKPOINTS / "tiny-llada", device="cpu"), torch.arange(10)[None]
    save_file({"lora_A.weight": torch.ones(2)}, folder / "adapter_model.safetensors")
    save_file({n: torch.zeros_like(t) for n, t in tensors.items()}, folder / "model-00001-of-00001.safetensors")
    assert torch.equal(jot.load(folder, device="cpu")(ids).logits, whole(ids).logits)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    refused("is in .* and in another file of .*; remove the stale one", folder)


@pytest.mark.parametrize("whole", [True, False])
def test_a_fingerprint_reads_every_byte(copy, whole, monkeypatch):
    """Also where weights are large: a checkpoint that differs in its middle alone is another one."""
    monkeypatch.setattr(models, "HASHED_WHOLE", 1 << 30 if whole else 0)
    folder = copy("llada")
    before = models.fingerprint(folder)
    assert models.fingerprint(folder) == before
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert models.fingerprint(folder) != before


def refused(words, *args, **kwargs):
    with pytest.raises(jot.UserError, match=words) as error:
        jot.load(*args, **{"device": "cpu", **kwargs})
    assert "\n" not in str(error.value)


def test_unknown_names():
    refused("did you mean 'pocket-dream'", "pocket-draem")
    refused("unknown model 'nothing'; beside local folders and hub ids, known are pocket-llada", "nothing")
    refused("no revisions", CHECKPOINTS / "tiny-llada", revision="main")
    refused("unknown dtype", CHECKPOINTS / "tiny-llada", dtype="int4")
    refused("unknown device", CHECKPOINTS / "tiny-llada", device="gpu0")
    if not torch.cuda.is_available():
        refused("is not there", CHECKPOINTS / "tiny-llada", device="cuda")


@pytest.mark.parametrize("device", ["mps", "xla", "meta", "vulkan", "cpu:99", "xpu", "mkldnn"])
@pytest.mark.filterwarnings("ignore:'mkldnn' is no longer used")
def test_devices_that_cannot_compute_here(device, monkeypatch):
    """Said before the weights are read, and not blamed on them."""
    if device == "mps" and torch.backends.mps.is_available() or device == "xpu" and torch.xpu.is_available():
        pytest.skip("it is there")
    monkeypatch.setattr(models, "_read_tensors", lambda *_: pytest.fail("the weights were read"))
    for asked in (device, torch.device(device)):
        refused(
            f"device '{device}' is not usable here; use cpu, cuda or cuda:N", CHECKPOINTS / "tiny-llada", device=asked
        )
    refused("unknown device", CHECKPOINTS / "tiny-llada", device=["cpu"])


def test_the_cpu_by_its_number():
    assert jot.load(CHECKPOINTS / "tiny-llada", device="cpu:0").device == torch.device("cpu")


def test_hub_that_cannot_be_reached(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused("cannot get 'someone/absent-model'", "someone/absent-model", revision="abc")


def test_missing_extra_and_misshapen_tensors(copy):
    folder = copy("llada")
    tensors = load_file(folder / "model.safetensors")
    lost = tensors.pop("model.transformer.ln_f.weight")
    save_file(tensors, folder / "model.safetensors")
    refused("lack model.transformer.ln_f.weight", folder)
    name = "model.transformer.ln_f.weight"
    save_file({**tensors, name: lost, "stray.weight": lost.clone()}, folder / "model.safetensors")
    refused("stray.weight", folder)
    save_file({**tensors, name: lost[:8].clone()}, folder / "model.safetensors")
    refused("shape", folder)


def test_damaged_files(copy):
    folder = copy("dream")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refused("cut short or damaged", folder)
    (folder / "model.safetensors").unlink()
    refused("no .safetensors", folder)
    (folder / "config.json").write_text("{")
    refused("not readable JSON", folder)
    (folder / "config.json").unlink()
    refused("no config.json", folder)


@pytest.mark.parametrize("mask", [None, 320, 300, -1])
def test_wrong_mask_id(copy, mask):
    folder = copy("llada")
    edit(folder, mask_token_id=mask)
    refused("mask_token_id", folder)


def test_foreign_architectures(copy):
    folder = copy("llada")
    edit(folder, model_type="llama")
    refused("model_type 'llama'", folder)
    edit(folder, model_type="llada", block_type="sequential")
    refused("block_type", folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", r"config.json must be a mapping of fields, not \[\]; fetch the checkpoint again"),
        ("null", "must be a mapping of fields, not None"), ("5", "must be a mapping of fields, not 5"),
        ("[" * 200_000, "not readable JSON"), (b"\xff", "not readable JSON"),
        ('{"model_type": ["llada"]}', r"model_type \['llada'\] in"), ('{"model_type": null}', "model_type None in"),
        ("{}", "model_type None in"),
    ],
)  # fmt: skip
def test_a_config_of_another_shape(copy, content, words):
    folder = copy("llada")
    (folder / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(words, folder)


WRONG = {
    "llada": [
        ("d_model", "x"), ("d_model", 0), ("n_heads", "x"), ("n_heads", 0), ("n_heads", 2.0), ("n_heads", True),
        ("n_kv_heads", "x"), ("n_kv_heads", 0), ("n_layers", 10**12), ("n_layers", 0), ("n_layers", None),
        ("mlp_hidden_size", []), ("mlp_hidden_size", 10**12), ("embedding_size", "x"), ("embedding_size", -1),
        ("vocab_size", {}), ("max_sequence_length", None), ("max_sequence_length", "x"), ("include_qkv_bias", "x"),
    ],
    "dream": [
        ("hidden_size", "x"), ("num_attention_heads", "x"), ("num_attention_heads", 0), ("num_key_value_heads", None),
        ("num_key_value_heads", 0), ("num_hidden_layers", 10**12), ("intermediate_size", "x"), ("vocab_size", "x"),
        ("vocab_size", 10**12), ("max_position_embeddings", None), ("initializer_range", -1),
    ],
}  # fmt: skip
EITHER = [
    ("eos_token_id", "x"), ("eos_token_id", [1]), ("mask_token_id", "x"), ("mask_token_id", 1.5), ("pad_token_id", "x"),
    ("bos_token_id", True), ("rope_theta", "x"), ("rope_theta", 0), ("rope_theta", float("nan")), ("rope_theta", None),
    ("rope_theta", float("inf")), ("rms_norm_eps", "x"), ("rms_norm_eps", -1), ("rms_norm_eps", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "field", "value"), [(family, *case) for family in FAMILIES for case in (*WRONG[family], *EITHER)]
)
def test_a_field_of_the_wrong_type_or_range(copy, family, field, value):
    folder = copy(family)
    edit(folder, **{field: value})
    refused(rf"^{field}=.* in .*config.json must be .*; fetch the checkpoint again$", folder)


def test_the_sentence_on_a_field(copy):
    folder = copy("llada")
    edit(folder, n_heads="x")
    refused("n_heads='x' in .*/config.json must be a whole number, at least 1; fetch the checkpoint again", folder)
    edit(folder, n_heads=2, n_layers=10**12)
    refused("n_layers=1000000000000 in .*/config.json must be a whole number, at most 1000; fetch", folder)


@pytest.mark.parametrize(("family", "width", "heads", "groups"), [
    ("llada", "d_model", "n_heads", "n_kv_heads"),
    ("dream", "hidden_size", "num_attention_heads", "num_key_value_heads"),
])  # fmt: skip
def test_heads_that_do_not_divide(copy, family, width, heads, groups):
    folder = copy(family)
    wide = json.loads((folder / "config.json").read_text())[width]
    for many in (3, wide, 2 * wide):  # a head of one number cannot be rotated
        edit(folder, **{heads: many, groups: 1})
        refused(f"{width}={wide} in .* must be a multiple of twice {heads}={many}", folder)
    edit(folder, **{heads: 4, groups: 3})
    refused(f"{heads}=4 in .* must be a multiple of {groups}=3", folder)


def test_fields_of_transformers_own(copy):
    folder = copy("llada")
    edit(folder, id2label=5)
    refused("config.json cannot be used", folder)
    edit(folder, id2label=None, num_labels=10**12, attn_implementation="x", _attn_implementation=5, init_fn="x")
    assert jot.load(folder, device="cpu").name == str(folder)  # these are of no use here


@pytest.mark.parametrize("family", FAMILIES)
def test_tokenizer_that_does_not_fit(copy, family):
    folder = copy(family)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home() / "data" / "models" / "pocket-llada" / name, folder / name)
    refused("2048 entries but the model only 320", folder)
    (folder / "tokenizer.json").write_text("{")
    refused("tokenizer", folder)


def as_published(folder, vocab_of_all=True):
    """The packaged Dream model with the tokenizer's files of Dream-7B, whose own code must never run."""
    shutil.copytree(home() / "data" / "models" / "pocket-dream", folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    vocab = {token: i for token, i in model["vocab"].items() if vocab_of_all or i < 2040}
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (folder / "tokenizer.json").unlink()
    file = folder / "tokenizer_config.json"
    own = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    (folder / "tokenization_dream.py").write_text("raise SystemExit('code of a checkpoint was run')")
    return folder


@pytest.mark.parametrize("vocab_of_all", [True, False])
def test_dream_as_published(tmp_path, monkeypatch, capsys, vocab_of_all):
    from pocket.prompts import prompt_text

    from jot.tasks import read_jsonl

    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    folder, packaged = as_published(tmp_path / "dream", vocab_of_all), jot.load("pocket-dream", device="cpu")
    loaded = jot.load(folder, device="cpu")
    assert capsys.readouterr().out == ""
    ours, its = loaded.tokenizer, packaged.tokenizer
    assert type(ours).__name__ == "Qwen2Tokenizer" and len(ours) == len(its)
    for task in ("pocket_gsm8k", "pocket_mmlu", "pocket_hellaswag"):
        docs = read_jsonl(home() / "data" / "tasks" / task / "dev.jsonl.xz")[:100]
        for text in (prompt_text(task, doc) for doc in docs):
            turns = [{"role": "user", "content": text}]
            ids = its.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
            assert ours.apply_chat_template(turns, add_generation_prompt=True)["input_ids"] == ids
            assert ours.decode(ids) == its.decode(ids)
    special = ("mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
    assert [getattr(ours, name) for name in special] == [getattr(its, name) for name in special]


def test_a_tokenizer_s_own_class_is_not_asked_for(tmp_path):
    folder = as_published(tmp_path / "dream")
    shutil.copy(home() / "data" / "models" / "pocket-dream" / "tokenizer.json", folder)
    assert len(jot.load(folder, device="cpu").tokenizer) == 2048
    for name in ("tokenizer.json", "merges.txt"):
        (folder / name).unlink()
    refused("the tokenizer in .* cannot be read .there is neither tokenizer.json nor vocab.json with merges", folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_rope_as_transformers_5_writes_it(copy, family):
    folder = copy(family)
    edit(folder, rope_theta=20.0)
    ids, asked = torch.arange(12)[None], jot.load(folder, device="cpu")
    config = json.loads((folder / "config.json").read_text())
    del config["rope_theta"]
    nested = {"rope_theta": 20.0, "rope_type": "default"}
    (folder / "config.json").write_text(json.dumps(config | {"rope_parameters": nested}))
    model = jot.load(folder, device="cpu")
    assert model.config.rope_theta == 20.0 and torch.equal(model(ids).logits, asked(ids).logits)
    for wrong in ({**nested, "rope_type": "yarn"}, {**nested, "factor": 4.0}, 5):
        edit(folder, rope_parameters=wrong)
        refused("rope_parameters=.* is not supported; only rope_type 'default' is", folder)
    edit(folder, rope_parameters={"rope_type": "default"})
    refused("rope_theta=None in", folder)
    edit(folder, rope_parameters=nested, rope_theta=10.0)
    refused("rope_theta in two places that differ", folder)


@pytest.mark.parametrize(("family", "field", "value"), [
    ("llada", "alibi", True), ("llada", "rope_full_precision", False), ("llada", "multi_query_attention", True),
    ("llada", "layer_norm_with_affine", False), ("llada", "clip_qkv", 8.0), ("llada", "tie_word_embeddings", True),
    ("llada", "rope_scaling", {"rope_type": "linear", "factor": 2.0}), ("dream", "rope_scaling", {"factor": 2.0}),
    ("dream", "head_dim", 8), ("dream", "partial_rotary_factor", 0.5), ("dream", "use_sliding_window", True),
    ("dream", "attention_bias", True), ("dream", "quantization_config", {"bits": 4}), ("dream", "num_experts", 64),
])  # fmt: skip
def test_no_field_that_changes_the_network_is_passed_over(copy, family, field, value):
    folder = copy(family)
    edit(folder, **{field: value})
    refused(f"{field}=.* in .*config.json .*is not supported", folder)


def test_llada_moe_is_another_network(copy):
    folder = copy("llada")
    edit(folder, architectures=["LLaDAMoEModelLM"], num_experts=64)
    refused(r"architectures=\['LLaDAMoEModelLM'\] in .* is not supported; only 'LLaDAModelLM' is", folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_embedded_pair(family):
    model = jot.load(f"pocket-{family}", device="cpu")
    assert sum(p.numel() for p in model.parameters()) <= 5_000_000
    assert model.dtype == torch.float32
    weights = unpacked(home() / "data" / "models" / f"pocket-{family}" / "model.safetensors")
    assert weights.stat().st_size <= 10 * 2**20
    assert model.tokenizer.mask_token_id == model.mask_id
    assert AutoTokenizer.from_pretrained(home() / "data" / "models" / f"pocket-{family}").eos_token_id == model.eos_id


def test_weights_are_unpacked_at_the_first_use(copy, tmp_path, monkeypatch):
    folder = copy("llada")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weights, packed = folder / "model.safetensors", folder / "model.safetensors.xz"
    content, known = weights.read_bytes(), fingerprint(folder)
    packed.write_bytes(lzma.compress(content))
    assert unpacked(weights) == weights and not (tmp_path / "cache").exists()  # one's own file comes first
    weights.unlink()
    for _ in range(2):
        assert fingerprint(folder) == known and unpacked(weights).read_bytes() == content
    assert not weights.exists() and len(list((tmp_path / "cache").rglob("*.*"))) == 1

    before, other = unpacked(weights), bytearray(content)
    other[-1] ^= 1
    packed.write_bytes(lzma.compress(bytes(other)))  # as another commit brings it
    os.utime(packed, (0, 0))
    assert unpacked(weights).read_bytes() == other and before.read_bytes() == content
    before = unpacked(weights)
    before.write_bytes(content[:-9])
    refused("cut short or damaged .*; delete it, and it is made again", folder)
    before.unlink()
    assert jot.load(folder, device="cpu").name == str(folder)

    packed.write_bytes(packed.read_bytes()[:-9])
    refused("model.safetensors.xz is cut short or damaged .*; check it out again", folder)
    packed.write_bytes(lzma.compress(content))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    refused("cannot unpack .*model.safetensors.xz to .*; make room or permit it", folder)
    monkeypatch.setitem(sys.modules, "lzma", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    refused("this Python was built without lzma", folder)
    with pytest.raises(jot.UserError, match="^this Python was built without lzma"):
        tasks.read_jsonl(packed)


def test_a_full_disk_leaves_no_part_of_the_weights(copy, tmp_path, monkeypatch):
    folder = copy("llada")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weights = folder / "model.safetensors"
    (folder / "model.safetensors.xz").write_bytes(lzma.compress(weights.read_bytes()))
    weights.unlink()

    def full(path, content):
        path.write_text("part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    refused("No space left on device.; make room", folder)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
