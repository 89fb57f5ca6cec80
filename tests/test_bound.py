"""The reversal bound: exact processes, true text on a tiny network, and the notebook's tables on made-up records."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import cells
import fake_records
import numpy as np
import pandas as pd
import pytest
import tiny
from pocket import true_text
from scipy import stats as st

from jot import stats
from jot.errors import UserError
from jot.paper import bound, traces
from jot.runs.parameters import NotebookError
from jot.tasks import TASKS

NAME = "07_flip_bound"
SMALL = bound.mixture(4)


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


def check_posteriors(process: bound.Process) -> None:
    assert process.joint.sum() == pytest.approx(1)
    for context in itertools.product(range(process.size + 1), repeat=process.length):
        row = process.table[process.code(np.array(context))]
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(row, brute(process, list(context)), atol=1e-12)


@pytest.mark.parametrize("process", [SMALL, bound.chain(4)])
def test_posteriors_are_sums_over_sequences(process):
    check_posteriors(process)


def flip_probability(process: bound.Process, tau: float, temperature: float = 1.0) -> tuple[float, float, float]:
    """P(flip), mean 2q and P(pair) given a commit, in plain loops over sequences, positions and orders."""
    flip = twice = pair = commit = 0.0
    known = {}
    orders = list(itertools.permutations(range(process.length)))
    for x, p in zip(process.sequences, process.joint, strict=True):
        for order in orders:
            context, chosen, flipped, i = [process.mask] * process.length, None, False, order[-1]
            for at in order:
                key = tuple(context)
                if key not in known:
                    known[key] = brute(process, context)
                now = known[key][i]
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


# --- layer b: following true text ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["dream", "llada"])
def model(request, tmp_path_factory):
    import jot

    return jot.load(str(tiny.build(tmp_path_factory.mktemp("tiny") / request.param, request.param)), device="cpu")


def make(model, start: int, length: int, seed: int) -> true_text.Text:
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.arange(start, start + length))
    return true_text.Text(f"t/{seed}", rng.integers(5, 25, start + length).tolist(), start, order, length - 4)


def asked(model, canvas) -> np.ndarray:
    """Logits of every position, one forward of its own."""
    import torch

    rows = torch.arange(len(canvas))
    with torch.inference_mode():
        out = model.predict(torch.tensor([list(canvas)]), None, torch.zeros_like(rows), rows).double().numpy().copy()
    out[:, model.mask_id] = -math.inf
    return out


def test_following_a_text_is_what_plain_loops_give(model):
    """One document at a time, one position at a time, every reveal a forward of its own."""
    texts = [make(model, 4, 14, 0), make(model, 6, 12, 1), make(model, 2, 16, 2)]
    thresholds = (1.01, 1.1, 1.3, 40.0)
    found = true_text.follow(model, texts, thresholds)
    expected = []
    for b, text in enumerate(texts):
        logits = []
        for m in range(text.reveals + 1):
            canvas = np.array(text.canvas)
            canvas[text.order[m:]] = model.mask_id
            logits.append(asked(model, canvas))
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
    with pytest.raises(UserError, match="one width"):
        true_text.follow(model, [make(model, 4, 14, 0), make(model, 4, 15, 1)])


def test_exit_sets_are_what_plain_loops_give(model):
    """Walk one document, commit a step's exits, follow each alone under the three continuations."""
    texts, tau, expected = [make(model, 4, 14, 0), make(model, 4, 14, 3), make(model, 2, 12, 2)], 1.5, []
    for d, text in enumerate(texts):
        truth, hidden, step = np.array(text.canvas), set(text.order.tolist()), 0
        while hidden:
            canvas = truth.copy()
            canvas[list(hidden)] = model.mask_id
            now = asked(model, canvas)
            pairs = {i: np.argsort(now[i])[-2:][::-1] for i in sorted(hidden)}
            exits = [i for i, (v, u) in pairs.items() if now[i, v] - now[i, u] >= math.log(tau)]
            rest = [i for i in text.order.tolist() if i in hidden and i not in exits]
            for i in exits:
                v, u = pairs[i]
                row = [d, step, i - text.start, len(exits), sum(pairs[j][0] != truth[j] for j in exits if j != i)]
                row.append(0 if truth[i] == v else 1 if truth[i] == u else 2)
                for others in ("masked", "true", "written"):
                    later, flip = canvas.copy(), -1
                    for j in exits:
                        if j != i and others != "masked":
                            later[j] = truth[j] if others == "true" else pairs[j][0]
                    for m in range(len(rest) + 1):
                        odds = asked(model, later)[i]
                        flip = m if flip < 0 and odds[u] >= odds[v] else flip
                        if m < len(rest):
                            later[rest[m]] = truth[rest[m]]
                    row.append(flip)
                expected.append([*row, now[i, v] - now[i, u]])
            hidden -= set(exits or rest[:1])
            step += 1
    found, counts = true_text.together(model, texts, tau, size=5)
    columns = ["document", "step", "position", "size", "wrong", "truth", "masked", "true", "written", "margin"]
    got = found[columns].sort_values(columns[:3]).to_numpy(float)
    np.testing.assert_allclose(got, np.array(sorted(expected), float), atol=1e-4)
    assert counts["exits"] == len(found) > 15 and counts["sets"] == found.groupby(["document", "step"]).ngroups
    assert (found["masked"] != found["written"]).any() and (found["true"] != found["written"]).any()
    assert (found["size"] > 1).any()


def test_texts_of_the_packaged_tasks(model):
    from pocket import rows

    from jot.tasks import read_jsonl, split_file

    assert true_text.WIDTHS == (rows.WIDTHS["compact"], rows.WIDTHS["long"])
    for task in ("pocket_gsm8k", "pocket_prose"):
        found, misfits = true_text.texts(model, task, 12)
        docs = {doc["id"]: doc for doc in read_jsonl(split_file(TASKS[task], true_text.SPLITS[task], None)[1])}
        assert len(found) == 12 and misfits >= 0
        fewer = true_text.texts(model, task, 3)[0]  # smaller limits are nested in larger ones
        assert [(t.id, t.order.tolist()) for t in fewer] == [(t.id, t.order.tolist()) for t in found[:3]]
        for text in found:
            width = len(text.canvas)
            group = "compact" if width == true_text.WIDTHS[0] else "long"
            [row] = rows.generative(task, [docs[text.id]], model.tokenizer, group, 0.0, random.Random(0))
            assert (text.canvas, sorted(text.order)) == row  # as it was trained
            assert sorted(text.order) == list(range(text.start, width))
            assert len(text.order) - text.reveals == round(true_text.HELD * len(text.order))
    other = true_text.texts(model, "pocket_prose", 1, seed=1)[0][0]
    assert (other.order != found[0].order).any() and other.canvas == found[0].canvas


@pytest.fixture
def quick(monkeypatch):
    """One threshold of exit sets, and layer a on shorter sequences."""
    real = bound.mixture, bound.chain
    monkeypatch.setattr(bound, "mixture", lambda length=4: real[0](4))
    monkeypatch.setattr(bound, "chain", lambda length=4: real[1](4))
    monkeypatch.setattr(true_text, "SETS", {"pocket_gsm8k": (30.0,)})


def test_measuring_from_the_command_line(tmp_path, capsys, monkeypatch, quick):
    """Both files, read back by model, task and limit; what is not there is left out, what is torn is refused."""
    folder, out = tiny.build(tmp_path / "pocket-dream", "dream"), tmp_path / "flip_bound"
    words = ["--models", str(folder), "--tasks", "pocket_gsm8k", "--documents", "2", "--device", "cpu"]
    assert true_text.main([*words, "--out", str(out)]) == 0
    assert "pocket_gsm8k" in capsys.readouterr().out
    space, _ = cells.run(NAME, until="load-text", store=str(tmp_path))
    [(frame, meta)] = space["measured"]
    assert (meta["model"], meta["documents"], len(meta["ids"]), meta["split"]) == ("pocket-dream", 2, 2, "dev")
    assert sum(meta["held"]) == meta["positions"] and set(frame["document"]) <= {0, 1}
    assert (frame["truth"] < 2048).all() and (frame["reveals"] >= frame["step"]).all()
    [(sets, about)] = space["together"]
    assert about["thresholds"] == list(true_text.SETS["pocket_gsm8k"]) and set(sets["tau"]) <= {0}
    assert sum(c["exits"] for c in about["counts"]) >= len(sets)
    other = tmp_path / "other"  # sets alone, where a task has no thresholds of its own
    monkeypatch.setitem(TASKS, "pocket_prose", dataclasses.replace(TASKS["pocket_prose"], length=6))
    words = ["--models", str(folder), "--tasks", "pocket_prose", "--documents", "1", "--device", "cpu"]
    chosen = ["--parts", "sets", "--taus", "1.5", "--dtype", "bfloat16", "--out", str(other)]
    assert true_text.main([*words, *chosen]) == 0 and [x.name for x in other.iterdir()] == [true_text.JOINT]
    [(_, about)] = traces.followed(other / true_text.JOINT, ["pocket-dream"], ["pocket_prose"])
    assert (about["thresholds"], about["dtype"], len(about["counts"])) == ([1.5], "bfloat16", 1)
    fewer, meta = cells.run(NAME, until="load-text", store=str(tmp_path), limit=1)[0]["measured"][0]
    assert meta["documents"] == 1 and meta["positions"] == meta["held"][0] and set(fewer["document"]) <= {0}
    for other in ({"models": ["pocket-llada"]}, {"store": str(folder)}):
        assert cells.run(NAME, until="load-text", **{"store": str(tmp_path), **other})[0]["measured"] == []
    (out / true_text.SINGLE).write_bytes(b"PAR1 cut short")
    with pytest.raises(NotebookError, match=r"true_text\.parquet cannot be read"):
        cells.run(NAME, until="load-text", store=str(tmp_path))


# --- the notebook on made-up records ------------------------------------------------------------------------

META = {"task": "pocket_gsm8k", "split": "dev", "documents": 3, "held": [4, 2, 2], "ids": ["a", "b", "c"], "eos": 9,
        "widths": [128, 128, 192], "dtype": "float32", "torch": "2", "device": "cpu", "misfits": 0}  # fmt: skip
# document, position, first, last, truth, margin, end, flip; the leader is 1 and the runner-up 2
COMMITS = [
    (0, 0, 0, 1, 1, math.log(12), -5.0, -1),
    (0, 1, 0, 0, 2, math.log(4), 3.0, 4),
    (0, 1, 1, 2, 1, math.log(40), -6.0, -1),
    (1, 0, 0, 2, 7, math.log(99), 1.0, 5),  # the true token is outside the pair
    (1, 1, 0, 0, 1, math.log(9), -1.0, -1),
    (2, 0, 0, 0, 9, math.log(8), -2.0, -1),  # its leader is EOS
]
# document, tau, step, position, size, wrong, truth, masked, true, written, margin
EXITS = [
    (0, 0, 0, 0, 3, 1, 0, -1, -1, 2, math.log(4)),
    (0, 0, 0, 1, 3, 1, 0, -1, -1, 0, math.log(4)),
    (0, 0, 0, 2, 3, 0, 2, -1, 1, 1, math.log(5)),  # outside the pair: not counted
    (0, 0, 1, 3, 1, 0, 1, 3, 3, 3, math.log(20)),
    (1, 0, 0, 0, 2, 0, 0, -1, -1, -1, math.log(4)),
    (1, 0, 0, 1, 2, 0, 0, -1, -1, -1, math.log(20)),
]


def write_text(folder, models=("pocket-dream", "pocket-llada")):
    names = ["document", "position", "first", "last", "truth", "margin", "end", "flip"]
    frame = pd.DataFrame(COMMITS, columns=names).assign(step=1, reveals=9, leader=1, runner=2)
    frame.loc[5, "leader"] = 9
    sets = pd.DataFrame(EXITS, columns=[*("document tau step position size wrong truth".split()),
                                        *true_text.CONTINUATIONS, "margin"])  # fmt: skip
    metas = [{**META, "model": model, "fingerprint": model} for model in models]
    single = [(frame, {**meta, "positions": 8, "thresholds": [3.0, 10.0, 30.0, 90.0]}) for meta in metas]
    counts = [{"sets": 4, "exits": 8}, *[{"sets": 0, "exits": 0}] * 3]
    joint = [(sets, {**meta, "thresholds": [3.0, 10.0, 30.0, 90.0], "counts": counts}) for meta in metas]
    true_text.write(single, folder / "flip_bound", true_text.SINGLE)
    true_text.write(joint, folder / "flip_bound", true_text.JOINT)


def traced(method: str, tokens: list[list[int]], ln_r: list[list[float]], taus: list[list[float]], **params):
    rows = fake_records.rows("pocket_gsm8k", "test", np.random.default_rng(0), len(tokens), 0.5, 128)
    ratio, bars = np.array(ln_r, float), np.log(np.array(taus, float))
    rule = np.where(ratio >= bars, 2, 1) if method == "jot" else np.ones(ratio.shape, int)
    names, steps = ("step", "rule", "margin", "threshold", "mean_margin", "masked"), np.arange(ratio.shape[1])
    rows["generated"] = tokens
    rows["trace"] = [
        dict(zip(names, [x.tolist() for x in (steps, *row, 0 * steps, 0 * steps)], strict=True))
        for row in zip(rule, ratio, bars, strict=True)
    ]
    return fake_records.cell("pocket-dream", "pocket_gsm8k", method, rows, **params)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The notebook on a store with two traced runs and the text of both models; layer a on shorter sequences."""
    folder, real = tmp_path_factory.mktemp("store"), (bound.mixture, bound.chain)
    write_text(folder)
    taus = [[10.0, 1.0, 4.0], [10.0, 10.0, 5.5]]
    ratios = [[3.0, 0.2, 1.0], [2.5, 4.0, 9.0]]  # the third of the first document is below its threshold
    jot = traced("jot", [[1, 2, 3], [4, 5, 6]], ratios, taus, tau_max=10)
    fake_records.write(folder / "traces", dict([jot, traced("full", [[1, 7, 8], [4, 5, 6]], ratios, taus)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound, "mixture", lambda length=4: real[0](min(length, 4)))
        patch.setattr(bound, "chain", lambda length=4: real[1](4))
        return cells.run(NAME, store=str(folder), out=str(folder / "figures"))


@pytest.mark.parametrize("tau", [1.5, 10.0])
def test_exact_rates_match_plain_loops(page, tau):
    process, space = SMALL, page[0]
    flip, twice, pair = flip_probability(process, tau)
    whole = bound.enumerated(process)
    got = space["flips"]("x", tau, bound.sampled(process, 4000, 1), whole)
    assert got["exact"] == pytest.approx(flip, abs=1e-12) and flip <= twice <= 2 / (1 + tau) + 1e-12
    assert abs(got["drift"]) < 1e-12 and got["dropped"] == pytest.approx(1 - pair, abs=0.03)
    assert (got["low"], got["high"]) == pytest.approx(stats.wilson(got["flips"], got["n"]))
    at = space["scaled"].set_index(["temperature", "tau"])  # of the same process
    assert at.loc[(1, tau), "flip"] == pytest.approx(flip, abs=1e-12)
    assert at.loc[(1, tau), "mean_bound"] == pytest.approx(twice, abs=1e-12)
    assert at.loc[(0.5, tau), "flip"] == pytest.approx(flip_probability(process, tau, 0.5)[0], abs=1e-12)


def test_the_bound_is_attained_and_the_corollary_covers(page):
    exact, scaled = page[0]["exact"], page[0]["scaled"]
    tight = exact[exact["process"].str.startswith("Two tokens")]
    assert tight["exact"].to_list() == pytest.approx([2 / (1 + tau) for tau in true_text.THRESHOLDS])
    assert (scaled["flip"] <= scaled["sum"] + 1e-12).all()
    assert (scaled["sum"] <= scaled["stopping"] + scaled["epsilon"] + 1e-12).all()
    assert (scaled["epsilon"] <= scaled["markov"] + 1e-12).all()  # Markov's inequality
    assert (scaled[scaled["temperature"] == 1]["epsilon"] == 0).all()


def test_decoders_and_their_laws(page):
    space, _ = page
    check_posteriors(space["attaining"](9.0))
    for rule in (bound.one, space["two_at_once"], space["in_parallel"]):
        law = bound.law(SMALL, rule)
        assert law.sum() == pytest.approx(1)
        counts = space["draws"](SMALL, rule, 20_000, np.random.default_rng(2))
        kept = law > 2e-3
        assert abs(counts[kept] / 20_000 - law[kept]).max() < 0.015 and not counts[law == 0].any()
        assert np.allclose(law, SMALL.joint) == (rule is bound.one)


def test_the_order_lemma(page):
    found = page[0]["order"].set_index(page[0]["order"]["decoder"].str.split().str[0])
    assert found.loc["one", "p"] > 1e-4 and found.loc["argmax", "p"] < 1e-12 > found.loc["two", "p"]
    assert found.loc["one", "law"] < 1e-12 < found.loc["one", "variation"]
    assert found.loc["one", "low"] < 1e-3 < found.loc["argmax", "low"]
    law, process = bound.law(SMALL, page[0]["in_parallel"]), SMALL
    assert found.loc["argmax", "law"] == pytest.approx(abs(law - process.joint).sum() / 2)


def test_rates_of_commits(page):
    rates = page[0]["text_rates"]
    assert len(rates) == 6  # nothing of either model reaches 90
    found = rates[rates["model"] == "pocket-dream"].set_index("tau")
    assert found["n"].to_list() == [3, 2, 1] and found["flips"].to_list() == [1, 0, 0]
    q = [1 / 13, 1 / 5, 1 / 10]
    assert found.loc[3.0, "dropped"] == pytest.approx(1 / 4)
    assert found.loc[3.0, "mean_bound"] == pytest.approx(2 * np.mean(q), rel=1e-3)
    assert found.loc[3.0, "excess"] == pytest.approx(1 / 3 - 2 * np.mean(q), rel=1e-3)
    assert found.loc[3.0, "all_rate"] == pytest.approx(2 / 4) and found.loc[3.0, "wrong"] == pytest.approx(1 / 3)
    assert found.loc[10.0, "rate_high"] == pytest.approx(st.beta.ppf(0.95, 1, 2))  # none of 2: Clopper-Pearson
    assert page[0]["padded"]["n"].to_list() == [1, 1]
    fair = page[0]["fair"]
    fair = fair[fair["model"] == "pocket-dream"].set_index("from")
    assert fair["n"].to_dict() == {3.0: 2, 10.0: 1, 30.0: 1}
    end = 1 / (1 + np.exp(-np.array([3.0, -1.0])))
    assert fair.loc[3.0, "drift"] == pytest.approx((end - [1 / 5, 1 / 10]).mean(), abs=1e-3)
    assert fair.loc[3.0, "error"] == pytest.approx(1 / 2 - (1 / 5 + 1 / 10) / 2, abs=1e-3)
    shown = page[1]["text"][-1]
    assert "dev split" in shown.caption and "128 tokens (2) and 192 tokens (1)" in shown.caption


def test_what_few_flips_exclude(page):
    """5 of 1,059 against a bound of 0.12 %: nearly tenfold is not excluded."""
    value, low, high = page[0]["over"](5, 1059, 0.0012)
    assert value == pytest.approx(5 / 1059 / 0.0012)
    assert st.binom.cdf(5, 1059, high * 0.0012) == pytest.approx(0.025, rel=1e-6)
    assert st.binom.sf(4, 1059, low * 0.0012) == pytest.approx(0.025, rel=1e-6) and 9 < high < 10


def test_labels_bound_the_corollary(page):
    row = {"wrong": 1 / 3, "wrong_high": 1 / 2}
    grid = np.linspace(0.01, 30, 20_000)
    least = (2 / (1 + grid) + (1 + grid) / 3).min()
    assert 2 * math.sqrt(2 / 3) == pytest.approx(least, abs=1e-5)
    assert page[0]["at_most"](row, lambda pi: pi / 2) == "16.67\nup to 25.00"
    assert page[0]["at_most"](row, lambda pi: 2 * math.sqrt(2 * pi)) == "100.00\nup to 100.00"


def test_means_are_bootstrapped_over_documents(page):
    """The same resamples, drawn and summed by hand."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"document": np.repeat(range(30), 6), "x": rng.integers(2, size=180), "y": rng.random(180)})
    found = page[0]["means"](frame, ["x", "y"], 30)
    per = frame.groupby("document")[["x", "y"]].sum().to_numpy()
    draws = np.array([per[index].sum(0) / 180 for chunk in stats.bootstrap_indices(30) for index in chunk])
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    assert (found["x"], found["y"]) == pytest.approx((frame["x"].mean(), frame["y"].mean()))
    assert (found["x_low"], found["y_low"]) == pytest.approx(low)
    assert (found["x_high"], found["y_high"]) == pytest.approx(high)


def test_exit_sets_and_pairs(page):
    """Two sets of one document and one of another; rates of a bin of the ratio: 2 of 3 at 4, 1 of 2 at 20."""
    sets = page[0]["SETS"]
    [row] = sets[sets["model"] == "pocket-dream"].to_dict("records")
    assert (row["n"], row["sets"], row["k"], row["adds"], row["size"]) == (5, 3, 3, 2, 2.0)
    assert (row["masked"], row["true"], row["written"], row["added"]) == pytest.approx((1 / 5, 1 / 5, 3 / 5, 2 / 5))
    allowed = 2 * (3 / 5 + 2 / 21)
    assert row["allowed"] == pytest.approx(allowed / 3, rel=1e-3) and row["flips"] == 1
    assert row["sum_excess"] == pytest.approx(1 - allowed / 3, rel=1e-3) and row["any"] == pytest.approx(2 / 3)
    pairs = page[0]["paired"].query("model == 'pocket-dream' and others == 'written'").set_index("step")
    same, other = pairs.loc["same step"], pairs.loc["other step"]
    assert (same["both"], same["pairs"], other["both"], other["pairs"]) == (1, 2, 2, 2)
    assert same["expected"] == pytest.approx((2 / 3) ** 2 + 2 / 3 / 2)
    assert other["expected"] == pytest.approx(2 * (2 / 3) / 2) and same["few"] and other["few"]
    assert len(page[0]["JUDGED"]) == 0  # not at the default thresholds


def test_budgets_of_decoded_runs(page):
    [row] = page[0]["budgets"].to_dict("records")
    first, second = 2 / 11 + 1, 2 / 11 + 2 / 11 + 2 / 6.5
    assert (row["tau"], row["n"], row["scheduled"]) == (10, 2, 0.5)
    assert row["by_threshold"] == pytest.approx((first + second) / 2)
    assert row["by_ratio"] == pytest.approx(sum(2 / (1 + math.exp(x)) for x in (3.0, 0.2, 2.5, 4.0, 9.0)) / 2)
    assert row["scheduled_ratio"] == pytest.approx(2 / (1 + math.e) / 2) and row["paper"] == pytest.approx(6 / 11)
    assert row["uncovered"] == 1 and row["lowest"] == 1 and row["ones"] == pytest.approx(1 / 5)
    assert "Not recorded: pocket-dream, pocket_gsm8k, τ_max = 3;" in page[1]["budgets"][-1].caption
    [row] = page[0]["seen"].to_dict("records")
    assert (row["n"], row["differing"], row["documents"], row["spread"]) == (2, 1.0, 0.5, 2.0)
    assert row["exits"] == pytest.approx(1 / 5) and row["scheduled"] == 1
    assert row["first_exit"] == 1  # the exit at step 1 came before the scheduled commit at step 2
    same = page[0]["decoded"]["pocket-dream", "pocket_gsm8k", 10]
    none = page[0]["hindsight"](same, same)
    assert none["documents"] == 0 and math.isnan(none["first_exit"]) and math.isnan(none["spread"])


def test_the_page_and_its_checks(page):
    space, gave = page
    told = gave["verdict"][0].text
    assert (
        "b. pocket-llada, pocket_gsm8k: flips against mean 2q too few to tell at τ = 3; none seen at τ = 10, 30" in told
    )
    assert all(holds == "holds" for _, holds, _ in space["rows"]) and len(space["rows"]) == 10


@pytest.mark.parametrize("models", [["pocket-llada"], ["pocket-dream", "pocket-llada"]])
def test_a_partial_store_says_what_is_not_recorded(tmp_path, quick, models):
    if len(models) > 1:
        write_text(tmp_path, ["pocket-dream"])
    space, gave = cells.run(NAME, store=str(tmp_path), models=models, out=str(tmp_path), tasks=["pocket_gsm8k"])
    assert "no decoded run with traces" in gave["budgets"][-1].text
    assert ("Not recorded" in gave["verdict"][0].text) == (len(models) == 1)
    assert len(space["text_rates"]) == (3 if len(models) > 1 else 0)


def test_live_follows_text_and_limits_it(tmp_path, quick):
    folder = tiny.build(tmp_path / "pocket-dream", "dream")
    where = {"store": str(tmp_path / "store"), "out": str(tmp_path), "device": "cpu"}
    space, gave = cells.run(NAME, source="live", models=[str(folder)], tasks=["pocket_gsm8k"], limit=1, **where)
    assert space["measured"][0][1]["documents"] == 1 and (tmp_path / "store" / "flip_bound" / true_text.JOINT).is_file()
    assert "1 documents (dev split" in gave["verdict"][0].text
