"""The ablation tables on made-up records: every number by a second path, the plan's criteria in both directions."""

from __future__ import annotations

from types import SimpleNamespace

import fake_records
import numpy as np
import pandas as pd
import pytest
from scipy import stats as st

from jot import stats
from jot.analysis import ablation_frames as frames
from jot.analysis import ablations, ablations_figures, cells, published
from jot.analysis import ablations_view as view
from jot.analysis.ablations import ABLATIONS, FULL, PHENOMENA, bare, point, shaped
from jot.runs.grid import Point

N = 200
GSM8K, HUMANEVAL = ablations.LONG
DREAM, LLADA = cells.MODELS
ABOVE = 0.2  # share of right answers by which the made-up settings differ


def flat(task: str, right: float, steps: float, n: int = N) -> pd.DataFrame:
    """Nested scores (a better setting is right wherever a worse one is) and constant steps."""
    made = fake_records.rows(task, "test", np.random.default_rng(0), n, 0.5, 10)
    length = fake_records.LENGTH[task]
    return made.assign(score=(np.arange(n) < round(right * n)).astype(float), steps=min(length, max(1, steps)))


def made(kind: str = "claimed") -> dict:
    """All cells of the ablations: as the paper claims, or against each claim."""
    sign = 1 if kind == "claimed" else -1
    out = {}
    for p in ablations.points(cells.MODELS, cells.TASKS):
        s, long = p.params, p.task in ablations.LONG
        tau, right, steps = s.get("tau_max", 90), 0.6, 60.0
        if p.method == "full":
            steps = 128
        elif s.get("spatial") is False:
            right += -ABOVE * sign if tau == 10 else 0 if kind == "claimed" else -ABOVE
            steps = 60 + sign * tau / 10
        elif s.get("combine") == "after_exit":
            right -= 0 if kind == "claimed" else ABOVE
        elif s.get("head_dtype") is None and s.get("gamma") is not None:
            steps = 50 if kind == "claimed" else 100
            if kind == "claimed":
                right -= ABOVE if (s["gamma"], s["window"]) == (0.9, 8) else 0
            else:
                right += 0 if tau == 90 and s.get("tau_min", 1) == 1 else ABOVE * (1 if s.get("tau_min") else -1)
                right -= 2 * ABOVE if (s["gamma"], s["window"]) == (0.5, 8) and tau == 60 else 0
        out |= dict(
            [fake_records.recorded(p, flat(p.task, max(0, right), steps if long else 128 if p.method == "full" else 2))]
        )
    return out


@pytest.fixture(scope="module")
def claimed() -> dict:
    return made()


@pytest.fixture(scope="module")
def noisy() -> dict:
    """Dream's gsm8k cells with correlated noise in scores and steps."""
    rng, out = np.random.default_rng(3), {}
    for p in ablations.points([DREAM], [GSM8K]):
        rows = fake_records.rows(GSM8K, "test", rng, N, rng.uniform(0.5, 0.8), rng.uniform(5, 40))
        out |= dict([fake_records.recorded(p, rows)])
    return out


def scores(records: dict, p: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    f = cells.lookup(records, p).recorded.frame.sort_values("doc_id")
    return tuple(f[k].to_numpy(dtype=float) for k in ("score", "configured_steps", "steps"))


def indices(n: int) -> np.ndarray:
    """The resamples, as plain indices."""
    drawn = np.random.default_rng(0)
    return np.concatenate([drawn.integers(n, size=(256, n)) for _ in range(39)] + [drawn.integers(n, size=(16, n))])


# --- tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "at", "against", "below"),
    [
        ("threshold", bare(60), FULL, bare(30)),
        ("spatial", shaped(90, 0.9, 16), bare(90), bare(90)),
        ("sweep", shaped(60, 0.7, 8), shaped(90), shaped(90)),
        ("sweep", FULL, shaped(90), None),
        ("tau_min", shaped(90, 0.9, 8, tau_min=30), shaped(90, 0.9, 8), shaped(90, 0.9, 8)),
    ],
)
def test_rows_by_a_second_path(noisy, name, at, against, below):
    frame = frames.frame(noisy, ABLATIONS[name], [DREAM], [GSM8K])
    row = frame[frame["row"] == ABLATIONS[name].settings.index(at)].iloc[0]
    one, other = (scores(noisy, point(DREAM, GSM8K, s)) for s in (at, against))
    assert row["n"] == N and row["score"] == pytest.approx(100 * one[0].mean())
    wilson = st.binomtest(int(one[0].sum()), N).proportion_ci(method="wilson")
    assert [row["score_low"], row["score_high"]] == pytest.approx([100 * wilson.low, 100 * wilson.high])
    assert row["difference"] == pytest.approx(100 * (one[0] - other[0]).mean())
    b, c = int((one[0] > other[0]).sum()), int((one[0] < other[0]).sum())
    assert [row["difference_low"], row["difference_high"]] == pytest.approx([100 * x for x in stats.tango(b, c, N)])
    drawn = indices(N)
    draws = one[1][drawn].sum(1) / one[2][drawn].sum(1)
    assert [row["speedup_low"], row["speedup_high"]] == pytest.approx(np.quantile(draws, [0.025, 0.975]))
    if below is None:
        assert np.isnan(row["ratio"]) and not row["divided"]
        return
    slow = scores(noisy, point(DREAM, GSM8K, below))
    ratio = draws / (slow[1][drawn].sum(1) / slow[2][drawn].sum(1))
    assert row["ratio"] == pytest.approx(one[1].sum() / one[2].sum() / (slow[1].sum() / slow[2].sum()))
    assert [row["ratio_low"], row["ratio_high"]] == pytest.approx(np.quantile(ratio, [0.025, 0.975]))


def test_references_have_no_reference(noisy):
    for name, own in (("threshold", FULL), ("spatial", bare(90)), ("sweep", shaped(90)), ("tau_min", None)):
        frame = frames.frame(noisy, ABLATIONS[name], [DREAM], [GSM8K])
        alone = [i for i, s in enumerate(ABLATIONS[name].settings)
                 if (s.get("tau_min") == 1 if own is None else s == own)]  # fmt: skip
        assert list(frame[~frame["compared"]]["row"]) == alone
        assert (
            frame[~frame["compared"]]["difference"].isna().all()
            and frame[frame["compared"]]["difference"].notna().all()
        )


@pytest.mark.parametrize(
    ("name", "task", "at", "difference", "ratio"),
    [
        ("threshold", "gsm8k", bare(10), 61.9 - 81.1, None),
        ("threshold", "humaneval", bare(30), 54.3 - 59.1, 28.12 / 42.60),
        ("spatial", "gsm8k", shaped(90, 0.9, 8), 77.3 - 78.8, 5.75 / 5.30),
        ("sweep", "mmlu", shaped(60, 0.7, 8), 0.0, 1.75 / 1.57),
        ("sweep", "gsm8k", FULL, 81.1 - 78.8, None),
        ("tau_min", "gsm8k", shaped(90, 0.5, 8, tau_min=30), 77.3 - 80.0, 5.30 / 5.49),
        ("llada", "gsm8k", shaped(90), 79.8 - 74.5, 2.45 / 2.69),
    ],
)
def test_the_papers_rows(name, task, at, difference, ratio):
    ablation = ABLATIONS[name]
    frame = frames.published_frame(ablation, published.load(ablation.label))
    assert len(frame) == len(ablation.settings) * len(ablation.tasks)
    row = frame[(frame["task"] == task) & (frame["row"] == ablation.settings.index(at))].iloc[0]
    assert row["difference"] == pytest.approx(difference)
    assert np.isnan(row["ratio"]) if ratio is None else row["ratio"] == pytest.approx(ratio)


def test_missing_cells_are_shown_as_such(noisy):
    ablation = ABLATIONS["spatial"]
    gone = cells.lookup(noisy, point(DREAM, GSM8K, bare(90))).id
    frame = frames.frame({k: v for k, v in noisy.items() if k != gone}, ablation, cells.MODELS, cells.TASKS)
    assert set(frame["model"]) == {DREAM} and set(frame["task"]) == set(cells.TASKS)
    mine = frame[frame["task"] == GSM8K].set_index("row")
    assert mine.loc[0, "n"] == 0 and mine.loc[1, "n"] == N and np.isnan(mine.loc[1, "difference"])
    paper = view.paper_of("spatial")
    tables = view.grids(ablation, frame, paper)
    assert len(tables) == 2 and "not recorded" in repr(tables[0]) and "pocket_gsm8k" in tables[1]._repr_html_()
    assert tables[0].frame[GSM8K, "Δ, points"].tolist() == [""] + ["not recorded"] * 7
    assert ablations_figures.figure(ablation, frame, paper).axes
    assert "does not hold" in repr(view.checks({"spatial": frame}, {"spatial": paper}))


def test_nothing_of_a_family(noisy):
    frame = frames.frame(noisy, ABLATIONS["llada"], [DREAM], cells.TASKS)
    assert frame.empty and "none of the models" in repr(view.grids(ABLATIONS["llada"], frame, view.paper_of("llada")))
    empty = frames.frame({}, ABLATIONS["threshold"], [DREAM], [GSM8K])
    assert (empty["n"] == 0).all() and "not recorded" in repr(
        view.grids(ABLATIONS["threshold"], empty, empty.iloc[:0])[0]
    )
    assert ablations_figures.draw({"threshold": empty}, {}, empty.iloc[:0], empty.iloc[:0]) == {}


def test_one_document_without_discordance():
    both = dict([fake_records.recorded(point(DREAM, GSM8K, s), flat(GSM8K, 1, 9, n=1)) for s in (FULL, bare(10))])
    row = frames.frame(both, ABLATIONS["threshold"], [DREAM], [GSM8K]).set_index("row").loc[1]
    assert (row["n"], row["score"], row["difference"]) == (1, 100, 0)
    assert row["difference_low"] < 0 < row["difference_high"]
    assert row["speedup_low"] == row["speedup"] == row["speedup_high"] == pytest.approx(128 / 9)


# --- the plan's criteria ------------------------------------------------------------------------------------


def test_criteria_as_claimed(claimed):
    found = {name: check(claimed) for name, check in PHENOMENA.items()}
    assert set(found) == set(view.CLAIMS)
    expected = dict.fromkeys(found, "seen")
    assert {name: status for name, (status, _) in found.items()} == expected, found
    assert "9 of 9" in repr(view.verdict(claimed)) and "5 M parameters" in repr(view.verdict(claimed))


def test_criteria_against_the_claims():
    reverse = made("reversed")
    found = {name: check(reverse) for name, check in PHENOMENA.items()}
    assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(found, "not seen"), found


def test_criteria_without_their_cells(claimed):
    some = dict(list(claimed.items())[:3])
    assert {check(some)[0] for check in PHENOMENA.values()} == {"not shown"}
    assert "not recorded" in PHENOMENA["tau-min"](some)[1]


# --- order of exits, precision, left to right ---------------------------------------------------------------


def test_after_exit_steps(noisy):
    row = frames.after_exit(noisy, [DREAM], [GSM8K]).iloc[0]
    or_, after = (scores(noisy, Point.of(DREAM, GSM8K, "jot", combine=c)) for c in ("or", "after_exit"))
    gap = after[2] - or_[2]
    assert row["difference"] == pytest.approx(100 * (after[0] - or_[0]).mean())
    assert row["steps"] == pytest.approx(gap.mean())
    assert [row["steps_low"], row["steps_high"]] == pytest.approx(np.quantile(gap[indices(N)].mean(1), [0.025, 0.975]))
    missing = frames.after_exit({}, [DREAM], [GSM8K])
    assert missing.iloc[0]["n"] == 0 and "not recorded" in repr(view.after_exit(missing))


def test_precision_counts_tokens():
    rows = flat(GSM8K, 0.5, 9).assign(tokens_non_eos=2, generated=[np.array([1, 2, 0])] * N)
    other = rows.assign(generated=[np.array([1, 3 if i < 30 else 2, i >= 100]) for i in range(N)])
    pair = [Point.of(DREAM, GSM8K, "full", head_dtype=h) for h in ablations.HEADS]
    both = dict([fake_records.recorded(pair[0], rows), fake_records.recorded(pair[1], other)])
    row = frames.precision(both, [DREAM], [GSM8K]).set_index("method").loc["full"]
    wilson = st.binomtest(70, N).proportion_ci(method="wilson")
    assert [row["same"], row["same_low"], row["same_high"]] == pytest.approx([35, 100 * wilson.low, 100 * wilson.high])
    assert row["positions"] == pytest.approx(100 * (2 * N - 30) / (2 * N)) and row["difference"] == 0
    nothing = dict([fake_records.recorded(p, rows.assign(tokens_non_eos=0)) for p in pair])
    assert frames.precision(nothing, [DREAM], [GSM8K])["positions"].iloc[0] == 0
    assert "not recorded" in repr(view.precision(frames.precision({}, [DREAM], [GSM8K])))


def test_leftmost_by_brute_force():
    rng = np.random.default_rng(0)
    step, rule = rng.integers(0, 6, (40, 9)), rng.integers(0, 4, (40, 9))
    upto = rng.integers(0, 10, 40)
    for bound, limit in ((None, np.full(40, 9)), (upto, upto)):
        left, scheduled = frames.leftmost(step, rule, bound)
        for i in range(40):
            chosen = [j for j in range(limit[i]) if rule[i, j] & 1]
            first = [j for j in chosen if min(k for k in range(9) if step[i, k] >= step[i, j]) == j]
            assert (left[i], scheduled[i]) == (len(first), len(chosen))


def test_left_to_right_shares():
    order = np.stack([np.arange(4), np.arange(4)[::-1]])
    rows = flat(GSM8K, 0.5, 9, n=2).assign(tokens_non_eos=2)
    points = frames.trace_points([DREAM])
    traced = [
        rows.assign(trace_step=list(s), trace_rule=[np.ones(4, np.uint8)] * 2) for s in (order, order[:1].repeat(2, 0))
    ]
    both = dict([fake_records.recorded(p, r) for p, r in zip(points, traced, strict=True)])
    at = frames.left_to_right(both, [DREAM]).set_index("part")
    assert at.loc["canvas", ["float32", "bfloat16", "difference"]].tolist() == [62.5, 100, 37.5]
    assert at.loc["answer", "float32"] == 75  # of the reversed canvas, the first position alone
    assert at.loc["canvas", "n"] == 2 and "62.50" in repr(view.left_to_right(at.reset_index()))
    one = frames.left_to_right(dict(list(both.items())[:1]), [DREAM])
    assert one["bfloat16"].isna().all() and one["difference"].isna().all()
    assert "not recorded" in repr(view.left_to_right(frames.left_to_right({}, [DREAM])))


def test_traces_may_be_absent(tmp_path):
    p = SimpleNamespace(source="recorded", store=tmp_path, models=[DREAM], families=["dream"], limit=None, seed=0,
                        dtype="float32")  # fmt: skip
    assert frames.load_traces(p) == {}


def test_wider_windows_on_short_answers(claimed):
    frame = frames.windows(claimed, cells.MODELS)
    assert set(frame["model"]) == {DREAM} and len(frame) == 2 * len(frames.WINDOWS)
    assert (frame["steps"] == 100).all() and "against" in repr(view.windows(frame))
    assert "No short task" in repr(view.windows(frames.windows({}, [LLADA])))


def test_every_figure_draws(claimed):
    asked = cells.MODELS, [GSM8K, "pocket_mmlu"]
    ours = {name: frames.frame(claimed, a, *asked) for name, a in ABLATIONS.items()}
    paper = {name: view.paper_of(name) for name in ABLATIONS}
    drawn = ablations_figures.draw(ours, paper, frames.after_exit(claimed, *asked), frames.precision(claimed, *asked))
    assert set(drawn) == {*ABLATIONS, "exits"}
    for name, figure in drawn.items():
        assert "5 M parameters" in figure.get_suptitle() and "xploratory" in figure.get_suptitle(), name
    checks = view.checks(ours, paper).frame
    held = dict(zip(checks["Statement"], checks[""], strict=True))
    assert held.pop("Every cell has the planned number of documents") != "holds"  # made-up records are few
    assert set(held.values()) == {"holds"}
