"""The reversal bound: exact processes, true text on a tiny network, and budgets of decoded traces."""

from __future__ import annotations

import itertools
import math
import random
from types import SimpleNamespace

import fake_records
import numpy as np
import pandas as pd
import pytest
import tiny
from scipy import stats as st

from jot import stats
from jot.analysis import (
    bound,
    bound_decoded,
    bound_decoded_view,
    bound_order,
    bound_pocket,
    bound_rates,
    bound_summary,
    bound_view,
)
from jot.errors import UserError
from jot.records import Recorded
from jot.runs.parameters import NotebookError

SMALL = bound.example(4)


# --- layer a ------------------------------------------------------------------------------------------------


def brute(process: bound.Process, context: list[int]) -> np.ndarray:
    """Posterior by summing the joint over every sequence that fits, in plain loops."""
    out = np.zeros((process.length, process.size))
    for x in itertools.product(range(process.size), repeat=process.length):
        if all(c in (process.mask, t) for c, t in zip(context, x, strict=True)):
            p = 0.0
            for weight, start, step in zip(process.weights, process.start, process.step, strict=True):
                q = weight * start[x[0]]
                for a, b in zip(x, x[1:], strict=False):
                    q *= step[a, b]
                p += q
            for j, t in enumerate(x):
                out[j, t] += p
    return out / out.sum(1, keepdims=True)


@pytest.mark.parametrize("process", [SMALL, bound.chain(4), bound.attaining(9.0)])
def test_posteriors_are_sums_over_sequences(process):
    assert process.joint.sum() == pytest.approx(1)
    for context in itertools.product(range(process.size + 1), repeat=process.length):
        row = process.table[process.code(np.array(context))]
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(row, brute(process, list(context)), atol=1e-12)


def flip_probability(process: bound.Process, tau: float, temperature: float = 1.0) -> tuple[float, float, float]:
    """P(flip), mean 2q and P(pair) given a commit, in plain loops over sequences, positions and orders."""
    flip = twice = pair = commit = 0.0
    orders = list(itertools.permutations(range(process.length)))
    for x, p in zip(process.sequences, process.joint, strict=True):
        for order in orders:
            context, chosen, flipped, i = [process.mask] * process.length, None, False, order[-1]
            for at in order:
                now = brute_cache(process, tuple(context))[i]
                if chosen is None:
                    v, u = sorted(range(process.size), key=lambda k: (-now[k], k))[:2]
                    if now[v] ** (1 / temperature) >= tau * now[u] ** (1 / temperature) - 1e-15:
                        chosen, q = (v, u), now[u] / (now[u] + now[v])
                if chosen is not None and chosen[0] != chosen[1]:
                    v, u = chosen
                    flipped |= now[u] >= now[v] - 1e-12 and now[u] + now[v] > 0
                context[at] = x[at]
            if chosen is not None:
                mass = p / len(orders)
                commit += mass
                if x[i] in chosen:
                    pair, twice, flip = pair + mass, twice + 2 * q * mass, flip + flipped * mass
    return flip / pair, twice / pair, pair / commit


CACHE: dict = {}


def brute_cache(process, context):
    key = id(process), context
    if key not in CACHE:
        CACHE[key] = brute(process, list(context))
    return CACHE[key]


@pytest.mark.parametrize("tau", [1.5, 10.0])
def test_exact_rates_match_plain_loops(tau):
    process = bound.example(3)
    flip, twice, pair = flip_probability(process, tau)
    found = bound.rates(process, bound.enumerated(process), [tau]).iloc[0]
    assert found["exact"] == pytest.approx(flip, abs=1e-12) and flip <= twice <= 2 / (1 + tau) + 1e-12
    assert abs(found["exact_drift"]) < 1e-12
    scaled = bound.corollary(process, [1.0, 0.5], [tau]).set_index("temperature")
    assert scaled.loc[1.0, "flip"] == pytest.approx(flip, abs=1e-12)
    assert scaled.loc[1.0, "mean_bound"] == pytest.approx(twice, abs=1e-12)
    assert scaled.loc[0.5, "flip"] == pytest.approx(flip_probability(process, tau, 0.5)[0], abs=1e-12)
    trials = bound.sampled(process, 4000, np.random.default_rng(1))
    seen = bound.rates(process, trials, [tau]).iloc[0]
    assert seen["dropped"] == pytest.approx(1 - pair, abs=0.03)
    assert (seen["low"], seen["high"]) == pytest.approx(stats.wilson(seen["flips"], seen["n"]))


def test_the_bound_is_attained():
    found = bound.attained([3.0, 90.0], n=3000)
    assert found["exact"].to_list() == pytest.approx([2 / 4, 2 / 91])
    assert ((found["low"] < found["exact"]) & (found["exact"] < found["high"])).all()


def test_the_corollary_covers_what_the_proposition_does_not():
    found = bound.corollary(bound.example(5), [0.5, 1.0, 2.0], [3.0, 30.0, 90.0])
    assert (found["flip"] <= found["best_stopping"] + found["best_calibration"] + 1e-12).all()
    assert (found["best_stopping"] + found["best_calibration"] <= found["stopping"] + found["calibration"]).all()
    assert (found["calibration"] <= found["markov"] + 1e-12).all()  # Markov's inequality
    at = found.set_index(["temperature", "tau"])
    assert at.loc[(0.5, 90.0), "flip"] > at.loc[(0.5, 90.0), "stopping"]
    assert (at.loc[1.0, "calibration"] == 0).all()


def test_decoders_and_the_order_lemma():
    for rule in (bound_order.one, bound_order.two, bound_order.exits):
        law = bound_order.distribution(SMALL, rule)
        assert law.sum() == pytest.approx(1)
        tokens = bound_order.decoded(SMALL, rule, 20_000, np.random.default_rng(2))
        counts = np.bincount(tokens @ 3 ** np.arange(3, -1, -1), minlength=81)
        kept = law > 2e-3
        assert abs(counts[kept] / 20_000 - law[kept]).max() < 0.015 and not counts[law == 0].any()
        assert np.allclose(law, SMALL.joint) == (rule is bound_order.one)
    found = bound_order.lemma(SMALL, n=20_000).set_index("decoder")
    assert found.loc["one", "p"] > 1e-4 and found.loc["exits", "p"] < 1e-12 > found.loc["two", "p"]
    assert found.loc["one", "exact"] < 1e-12 < found.loc["one", "variation"]
    assert found.loc["one", "low"] == 0 < found.loc["exits", "low"]
    law = bound_order.distribution(SMALL, bound_order.exits)
    assert found.loc["exits", "exact"] == pytest.approx(abs(law - SMALL.joint).sum() / 2)


# --- layer b ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["dream", "llada"])
def model(request, tmp_path_factory):
    import jot

    return jot.load(str(tiny.build(tmp_path_factory.mktemp("tiny") / request.param, request.param)), device="cpu")


def make(model, start: int, length: int, seed: int) -> bound_pocket.Text:
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.arange(start, start + length))
    return bound_pocket.Text(f"t/{seed}", rng.integers(5, 25, start + length).tolist(), start, order, length - 4)


def test_following_a_text_is_what_plain_loops_give(model):
    """One document at a time, one position at a time, every reveal a forward of its own."""
    import torch

    texts = [make(model, 4, 14, 0), make(model, 6, 12, 1), make(model, 2, 16, 2)]
    thresholds = (1.01, 1.1, 1.3, 40.0)
    found = bound_pocket.follow(model, texts, thresholds)
    expected = []
    for b, text in enumerate(texts):
        logits = []
        for m in range(text.reveals + 1):
            canvas = torch.tensor([text.canvas])
            canvas[0, torch.tensor(text.order[m:].copy())] = model.mask_id
            rows = torch.arange(canvas.shape[1])
            with torch.inference_mode():
                out = model.predict(canvas, None, torch.zeros_like(rows), rows).double().clone()
                out[:, model.mask_id] = -math.inf
            logits.append(out.numpy())
        for i in text.order[text.reveals :]:
            for t, tau in enumerate(thresholds):
                for m, now in enumerate(logits):
                    u, v = np.argsort(now[i])[-2:]
                    if now[i, v] - now[i, u] >= math.log(tau):
                        odds = [later[i, u] - later[i, v] for later in logits[m:]]
                        flip = next((m + k for k, x in enumerate(odds) if x >= 0), -1)
                        expected.append((b, i - text.start, t, m, v, u, text.canvas[i], flip, odds[-1], -odds[0]))
                        break
    spread = found.loc[found.index.repeat(found["last"] - found["first"] + 1)]
    spread["tau"] = spread["first"] + spread.groupby(level=0).cumcount()
    columns = ["document", "position", "tau", "step", "leader", "runner", "truth", "flip", "end", "margin"]
    got = spread[columns].sort_values(columns[:3]).to_numpy(float)
    assert len(got) == len(expected) > 20 and (found["flip"] > 0).any() and (found["step"] > 0).any()
    np.testing.assert_allclose(got, np.array(sorted(expected), float), atol=1e-4)
    assert (found["first"] <= found["last"]).all()


def test_texts_of_the_packaged_tasks(model):
    from pocket import rows

    from jot.tasks import TASKS, read_jsonl, split_file

    groups = {"pocket_gsm8k": "compact", "pocket_prose": "long"}
    assert bound_pocket.COMPACT == rows.WIDTHS["compact"]
    for task, width in (("pocket_gsm8k", 128), ("pocket_prose", 192)):
        found, misfits = bound_pocket.texts(model, task, 6)
        docs = {doc["id"]: doc for doc in read_jsonl(split_file(TASKS[task], bound_pocket.SPLITS[task], None)[1])}
        assert len(found) == 6 and misfits >= 0
        fewer = bound_pocket.texts(model, task, 3)[0]  # smaller limits are nested in larger ones
        assert [(t.id, t.order.tolist()) for t in fewer] == [(t.id, t.order.tolist()) for t in found[:3]]
        for text in found:
            assert len(text.canvas) == width
            [row] = rows.generative(task, [docs[text.id]], model.tokenizer, groups[task], 1.0, random.Random(0))
            assert (text.canvas, sorted(text.order)) == row  # as it was trained
            assert sorted(text.order) == list(range(text.start, width))
            assert len(text.order) - text.reveals == round(bound_pocket.HELD * len(text.order))
    other = bound_pocket.texts(model, "pocket_prose", 1, seed=1)[0][0]
    assert (other.order != found[0].order).any() and other.canvas == found[0].canvas


def commits(rows: list[tuple], documents: int = 3, model: str = "pocket-dream") -> bound_pocket.Measured:
    """(document, position, first, last, truth, margin, end, flip) with leader 1 and runner-up 2; EOS is 9."""
    names = ["document", "position", "first", "last", "truth", "margin", "end", "flip"]
    frame = pd.DataFrame(rows, columns=names).assign(step=1, reveals=9, leader=1, runner=2)
    meta = {"model": model, "task": "pocket_gsm8k", "documents": documents, "positions": 8,
            "held": [4, 2, 2][:documents], "thresholds": [3.0, 10.0, 30.0], "eos": 9,
            "fingerprint": model, "dtype": "float32", "torch": "2", "device": "cpu", "misfits": 0}  # fmt: skip
    return [(frame.astype({"document": int}), meta)]


ROWS = [
    (0, 0, 0, 1, 1, math.log(12), -5.0, -1),
    (0, 1, 0, 0, 2, math.log(4), 3.0, 4),
    (0, 1, 1, 2, 1, math.log(40), -6.0, -1),
    (1, 0, 0, 2, 7, math.log(99), 1.0, 5),  # the true token is outside the pair
    (1, 1, 0, 0, 1, math.log(9), -1.0, -1),
]


def test_rates_of_commits():
    found = bound_rates.rates(commits(ROWS)).set_index("tau")
    assert found["entered"].to_list() == [4, 3, 2] and found["n"].to_list() == [3, 2, 1]
    assert found.loc[3.0, "dropped"] == pytest.approx(1 / 4) and found["flips"].to_list() == [1, 0, 0]
    q = [1 / 13, 1 / 5, 1 / 10]
    assert found.loc[3.0, "mean_bound"] == pytest.approx(2 * np.mean(q))
    assert found.loc[3.0, "excess"] == pytest.approx(1 / 3 - 2 * np.mean(q))
    assert found.loc[3.0, "all_rate"] == pytest.approx(2 / 4) and found.loc[3.0, "wrong"] == pytest.approx(1 / 3)
    assert found.loc[3.0, "markov"] == pytest.approx(4 / 3)
    kappa = found.loc[3.0, "best_kappa"]
    assert found.loc[3.0, "corollary"] == pytest.approx(2 / (1 + kappa) + (1 + kappa) / 3)
    grid = np.linspace(0.01, 30, 20_000)
    assert found.loc[3.0, "corollary"] == pytest.approx((2 / (1 + grid) + (1 + grid) / 3).min(), abs=1e-5)
    assert found.loc[10.0, "rate_high"] == pytest.approx(st.beta.ppf(0.95, 1, 2))  # none of 2: Clopper-Pearson
    assert bound_rates.none_of(1) == pytest.approx(0.95)
    with pytest.raises(KeyError):
        found.loc[90.0]
    none = bound_rates.rates(commits([(0, 0, 0, 1, 7, 3.0, -1.0, -1)]))
    assert none.empty and bound_rates.rates([]).empty
    assert "No true text" in repr(bound_view.text_rates(none)) and "No true text" in repr(bound_view.label_bounds(none))


def test_rates_are_bootstrapped_over_documents():
    """The same resamples, drawn and summed by hand."""
    rng = np.random.default_rng(3)
    rows = [
        (d, i, 0, int(rng.integers(3)), 1, 3.0, -1.0, int(rng.integers(3)) - 1) for d in range(30) for i in range(6)
    ]
    measured = commits(rows)
    measured[0][1].update(documents=30)
    found = bound_rates.rates(measured).iloc[0]
    frame = measured[0][0].assign(flipped=measured[0][0]["flip"] >= 0)
    per = frame.groupby("document")["flipped"].agg(["sum", "count"]).to_numpy()
    draws = [per[index].sum(0) for chunk in stats.bootstrap_indices(30) for index in chunk]
    low, high = np.quantile([a / b for a, b in draws], [0.025, 0.975])
    assert (found["rate_low"], found["rate_high"]) == pytest.approx((low, high))
    excess = frame["flipped"].mean() - 2 / (1 + math.exp(3.0))
    assert found["excess"] == pytest.approx(excess) and found["excess_low"] < excess < found["excess_high"]


def test_martingale_bins():
    found = bound_rates.martingale(commits(ROWS)).set_index("bin_low")
    assert found["n"].to_dict() == {3.0: 2, 10.0: 1, 30.0: 1} and found.loc[30.0, "bin_high"] == math.inf
    end = 1 / (1 + np.exp(-np.array([3.0, -1.0])))
    assert found.loc[3.0, "drift"] == pytest.approx((end - [1 / 5, 1 / 10]).mean())
    assert found.loc[3.0, "error"] == pytest.approx(1 / 2 - (1 / 5 + 1 / 10) / 2)


def test_padding_stands_apart_and_limits_cut():
    measured = commits([*ROWS, (2, 0, 0, 0, 9, 2.0, -2.0, -1)])
    measured[0][0].loc[5, "leader"] = 9
    assert bound_rates.rates(measured)["n"].to_list() == [3, 2, 1]
    assert bound_rates.rates(measured, padding=True)["n"].to_list() == [1]
    assert "0 flips in 1 commits" in repr(bound_view.padding(bound_rates.rates(measured, padding=True)))
    [(frame, meta)] = bound_rates.cut(measured, ["pocket-llada", "pocket-dream"], ["pocket_gsm8k"], 1)
    assert meta["documents"] == 1 and meta["positions"] == 4 and set(frame["document"]) == {0}
    assert bound_rates.cut(measured, ["pocket-llada"], ["pocket_gsm8k"]) == []


def test_the_file_comes_back(tmp_path):
    measured = commits(ROWS) + commits(ROWS[:2], model="pocket-llada")
    again = bound_pocket.read(bound_pocket.write(measured, tmp_path / "flip_bound").parent)
    for (a, meta), (b, other) in zip(measured, again, strict=True):
        assert meta == other
        pd.testing.assert_frame_equal(a.round(3), b, check_dtype=False)
    p = SimpleNamespace(source="recorded", store=tmp_path, models=["pocket-dream"], families=["dream"],
                        tasks=["pocket_gsm8k", "pocket_mmlu"], limit=None)  # fmt: skip
    assert len(bound_rates.load(p)) == 1
    p.tasks = ["pocket_mmlu"]
    assert bound_rates.load(p) == []
    with pytest.raises(NotebookError, match=r"there is no true_text\.parquet in nowhere"):
        bound_pocket.read(tmp_path / "nowhere")
    (tmp_path / "flip_bound" / bound_pocket.FILE).write_bytes(b"PAR1 cut short")
    with pytest.raises(NotebookError, match=r"true_text\.parquet cannot be read"):
        bound_pocket.read(tmp_path / "flip_bound")


def test_measuring_from_the_command_line(tmp_path, capsys):
    folder = tiny.build(tmp_path / "pocket-dream", "dream")
    words = ["--models", str(folder), "--tasks", "pocket_gsm8k", "--documents", "2", "--device", "cpu"]
    assert bound_pocket.main([*words, "--out", str(tmp_path / "out")]) == 0
    assert "pocket-dream pocket_gsm8k" in capsys.readouterr().out
    [(frame, meta)] = bound_pocket.read(tmp_path / "out")
    assert (meta["model"], meta["documents"], len(meta["ids"])) == ("pocket-dream", 2, 2)
    assert sum(meta["held"]) == meta["positions"] and set(frame["document"]) <= {0, 1}
    assert (frame["truth"] < 2048).all() and (frame["reveals"] >= frame["step"]).all()


def test_what_cannot_be_followed_is_refused(model):
    with pytest.raises(UserError, match="one width"):
        bound_pocket.follow(model, [make(model, 4, 14, 0), make(model, 4, 15, 1)])


# --- layer c ------------------------------------------------------------------------------------------------


def traced(method: str, tokens: list[list[int]], ln_r: list[list[float]], taus: list[list[float]], **params):
    rows = fake_records.rows("pocket_gsm8k", "test", np.random.default_rng(0), len(tokens), 0.5, 128)
    ratio, bars = np.array(ln_r, float), np.log(np.array(taus, float))
    rule = np.where(ratio >= bars, 2, 1) if method == "jot" else np.ones(ratio.shape, int)
    rows["generated"], rows["trace_rule"] = tokens, list(rule)
    rows["trace_margin"], rows["trace_threshold"] = list(ratio), list(bars)
    rows["trace_step"] = list(np.tile(np.arange(ratio.shape[1]), (len(rows), 1)))
    return fake_records.cell("pocket-dream", "pocket_gsm8k", method, rows, **params)


@pytest.fixture
def records():
    taus = [[10.0, 1.0, 4.0], [10.0, 10.0, 5.5]]
    ratios = [[3.0, 0.2, 1.0], [2.5, 4.0, 9.0]]  # the third of the first document is below its threshold
    jot = traced("jot", [[1, 2, 3], [4, 5, 6]], ratios, taus, tau_max=10)
    full = traced("full", [[1, 7, 8], [4, 5, 6]], ratios, taus)
    return dict([jot, full])


def test_budgets(records):
    found = bound_decoded.budgets(records, ["pocket-dream"], ["pocket_gsm8k", "pocket_prose"])
    assert found["tau"].to_list() == [3, 10, 30, 90] and found["n"].to_list() == [0, 2, 0, 0]
    row = found.iloc[1]
    first, second = 2 / 11 + 1, 2 / 11 + 2 / 11 + 2 / 6.5
    assert row["by_threshold"] == pytest.approx((first + second) / 2)
    ratios = [3.0, 0.2, 2.5, 4.0, 9.0]
    assert row["by_ratio"] == pytest.approx(sum(2 / (1 + math.exp(x)) for x in ratios) / 2)
    assert row["scheduled_ratio"] == pytest.approx(2 / (1 + math.e) / 2) and row["scheduled"] == 0.5
    assert row["paper"] == pytest.approx(2 * 3 / 11) and row["uncovered"] == 1.0
    assert row["lowest"] == 1.0 and row["ones"] == pytest.approx(1 / 5) and row["with_ones"] == 0.5
    assert bound_decoded.bounded(np.array([0.0, 1e4, -1.0])).tolist() == [1.0, pytest.approx(0, abs=1e-300), 1.0]
    shown = bound_decoded_view.budgets(found)
    assert "Not recorded: pocket-dream, pocket_gsm8k, τ_max = 3;" in shown.caption and len(shown.frame) == 1
    assert "No decoded cell" in repr(bound_decoded_view.budgets(found[found["n"] == 0]))
    assert bound_decoded.budgets(records, ["pocket-dream"], ["pocket_gsm8k"], seed=1)["n"].sum() == 0


def test_hindsight(records):
    [row] = bound_decoded.hindsight(records, ["pocket-dream"], ["pocket_gsm8k"]).to_dict("records")
    assert (row["n"], row["differing"], row["documents"], row["spread"]) == (2, 1.0, 0.5, 2.0)
    assert row["differing_exits"] == pytest.approx(1 / 5) and row["differing_scheduled"] == 1.0
    assert row["first_exit"] == 1.0  # the exit at step 1 came before the scheduled commit at step 2
    alone = {k: v for k, v in records.items() if "full" not in k}
    none = bound_decoded.hindsight(alone, ["pocket-dream"], ["pocket_gsm8k"])
    assert none.empty and "No pair" in repr(bound_decoded_view.hindsight(none))
    jot, full = records.values()
    same = dict(zip(records, [jot, Recorded(full.meta, jot.frame)], strict=True))
    [row] = bound_decoded.hindsight(same, ["pocket-dream"], ["pocket_gsm8k"]).to_dict("records")
    assert row["documents"] == 0 and math.isnan(row["first_exit"]) and math.isnan(row["spread"])


# --- what is shown ------------------------------------------------------------------------------------------


def test_everything_is_shown(records, tmp_path):
    processes = {"mixture": bound.example(3), "chain": bound.chain(3)}
    exact = bound.simulated(processes, n=500)
    scaled = bound.corollary(processes["mixture"])
    order = bound_order.lemma(bound.example(3), n=2000)
    rows = [(d, i, 0, 2, 1 + (d % 2), 3.0, -1.0, 4) for d in range(3) for i in range(9)]
    for measured in (commits(rows), []):
        text, fair = bound_rates.rates(measured), bound_rates.martingale(measured)
        budgets = bound_decoded.budgets(records, ["pocket-dream"], ["pocket_gsm8k"])
        seen = bound_decoded.hindsight(records, ["pocket-dream"], ["pocket_gsm8k"])
        told = repr(bound_summary.verdict(exact, scaled, order, text, fair, budgets))
        assert ("rates lie above their bound" in told) == bool(measured)
        for shown in (bound_view.exact_rates(exact), bound_view.corollary(scaled), bound_view.order(order),
                      bound_view.text_rates(text), bound_view.label_bounds(text), bound_view.drift(fair, measured),
                      bound_decoded_view.budgets(budgets), bound_decoded_view.hindsight(seen)):  # fmt: skip
            assert repr(shown)
        bound_summary.flips(exact, text).savefig(tmp_path / "flips.png")
        bound_summary.decoded(budgets, seen).savefig(tmp_path / "budgets.png")
    assert bound_summary.decoded(budgets[budgets["n"] == 0], seen) is None
    args = processes, exact, scaled
    good = bound_summary.checks(*args, commits(ROWS), records, ["pocket-dream"], ["pocket_gsm8k"])
    named = good.set_index("statement")["holds"]
    assert named[[k for k in named.index if k.startswith("b.")]].all() and named.iloc[:2].all()
    bad = commits([*ROWS, (0, 0, 1, 2, 1, math.log(12), -5.0, 1)])  # twice at one threshold, and flipped at once
    bad[0][1]["fingerprint"] = "other"
    failed = bound_summary.checks(*args, bad, records, ["pocket-dream"], ["pocket_gsm8k"])
    assert (~failed[failed["statement"].str.startswith("b.")]["holds"]).all()
    broken = next(v for k, v in records.items() if "jot" in k).frame
    broken["trace_rule"] = list(3 - np.stack(broken["trace_rule"]))
    failed = bound_summary.checks(*args, [], records, ["pocket-dream"], ["pocket_gsm8k"]).set_index("statement")
    assert not failed.filter(like="c. Exits", axis=0)["holds"].any()
