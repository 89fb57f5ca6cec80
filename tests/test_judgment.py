"""The one rule for a criterion's word, what its runs have to be, and the exceptions that captions carry."""

from __future__ import annotations

import cells
import fake_records
import pytest

from jot import stats
from jot.errors import UserError
from jot.paper import criteria
from jot.paper.criteria import judged
from jot.runs.grid import Point

WORDS = {
    (True, True, False): "seen", (True, False, True): "not seen", (True, False, False): "undecided",
    (True, True, True): "undecided", (False, True, False): "not shown", (False, False, True): "not shown",
    (False, False, False): "not shown", (False, True, True): "not shown",
}  # fmt: skip


@pytest.mark.parametrize(("halves", "word"), WORDS.items())
def test_words(halves, word):
    assert judged(*halves, "x")[0] == word


def test_a_contradiction_is_told():
    assert judged(True, True, True, "x") == ("undecided", "x; both criteria are met")
    assert judged(False, True, True, "x") == ("not shown", "x") and judged(True, False, False, "x")[1] == "x"


@pytest.fixture
def half(tmp_path):
    """A store with half of what a criterion needs, such that what is there would be enough for "not seen"."""
    scores = [1.0] * 100 + [0.0] * 300
    made = [fake_records.scored(Point.of("pocket-dream", "pocket_gsm8k", "klass"), scores),
            fake_records.scored(Point.of("pocket-dream", "pocket_gsm8k", "full"), [1.0] * 400)]  # fmt: skip
    return criteria.Evidence(fake_records.write(tmp_path / "store", dict(made)))


def test_no_criterion_decides_without_its_runs(half):
    outside = {"wallclock-below"}  # it reads the timings of the packaged runs
    found = criteria.judge(half)
    assert set(found["status"][~found["id"].isin(outside)]) == {"not shown"}
    page, _ = cells.run("00_claims", until="judge-first", store=str(half.store))
    assert {page["seen"][name][0] for name in page["FIRST"]} == {"not shown"}


def test_exceptions_are_those_of_the_plan(root):
    listed = (root / "notebooks" / "ANALYSIS.md").read_text(encoding="utf-8").partition("\n## Deviations\n")[2]
    assert len(criteria.deviations()) == listed.count("\n* ") and criteria.deviations()[0].startswith("2026-11-28")
    sighted, settled = criteria.exceptions(list(criteria.plan()["id"]))
    assert set(sighted) == {"choice-flat", "llada-low", "errors-slow", "two-sided", "aggressive-rejects"}
    assert settled == ["quality-kept", "wallclock-below", "averaging-suffices"] and all(
        name in listed for name in sighted + settled
    )
    assert criteria.exceptions(["sweep-robust", "tau-min"]) == ([], [])


def test_captions_carry_the_exceptions(half):
    shown = criteria.table(criteria.judge(half, ["tau-min", "llada-low", "compose-gsm8k-matched"]))
    assert "not blind to it: llada-low" in shown.caption
    assert "value known when it was written: compose-gsm8k-matched" in shown.caption
    assert shown.frame["Phenomenon"].tolist() == ["tau-min", "llada-low\nnot blind", "compose-gsm8k-matched\nnot blind"]


def test_a_name_inside_another_is_no_exception(monkeypatch):
    monkeypatch.setattr(criteria, "deviations", lambda: ["not blind: spatial-default-x, two-sided"])
    assert criteria.exceptions(["spatial-default", "two-sided", "sided"]) == (["two-sided"], [])


def test_every_criterion_stands_in_the_plan():
    listed = set(criteria.plan()["id"])
    assert len(criteria.known()) == 37 and set(criteria.known()) <= listed


def test_a_page_may_decide_itself(half):
    mine = {"averaging-suffices": ("seen", "0.8")}
    frame = criteria.judge(half, ["tau-min", "averaging-suffices"], mine)
    assert frame["status"].tolist() == ["not shown", "seen"] and frame["detail"].iloc[1] == "0.8"


@pytest.mark.parametrize(
    ("low", "high", "where"),
    [
        (0.1, 2, "above 0"),
        (-5, -3.1, "below -3"),
        (-2.9, 2.9, "within 3"),
        (3.1, 5, "beyond 3"),
        (-9, -3.1, "beyond 3"),
    ],
)
def test_where_an_interval_lies(low, high, where):
    other = {"above": -9, "below": 9, "within": 9, "beyond": 0}[where.split()[0]]
    assert criteria.lies(stats.Estimate(1, low, high), where)
    assert not criteria.lies(stats.Estimate(1, min(low, other), max(high, other)), where)


def test_a_default_may_be_named(tmp_path):
    made = [fake_records.scored(Point.of("pocket-dream", "pocket_gsm8k", "jot", tau_max=tau), [1.0] * 9, tau)
            for tau in (30, 90)]  # fmt: skip
    at = criteria.Evidence(fake_records.write(tmp_path / "store", dict(made)))
    for name, steps in (("jot", 90), ("jot tau_max=90 gamma=0.5", 90), ("jot tau_max=30 spatial=True", 30)):
        assert (at.run("pocket-dream", "pocket_gsm8k", name)["steps"] == steps).all()
    with pytest.raises(criteria.NotRecorded, match="jot tau_max=60"):
        at.run("pocket-dream", "pocket_gsm8k", "jot tau_max=60")


def test_an_absent_list_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("JOT_HOME", str(tmp_path))
    with pytest.raises(UserError, match="criteria.yaml .No such file or directory.; check paper/ out"):
        criteria.known()
