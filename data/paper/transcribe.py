"""The tables of the paper as tidy CSV files: read them, or transcribe them again from the LaTeX source.

``python data/paper/transcribe.py PAPER.tex`` rewrites ``data/paper/*.csv``. One row of a file is one printed
cell; ``value`` keeps the digits that the paper prints, and ``mark`` says whether they are bold or underlined.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jot.errors import UserError
from jot.models import home

if TYPE_CHECKING:
    pass

TABLES = (
    "main_results",
    "threshold_ablation",
    "sweep",
    "config",
    "wallclock",
    "tau_min_ablation",
    "quality",
    "llada_ablation",
    "composability",
    "spatial_ablation",
)

# Printed header of a column -> what its cells are.
KEYS = {
    "Model": "model",
    "Method": "method",
    "Benchmark": "task",
    "tau": "tau_max",
    "tau_max": "tau_max",
    "tau_min": "tau_min",
    "gamma": "gamma",
    "D": "window",
}
METRICS = {
    "Score": "score",
    "Pass@1": "score",
    "Speed": "speedup",
    "Steps": "steps",
    "Block": "block_length",
    "Mauve": "mauve",
    "Rep-4": "rep4",
    "Dist-2": "dist2",
}
RENAMED = {"wallclock": {"speedup": "wallclock_speedup"}}
TASKS = {"GSM8K": "gsm8k", "MMLU": "mmlu", "HellaSwag": "hellaswag", "HumanEval": "humaneval"}
METHODS = {
    "Full Decoding": "full",
    "Baseline": "full",
    "Prophet": "prophet",
    "KLASS": "klass",
    "Fast-dLLM (DualCache)": "fastdllm",
    "Fast-dLLM": "fastdllm",
    "JoT (Ours)": "jot",
    "JoT (argmax)": "jot",
    "Human Reference": "human",
    "No spatial": "jot",
}
# What the caption or the text of a table fixes for all of its rows. The window and decay of rows without
# spatial modulation stay empty.
CONSTANTS: dict[str, dict[str, str]] = {
    "threshold_ablation": {"model": "Dream-7B", "method": "jot"},
    "sweep": {"model": "Dream-7B", "method": "jot", "tau_min": "1"},
    "tau_min_ablation": {"model": "Dream-7B", "method": "jot", "tau_max": "90"},
    "quality": {"model": "Dream-7B"},
    "llada_ablation": {"model": "LLaDA-8B", "method": "jot", "gamma": "0.5", "window": "8"},
    "spatial_ablation": {"model": "Dream-7B", "method": "jot", "tau_max": "90", "tau_min": "1"},
}
PARAMETERS = ("tau_max", "tau_min", "gamma", "window")
COLUMNS = ("model", "method", *PARAMETERS, "task", "metric", "value", "mark")


@dataclass(frozen=True)
class Cell:
    """One cell of a LaTeX table: plain text, how it is set off, and the columns and rows that it spans."""

    text: str
    mark: str = ""
    columns: int = 1
    rows: int = 1


@dataclass
class Table:
    """Header cells per column (top to bottom) and body rows, all spans filled in."""

    headers: list[list[str]]
    rows: list[list[Cell]] = field(default_factory=list)


def _plain(text: str) -> str:
    """LaTeX without its markup: ``$\\tau_{\\max}$`` becomes ``tau_max``."""
    text = re.sub(r"\\JOT\b", "JoT", text)
    text = re.sub(r"\$?\\(?:uparrow|downarrow|times)\$?", "", text)
    text = re.sub(r"\\(tau|gamma|max|min)\b", r"\1", text)
    text = re.sub(r"\\(?:textbf|textit|textsc|underline)\{([^{}]*)\}", r"\1", text)
    return re.sub(r"[{}$\\]", "", text).strip()


def _cell(source: str) -> Cell:
    source = re.sub(r"\\rowcolor\[[^]]*\]\{[^}]*\}", "", source).strip()
    columns = rows = 1
    if match := re.fullmatch(r"\\multicolumn\{(\d+)\}\{[^}]*\}\{(.*)\}", source):
        columns, source = int(match[1]), match[2]
    elif match := re.fullmatch(r"\\multirow\{(\d+)\}\{[^}]*\}\{(.*)\}", source):
        rows, source = int(match[1]), match[2]
    mark = "bold" if r"\textbf" in source else "underline" if r"\underline" in source else ""
    return Cell(_plain(source), mark, columns, rows)


def _expand(line: str) -> list[Cell]:
    """The cells of one line, a spanning cell repeated over its columns."""
    return [cell for part in re.split(r"(?<!\\)&", line) for cell in [_cell(part)] for _ in range(cell.columns)]


def parse_tables(tex: str) -> dict[str, Table]:
    """Every labelled ``tabular`` of a LaTeX source, keyed by its label without ``tab:``."""
    tables = {}
    tex = re.sub(r"(?<!\\)%.*", "", tex)
    for block in re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", tex, flags=re.DOTALL):
        label = re.search(r"\\label\{tab:(\w+)\}", block)
        body = re.search(r"\\begin\{tabular\}\{[^}]*\}\s*\\toprule(.*?)\\bottomrule", block, flags=re.DOTALL)
        if label is None or body is None:
            continue
        head, _, rest = re.sub(r"\\cmidrule\(lr\)\{[^}]*\}", "", body[1]).partition(r"\midrule")
        lines = [_expand(line) for line in head.split(r"\\") if line.strip()]
        table = Table([[cell.text for cell in column if cell.text] for column in zip(*lines, strict=True)])
        above: dict[int, tuple[Cell, int]] = {}  # column -> (multirow cell, rows still to fill)
        for line in re.sub(r"\\midrule", "", rest).split(r"\\"):
            if not line.strip():
                continue
            row = _expand(line)
            for column, cell in enumerate(row):
                if cell.rows > 1:
                    above[column] = (cell, cell.rows - 1)
                elif not cell.text and above.get(column, (cell, 0))[1] > 0:
                    row[column], left = above[column][0], above[column][1] - 1
                    above[column] = (row[column], left)
            if len(row) != len(table.headers):
                raise UserError(f"Table {label[1]}: a row has {len(row)} cells, the header {len(table.headers)}.")
            table.rows.append(row)
        tables[label[1]] = table
    return tables


def _keys_of(header: str, text: str) -> dict[str, str]:
    """What a cell under a key column says; a method named in a parameter column replaces the parameter."""
    if text in METHODS:
        return {"method": METHODS[text]}
    if match := re.fullmatch(r"\+ JoT \(tau=(\d+)\)", text):
        return {"method": "jot", "tau_max": match[1]}
    if header == "task":
        return {"task": TASKS[text]}
    if header == "method":
        raise UserError(f"The paper's table names an unknown method: {text!r}.")
    return {header: text}


def tidy(label: str, table: Table) -> list[dict[str, str]]:
    """One record per value cell, in reading order, with the columns of `COLUMNS`."""
    records = []
    for row in table.rows:
        keys = dict(CONSTANTS.get(label, {}))
        for header, cell in zip(table.headers, row, strict=True):
            if header[-1] in KEYS:
                keys |= _keys_of(KEYS[header[-1]], cell.text)
        if keys.get("method") == "full":  # full decoding has no exit rule, so no parameters of one
            keys = {key: text for key, text in keys.items() if key not in PARAMETERS}
        if any(cell.text == "No spatial" for cell in row):
            keys = {key: text for key, text in keys.items() if key not in ("gamma", "window", "tau_min")}
        for header, cell in zip(table.headers, row, strict=True):
            if header[-1] not in METRICS:
                continue
            record = dict.fromkeys(COLUMNS, "") | keys
            for upper in header[:-1]:
                if upper in TASKS:
                    record["task"] = TASKS[upper]
                else:  # a parameter in the header, "tau_min=30"
                    name, _, value = upper.partition("=")
                    record[KEYS[name]] = value
            metric = METRICS[header[-1]]
            metric = RENAMED.get(label, {}).get(metric, metric)
            record |= {"metric": metric, "value": cell.text.strip("-"), "mark": cell.mark}
            records.append(record)
    return records


def transcribe(tex_path: str | Path, out_dir: str | Path) -> list[Path]:
    """Write ``<label>.csv`` for each of `TABLES` found in the LaTeX source; returns the files written.

    A column that is empty in a whole table is left out of its file. Raises `UserError` if a table is missing.
    """
    tables = parse_tables(Path(tex_path).read_text(encoding="utf-8"))
    if missing := sorted(set(TABLES) - set(tables)):
        raise UserError(f"{tex_path} has no table labelled {', '.join(missing)}.")
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for label in TABLES:
        records = tidy(label, tables[label])
        columns = [name for name in COLUMNS if name in ("value", "mark") or any(r[name] for r in records)]
        path = out / f"{label}.csv"
        with path.open("w", encoding="utf-8", newline="") as handle:
            writer = csv.DictWriter(handle, columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(records)
        written.append(path)
    return written


def folder() -> Path:
    """Where the transcribed tables are: ``data/paper`` of the checkout, or of ``JOT_HOME``."""
    return home() / "data" / "paper"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python data/paper/transcribe.py", description=__doc__.splitlines()[0])
    parser.add_argument("tex", help="LaTeX source of the paper")
    parser.add_argument("--out", default=str(folder()), help="folder for the CSV files (default: data/paper)")
    options = parser.parse_args(arguments)
    try:
        written = transcribe(options.tex, options.out)
    except (UserError, OSError) as error:
        parser.exit(2, f"transcribe: error: {error}\n")
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
