"""The one rule for a criterion's word, what its cells have to be, and the exceptions that captions carry."""

from __future__ import annotations

import fake_records
import pytest

from jot.analysis import ledger_view, phenomena
from jot.paper.criteria import judged, status
from jot.runs.grid import Point


@pytest.mark.parametrize(
    ("complete", "seen", "unseen", "word"),
    [
        (True, True, False, "seen"),
        (True, False, True, "not seen"),
        (True, False, False, "undecided"),
        (True, True, True, "undecided"),
        (False, True, False, "not shown"),
        (False, False, True, "not shown"),
        (False, False, False, "not shown"),
        (False, True, True, "not shown"),
    ],
)
def test_words(complete, seen, unseen, word):
    assert status(complete, seen, unseen) == word
    assert judged(complete, seen, unseen, "x")[0] == word


def test_a_contradiction_is_told():
    assert judged(True, True, True, "x") == ("undecided", "x; both criteria are met")
    assert judged(False, True, True, "x") == ("not shown", "x") and judged(True, False, False, "x")[1] == "x"


def test_no_criterion_decides_without_its_cells():
    """Half of a criterion's cells, and such that what is there would be enough for "not seen"."""
    scores = [1.0] * 100 + [0.0] * 300
    harmed = dict([fake_records.scored(Point.of("pocket-dream", "pocket_gsm8k", "klass"), scores),
                   fake_records.scored(Point.of("pocket-dream", "pocket_gsm8k", "full"), [1.0] * 400)])  # fmt: skip
    assert phenomena.PHENOMENA["klass-slow"](harmed)[0] == "not shown"
    outside = {"dynamics-decline", "wallclock-below"}  # they read other recordings
    for name, judge in phenomena.registered(phenomena.plan()["id"]).items():
        assert name in outside or judge({})[0] == "not shown", name


def test_exceptions_are_those_of_the_plan(root):
    listed = (root / "notebooks" / "ANALYSIS.md").read_text(encoding="utf-8").partition("\n## Deviations\n")[2]
    assert len(phenomena.deviations()) == listed.count("\n* ") and phenomena.deviations()[0].startswith("2026-11-28")
    ids = list(phenomena.plan()["id"])
    sighted, settled = phenomena.exceptions(ids)
    assert set(sighted) == {"choice-flat", "llada-low", "errors-slow", "two-sided", "aggressive-rejects"}
    assert settled == ["quality-kept"]
    assert all(name in listed for name in sighted + settled)
    assert phenomena.exceptions(["sweep-robust", "tau-min"]) == ([], [])


def test_captions_carry_the_exceptions():
    plain, with_exceptions = phenomena.fixed(["tau-min"]), phenomena.fixed(["tau-min", "llada-low", "quality-kept"])
    assert "Deviations" not in plain and plain in with_exceptions
    assert "not blind to it: llada-low; " in with_exceptions and "settled later: quality-kept)" in with_exceptions
    table = phenomena.table(phenomena.judge({}, ["tau-min", "llada-low"]))
    assert "not blind to it: llada-low)" in table.caption
    assert table.frame["Phenomenon"].tolist() == ["tau-min", "llada-low\nnot blind"]
    caption = ledger_view._caption("phenomenon", {}, phenomena.plan()["id"])
    assert "aggressive-rejects" in caption and "Deviations" in caption and caption.startswith("Criteria fixed")


def test_a_name_inside_another_is_no_exception(monkeypatch):
    monkeypatch.setattr(phenomena, "deviations", lambda: ["not blind: spatial-default-x, two-sided"])
    assert phenomena.exceptions(["spatial-default", "two-sided", "sided"]) == (["two-sided"], [])
