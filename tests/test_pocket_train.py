"""Training of the embedded pair: noise and its weights, optimizer, rows, shards, and runs that are cut off."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import asdict, replace

import numpy as np
import pytest
import tiny
import torch
from pocket import rows, splits, stream, train
from pocket.muon import Muon, orthogonalize
from pocket.prompts import prompt_text
from pocket.recipe import SIZES, Recipe, network
from pocket.tokenizer import ASSISTANT, EOS, LENGTHS, MASK, USER, encode_batch
from safetensors.torch import load_file

import jot
from jot.errors import unpacked
from jot.models import FAMILIES, home

TINY = Recipe(steps=5, batch_compact=2, batch_long=2, batch_choice=2, warmup=2, shard=1)
NAMES = {
    "llada": {
        "model.transformer.wte.weight", "model.transformer.ln_f.weight", "model.transformer.ff_out.weight",
        *(f"model.transformer.blocks.0.{part}.weight" for part in (
            "attn_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_norm", "ff_proj", "up_proj", "ff_out")),
    },
    "dream": {
        "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
        *(f"model.layers.0.{part}.weight" for part in (
            "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
            "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")),
        *(f"model.layers.0.self_attn.{part}.bias" for part in ("q_proj", "k_proj", "v_proj")),
    },
}  # fmt: skip


def tiny_network(family: str):
    config_class, model_class, _ = FAMILIES[tiny.CONFIGS[family]["model_type"]]
    return model_class(config_class(**{k: v for k, v in tiny.CONFIGS[family].items() if k != "model_type"}))


@pytest.fixture(scope="module")
def tok():
    stream._init_worker()
    return stream._STATE["tokenizer"]


def documents(task: str, count: int, tok) -> list[dict]:
    """Training documents that are not too long for their task."""
    docs = list(itertools.islice(splits.train_stream(task, seed=7), count))
    return [doc for doc, pair in zip(docs, encode_batch(task, docs, tok), strict=True) if pair is not None]


# ---- noise -------------------------------------------------------------------------------------------------


def shard_of(counts: list[int], before: int = 2, width: int = 14) -> dict[str, torch.Tensor]:
    """Rows with ``counts[i]`` maskable tokens that start at position ``before``; the rest is padding."""
    total = len(counts)
    place = torch.arange(width)
    end = torch.tensor(counts)[:, None] + before
    canvas = torch.randint(0, 2000, (total, width), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    return {"canvas": canvas, "maskable": (place >= before) & (place < end), "length": end[:, 0].to(torch.int16)}


def corrupt(shard, everything=0.0, seed=0, leading=0.0, tail=1.0, end=-1):
    noise = torch.Generator().manual_seed(seed), leading, tail, end
    return train.corrupt(shard, torch.arange(len(shard["length"])), MASK, everything, *noise)


def test_only_maskable_tokens_are_masked():
    counts = [1, 2, 5, 9, 12] * 40
    shard = shard_of(counts)
    noisy, seen, row, position, target, weight = corrupt(shard)
    hidden = noisy == MASK
    assert not (hidden & ~shard["maskable"]).any()
    assert torch.equal(noisy[~hidden], shard["canvas"].long()[~hidden])
    assert torch.equal(torch.stack((row, position)), torch.stack(hidden.nonzero(as_tuple=True)))
    assert torch.equal(target, shard["canvas"].long()[hidden])
    assert torch.equal(seen.sum(1), shard["length"].long()) and seen[:, 0].all()
    masked = hidden.sum(1)
    assert (masked >= 1).all() and (masked <= torch.tensor(counts)).all()
    torch.testing.assert_close(weight, 1 / (masked[row] * len(counts)))


def test_rows_without_padding_need_no_key_mask():
    assert corrupt(shard_of([12] * 8))[1] is None


def test_the_number_of_masked_tokens_is_uniform_and_so_is_their_choice():
    rows_, n = 6000, 4
    noisy = corrupt(shard_of([n] * rows_))[0]
    hidden = (noisy == MASK)[:, 2 : 2 + n]
    counts = torch.bincount(hidden.sum(1), minlength=n + 1)
    assert counts[0] == 0 and (counts[1:] - rows_ / n).abs().max() <= 1  # the levels are stratified over a batch
    for k in range(1, n):
        chosen = hidden[hidden.sum(1) == k]
        codes = torch.bincount((chosen * 2 ** torch.arange(n)).sum(1), minlength=2**n)
        seen = codes[[code for code in range(2**n) if code.bit_count() == k]].double()
        expected = len(chosen) / math.comb(n, k)
        assert ((seen - expected).abs() < 4.5 * expected**0.5).all()


def test_everything_masks_all():
    shard = shard_of([3, 7, 12] * 5)
    noisy, _, row, _, _, weight = corrupt(shard, everything=1.0)
    assert torch.equal(noisy == MASK, shard["maskable"])
    torch.testing.assert_close(weight, 1 / (15 * shard["maskable"].sum(1)[row].float()))
    share = (corrupt(shard_of([10] * 4000), everything=0.5)[0] == MASK).sum(1).eq(10).float().mean()
    assert abs(share - 0.55) < 0.03  # half of the rows, and a tenth of the others


def test_leading_rows_are_hidden_from_a_place_on_and_asked_there():
    n, total = 90, 4000
    shard = shard_of([n] * total, width=100)
    noisy, _, row, position, target, weight = corrupt(shard, leading=0.25)
    hidden, asked = noisy == MASK, torch.zeros_like(shard["maskable"])
    asked[row, position] = True
    assert not (asked & ~hidden).any() and torch.equal(target, shard["canvas"].long()[asked])
    assert not (hidden & ~shard["maskable"]).any()
    other = (asked != hidden).any(1)  # those with something hidden that is not asked for
    for i in other.nonzero().flatten():
        start = int(hidden[i].nonzero()[0]) - 2  # nothing before is hidden; the window may begin a little earlier
        last = int(asked[i].nonzero()[-1]) - 2
        assert last < start + train.WINDOW and hidden[i, 2 + start + train.WINDOW : 2 + n].all()
    # a row that begins within the last 64 of 90 places asks for all that it hides
    assert 0.25 * total * (n - train.WINDOW) / n == pytest.approx(int(other.sum()), rel=0.1)
    torch.testing.assert_close(weight, 1 / (asked.sum(1)[row] * total))
    torch.testing.assert_close(weight.sum(), torch.tensor(1.0))
    noisy, _, row, position, _, _ = corrupt(shard, everything=1.0, leading=1.0)  # all of it at once
    hidden, asked = noisy == MASK, torch.zeros_like(shard["maskable"])
    asked[row, position] = True
    start = hidden.float().argmax(1)
    assert torch.equal(hidden, shard["maskable"] & (torch.arange(100) >= start[:, None]))
    assert torch.equal(asked, hidden & (torch.arange(100) < start[:, None] + train.WINDOW))


@pytest.mark.parametrize("leading", [0.0, 0.5])
def test_of_a_tail_a_share_is_asked_for(leading):
    shard, end = shard_of([12] * 400), 1999
    shard["canvas"][shard["canvas"] == end] = 0
    shard["canvas"][:, 9:14] = end
    whole, found = corrupt(shard, leading=leading), corrupt(shard, leading=leading, tail=0.0, end=end)
    assert torch.equal(whole[0], found[0])  # what is hidden does not change
    kept = whole[3] < 10
    assert 0 < kept.sum() < len(kept) and all(
        torch.equal(all_[kept], some) for all_, some in zip(whole[2:5], found[2:5], strict=True)
    )
    some = corrupt(shard, leading=leading, tail=0.25, end=end)
    assert (some[3] < 10).sum() == kept.sum()  # the answer and its first end
    assert (some[3] >= 10).sum() == pytest.approx(0.25 * int((~kept).sum()), rel=0.2)
    torch.testing.assert_close(found[5], 1 / (torch.bincount(found[2], minlength=400)[found[2]] * 400))


def test_the_estimator_has_the_expectation_of_the_diffusion_objective():
    """The loss of every masked set of three tokens is a table; eq. 3 of the paper is summed and integrated exactly."""
    n, total = 3, 30_000
    table = np.random.default_rng(0).uniform(0.5, 2.0, (2**n, n))  # [masked set as bits, token]
    nodes, weights = np.polynomial.legendre.leggauss(8)
    exact = 0.0
    for level, w in zip((nodes + 1) / 2, weights / 2, strict=True):
        for bits in range(1, 2**n):
            k = bits.bit_count()
            loss = sum(table[bits, i] for i in range(n) if bits >> i & 1)
            exact += w * level**k * (1 - level) ** (n - k) * loss / level
    noisy, _, row, position, _, weight = corrupt(shard_of([n] * total))
    bits = ((noisy == MASK)[:, 2 : 2 + n] * 2 ** torch.arange(n)).sum(1)
    loss = torch.from_numpy(table)[bits[row], position - 2]
    by_row = torch.zeros(total, dtype=torch.float64).index_add_(0, row, loss * weight * total)
    assert abs(by_row.mean() - exact / n) < 4 * by_row.std() / total**0.5


def test_pad_gives_one_size_and_leaves_loss_and_gradients_alone():
    torch.manual_seed(0)
    model = tiny_network("llada")
    batch = corrupt(shard_of([5, 9, 12]))
    count = len(batch[2])

    def backward(chosen):
        model.zero_grad()
        loss = train.diffusion_loss(model, *chosen)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters())]

    longer, shorter = train.pad(batch, count + 7), train.pad(batch, count - 4)
    assert {len(part) for part in longer[2:]} == {count + 7} and {len(part) for part in shorter[2:]} == {count - 4}
    assert (longer[-1][-7:] == 0).all() and set(longer[2][-7:].tolist()) == {0, 1, 2}
    assert all(torch.equal(a, b[: count - 4]) for a, b in zip(shorter[2:], batch[2:], strict=True))
    torch.testing.assert_close(backward(longer), backward(batch))


# ---- optimizer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(48, 32), (32, 48), (40, 40)])
def test_orthogonalized_singular_values(shape):
    torch.manual_seed(0)
    x = torch.randn(3, *shape)
    u, values, v = torch.linalg.svd(x, full_matrices=False)
    x = u @ torch.diag_embed(torch.linspace(1, 0.05, values.shape[1]).expand_as(values)) @ v
    y = orthogonalize(x).float()
    found = torch.linalg.svdvals(y)
    assert y.shape == x.shape and found.min() > 0.6 and found.max() < 1.3
    inner = u.mT @ y @ v.mT  # the singular vectors stay
    assert (inner - torch.diag_embed(inner.diagonal(dim1=1, dim2=2))).abs().max() < 0.05


def test_muon_steps_as_torch_does():
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in ((24, 16), (16, 24), (24, 16), (16, 16))]
    ours, theirs = ([torch.nn.Parameter(p.clone()) for p in start] for _ in range(2))
    settings = dict(lr=0.01, weight_decay=0.05)
    pair = [Muon(ours, **settings), torch.optim.Muon(theirs, **settings, adjust_lr_fn="match_rms_adamw")]
    for _ in range(3):
        grads = [torch.randn_like(p) for p in start]
        for params, opt in zip((ours, theirs), pair, strict=True):
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad.clone()
            opt.step()
    for a, b, p in zip(ours, theirs, start, strict=True):
        assert ((a - b).norm() / (b - p).norm()).item() < 0.1  # two ways of rounding to bfloat16


def test_every_parameter_has_one_optimizer_and_the_rate_falls():
    recipe = replace(TINY, steps=1000, warmup=10)
    for family in tiny.CONFIGS:
        model = tiny_network(family)
        held = [p for opt in train.optimizers(model, recipe) for group in opt.param_groups for p in group["params"]]
        assert sorted(map(id, held)) == sorted(map(id, model.parameters()))
    rates = [train.rate(recipe, step) for step in range(1000)]
    assert rates[0] == pytest.approx(recipe.lr / 10, rel=0.01) and max(rates) == pytest.approx(recipe.lr, rel=0.01)
    assert rates[-1] == pytest.approx(recipe.lr / 100, rel=0.01) and np.all(np.diff(rates[10:]) < 0)


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_the_loss_of_a_repeated_batch_falls(family):
    torch.manual_seed(0)
    model = tiny_network(family)
    opts = train.optimizers(model, replace(TINY, lr=0.01))
    batch = corrupt(shard_of([12] * 8))
    losses = []
    for _ in range(30):
        loss = train.diffusion_loss(model, *batch)
        losses.append(loss.item())
        for opt in opts:
            opt.zero_grad()
        loss.backward()
        for opt in opts:
            opt.step()
    assert losses[0] == pytest.approx(math.log(2048), abs=0.3) and losses[-1] < 0.5 * losses[0]


# ---- rows and shards ---------------------------------------------------------------------------------------


def test_generative_rows_fill_their_canvas(tok):
    docs = documents("pocket_gsm8k", 120, tok)
    pairs = encode_batch("pocket_gsm8k", docs, tok)
    bare = [(prompt, response[: response.index(EOS)]) for prompt, response in pairs]
    short = [len(p) + len(r) < 128 for p, r in bare]
    assert 0 < sum(short) < len(short)

    def made(group, keep):
        return list(rows.generative("pocket_gsm8k", docs, tok, group, keep, random.Random(0)))

    for group, keep, wanted in (("compact", 0.0, short), ("long", 0.0, [not s for s in short]), ("long", 1.0, None)):
        chosen = [pair for i, pair in enumerate(bare) if wanted is None or wanted[i]]
        width = rows.WIDTHS[group]
        chosen = [(p, r) for p, r in chosen if len(p) + len(r) < width]
        for row, (prompt, response) in zip(made(group, keep), chosen, strict=True):
            assert prompt[0] == USER and prompt[-1] == ASSISTANT
            assert row.ids == prompt + response + [EOS] * (width - len(prompt) - len(response))
            assert row.maskable == list(range(len(prompt), width)) and row.ids[-1] == EOS


def test_prose_rows_have_a_prefix_and_no_end(tok):
    for row in rows.generative("pocket_prose", documents("pocket_prose", 3, tok), tok, "long", 0.0, None):
        assert len(row.ids) == rows.WIDTHS["long"] and row.maskable == list(range(64, 192)) and EOS not in row.ids


@pytest.mark.parametrize("task", ["pocket_mmlu", "pocket_hellaswag"])
def test_choice_and_verdict_rows(task, tok):
    docs = documents(task, 200, tok)
    length, field = LENGTHS[task], "answer" if task == "pocket_mmlu" else "label"
    options = "choices" if task == "pocket_mmlu" else "endings"
    letters = [tok(f" {letter}", add_special_tokens=False)["input_ids"] for letter in "ABCD"]
    assert all(len(ids) == 1 for ids in letters)
    for doc, row in zip(docs, rows.choice(task, docs, tok), strict=True):
        assert row.ids[row.maskable[0] :] == letters[doc[field]] + [EOS] * (length - 1)
        assert len(row.maskable) == length and row.ids[row.maskable[0] - 1] == ASSISTANT

    made = list(rows.verdicts(task, docs, tok, random.Random(0)))
    carried = []
    for doc, row in zip(docs, made, strict=True):
        start = len(row.ids) - length
        marks = [i for i, token in enumerate(row.ids) if token in (rows.RIGHT, rows.WRONG)]
        assert row.maskable == marks + list(range(start, len(row.ids)))
        assert row.ids[start:] == letters[doc[field]] + [EOS] * (length - 1) and row.ids[start - 1] == ASSISTANT
        for place in marks:  # behind an option's text, and it says whether that option is right
            text = tok.decode([token for token in row.ids[1:place] if token not in (rows.RIGHT, rows.WRONG)])
            i = "ABCD".index(text[text.rindex("\n") + 1])
            assert text.endswith(f"\n{'ABCD'[i]}. {doc[options][i]}")
            assert (row.ids[place] == rows.RIGHT) == (i == doc[field])
        plain = [token for token in row.ids[1 : start - 1] if token not in (rows.RIGHT, rows.WRONG)]
        assert tok.decode(plain) == prompt_text(task, doc)
        carried.append(len(marks))
    assert {0, 1, 2, 3, 4} <= set(carried)


def prompts_of(shard: dict[str, np.ndarray], tok) -> list[str]:
    """Prompt texts of a shard's rows, verdicts left out; rows of prose have none."""
    found = []
    for ids in shard["canvas"].tolist():
        if ids[0] == USER:
            kept = [token for token in ids[1 : ids.index(ASSISTANT)] if token < EOS]
            found.append(tok.decode(kept))
    return found


def test_shards_depend_on_seed_index_and_group_alone(tok):
    recipe = Recipe(batch_compact=20, batch_long=20, batch_choice=20, shard=2)
    jobs = {
        "compact": (recipe, 3, "compact"), "long": (recipe, 3, "long"), "choice": (recipe, 3, "choice"),
        "index": (recipe, 4, "compact"), "seed": (replace(recipe, seed=1), 3, "compact"),
    }  # fmt: skip
    made = {name: stream.make_shard(job) for name, job in jobs.items()}
    again = stream.make_shard((replace(recipe, family="dream", lr=1.0), 3, "compact"))
    assert all(np.array_equal(again[key], made["compact"][key]) for key in again)
    texts = {name: set(prompts_of(shard, tok)) for name, shard in made.items()}
    for one, other in itertools.combinations(texts, 2):
        assert len(texts[one] & texts[other]) <= 1
    for name, shard in made.items():
        width = rows.WIDTHS["compact" if name in ("index", "seed") else name]
        assert shard["canvas"].shape == shard["maskable"].shape == (40, width)
        assert (shard["length"] <= width).all() and shard["maskable"].any(1).all()
        assert not (shard["maskable"] & (np.arange(width) >= shard["length"][:, None])).any()

    held = {
        prompt_text(task, doc)
        for task in LENGTHS if task != "pocket_prose"
        for split in ("dev", "test")
        for doc in splits.read_split(task, split)
    }  # fmt: skip
    assert not held & set().union(*texts.values())


def test_a_held_out_prompt_never_enters_a_shard(tok, monkeypatch):
    job = (
        Recipe(batch_choice=10, shard=2, mix_choice="pocket_hellaswag:0.5,pocket_hellaswag+verdicts:0.5"),
        0,
        "choice",
    )
    texts = prompts_of(stream.make_shard(job), tok)
    monkeypatch.setattr(splits, "held_out", lambda task: frozenset(map(splits.key, texts[:5])))
    assert not set(texts[:5]) & set(prompts_of(stream.make_shard(job), tok))


# ---- whole runs --------------------------------------------------------------------------------------------


def run(recipe: Recipe, out, **settings):
    settings = dict(device="cpu", workers=0, evaluations=1, dev_limit=2, tasks=("pocket_mmlu",)) | settings
    train.train(replace(recipe), out, **settings)


class Cut(Exception):
    """The run is cut off."""


def cut_off(monkeypatch, recipe: Recipe, out, at: int) -> None:
    """Train with snapshots at every chance until the run dies at step ``at``."""
    rate = train.rate

    def dying(recipe, step):
        if step == at:
            raise Cut
        return rate(recipe, step)

    with monkeypatch.context() as patched, pytest.raises(Cut):
        patched.setattr(train, "rate", dying)
        run(recipe, out, snapshot_every=0.0)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(Recipe, "network", lambda self: tiny_network(self.family))


def test_a_run_that_diverges_ends_before_its_snapshot_is_lost(small, monkeypatch, tmp_path):
    loss = train.diffusion_loss
    monkeypatch.setattr(train, "diffusion_loss", lambda *given: loss(*given) * torch.nan)
    monkeypatch.setattr(train, "LOGGED", 2)
    with pytest.raises(SystemExit, match="llada 0 diverged by step 2; .*lr"):
        run(TINY, tmp_path, snapshot_every=0.0, evaluations=0)


def test_the_sizes_keep_the_proportions():
    for (size, (hidden, _, heads)), low in zip(SIZES.items(), (0.8, 2, 4.5, 9, 18), strict=True):
        models = [Recipe(family=family, size=size).network() for family in tiny.CONFIGS]
        counts = [sum(p.numel() for p in model.parameters()) / 1e6 for model in models]
        assert all(low < count < 1.3 * low for count in counts), (size, counts)
        assert hidden % (8 * heads) == 0 and heads % 2 == 0
    with pytest.raises(SystemExit, match="size 'huge' is none of 1m, 2m"):
        Recipe(size="huge").network()


def test_a_run_that_was_cut_off_ends_with_the_same_weights(small, monkeypatch, tmp_path, capsys):
    run(TINY, tmp_path / "whole")
    cut_off(monkeypatch, TINY, tmp_path / "cut", at=3)
    state = torch.load(tmp_path / "cut" / "snapshot.pt", weights_only=False)
    assert state["step"] == 2 and not (tmp_path / "cut" / "model.safetensors").exists()
    run(TINY, tmp_path / "cut")
    assert not list((tmp_path / "cut").glob("snapshot*"))

    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert whole.keys() == cut.keys() and all(torch.equal(whole[key], cut[key]) for key in whole)
    records = [json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "cut")]
    for record in records:
        assert record["recipe"] == asdict(TINY)
        assert [entry.pop("step") for entry in record["curves"]] == [TINY.steps]
        assert all(entry.pop("seconds") >= 0 for entry in record["curves"])
    assert records[0] == records[1]
    assert records[0]["curves"][0]["loss"].keys() == LENGTHS.keys()
    assert capsys.readouterr().out.count("accuracy") == 2


def test_a_snapshot_of_another_recipe_is_refused(small, monkeypatch, tmp_path):
    cut_off(monkeypatch, TINY, tmp_path, at=2)
    before = (tmp_path / "snapshot.pt").read_bytes()
    for other in (replace(TINY, seed=1), replace(TINY, lr=1e-3), replace(TINY, family="dream")):
        with pytest.raises(SystemExit, match="another recipe"):
            run(other, tmp_path)
    assert (tmp_path / "snapshot.pt").read_bytes() == before


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_the_saved_folder_loads(family, small, tmp_path):
    run(replace(TINY, family=family, steps=2, batch_long=0, batch_choice=0), tmp_path, evaluations=0)
    model = jot.load(tmp_path, device="cpu")
    assert load_file(tmp_path / "model.safetensors").keys() == NAMES[family]
    assert (model.family, model.mask_id, model.eos_id, model.dtype) == (family, MASK, EOS, torch.float32)
    assert model.tokenizer.mask_token_id == MASK
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    fresh = {name: value.shape for name, value in tiny_network(family).state_dict().items()}
    assert {name: value.shape for name, value in model.state_dict().items()} == fresh
    assert jot.decode(model, [USER, 5, 6, ASSISTANT], jot.FullDecoding(), length=4, temperature=0.0).steps == 4


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_the_shipped_models_are_of_the_present_recipe(family):
    folder = home() / "data" / "models" / f"pocket-{family}"
    record = json.loads((folder / "training.json").read_text())
    own = {key: record["recipe"][key] for key in ("steps", "horizon")}
    assert Recipe(**record["recipe"]) == Recipe(family=family, seed=0, **own)
    config = network(family).config
    saved = json.loads((folder / "config.json").read_text())
    assert {key: getattr(config, key) for key in saved if key not in ("architectures", "dtype")} == {
        key: value for key, value in saved.items() if key not in ("architectures", "dtype")
    }
    total = sum(value.numel() for value in load_file(unpacked(folder / "model.safetensors")).values())
    assert total == record["parameters"] <= 5_000_000
