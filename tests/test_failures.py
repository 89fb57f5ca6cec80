"""Failure modes found in text, fifths, first differences, agreement, and the notebook's criteria."""

from __future__ import annotations

import re
from types import SimpleNamespace

import fake_records
import numpy as np
import pandas as pd
import pytest
from scipy import stats as st

from jot.analysis import cells, divergence, failures, failures_summary, failures_view
from jot.errors import UserError
from jot.paper import modes as failure_modes
from jot.records import Recorded
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError

TASK = "pocket_gsm8k"
DOC = {
    "id": "pocket_gsm8k/test/0",
    "question": "Ann has 4 boxes of 6 pens. She gives away half of them and buys 5 more. How many has she?",
    "answer": "4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 17. #### 17",
    "final": "17",
    "intermediates": ["24", "12", "17"],
}


# --- modes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4 * 6 = 24. 24 * 2 = 48. 48 + 5 = 53. #### 53", "branch"),  # one wrong operator, consistent
        ("4 * 6 = 26. 26 / 2 = 13. 13 + 5 = 18. #### 18", "branch"),  # one wrong value, consistent
        ("4 * 6 = 24. 24 / 2 = 12. #### 12", "anchor"),
        ("4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 18. #### 24", "anchor"),
        ("4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 17. 17 + 5 = 22. #### 22", "overrun"),
        ("4 * 6 = 17. 17 / 2 = 9. 9 + 5 = 14. #### 14", "other"),  # 17 stands too early to be the right result
        ("4 * 6 = 25. 26 / 2 = 19. #### 3", "other"),
        ("4 * 6 = 24. 24 / 2 = 12. 12 + 9 = 21. 21 + 5 = 25. #### 25", "other"),
        ("", "other"),
        ("#### ", "other"),
        ("5 / 0 = 0. #### 0", "other"),
    ],
)
def test_mode(text, expected):
    assert failure_modes.mode(text, DOC) == expected


def test_faults_are_counted_one_by_one():
    solution = failure_modes.worked(DOC)
    count = lambda text, answer: failure_modes.faults(failure_modes.chain(text), answer, solution)  # noqa: E731
    assert count("4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 17.", 17) == 0
    assert count("4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 18.", 18) == 1  # does not hold
    assert count("4 * 6 = 24. 24 / 2 = 12. 13 + 5 = 18.", 18) == 1  # 13 is from nowhere
    assert count("4 * 6 = 24. 24 / 2 = 12.", 12) == 1  # a step is missing
    assert count("4 * 6 = 24. 24 / 2 = 12. 12 + 5 = 17.", 7) == 1  # answer is not the last result
    assert count("", None) == 4


def test_worked_solutions_of_the_real_benchmark():
    doc = {"question": "Natalia sold 48 clips.", "answer": "She sold 48/2 = <<48/2=24>>24 clips.\n#### 1,072"}
    solution = failure_modes.worked(doc)
    assert (solution.final, solution.values) == (1072, (24,)) and 48 in solution.given


def test_find_marks_right_answers():
    frame = pd.DataFrame({"doc_id": ["a", "b"], "text": ["#### 12", "x"], "score": [0.0, 1.0]})
    assert failure_modes.find(frame, {"a": DOC, "b": DOC}).to_dict() == {"a": "anchor", "b": "right"}


def test_documents_are_refused_in_a_sentence():
    with pytest.raises(NotebookError, match="no worked solutions"):
        failure_modes.documents("pocket_mmlu")
    with pytest.raises(NotebookError, match="documents of gsm8k are needed"):
        failure_modes.documents("gsm8k")
    with pytest.raises(NotebookError, match="check it out"):
        failure_modes.labels("nowhere.csv")


def test_kappa_and_precision_by_hand():
    pairs = (
        [("branch", "branch")] * 20 + [("branch", "other")] * 5 + [("other", "branch")] * 10 + [("other", "other")] * 15
    )
    frame = pd.DataFrame(pairs, columns=["label", "found"])
    assert failure_modes.kappa(frame).value == pytest.approx((0.7 - 0.5) / (1 - 0.5))  # Cohen's textbook table
    row = failure_modes.quality(frame).set_index("mode").loc["branch"]
    assert (row["precision"], row["recall"]) == (pytest.approx(100 * 20 / 30), 80.0)
    empty = failure_modes.quality(frame).set_index("mode").loc["anchor"]
    assert np.isnan(empty["precision"]) and np.isnan(empty["recall_low"])
    assert np.isnan(failure_modes.kappa(frame[frame["label"] == frame["found"]].query("label == 'other'")).value)


def test_labels_are_complete(root):
    """Fifty outputs, known modes, and of every text the finder can say something."""
    frame = failure_modes.labels(root / failure_modes.LABELS)
    sizes = {model: sum(size for _, size in groups) for model, groups in failure_modes.LABELLED.items()}
    assert frame["model"].value_counts().to_dict() == sizes and sum(sizes.values()) == 50
    assert set(frame["label"]) <= set(failure_modes.MODES) and (frame["note"].str.len() > 0).all()
    assert not frame.duplicated(["doc_id", "model"]).any()
    assert (frame["tau"].isna() == (frame["method"] == "full")).all()
    found = failure_modes.labelled(frame, failure_modes.documents(TASK))
    assert set(found["found"]) <= set(failure_modes.MODES)


def test_labels_are_the_fixed_sample(root):
    folder = root / "data" / "records" / "traces"
    if not folder.is_dir():
        pytest.skip("no traced runs")
    from jot.analysis import sources

    frame = failure_modes.labels(root / failure_modes.LABELS)
    drawn = [
        (d, m, None if tau is None else float(tau)) for d, m, tau in failure_modes.sample(sources.recorded(folder))
    ]
    assert [(r.doc_id, r.model, None if np.isnan(r.tau) else r.tau) for r in frame.itertuples()] == drawn


# --- made-up runs -------------------------------------------------------------------------------------------


def frame_of(scores, steps, tokens=None, margins=None, answers=None) -> pd.DataFrame:
    n = len(scores)
    frame = fake_records.rows(TASK, "test", np.random.default_rng(0), n, 0.5, 5)
    frame["score"], frame["steps"] = np.asarray(scores, float), steps
    frame["generated"] = tokens if tokens is not None else [[1, 2, 3]] * n
    frame["answer"] = answers if answers is not None else ["1" if s else "2" for s in scores]
    if margins is not None:
        frame["trace_mean_margin"] = margins
    return frame


def cell_of(method: str, frame: pd.DataFrame, **params) -> cells.Cell:
    return cells.Cell(*fake_records.cell("pocket-dream", TASK, method, frame, **params))


def runs_of(full: pd.DataFrame, jot: dict[float, pd.DataFrame], traced: bool = False) -> failures.Runs:
    base = cell_of("full", full)
    by_tau = {tau: cell_of("jot", frame, tau_max=tau) for tau, frame in jot.items()}
    docs = {doc_id: DOC | {"id": doc_id} for doc_id in full["doc_id"]}
    twins = {"full": base, **by_tau} if traced else {}
    return failures.Runs("pocket-dream", TASK, base, by_tau, {}, twins, docs)


def test_outcomes_by_hand():
    full = frame_of([1, 1, 0, 0], 128, answers=["1", "1", "2", "3"])
    jot = frame_of([1, 0, 1, 0], 4, answers=["1", "2", "1", "2"], tokens=[[1, 2, 3], [9], [9], [9]])
    row = failures.outcomes(runs_of(full, {90: jot})).iloc[0]
    assert (row["n"], row["b"], row["c"], row["difference"]) == (4, 1, 1, 0.0)
    assert (row["outcomes"], row["answers"], row["tokens"], row["repairs"]) == (50.0, 25.0, 25.0, 25.0)
    assert row["p"] == st.binomtest(1, 2).pvalue and row["midp"] == 1.0
    assert row["speedup"] == 32.0


def test_no_discordant_pair_and_one_document():
    same = frame_of([1], 128)
    runs = runs_of(same, {90: frame_of([1], 2)})
    row = failures.outcomes(runs).iloc[0]
    assert (row["b"], row["c"], row["p"], row["midp"]) == (0, 0, 1.0, 1.0) and row["outcomes"] == 100.0
    groups, tests = failures.stratified(runs)
    assert groups["n"].tolist() == [1] and np.isnan(tests["odds"].iloc[0])
    assert failures.slow_errors(runs.jot[90], runs.full) == ("not shown", "needs 5 documents")
    assert failures_view.fifths(runs, groups, "margin")._repr_markdown_().startswith("The traced runs")


def test_fifths_order_ties_and_counts():
    scores = [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]  # documents 0 and 1 wrong
    steps = [64, 2, 8, 8, 8, 8, 8, 8, 8, 8, 128]
    both = failures.side_by_side(cell_of("jot", frame_of(scores, steps)), cell_of("full", frame_of([1] * 11, 128)))
    assert both["doc_id"].tolist() == [f"{TASK}/test/{i}" for i in range(11)]  # 2 before 10
    groups = failures.fifths(both, "speedup")
    assert groups["n"].tolist() == [3, 2, 2, 2, 2]
    assert groups["steps_high"].tolist() == [128, 8, 8, 8, 8] and groups["steps_low"].tolist() == [8, 8, 8, 8, 2]
    assert groups["jot"].round(1).tolist() == [33.3, 0, 0, 0, 50.0] and groups["full"].tolist() == [0] * 5
    assert groups["difference"].round(1).tolist() == [-33.3, 0, 0, 0, -50.0]
    assert groups["tied"].tolist() == [1, 2, 2, 2, 1]  # the eight documents of 16 steps fall into all five groups
    caption = failures_view._ties(groups.assign(tau=90), "achieved speedup")
    assert "τ = 90: 8 of 11" in caption and "by their id" in caption
    even = failures.fifths(both.assign(speedup=range(11)), "speedup")
    assert not even["tied"].any() and failures_view._ties(even.assign(tau=90), "x") == "no edge cuts through a tie"


def test_trend_equals_a_fit_written_out():
    rng = np.random.default_rng(3)
    x, length = rng.normal(size=300), rng.integers(10, 60, 300).astype(float)
    y = (rng.random(300) < 1 / (1 + np.exp(1 + x - 0.01 * length))).astype(float)
    both = pd.DataFrame({"x": x, "tokens_non_eos_a": length, "jot_error": y})
    design, beta = np.column_stack([np.ones(300), x, length]), np.zeros(3)
    for _ in range(30):  # Newton's method
        mu = 1 / (1 + np.exp(-design @ beta))
        hessian = design.T @ (design * (mu * (1 - mu))[:, None])
        beta = beta + np.linalg.solve(hessian, design.T @ (y - mu))
    error = np.sqrt(np.linalg.inv(hessian)[1, 1])
    found = failures.trend(both, "x")
    assert found["odds"] == pytest.approx(np.exp(beta[1]), rel=1e-5)
    assert found["odds_low"] == pytest.approx(np.exp(beta[1] - st.norm.isf(0.025) * error), rel=1e-4)
    assert found["p"] == pytest.approx(2 * st.norm.sf(abs(beta[1]) / error), rel=1e-3)


@pytest.mark.parametrize("y", [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
def test_trend_that_cannot_be_fitted(y):
    both = pd.DataFrame({"x": range(6), "tokens_non_eos_a": [3, 1, 2, 3, 1, 2], "jot_error": np.asarray(y, float)})
    assert np.isnan(failures.trend(both, "x")["odds"])


def test_criteria():
    n, rng = 600, np.random.default_rng(0)
    steps = rng.integers(1, 60, n)
    easy = (steps < 30).astype(float)
    full = cell_of("full", frame_of([1] * n, 128))
    assert failures.slow_errors(cell_of("jot", frame_of(easy, steps)), full)[0] == "seen"
    assert failures.slow_errors(cell_of("jot", frame_of(1 - easy, steps)), full)[0] == "not seen"
    assert failures.slow_errors(cell_of("jot", frame_of([1] * n, steps)), full)[0] == "undecided"
    same, worse = cell_of("jot", frame_of([1] * n, 5)), cell_of("jot", frame_of(rng.random(n) > 0.2, 5), tau_max=30)
    assert failures.rejections(same, worse, full)[0] == "seen"
    assert failures.rejections(worse, same, full)[0] == "not seen"
    assert failures.rejections(worse, worse, full)[0] == "undecided"
    few = cell_of("full", frame_of([1] * 10, 128))
    assert failures.rejections(same, worse, few) == ("not shown", "needs 500 documents")


def test_criteria_from_records():
    records = dict([fake_records.cell("pocket-dream", TASK, "full", frame_of([1] * 20, 128))])
    assert {name: rule(records)[0] for name, rule in failures.PHENOMENA.items()} == {
        "errors-slow": "not shown",
        "aggressive-rejects": "not shown",
    }
    records |= dict(
        [fake_records.cell("pocket-dream", TASK, "jot", frame_of([1] * 20, 9), block_start=False, sample=False)]
    )
    assert failures.PHENOMENA["errors-slow"](records)[0] == "undecided"


def trace(frame: pd.DataFrame, rule, margin=5.0, threshold=4.0) -> pd.DataFrame:
    n = len(frame)
    width = len(frame["generated"].iloc[0])
    return frame.assign(
        trace_rule=[np.asarray(r) for r in rule],
        trace_step=[np.arange(width)] * n,
        trace_margin=[np.full(width, margin)] * n,
        trace_threshold=[np.full(width, threshold)] * n,
        trace_mean_margin=[np.array([float(i), 2.0]) for i in range(n)],
        tokens_non_eos=width,
    )


def test_first_differences_and_their_rule():
    full = trace(frame_of([1, 0, 1, 0], 128, tokens=[[1, 2, 3]] * 4), [[1, 1, 1]] * 4)
    tokens = [[1, 2, 3], [1, 2, 9], [1, 8, 9], [7, 2, 3]]
    jot = trace(frame_of([1, 1, 0, 0], 3, tokens=tokens), [[2, 2, 2], [2, 2, 3], [2, 1, 2], [2, 2, 2]])
    runs = runs_of(full, {90: jot}, traced=True)
    found = divergence.first_differences(runs.traced[90], runs.traced["full"], {7: " 7", 8: "*", 9: "<|endoftext|>"})
    assert found["position"].tolist() == [2, 1, 0] and found["rule"].tolist() == [3, 1, 2]
    assert found["outcome"].tolist() == ["repair", "break", "both wrong"]
    assert found["kind"].tolist() == ["end", "operator", "number"] and found["other"].tolist() == ["3", "2", "1"]
    table = divergence.by_rule(runs, {}).set_index("rule")
    assert table["count"].tolist() == [1, 1, 1] and table["share"].round(1).tolist() == [33.3] * 3
    assert table["all"].round(1).tolist() == [83.3, 8.3, 8.3]
    examples = divergence.examples(runs, {})
    assert examples["doc_id"].tolist() == [f"{TASK}/test/2"]
    groups, tests = failures.stratified(runs)
    assert set(groups["by"]) == {"speedup", "margin"} and len(tests) == 2


def test_what_is_shown_reads_well():
    full = trace(frame_of([1, 0, 1, 0], 128, tokens=[[1, 2, 3]] * 4), [[1, 1, 1]] * 4)
    jot = trace(frame_of([1, 1, 0, 0], 3, tokens=[[1, 2, 9]] * 4), [[2, 2, 3]] * 4)
    runs = runs_of(full, {90: jot, 30: jot}, traced=True)
    outcomes, (groups, tests), modes = failures.outcomes(runs), failures.stratified(runs), failures.modes(runs)
    labels = pd.DataFrame({"doc_id": [f"{TASK}/test/0"], "model": "pocket-dream", "tau": 90.0, "label": "other",
                           "found": "other", "text": "another"})  # fmt: skip
    shown = [
        failures_view.outcomes(runs, outcomes),
        failures_view.agreement(runs, outcomes),
        failures_view.fifths(runs, groups),
        failures_view.fifths(runs, groups, "margin"),
        failures_view.trend(runs, tests),
        failures_view.modes(runs, modes),
        failures_view.by_rule(runs, divergence.by_rule(runs, {})),
        failures_view.examples(runs, divergence.examples(runs, {})),
        failures_view.finder(labels),
        failures_summary.checks(runs, outcomes, groups, labels),
    ]
    for table in shown:
        assert "nan" not in table._repr_html_().lower().replace("finance", "")
    for table in shown[:-1]:
        assert "5 M parameters" in table.caption and "n = " in table.caption
    assert "does not hold" in shown[-1]._repr_html_()  # the labelled text is not the recorded one
    assert "Verdict" in failures_summary.verdict(runs, outcomes, modes).text
    assert "not recorded" in failures_view.noise(runs, outcomes).text
    assert len(failures_summary.figure(runs, groups).axes) == 3
    bare = failures.Runs(*runs[:5], {}, runs.docs)
    assert "not recorded" in failures_view.by_rule(bare, divergence.by_rule(bare, {})).text
    assert "None" not in failures_summary.verdict(bare, outcomes, modes).text
    assert "Traced" not in failures_summary.checks(bare, outcomes, groups, labels)._repr_html_()


def test_noise_without_a_choice_is_no_evidence():
    tokens = [[1, 2, 3]] * 8
    full = trace(frame_of([1, 0] * 4, 128, tokens=tokens), [[1, 1, 1]] * 8, margin=0.25)
    jot = trace(frame_of([1, 1] * 4, 3, tokens=tokens), [[2, 2, 3]] * 8)
    runs = runs_of(full, {90: jot}, traced=True)
    runs = runs._replace(others={"full, seed 1": runs.full})
    frame = failures.outcomes(runs)
    assert frame.set_index("run")["degenerate"].to_dict() == {"JoT, τ = 90": False, "full, seed 1": True}
    for table in (failures_view.outcomes(runs, frame), failures_view.agreement(runs, frame)):
        row = table.frame[table.frame["Run"] == "full, seed 1"].iloc[0].astype(str)
        assert row.str.contains("no draw had a choice").sum() >= 3 and "100\n[" not in "".join(row)
    assert "says nothing of how stable" in failures_view.noise(runs, frame).text
    close = runs._replace(traced={**runs.traced, "full": cell_of("full", trace(full, [[1, 1, 1]] * 8, margin=0.1))})
    assert not failures.outcomes(close)["degenerate"].any()
    assert "sometimes drew" in failures_view.noise(close, failures.outcomes(close)).text


def test_modes_count_what_the_other_gets_right():
    full = frame_of([1, 0, 0, 0], 128).assign(text=["#### 17", "#### 12", "x", "x"])
    jot = frame_of([0, 1, 0, 0], 4).assign(text=["#### 24", "#### 17", "#### 12", "x"])
    frame = failures.modes(runs_of(full, {90: jot})).set_index(["run", "mode"])
    assert frame.loc[("full", "anchor"), ["count", "wrong", "other_right"]].tolist() == [1, 3, 1]
    assert frame.loc[("JoT, τ = 90", "anchor"), ["count", "wrong", "other_right"]].tolist() == [2, 3, 1]
    assert frame.loc[("JoT, τ = 90", "other"), "rate"] == 25.0


# --- loading ------------------------------------------------------------------------------------------------


def parameters(**changes) -> SimpleNamespace:
    values = {"source": "recorded", "store": None, "model": "pocket-dream", "tasks": [TASK], "methods": ["full", "jot"],
              "limit": None, "seed": 0, "device": None, "dtype": "float32", "data": None,
              "tau_max": 90.0, "tau_min": 1.0, "gamma": 0.5, "window": 8}  # fmt: skip
    return SimpleNamespace(**values | changes)


@pytest.fixture
def store(tmp_path):
    made = {k: v for k, v in fake_records.records(40).items() if "gsm8k" in k and "test" in k}
    full = {"block_start": False, "sample": False}
    made |= dict(
        [fake_records.cell("pocket-dream", TASK, "jot", frame_of([1] * 40, 5), tau_max=tau, **full) for tau in (90, 30)]
    )
    return fake_records.write(tmp_path / "store", made)


def test_load(store):
    runs = failures.load(parameters(store=store, limit=20))
    assert (runs.full.n, list(runs.jot), runs.traced, runs.others) == (20, [90.0, 30.0], {}, {})
    assert failures.taus(parameters(tau_max=30)) == (30, 10)
    with pytest.raises(NotebookError, match="is above the 40 recorded documents"):
        failures.load(parameters(store=store, limit=41))
    with pytest.raises(NotebookError, match="one task, not 2"):
        failures.load(parameters(store=store, tasks=[TASK, "pocket_mmlu"]))
    with pytest.raises(NotebookError, match="with these settings is not recorded"):
        failures.load(parameters(store=store, gamma=0.4))
    with pytest.raises(NotebookError, match="no recorded cells of model"):
        failures.load(parameters(store=store, model="pocket-dream-2"))
    with pytest.raises(UserError, match="did you mean 'klass'"):
        failures.load(parameters(store=store, methods=["full", "jot", "klas"]))
    with pytest.raises(UserError, match="gamma"):
        failures.load(parameters(store=store, gamma=2.0))


def test_cut_takes_the_fixed_order():
    cell = cell_of("full", frame_of([1] * 30, 128))
    part = failures.cut(cell, 10)
    assert part.n == 10 and isinstance(part.recorded, Recorded)
    again = failures.cut(failures.cut(cell, 20), 10)
    assert set(part.recorded.frame["doc_id"]) == set(again.recorded.frame["doc_id"])
    assert failures.cut(cell, 30) is cell


# --- the paper's numbers ------------------------------------------------------------------------------------


def test_published_numbers_stand_in_the_paper(shared):
    source = shared / "paper" / "jot.tex"
    if not source.is_file():
        pytest.skip(f"no paper source at {source}")
    section = source.read_text().split(r"\label{app:failure_modes}")[1].split(r"\subsection")[0]
    printed = {float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", section.replace(",", ""))}
    fractions = {10.0 ** int(x) for x in re.findall(r"10\^\{(-\d+)\}", section)}
    frame = failures_view.paper()
    assert set(frame["value"]) <= printed | fractions
    quintiles = re.findall(r"(\d+)/(\d+)/(\d+)/(\d+)/(\d+)\\%\$ at \$\\tau_\{\\max\}=(\d+)", section)
    for *errors, tau in quintiles:
        rows = frame[(frame["place"] == "quintiles") & (frame["tau_max"] == float(tau))].sort_values("quantity")
        assert rows["value"].tolist() == [float(x) for x in errors]
    assert len(quintiles) == 2


def test_the_papers_agreement_is_that_of_outcomes():
    """26 repairs and 37 breaks of 500 leave 87.4 %; at the other threshold 15 and 74 leave 82.2 %."""
    for tau, b, c in ((90, 26, 37), (30, 15, 74)):
        n = failures_view.printed("samples")
        assert 100 * (1 - (b + c) / n) == pytest.approx(failures_view.printed("agreement", tau))
        assert 100 * b / n == pytest.approx(failures_view.printed("repairs", tau))
        assert 100 * (b - c) / n == pytest.approx(failures_view.printed("difference", tau))


def test_points_are_the_planned_ones():
    found = failures.wanted(parameters(methods=["full", "jot", "klass"]), TASK)
    assert list(found) == ["full", 90.0, 30.0, "klass", "full, seed 1", "full, seed 2"]
    assert cells.resolved(found[90.0]) == cells.resolved(Point.of("pocket-dream", TASK, "jot", tau_max=90))
    assert "full, seed 1" not in failures.wanted(parameters(model="pocket-llada", tau_max=30.0), TASK)
