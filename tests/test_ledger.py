"""The claims ledger: numbers that know how they were printed, entries that are complete, a line for every entry."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cells
import claims
import pytest
from claims import Number, every
from hypothesis import given
from hypothesis import strategies as st

from jot.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


@given(st.integers(-99999, 99999), st.integers(0, 3))
def test_a_printed_number_equals_what_rounds_to_its_digits(k, digits):
    text = f"{k / 10**digits:.{digits}f}"
    assert Number(text) == Number(float(text)) and Number(text) == float(text) + 0.49 * 10**-digits
    assert not (Number(text) == float(text) + 0.51 * 10**-digits)


def test_comparisons_tell_both_sides():
    found = Number("5.5") == Number("5.54", "jot gsm8k")
    assert found and found.detail == "5.5 = 5.54 (jot gsm8k)"
    assert (Number("3.0") < 3).detail == "3.0 ≥ 3" and not Number("3.0") < 3
    assert (Number(1) - Number("0.5")).text == "" and Number(2) / 4 == Number("0.5")
    both = every(Number(1) < 2, Number(3) < 2)
    assert not both and both.detail == "3 ≥ 2"
    assert every(Number(1) < 2, Number(1) < 3).detail == "1 < 2; 1 < 3"


def test_cells_of_the_paper():
    assert claims.cell("main_results dream jot gsm8k speedup").text == "5.54"
    assert len(claims.cells("main_results jot score")) == 8
    for wrong in ("main_results dream jot nothing", "no_table jot"):
        with pytest.raises(UserError):
            claims.cells(wrong)


@pytest.fixture(scope="module")
def space():
    """The rules of notebook 00."""
    return cells.run("00_claims", until="rules-granular")[0]


def test_gaps_of_the_paper(space):
    """Also where a table has no row of full decoding."""
    assert (
        space["gap"]("main_results dream jot gsm8k") == Number("-2.3")
    ).detail == "-2.3 (dream jot gsm8k minus full) = -2.3"
    assert len(space["gaps"]("main_results jot")) == 8 and len(space["gaps"]("threshold_ablation jot gsm8k")) == 6
    assert space["setting"]("jot", "llada", "tau_max") == 30 and space["setting"]("jot", "dream", "sample") is False


def test_aggregates_of_the_paper(space):
    """Figure 1 of the paper, on Dream-7B; and its reversal budget."""
    printed = {"jot": (4.43, 98.3), "prophet": (2.89, 91.9), "klass": (2.20, 99.9), "fastdllm": (2.86, 94.7)}
    for name, (speed, kept) in {"full": (1, 100), **printed}.items():
        assert round(float(space["speed_mean"](f"dream {name}")), 2) == speed
        assert round(float(space["kept"](f"dream {name}")), 1) == kept
    assert round(float(space["budget"](256, 90)), 2) == 5.63


def test_granularity_by_hand(space):
    implied_n, possible = space["implied_n"], space["possible"]
    assert implied_n([50.0]) == 2 and implied_n([33.3, 66.7]) == 3
    assert possible(12.6, 1, 500) and not possible(12.7, 1, 500)


def test_every_entry_has_one_line_and_no_line_lacks_its_entry():
    found = json.loads((ROOT / "notebooks" / "00_claims.ipynb").read_text(encoding="utf-8"))["cells"]
    source = "\n".join("".join(c["source"]) for c in found if c["id"].startswith("lines-") and c["cell_type"] == "code")
    lines = re.findall(r'(?m)^    "([a-z0-9-]+)": lambda', source)
    checked = [entry.id for entry in claims.load() if entry.kind in ("arithmetic", "theorem", "comparison", "setting")]
    assert sorted(lines) == sorted(checked) and len(set(lines)) == len(lines)


def test_every_number_of_the_ledger_is_printed_in_the_paper(shared):
    tex = (shared / "paper" / "jot.tex").read_text()
    words = set(re.findall(r"\d[\d,.]*\d|\d", tex.replace("{,}", ",")))
    words |= {f"1e-{power}" for power in re.findall(r"10\^\{-(\d+)\}", tex)}
    missing = [(e.id, n) for e in claims.load() for n in e.value.values() if n.lstrip("-+") not in words]
    assert not missing


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {id: a, section: s, claim: c}", "not complete"),
        ("- {id: a, section: s, claim: 'x {y}', kind: arithmetic}", "not complete"),
        ("- {id: a, section: s, claim: c, kind: wish}", "entry a: its kind is one of"),
        ("- {id: a, section: s, claim: c, kind: phenomenon}", "its criterion is given"),
        ("- {id: a, section: s, claim: c, kind: arithmetic, value: {x: 3}}", "numbers are in quotes"),
        ("- {id: a, section: s, claim: c, kind: full-size, grade: bad}", "its grade is one of"),
        (
            "- {id: a, section: s, claim: c, kind: full-size}\n- {id: a, section: s, claim: c, kind: full-size}",
            "its id is its own",
        ),
    ],
)
def test_an_incomplete_entry_is_one_sentence(tmp_path, monkeypatch, text, said):
    (tmp_path / "data" / "paper").mkdir(parents=True)
    (tmp_path / "data" / "paper" / "claims.yaml").write_text(text)
    monkeypatch.setenv("JOT_HOME", str(tmp_path))
    with pytest.raises(UserError, match=said):
        claims.load()


def test_an_absent_ledger_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("JOT_HOME", str(tmp_path))
    with pytest.raises(UserError, match="claims.yaml is missing"):
        claims.load()
