"""The claims ledger: its entries, its checks, and the numbers of the paper's prose where the source is at hand."""

from __future__ import annotations

import math
import re
from collections import Counter
from types import SimpleNamespace

import fake_records
import pytest

from jot.analysis import cells, ledger, ledger_checks, ledger_tables, ledger_view, phenomena, plan, published, tables
from jot.analysis.ledger_cells import Printed
from jot.errors import UserError
from jot.runs.parameters import NotebookError

ENTRIES = ledger.load()
CHECKED = [entry for entry in ENTRIES if entry.check]


@pytest.fixture(scope="module")
def no_records():
    """Criteria that answer without records."""
    return {name: lambda records: ("not shown", "none") for name in [*ledger.FIRST, *phenomena.plan()["id"]]}


@pytest.fixture(scope="module")
def frame(no_records):
    """Every entry judged, phenomena without records."""
    return ledger.judge(ENTRIES, {}, no_records)


# --- the entries --------------------------------------------------------------------------------------------

FAILS = [  # what the paper's own numbers contradict, or its words as the entry reads them
    "overhead-per-step", "bound-covers-spatial-default", "bound-negligible-when-short", "bound-block-budget-sample",
    "error-gsm8k", "gains-printed", "repeated-cells", "recommended-klass", "recommended-klass-rule",
    "recommended-prophet-rule", "main-humaneval-within-error", "main-overhead-minor", "compose-best-of-all",
    "compose-keeps-gsm8k-dream", "compose-gate-points", "threshold-high-elsewhere", "spatial-wide-beyond-error",
    "sweep-robust", "sweep-120-humaneval", "sweep-conservative", "wallclock-amortised", "wallclock-minor-to-savings",
    "tau-min-within", "tau-min-humaneval-speed", "quality-columns", "quality-higher-is-better", "llada-own-baseline",
    "llada-subset-humaneval", "llada-default-repeated", "llada-30-quality", "dynamics-conservative-enough",
    "failure-agreement-of-outcomes", "spatial-short-hellaswag",
    "spatial-windows-coincide-mmlu",
]  # fmt: skip
NUMBERS = {  # counter-numbers that a failing entry must tell
    "main-humaneval-within-error": "47.6 for full decoding against 39.0 to 40.9",
    "bound-negligible-when-short": "L = 3: 0.55 at tau 10, 0.04 at 150; L = 5: 0.91 at tau 10",
    "compose-best-of-all": "79.8 (llada_ablation, tau 90)",
    "compose-keeps-gsm8k-dream": "-4.6",
    "repeated-cells": "72.7 in sweep and 72.5 in spatial_ablation",
    "llada-default-repeated": "76.6 in main_results and 72.7 in llada_ablation",
    "main-overhead-minor": "gsm8k 15.0 %, mmlu 1.3 %, hellaswag 1.8 %, humaneval 22.7 %",
    "llada-subset-humaneval": "481; the whole set has 164",
}


@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_every_check_runs_and_comes_out_as_known(entry):
    status, detail = ledger.verdict(entry, None)
    assert status == ("fails" if entry.id in FAILS else "holds"), detail
    assert detail and NUMBERS.get(entry.id, "") in detail


def test_entries_are_complete():
    assert len(ENTRIES) > 150 and set(FAILS) | set(NUMBERS) <= {entry.id for entry in CHECKED}
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.id) for entry in ENTRIES)
    assert {entry.kind for entry in ENTRIES} == set(ledger.KINDS)
    assert all(entry.text.endswith(".") and "{" not in entry.text for entry in ENTRIES)


def test_every_criterion_of_the_plan_is_a_phenomenon_of_the_ledger_once():
    named = Counter(entry.criterion for entry in ENTRIES if entry.kind == "phenomenon")
    assert named == Counter([*ledger.FIRST, *phenomena.plan()["id"]]) and len(named) >= 15


def test_judged_frame(frame, no_records):
    assert len(frame) == len(ENTRIES) and set(frame["status"]) <= set(ledger.VERDICTS)
    assert set(frame[frame["kind"] == "phenomenon"]["status"]) == {"not shown"}
    assert set(frame[frame["kind"] == "full-size"]["status"]) == {"needs the full-size weights"}
    seen = [entry for entry in ENTRIES if entry.kind == "phenomenon"]
    with pytest.raises(UserError, match="came out as 'perhaps'"):
        ledger.judge(seen, {}, {name: lambda records: ("perhaps", "") for name in no_records})
    with pytest.raises(UserError, match="unknown criterion"):
        ledger.judge(seen, {}, {})


def test_every_criterion_has_a_function_that_takes_records_with_nothing_in_them():
    known = ledger.phenomena()
    assert list(known) == [*ledger.FIRST, *phenomena.plan()["id"]]
    outside = ("dynamics-decline", "wallclock-below")  # these read packaged traces and timings
    for name, judged in known.items():
        assert name in outside or judged({})[0] == "not shown", name


def test_the_plans_first_table_is_judged_on_the_main_cells():
    records = fake_records.records(n=60)
    comparisons = tables.paired(tables.select(records, cells.MODELS, cells.TASKS, ["full", "jot"]))
    passed = comparisons["verdict"].isin(plan.PASSED).sum()
    judged = [ledger.phenomena()[name](records) for name in ledger.FIRST]
    assert judged[0] == ("seen" if passed >= 5 else "undecided", judged[0][1]) and judged[0][1].startswith(
        f"{passed} of 8"
    )
    assert judged[1][1].endswith("lower limits above 1") and all(status in ledger.VERDICTS for status, _ in judged)


def test_records_of_a_notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("JOT_HOME", str(tmp_path))
    with pytest.raises(NotebookError, match="there are no records in data/records"):
        ledger.recorded(SimpleNamespace(source="recorded", store=None))
    asked = []

    def recorded(folder):
        asked.append(folder)
        return {kind: SimpleNamespace(meta={"config": {"dtype": kind}}) for kind in ("float32", "bfloat16")}

    monkeypatch.setattr(ledger.sources, "recorded", recorded)
    for source, store in (("live", None), ("live", tmp_path), ("recorded", None)):
        assert list(ledger.recorded(SimpleNamespace(source=source, store=store))) == ["float32"]
    assert asked == [tmp_path / "results" / "store", tmp_path, None]


GOOD = "- {id: a, section: s, claim: Text., kind: full-size}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {id: a, section: s, kind: full-size}", "entry a needs id, section, claim and kind"),
        ("- words", "entry number 1 needs"),
        (GOOD + GOOD, "two entries have the id a"),
        ("- {id: a, section: s, claim: T., kind: rumor}", "kind 'rumor'; known are arithmetic"),
        ("- {id: a, section: s, claim: T., kind: arithmetic}", "needs a check"),
        ("- {id: a, section: s, claim: T., kind: phenomenon, check: 1 == 1}", "cannot have a check"),
        ("- {id: a, section: s, claim: T., kind: full-size, criterion: x}", "cannot have a criterion"),
        ("- {id: a, section: s, claim: 'T {x}.', kind: full-size}", "names a value that it does not have"),
        ("- {id: a, section: s, claim: T., kind: full-size, value: {x: 1.5}}", "put quotes around 1.5"),
        ("- {id: a, section: s, claim: T., kind: full-size, place: here}", "unknown fields: place"),
    ],
)
def test_incomplete_entries_are_refused(text, message, tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        ledger.load(path)


def test_missing_ledger_is_refused(tmp_path):
    with pytest.raises(UserError, match="JOT_HOME"):
        ledger.load(tmp_path / "none.yaml")


# --- expressions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value", "holds", "detail"),
    [
        ("x == 5.54", {"x": "5.5"}, True, "5.5 = 5.54"),
        ("x == 5.56", {"x": "5.5"}, False, "5.5 ≠ 5.56"),
        ("x == 5.5", {"x": "5.50"}, True, "5.50 = 5.5"),
        ("x == 5.504", {"x": "5.50"}, True, "5.50 = 5.504"),
        ("x == 5.506", {"x": "5.50"}, False, "5.50 ≠ 5.506"),
        ("drop == full - jot", {"drop": "2.2", "full": "83.2", "jot": "81.0"}, True, "2.2 = 2.2"),
        ("x == y", {"x": "19.6", "y": "19.60"}, True, "19.6 = 19.60"),
        ("1 < 2 and 3 < 2", {}, False, "3 ≥ 2"),
        ("1 < 2 < 3", {}, True, "1 < 2; 2 < 3"),
        ("-3.1 >= 44.5 - 47.6", {}, True, "-3.1 ≥ -3.1"),
        ("[1, 2] == [1, 2]", {}, True, "1, 2 = 1, 2"),
        ("2 ** 0.5 * 2 / 1 > 2", {}, True, "2.828 > 2"),
        ("p > 1.5e-10", {"p": "1e-9"}, True, "1e-9 > 1.5e-10"),
        ('setting("jot", "dream", "combine") == "or"', {}, True, "or = or"),
        ('cell("main_results dream jot gsm8k speedup") == x', {"x": "5.54"}, True,
         "5.54 (dream jot gsm8k speedup) = 5.54"),
        ('gap("main_results llada jot humaneval") == -3.1', {}, True,
         "-3.1 (llada jot humaneval minus full) = -3.1"),
    ],
)  # fmt: skip
def test_expressions(expression, value, holds, detail):
    assert ledger.evaluate(expression, value) == (holds, detail)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 +", "no expression"),
        ("1 + 1", "must say true or false"),
        ("__import__('os') == 1", "cannot use"),
        ("x.text == 1", "cannot use"),
        ("[i for i in (1,)] == 1", "cannot use"),
        ("y == 1", "cannot use 'y'"),
        ('cell("main_results dream jot score") == 1', "4 cells of the paper fit"),
        ('cell("main_results dream jot nowhere") == 1', "'nowhere' names no row"),
        ('cells("threshold_ablation tau=7") == 1', "no cell of the paper fits"),
        ('setting("jot", "dream", "tau") == 1', "no setting 'tau'"),
    ],
)
def test_wrong_expressions_are_refused(expression, message):
    with pytest.raises(UserError, match=message):
        ledger.evaluate(expression, {"x": "1"})


def test_printed_numbers_know_their_rounding():
    assert [Printed(t).digits for t in ("3", "5.50", "1e-9", "1319")] == [0, 2, 9, 0]
    assert Printed("0.6").fits(100 / 164) and not Printed("0.6").fits(200 / 164)
    assert Printed("2.5").fits(2.45) and Printed("2.5").fits(2.55) and not Printed("2.5").fits(2.551)


# --- functions of the tables, by other means ----------------------------------------------------------------


def test_gaps_are_differences_to_the_main_table_where_a_table_has_no_full_decoding():
    assert ledger_checks.gap("main_results dream jot gsm8k") == -2.3
    assert ledger_checks.gap("composability llada jot tau=60 gsm8k") == pytest.approx(1.2)
    assert ledger_checks.gaps("spatial_ablation plain humaneval") == [pytest.approx(56.7 - 59.1)]


def test_ruin_is_the_martingale_bound():
    for goal in (2, 5, 45):
        assert ledger_checks.ruin(goal) == pytest.approx(1 / goal)


def test_raw_ratio_inverts_tempering():
    ratio = ledger_checks.raw_ratio(0.9, 0.1)
    tempered = ratio ** (1 / 0.1)
    assert tempered / (1 + tempered) == pytest.approx(0.9)


def test_discordant_counts_follow_from_agreement_and_difference():
    assert ledger_checks.discordant(87.4, -2.2, 500) == [26, 37]
    assert ledger_checks.discordant(82.2, -11.8, 500) == [15, 74]


def test_loss_on_the_clock():
    assert ledger_checks.lost("dream jot") == pytest.approx(
        [100 * (1 - c / s) for s, c in ((5.54, 4.71), (1.57, 1.55), (2.26, 2.22), (19.60, 15.15))]
    )
    assert ledger_checks.lost("llada jot short") == pytest.approx([100 * (1 - 1.85 / 1.98), 100 * (1 - 3.08 / 3.42)])


@pytest.mark.parametrize(("n", "k"), [(164, range(165)), (150, range(151)), (37, (0, 5, 36))])
def test_granularity_by_enumeration(n, k):
    """All rounded percentages of n are possible for n; a smaller n that gives them too would be found."""
    values = sorted({round(100 * i / n, 1) for i in k})
    assert all(ledger_tables.possible(v, 1, n) for v in values)
    found = ledger_tables.implied_n(values)
    possible = [m for m in range(1, n + 1) if set(values) <= {round(100 * i / m, 1) for i in range(m + 1)}]
    assert found <= n and found == min(possible)


def test_granularity_edges():
    assert ledger_tables.implied_n([0.0, 100.0]) == 1 and ledger_tables.implied_n([50.0]) == 2
    assert ledger_tables.implied_n([33.3, 66.7]) == 3 and ledger_tables.implied_n([0.1], most=600) is None
    assert ledger_tables.implied_n([41.4, 43.9, 44.1, 44.5, 45.1, 45.5], most=164) is None
    assert ledger_tables.possible(12.5, 1, 8) and not ledger_tables.possible(12.6, 1, 8)


def test_granularity_of_every_table():
    for label in ledger_tables.TABLES_WITH_SCORES:
        frame = ledger_tables.granularity(label)
        assert len(frame) and (frame["implied"] > 0).all()
        whole = label not in ("tau_min_ablation", "llada_ablation")
        assert not whole or not frame["impossible"].any(), label


def marked(monkeypatch, values, marks):
    import pandas as pd

    frame = pd.DataFrame({"model": "m", "task": "t", "metric": "score", "value": values, "mark": marks, "digits": 1})
    monkeypatch.setattr(ledger_tables, "paper_table", lambda label: frame)
    found = ledger_tables.marks("some")
    return dict(zip(found["value"], found["status"], strict=True)), ledger_tables.marks_right("some")


def test_marks_right_wrong_missing_and_tied(monkeypatch):
    statuses, finding = marked(monkeypatch, [3.0, 2.0, 1.0], ["bold", "underline", ""])
    assert statuses == {"3.0": "right", "2.0": "right"} and finding == (True, "2 of 2 printed marks right")
    statuses, finding = marked(monkeypatch, [3.0, 2.0, 1.0], ["bold", "", "underline"])
    assert statuses == {"3.0": "right", "2.0": "missing", "1.0": "wrong"} and not finding.holds
    statuses, finding = marked(monkeypatch, [3.0, 2.0, 2.0], ["bold", "", ""])
    assert statuses == {"3.0": "right", "2.0": "tied"}
    assert finding == (
        True,
        "1 of 1 printed marks right; m t score: the second value 2.0 stands in 2 cells, none marked",
    )
    statuses, finding = marked(monkeypatch, [3.0, 2.0, 2.0], ["bold", "underline", ""])
    assert not finding.holds and "2.0 is second and unmarked" in finding.detail
    statuses, finding = marked(monkeypatch, [2.0, 3.0], ["bold", "underline"])
    assert not finding.holds and "3.0 is best and marked underline" in finding.detail


def test_cells_printed_twice_are_found():
    assert ledger_tables.agree("spatial_ablation", "threshold_ablation").holds
    assert "79 of 80 shared cells agree" in ledger_tables.agree(
        "main_results", "threshold_ablation", "sweep", "spatial_ablation", "wallclock", "composability"
    ).detail  # fmt: skip


# --- what the notebook shows --------------------------------------------------------------------------------


def test_tables_and_figure(frame):
    for kind in ledger.KINDS:
        table = ledger_view.table(frame, kind)
        assert len(table.frame) == (frame["kind"] == kind).sum() and table.caption.startswith(
            ledger_view.HEADINGS[kind]
        )
        fails = [verdict.startswith("**fails**") for verdict in table.frame["Verdict"]]
        assert fails == sorted(fails, reverse=True)
    note = repr(ledger_view.verdict(frame))
    theirs = frame[~frame["ours"]]
    for status, count in Counter(theirs["status"]).items():
        assert f"{status} {count}" in note
    figure = ledger_view.figure(frame)
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert sum(map(int, texts)) == len(theirs)
    assert ledger_view.checks(frame, ENTRIES).frame["Holds"].tolist().count("no") == 0


def test_every_heading_belongs_to_a_part_of_the_paper():
    assert {ledger_view.part(entry.section) for entry in ENTRIES} <= set(ledger_view.PARTS)


# --- the paper's prose --------------------------------------------------------------------------------------

NOT_PROSE = [  # taken out of the source before it is split, with the reason
    (r"(?<!\\)%.*", "comments"),
    (r"\\begin\{tabular\}.*?\\end\{tabular\}", "tables: data/paper/*.csv, see test_published.py"),
    (r"\\begin\{(algorithmic|equation\*?)\}.*?\\end\{\1\}|\\\[.*?\\\]", "pseudo-code and displayed definitions"),
    (r"\\section\{Proofs\}.*", "derivations of the bound, which notebook 07 examines"),
    (r"\\(?:cite[pt]?|citealp|label|[cC]ref|bibliography|includegraphics)(?:\[[^]]*\])?\{[^}]*\}", "references"),
    (r"\\setlength\{[^}]*\}\{[^}]*\}", "layout"),
]
NO_CLAIM = [  # numbers in the prose that claim nothing, with the reason
    (r"(?:Dream|LLaDA|Instruct)[- ]\d[BK]|\b8B parameters", "names of models"),
    (r"top-2|4-gram|Rep-4|Dist-2|pass@1|Q[15]\b|\b1D\b|\bC4\b|GSM8K|D2F|D3PM", "names with a digit"),
    (r"10\^\{-(\d+)\}", "kept, as 1e-N"),
    (r"O\(1/\\tau\)|2L/\(1\+\\tau\)|2/\(1\+\\tau\^i\)|\\t?frac\{1\}\{(?:1\+\\tau|2)\}", "formulas of the bound"),
    (r"[\^_](?:\{[^{}]*\}|\\?[A-Za-z0-9]+)(?:[\^_](?:\{[^{}]*\}|[A-Za-z0-9]+))?", "indices"),
    (r"\\in \[0, 1\]|t = [01]\b|\\(?:approx|gg) [01]\$|\\mathcal\{U\}\(0, 1\)|1/t|\(0, 1\)|= 2 \\sum", "definitions"),
    (r"\\(?:epsilon|kappa) > 0", "definitions"),
    (r"answer: \(1\)|methods\? \(2\)", "numbered questions"),
]  # fmt: skip


def braces(text: str, start: int) -> str:
    """The text of a brace group that opens just before ``start``."""
    depth, end = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[start : end - 1]


def prose(tex: str) -> dict[str, str]:
    """Paragraphs and captions of the paper, keyed as the ledger names places."""
    tex = tex.split(r"\begin{abstract}")[1].split(r"\end{document}")[0]
    for pattern, _ in NOT_PROSE[:4]:
        tex = re.sub(pattern, " ", tex, flags=0 if pattern.startswith("(?<!") else re.DOTALL)
    units: dict[str, str] = {}

    def caption(match: re.Match) -> str:
        label = re.search(r"\\label\{(?:tab|fig|alg):(\w+)\}", match[0])
        at = match[0].find(r"\caption{")
        if at >= 0:
            units[f"Caption of {label[1]}"] = braces(match[0], at + len(r"\caption{"))
        return "\n\n"

    tex = re.sub(r"\\begin\{(table|figure|algorithm)(\*?)\}.*?\\end\{\1\2\}", caption, tex, flags=re.DOTALL)
    for pattern, _ in NOT_PROSE[4:]:
        tex = re.sub(pattern, " ", tex)
    body, _, appendix = tex.partition(r"\appendix")
    for prefix, part in (("", r"\section{Abstract}" + body.replace(r"\end{abstract}", "")), ("Appendix, ", appendix)):
        heading, count = "", 0
        for block in re.split(r"\n\s*\n|(?=\\(?:sub)?section\{|\\paragraph\{|\\begin\{itemize\})", part):
            if match := re.match(r"\s*\\(?:section|subsection|paragraph)\{", block):
                title = braces(block, match.end())
                heading, count = prefix + re.sub(r"\\[a-z]+|[${}]", "", title).strip(" ."), 0
                block = block[match.end() + len(title) + 1 :]
            if block.strip():
                count += 1
                units[f"{heading}, paragraph {count}"] = block
    return units


def numbers(text: str) -> list[str]:
    """The numbers that a paragraph prints, as the ledger writes them."""
    for pattern, reason in NO_CLAIM:
        text = re.sub(pattern, r" 1e-\1 " if reason.startswith("kept") else " ", text)
    return re.findall(r"(?<![A-Za-z\d.])(?:1e-\d+|\d+(?:\.\d+)?)", text)


@pytest.fixture(scope="module")
def paper(shared) -> dict[str, str]:
    source = shared / "paper" / "jot.tex"
    if not source.is_file():
        pytest.skip(f"no paper source at {source}")
    return prose(source.read_text())


def test_every_number_of_the_prose_is_covered_by_an_entry(paper):
    """As often as it stands in its paragraph where it has a decimal point, at least once where it is whole."""
    covered: dict[str, Counter] = {}
    for entry in ENTRIES:
        covered.setdefault(entry.section, Counter()).update(entry.numbers)
    open_numbers = {}
    for place, text in paper.items():
        printed = Counter(numbers(text))
        due = Counter({n: count if "." in n else 1 for n, count in printed.items()})
        if left := due - covered.get(place, Counter()):
            open_numbers[place] = sorted(left.elements())
    assert not open_numbers


def test_every_place_and_number_of_the_ledger_is_in_the_paper(paper):
    wrong = {entry.id: entry.section for entry in ENTRIES if entry.section not in paper}
    assert not wrong
    for entry in ENTRIES:
        if left := set(entry.numbers) - set(numbers(paper[entry.section])):
            wrong[entry.id] = sorted(left)
    assert not wrong


def test_claims_are_in_our_own_words(paper):
    """No claim shares nine words in a row with the paper."""

    def words(text: str) -> list[str]:
        return re.findall(r"[a-z0-9.]+", re.sub(r"\\JOT", "jot", text).lower())

    def runs(text: str) -> set[tuple[str, ...]]:
        found = words(text)
        return {tuple(found[i : i + 9]) for i in range(len(found) - 8)}

    theirs = set().union(*map(runs, paper.values()))
    assert not [entry.id for entry in ENTRIES if runs(entry.text) & theirs]


def test_the_search_for_numbers_finds_a_new_one(paper):
    """What the test above rests on: a number put into a paragraph is seen, names and indices are not."""
    text = (
        paper["Main Results, paragraph 1"] + r" It is $7.77\times$ and $9^{-1}$ on Dream-7B at $p_1^i$, $p < 10^{-3}$."
    )
    assert Counter(numbers(text)) - Counter(numbers(paper["Main Results, paragraph 1"])) == Counter(
        ["7.77", "9", "1e-3"]
    )
    assert len(paper) > 60 and math.isclose(sum(len(numbers(t)) for t in paper.values()), 262, abs_tol=40)
    assert published.TABLES and all(f"Caption of {label}" in paper for label in published.TABLES)


def test_checks_of_our_own_are_not_counted_as_claims(frame):
    ours = frame[frame["ours"]]
    assert list(ours["id"]) == ["schedule-or-seen", "repeated-cells", "llada-default-repeated"]
    told = ledger_view.verdict(frame).text
    assert told.startswith(f"**Verdict.** {len(frame) - 3} claims:") and "not counted" in told
    assert f"n = {len(frame) - 3} claims" in ledger_view.figure(frame).axes[0].get_title(loc="left")
