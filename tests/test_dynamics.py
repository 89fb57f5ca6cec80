"""Notebook 09 on made-up traces: rho and its means, shares of commits, bands, single documents; its criterion."""

from __future__ import annotations

import itertools

import cells as notebook
import fake_records
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from scipy import stats as st

from jot import stats
from jot.errors import UserError
from jot.paper import criteria, traces
from jot.runs.frames import order
from jot.runs.grid import Point
from jot.sampler.output import EXITED, SCHEDULED

TASK = "pocket_gsm8k"
NAME = "09_confidence_dynamics"
LENGTH = 8
MODELS = ("pocket-dream", "pocket-llada")


def filled(method: str, n: int, seed: int = 0) -> pd.DataFrame:
    """Made-up traces that obey the loop: full decoding commits one position a step, JoT several."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(n):
        if method == "full":
            step, rule, threshold = rng.permutation(LENGTH), np.full(LENGTH, SCHEDULED), [None] * LENGTH
        else:
            step = np.unique(rng.integers(0, 3, LENGTH), return_inverse=True)[1]
            rule, threshold = rng.choice([EXITED, EXITED | SCHEDULED, SCHEDULED], LENGTH), [2.0] * LENGTH
        steps = int(step.max()) + 1
        counts = np.bincount(step, minlength=steps)
        mean = 4 * rng.random(steps) + np.arange(steps) * (-1 if method == "full" else 1) + LENGTH
        found.append(
            {"step": step.tolist(), "rule": rule.tolist(), "margin": np.where(rule & EXITED, 3.0, 1.0).tolist(),
             "threshold": threshold, "mean_margin": mean.tolist(),
             "masked": (LENGTH - counts.cumsum() + counts).tolist()}
        )  # fmt: skip
    base = fake_records.rows(TASK, "test", rng, n, 0.5, 5)
    return base.assign(
        trace=found, steps=[len(t["masked"]) for t in found], score=[float(i % 3 != 0) for i in range(n)],
        generated=rng.integers(0, 5, (n, LENGTH)).tolist(), tokens_non_eos=5,
    )  # fmt: skip


def write(folder, n: int = 30, models=MODELS, full: bool = True, change=None):
    """A store whose traces hold both models, full decoding and JoT at 3 and at 90."""
    made = {}
    for model in models:
        if full:
            made |= dict([fake_records.of(Point.of(model, TASK, "full"), filled("full", n))])
        for tau in (3, 90):
            frame = filled("jot", n, tau)
            point = Point.of(model, TASK, "jot", tau_max=tau)
            made |= dict([fake_records.of(point, change(frame) if change else frame)])
    fake_records.write(folder / "traces", made)
    return folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The notebook on made-up traces: its namespace and what its cells gave."""
    place = write(tmp_path_factory.mktemp("dynamics"))
    return notebook.run(NAME, store=place, thresholds=[3, 90], out=place / "figures")


def shown(gave: dict, name: str) -> pd.DataFrame:
    return gave[name][-1].frame


# --- numbers ------------------------------------------------------------------------------------------------


def test_rho_and_its_mean():
    rng = np.random.default_rng(0)
    rows = [rng.random(9), rng.random(4), [1.0, 2.0], [3.0, 3.0, 3.0], np.round(rng.random(12), 1)]
    found = traces.rho(traces.by_step(rows))
    expected = [st.spearmanr(range(len(rows[i])), rows[i]).statistic for i in (0, 1, 4)]
    assert found.tolist() == pytest.approx(expected) and found.index.tolist() == [0, 1, 4]
    assert traces.mean(found).value == pytest.approx(np.mean(expected))
    assert np.isnan(traces.mean(found.iloc[:0]).value)


def test_ordered_reads_lists_and_arrays():
    frame = pd.DataFrame({"doc_id": ["a/10", "a/9"], "generated": [[1], np.array([2])],
                          "trace_threshold": [[None], [1.5]], "trace_step": [[0], [3]]})  # fmt: skip
    found = traces.ordered(frame)
    assert found["doc_id"].tolist() == ["a/9", "a/10"] and found["trace_threshold"].iloc[0].tolist() == [1.5]
    assert np.isnan(found["trace_threshold"].iloc[1][0]) and found["trace_step"].iloc[0].dtype.kind == "i"


def test_declines_by_hand(ran):
    space, gave = ran
    for row in shown(gave, "declines").to_dict("records"):
        margins = list(space["full"][row["Model"]]["trace_mean_margin"])
        rho = [st.spearmanr(range(LENGTH), values).statistic for values in margins]
        assert row["Spearman's rho, mean"].startswith(f"{np.mean(rho):+.2f}\n")
        assert row["Falling, % of documents"] == f"{100 * np.mean(np.array(rho) < 0):.1f}"
        assert row["Margin at step 1, nats"] == f"{np.mean([m[0] for m in margins]):.1f}"
    block = shown(gave, "declines")["In the first block, mean rho"].tolist()
    assert block[0] == "whole canvas" and block[1].startswith(row["Spearman's rho, mean"].split("\n")[0])


def test_committed_tokens_with_and_without_the_tail(ran):
    space, gave = ran
    frame = pd.DataFrame({"trace_step": [np.array([2, 0, 1, 3])], "trace_margin": [np.array([5.0, 1.0, 9.0, 8.0])],
                          "tokens_non_eos": [2]})  # fmt: skip
    assert space["in_order"](frame, True).to_numpy().tolist() == [[1.0, 9.0, 5.0, 8.0]]
    assert space["in_order"](frame, False).to_numpy().tolist() == [[1.0, 5.0]]
    curves = traces.by_step([[0.0] * 2 + [1.0] * 5 + [3.0], [2.0, 0, 0, 4.0]])  # quarters of 8 steps and of 4
    assert space["quarter"](curves, 0) == [f"10^{x / np.log(10):.1f}" for x in (2 / 3, np.log((2 + np.e**2) / 3))]
    last = [np.mean([1, 3, 4]), np.log(np.mean(np.exp([1, 3, 4])))]
    assert space["quarter"](curves, 3) == [f"10^{x / np.log(10):.1f}" for x in last]
    means = shown(gave, "means")
    assert len(means) == 2 * len(space["WHAT"])
    missing = means["Spearman's rho, mean"] == "not recorded"
    assert missing.tolist() == [False, True, True, True, False, False] * 2


def test_shares_of_commits_by_counting(ran):
    space, gave = ran
    for row in shown(gave, "filling").to_dict("records"):
        frame = space["run"][row["Model"], row["Run"]]
        rules = np.concatenate(list(frame["trace_rule"]))
        kinds = {"By exit alone, %": 2, "Exit and schedule, %": 3, "Schedule alone, %": 1}
        for name, rule in kinds.items():
            value, low, high = (float(x.strip("[,]")) for x in row[name].split())
            assert value == pytest.approx(100 * (rules == rule).mean(), abs=0.0051) and low <= value <= high
        assert row["Commits a step"].startswith(f"{rules.size / frame['steps'].sum():.1f}\n")
        assert row["At the edge"] == ("" if row["Run"] == "Full decoding" else f"0 of {rules.size:,}")


def test_edge_counts_both_sides(tmp_path):
    def near(frame):
        margins = [2.0009, 1.9991, 2.0011, 1.9, 2.0, 5.0, 5.0, 5.0]
        return frame.assign(trace=[{**trace, "margin": margins} for trace in frame["trace"]])

    place = write(tmp_path, 1, MODELS[:1], change=near)
    _, gave = notebook.run(NAME, until="filling", store=place, thresholds=[3], models=["pocket-dream"])
    row = shown(gave, "filling").iloc[1]
    assert row["At the edge"] == "3 of 8" and row["At the edge, %"].startswith("37.5")


def test_band_equals_a_bootstrap_written_out(ran):
    curve = np.array([[4.0, 3, np.nan], [6, 1, 2], [5, np.nan, np.nan], [3, 2, np.nan]])
    frame = ran[0]["band"](pd.DataFrame(curve))
    assert frame["n"].tolist() == [4, 3, 1] and frame["mean"].tolist() == [4.5, 2.0, 2.0]
    draws = np.concatenate([curve[index] for index in stats.bootstrap_indices(4)])
    means = np.array([row[np.isfinite(row)].mean() if np.isfinite(row).any() else np.nan for row in draws[:, :, 1]])
    assert frame[["low", "high"]].iloc[1].tolist() == pytest.approx(np.nanpercentile(means, [2.5, 97.5]).tolist())
    assert frame[["low", "high"]].iloc[2].isna().all()


# --- what is shown ------------------------------------------------------------------------------------------


def test_documents_follow_the_stated_rule(ran):
    space, gave = ran
    frame = space["full"]["pocket-dream"].set_index("doc_id")
    right = [doc for doc in order(TASK, "test", frame.index) if frame.loc[doc, "score"] > 0.5][:2]
    assert space["chosen"]["pocket-dream"] == right and len(shown(gave, "documents")) == 2 * 2 * 3
    steps = {doc: space["one"]["pocket-dream", "JoT, τ = 90", doc]["steps"] for doc in right}
    canvases = [(key, doc) for name, key, doc, _ in space["canvases"] if name == "pocket-dream"]
    assert [key for key, _ in canvases] == ["Full decoding", "JoT, τ = 90"]
    assert {steps[doc] for _, doc in canvases} == {max(steps.values())}
    assert [doc for name, _, doc, _ in space["canvases"] if name == "pocket-llada"] == [right[0]]  # 30 is not recorded


def test_page(ran):
    space, gave = ran
    for table in (x for results in gave.values() for x in results if hasattr(x, "caption")):
        assert "nan" not in table._repr_html_()
        assert "5 M parameters" in table.caption and "n = " in table.caption or table.caption.startswith("Checks")
    assert "**seen**" in gave["verdict"][0].text and gave["verdict"][0].text.count("not blind") == 2
    assert (shown(gave, "checks")[""] == "holds").all() and len(shown(gave, "checks")) == 6
    texts = [space["shortened"](text) for text in (" four", " ", "<|endoftext|>", "", "extraordinary")]
    assert texts == ["four", "␣", "·", "", "extrao…"]
    assert {path.name for path in (space["folder"].parent / "figures").glob("*.png")} == {
        "confidence_dynamics.png", "confidence_tail.png", "step_strip.png",
    }  # fmt: skip


def test_thresholds_darken_step_by_step(ran):
    colors = [ran[0]["GREENS"](at) for at in (0.0, 1 / 3, 2 / 3, 1.0)]
    light = [np.cbrt(np.dot(np.array(to_rgb(color)) ** 2.2, (0.2126, 0.7152, 0.0722))) for color in colors]  # CIE L*
    assert all(a - b > 0.08 for a, b in itertools.pairwise(light))


def test_broken_traces_are_noticed(tmp_path):
    def broken(frame):
        return frame.assign(trace=[{**trace, "margin": [0.0] * LENGTH} for trace in frame["trace"]])

    place = write(tmp_path, 3, MODELS[:1], change=broken)
    how = {"store": place, "thresholds": [3], "models": ["pocket-dream"], "out": tmp_path / "figures"}
    _, gave = notebook.run(NAME, **how)
    assert shown(gave, "checks")[""].str.contains("does not").sum() == 1


def test_a_partial_store(tmp_path):
    """One model, no full decoding, one threshold missing: said in place, and every figure is still drawn."""
    place = write(tmp_path, 4, MODELS[1:], full=False)
    how = {"store": place, "thresholds": [3, 30], "models": ["pocket-llada"], "out": tmp_path / "figures"}
    space, gave = notebook.run(NAME, **how)
    assert list(space["run"]) == [("pocket-llada", "JoT, τ = 3")]
    for name in ("declines", "means", "documents"):
        assert "not among" in gave[name][-1].text
    assert "**not shown**" in gave["verdict"][0].text and len(shown(gave, "checks")) == 5


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"methods": ["full", "klass"]}, "full and jot"),
        ({"tasks": [TASK, "pocket_mmlu"]}, "one task"),
        ({"thresholds": ["x"]}, "thresholds"),
        ({"thresholds": [0.5]}, "thresholds"),
        ({"families": ["llada"], "models": ["pocket-dream"]}, "is of the families llada"),
        ({"models": ["pocket-dreem"]}, "did you mean 'pocket-dream'"),
        ({"thresholds": [7], "methods": ["jot"]}, "none of these runs is recorded with traces"),
        ({"limit": 501}, "above the 500 recorded"),
    ],
)
def test_mistakes_are_one_sentence(parameters, told):
    with pytest.raises(UserError, match=told):
        notebook.run(NAME, until="load", **parameters)


def test_a_store_without_traces_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="there are no traced runs"):
        notebook.run(NAME, until="asked", store=tmp_path)


@pytest.mark.slow
def test_live(tmp_path):
    how = {"source": "live", "store": tmp_path, "limit": 1, "device": "cpu", "out": tmp_path / "figures"}
    space, gave = notebook.run(NAME, models=["pocket-llada"], thresholds=[9], **how)
    assert list(space["run"]) == [("pocket-llada", "Full decoding"), ("pocket-llada", "JoT, τ = 9")]
    assert (shown(gave, "checks")[""] == "holds").all()


# --- the criterion ------------------------------------------------------------------------------------------


def test_falling_by_hand():
    ids = [f"{TASK}/test/{i}" for i in range(20)]
    run = lambda values, block=np.nan: pd.DataFrame(  # noqa: E731
        {"doc_id": ids, "trace_mean_margin": [values] * 20, "block": block}
    )
    down, up, blocks = [4.0, 3, 2, 1], [1.0, 2, 3, 4], [4.0, 3, 2, 1, 12, 11, 10, 9]
    word = lambda *found: criteria.falling(dict(zip(MODELS, found, strict=False)))  # noqa: E731
    assert word(run(down), run(down))[0] == "seen" and word(run(down))[0] == "not shown"
    assert word(run(down), run(up))[0] == word(run(up), run(up))[0] == "not seen"
    status, detail = word(run(down), run(blocks, 4))  # falls in each block of four, jumps between them
    assert status == "not seen" and "blocks of 4" in detail and "within the first block -1.00" in detail


def test_criterion_from_records(tmp_path):
    judge = lambda place: criteria.judge(criteria.Evidence(place), ["dynamics-decline"])["status"].item()  # noqa: E731
    place = write(tmp_path / "both")
    fake_records.write(place, dict([fake_records.of(Point.of(MODELS[0], TASK, "full"), filled("full", 4))]))
    assert judge(place) == "seen"
    assert judge(write(tmp_path / "one", 5, MODELS[:1])) == "not shown"
