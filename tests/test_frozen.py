"""No digit is lost: the tables that the notebooks printed before they were written anew, demanded row by row.

``frozen/tables.json.gz`` holds them by notebook, table and row. What differs on purpose is retired line by line in
``frozen/retired.csv``, with its reason; there ``*`` stands for anything.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from fnmatch import fnmatchcase
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FROZEN = json.loads(gzip.decompress((ROOT / "tests" / "frozen" / "tables.json.gz").read_bytes()))
NUMBER = re.compile(r"[-+\u2212]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


class Rows(HTMLParser):
    """The rows of every table of a page, collapsed ones too, as lists of texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.cell: str | None = None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.cell = ""
        elif tag == "br" and self.cell is not None:
            self.cell += " "

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self.cell is not None:
            self.rows[-1].append(plain(self.cell))
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data


def plain(text: str) -> str:
    return " ".join(text.replace("\u00a0", " ").replace("\u2011", "-").split())


def numbers(text: str) -> Counter[str]:
    return Counter(word.replace("\u2212", "-").lstrip("+").rstrip(",") for word in NUMBER.findall(text))


def printed(notebook: str) -> list[list[str]]:
    """Every row of every table that the committed notebook shows, and of the CSV files beside its figures."""
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    pages = [
        "".join(o["data"]["text/html"]) for c in cells for o in c.get("outputs", ()) if "text/html" in o.get("data", {})
    ]
    rows = [row for page in pages for row in Rows(page).rows]
    for path in sorted((ROOT / "figures").glob(f"{notebook[:2]}_*.csv")):
        with open(path, encoding="utf-8", newline="") as file:
            rows += [[plain(value) for value in row] for row in csv.reader(file)]
    return [row for row in rows if row]


def retired() -> list[dict[str, str]]:
    with open(ROOT / "tests" / "frozen" / "retired.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def is_retired(lines: list[dict[str, str]], **place: str) -> bool:
    return any(all(fnmatchcase(text, line[name]) for name, text in place.items()) for line in lines)


def shows(row: list[str], wanted: list[str]) -> bool:
    """Whether a printed row holds the wanted values: every number of theirs, and words as a cell of their own."""
    text, words = " ".join(row), set(row)
    have = numbers(text)
    return all(value in words or (numbers(value) and numbers(value) <= have) for value in wanted if value)


def missing(notebook: str) -> list[str]:
    rows, lines, lost = printed(notebook), retired(), []
    for table, content in FROZEN[notebook].items():
        for key, values in content["rows"]:
            row = " | ".join(key)
            kept = [
                value for column, value in zip(content["columns"], values, strict=True)
                if not is_retired(lines, notebook=notebook, table=table, row=row, column=column)
            ]  # fmt: skip
            if not kept and is_retired(lines, notebook=notebook, table=table, row=row, column="*"):
                continue
            named = [have for have in rows if all(part in have for part in key if part)]
            if not any(shows(have, kept) for have in named):
                lost.append(f"{table}: {row}: {kept}" + ("" if named else " (no such row)"))
    return lost


@pytest.mark.parametrize("notebook", sorted(FROZEN))
def test_no_printed_number_is_lost(notebook):
    assert missing(notebook) == []


def test_what_is_retired_has_a_reason_and_was_there():
    for line in retired():
        assert line["reason"].strip(), line
        assert any(
            is_retired([line], notebook=notebook, table=table, row=" | ".join(key), column=column)
            for notebook, tables in FROZEN.items()
            for table, content in tables.items()
            for key, _ in content["rows"]
            for column in content["columns"]
        ), f"nothing was ever printed there: {line}"


def test_a_changed_digit_is_seen():
    assert shows(["pocket-dream", "93.2 [92.1, 94.2]"], ["93.2 [92.1, 94.2]"])
    assert shows(["pocket-dream", "93.2", "92.1", "94.2"], ["93.2 [92.1, 94.2]"])
    assert not shows(["pocket-dream", "93.2 [92.1, 94.3]"], ["93.2 [92.1, 94.2]"])
    assert not shows(["pocket-dream", "inconclusive"], ["non-inferior"])
