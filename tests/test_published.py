"""The transcribed tables of the paper: known cells, counts, and the LaTeX source where it is at hand."""

from __future__ import annotations

import math
import re
import statistics

import cells as notebook
import claims
import pytest
import transcribe as published
from claims import paper_table

from jot.errors import UserError

CELLS = {
    "main_results": 80,
    "threshold_ablation": 56,
    "sweep": 104,
    "config": 16,
    "wallclock": 64,
    "tau_min_ablation": 56,
    "quality": 9,
    "llada_ablation": 56,
    "composability": 32,
    "spatial_ablation": 64,
}

# table, row and column, value, mark. Rows are named by the words of the columns that single them out.
KNOWN = [
    ("main_results", "model=Dream-7B method=full task=gsm8k metric=score", 81.1, "underline"),
    ("main_results", "model=Dream-7B method=jot task=humaneval metric=speedup", 19.6, "bold"),
    ("main_results", "model=Dream-7B method=prophet task=hellaswag metric=speedup", 1.94, "underline"),
    ("main_results", "model=Dream-7B method=fastdllm task=mmlu metric=score", 72.2, "bold"),
    ("main_results", "model=LLaDA-8B method=jot task=mmlu metric=speedup", 1.98, ""),
    ("main_results", "model=LLaDA-8B method=klass task=humaneval metric=score", 40.2, ""),
    ("wallclock", "model=Dream-7B method=klass task=mmlu metric=wallclock_speedup", 1.08, ""),
    ("wallclock", "model=LLaDA-8B method=jot task=humaneval metric=wallclock_speedup", 1.77, "underline"),
    ("threshold_ablation", "method=jot tau_max=10 task=humaneval metric=speedup", 42.6, "bold"),
    ("threshold_ablation", "method=full task=gsm8k metric=score", 81.1, "bold"),
    ("sweep", "tau_max=60 gamma=0.5 window=16 task=gsm8k metric=speedup", 6.15, "underline"),
    ("sweep", "tau_max=120 gamma=0.7 window=8 task=humaneval metric=score", 58.5, "underline"),
    ("config", "model=LLaDA-8B task=humaneval metric=block_length", 32, ""),
    ("config", "model=Dream-7B task=mmlu metric=block_length", math.nan, ""),
    ("tau_min_ablation", "tau_min=30 gamma=0.5 window=4 task=humaneval metric=speedup", 19.85, "bold"),
    ("tau_min_ablation", "tau_min=1 gamma=0.3 window=8 task=humaneval metric=score", 59.3, "bold"),
    ("quality", "method=jot metric=mauve", 0.9251, "bold"),
    ("quality", "method=human metric=rep4", 0.008, ""),
    ("llada_ablation", "method=jot tau_max=90 task=gsm8k metric=score", 79.8, "bold"),
    ("llada_ablation", "method=full task=humaneval metric=score", 47.6, "bold"),
    ("composability", "model=Dream-7B method=jot tau_max=60 task=gsm8k metric=score", math.nan, ""),
    ("composability", "model=LLaDA-8B method=jot tau_max=60 task=gsm8k metric=score", 75.7, "bold"),
    ("composability", "model=LLaDA-8B method=fastdllm task=humaneval metric=speedup", 3.05, ""),
    ("spatial_ablation", "gamma=0.9 window=16 task=humaneval metric=speedup", 21.27, "bold"),
    ("spatial_ablation", "gamma=0.3 window=8 task=hellaswag metric=score", 72.5, ""),
]


def pick(label: str, words: str):
    frame = paper_table(label)
    for name, value in (word.split("=") for word in words.split()):
        frame = frame[frame[name] == (float(value) if name in published.PARAMETERS else value)]
    assert len(frame) == 1, f"{label} {words}: {len(frame)} rows"
    return frame.iloc[0]


@pytest.mark.parametrize(("label", "words", "value", "mark"), KNOWN)
def test_known_cells(label, words, value, mark):
    row = pick(label, words)
    assert row["value"] == value or (math.isnan(value) and math.isnan(row["value"]))
    assert row["mark"] == mark


@pytest.mark.parametrize("label", published.TABLES)
def test_number_of_cells(label):
    frame = paper_table(label)
    assert len(frame) == CELLS[label]
    keys = [name for name in frame if name not in ("value", "mark", "digits")]
    assert not frame.duplicated(keys).any()
    assert set(frame["mark"]) <= {"", "bold", "underline"}
    dashes = {"config": 4, "composability": 8}
    assert frame["value"].isna().sum() == dashes.get(label, 0)


def test_rows_without_spatial_modulation_have_no_window():
    frame = paper_table("spatial_ablation")
    plain = frame[frame["gamma"].isna()]
    assert len(plain) == 8 and plain["window"].isna().all() and (plain["tau_max"] == 90).all()
    threshold = paper_table("threshold_ablation").query("tau_max == 90")
    assert plain["value"].tolist() == threshold["value"].tolist()


def test_aggregates_of_the_paper_follow_from_the_main_table():
    """Figure 1 of the paper: geometric mean of the speedups and mean score ratio, Dream."""
    frame = paper_table("main_results").query("model == 'Dream-7B'")
    printed = {"jot": (4.43, 98.3), "prophet": (2.89, 91.9), "klass": (2.20, 99.9), "fastdllm": (2.86, 94.7)}
    score = frame[frame["metric"] == "score"].set_index(["method", "task"])["value"]
    for method, (speed, retention) in printed.items():
        speeds = frame.query("metric == 'speedup' and method == @method")["value"]
        assert round(statistics.geometric_mean(speeds), 2) == speed
        assert round(100 * (score[method] / score["full"]).mean(), 1) == retention


def test_digits_say_how_a_value_was_rounded():
    assert pick("main_results", "model=Dream-7B method=full task=mmlu metric=speedup")["digits"] == 2
    assert pick("quality", "method=human metric=mauve")["digits"] == 4


def test_unknown_table_is_refused():
    with pytest.raises(UserError, match="main_results"):
        paper_table("main")


def test_missing_tables_are_refused(tmp_path):
    source = tmp_path / "empty.tex"
    source.write_text(r"\begin{document}\end{document}")
    with pytest.raises(UserError, match="composability"):
        published.transcribe(source, tmp_path / "out")
    with pytest.raises(SystemExit) as stop:
        published.main([str(source), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2


def test_files_equal_the_latex_source(shared, tmp_path):
    source = shared / "paper" / "jot.tex"
    if not source.is_file():
        pytest.skip(f"no paper source at {source}")
    written = published.transcribe(source, tmp_path)
    assert [path.stem for path in written] == list(published.TABLES)
    for path in written:
        assert path.read_text() == (published.folder() / path.name).read_text(), path.name


def test_every_printed_number_of_the_latex_source_is_there(shared):
    """An independent count: all decimal numbers and their marks in the bodies of the tables, in order."""
    source = shared / "paper" / "jot.tex"
    if not source.is_file():
        pytest.skip(f"no paper source at {source}")
    tex = source.read_text()
    for label in published.TABLES:
        if label == "config":
            continue  # no decimals there; the known cells cover it
        table = next(part for part in tex.split(r"\begin{table") if f"\\label{{tab:{label}}}" in part)
        body = table.partition(r"\midrule")[2].partition(r"\bottomrule")[0]
        body = body.replace(r"\rowcolor[gray]{0.92}", "")
        printed = re.findall(r"(\\textbf\{|\\underline\{)?(?<![\d.])(\d+\.\d+)", body)
        frame = paper_table(label).dropna(subset="value")
        marks = {"\\textbf{": "bold", "\\underline{": "underline", "": ""}
        expected = [(float(number), marks[mark]) for mark, number in printed]
        if "gamma" in frame:  # the decay rates are keys of these rows, not values
            expected = [pair for pair in expected if pair[0] not in (0.3, 0.5, 0.7, 0.9)]
        assert list(zip(frame["value"], frame["mark"], strict=True)) == expected, label


# --- nothing of a table is left out -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bodies(shared) -> dict[str, list[list[str]]]:
    """Cells of every tabular below its header, row by row, with their markup, keyed by label."""
    source = shared / "paper" / "jot.tex"
    if not source.is_file():
        pytest.skip(f"no paper source at {source}")
    found = {}
    for part in source.read_text().split(r"\begin{tabular}")[1:]:
        label = re.search(r"\\label\{tab:(\w+)\}", part)[1]
        body = part.split(r"\bottomrule")[0].split(r"\midrule", 1)[1]
        body = re.sub(r"\\midrule|\\rowcolor\[gray\]\{0\.92\}", "", body)
        found[label] = [[cell.strip() for cell in row.split("&")] for row in body.split(r"\\") if row.strip()]
    return found


def test_every_tabular_of_the_paper_is_transcribed(bodies):
    assert set(bodies) == set(published.TABLES)


@pytest.mark.parametrize("label", published.TABLES)
def test_every_cell_of_a_body_is_a_value_or_a_key(bodies, label):
    """By counting: the value cells of the body are the rows of the file, in order, with the digits and the marks."""
    frame = paper_table(label)
    rows = bodies[label]
    spans = [sum(int(m) for c in row for m in re.findall(r"\\multicolumn\{(\d+)\}", c)) for row in rows]
    widths = {len(row) + span - (span > 0) for row, span in zip(rows, spans, strict=True)}
    assert len(widths) == 1 and len(frame) % len(rows) == 0
    values = len(frame) // len(rows)
    cells = [cell for row in rows for cell in row[-values:]]
    plain = [re.sub(r"\\times|\\textbf|\\underline|[${}]", "", cell) for cell in cells]
    printed = ["" if text == "---" else text for text in plain]
    raw = (published.folder() / f"{label}.csv").read_text().splitlines()
    assert printed == [line.split(",")[-2] for line in raw[1:]]
    marks = ["bold" if "textbf" in cell else "underline" if "underline" in cell else "" for cell in cells]
    assert marks == frame["mark"].tolist()
    assert sum(cell.count(r"\textbf") + cell.count(r"\underline") for row in rows for cell in row) == sum(
        map(bool, marks)
    )


def test_no_table_prints_a_gain(bodies):
    """Captions speak of gains; a signed or bracketed number would be one, and would need a column of its own."""
    names = r"Dream-7B|LLaDA-8B|\\JOT \(Ours\)|\\JOT \(argmax\)|\(DualCache\)|\(\$\\tau\{=\}\d+\$\)"
    for label, rows in bodies.items():
        cells = [re.sub(names, "", cell) for row in rows for cell in row]
        assert not [cell for cell in cells if re.search(r"[()]|[+-]\s*\d", cell)], label
        assert "gain" not in set(paper_table(label)["metric"])


def test_marks_are_those_of_the_best_and_the_second_best():
    """All printed marks are right; equal second-best values are left unmarked in six columns of three tables."""
    marks, tied = notebook.run("00_claims", until="rules-marks")[0]["marks"], {}
    for label in [label for label in claims.TABLES if label != "config"]:
        frame = marks(label)
        assert not frame["status"].isin(["wrong", "missing"]).any(), label
        assert (frame["mark"] != "").sum() == (paper_table(label)["mark"] != "").sum()
        for column, group in frame[frame["status"] == "tied"].groupby("column"):
            tied[label, column] = (group["value"].iloc[0], len(group))
    assert tied == {
        ("tau_min_ablation", "gsm8k score tau_min=30"): ("77.3", 4),
        ("llada_ablation", "LLaDA-8B mmlu score"): ("63.8", 6),
        ("llada_ablation", "LLaDA-8B hellaswag score"): ("72.7", 6),
        ("spatial_ablation", "Dream-7B mmlu score"): ("66.7", 7),
        ("spatial_ablation", "Dream-7B hellaswag score"): ("72.7", 6),
        ("spatial_ablation", "Dream-7B hellaswag speedup"): ("2.26", 5),
    }
