"""The report: every link leads somewhere inside it, nothing is loaded from elsewhere, what is absent is said."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import fake_records
import nbformat
import pytest
from nbformat import v4

from jot import cli
from jot.errors import UserError
from jot.reproduce import report

ROOT = Path(__file__).resolve().parents[1]


class Page(HTMLParser):
    """Tags with their attributes, and the ids, of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        self.ids = {attributes["id"] for _, attributes in self.tags if "id" in attributes}

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))


def check_links(folder: Path) -> int:
    """Follows every address of every page; returns how many led to a file."""
    followed = 0
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html")}
    for path, page in pages.items():
        assert not {"script", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}, path
        for tag, attributes in page.tags:
            assert not [name for name in attributes if name.startswith("on")], path
            for name in ("href", "src", "srcset", "poster", "data", "action"):
                if not (address := attributes.get(name)):
                    continue
                parts = urlsplit(address)
                if parts.scheme in ("http", "https", "mailto"):
                    assert tag == "a", f"{path} loads {address}"  # a link may lead out, nothing is loaded
                    continue
                if parts.scheme == "data":
                    continue
                assert not parts.scheme and not parts.netloc and not parts.path.startswith("/"), (path, address)
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                assert target.is_file() and target.is_relative_to(folder.resolve()), (path, address)
                if parts.fragment:
                    assert unquote(parts.fragment) in pages[target].ids, (path, address)
                followed += 1
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", page.text), path
    style = (folder / "style.css").read_text()
    assert "url(" not in style and "@import" not in style
    return followed


def notebook(path: Path, *cells, outputs=()) -> None:
    made = [v4.new_markdown_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    made.append(v4.new_code_cell("print(1)", outputs=list(outputs), execution_count=1 if outputs else None))
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(v4.new_notebook(cells=made), path)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch) -> Path:
    """A checkout with two notebooks that try what a report must not do, records and a figure."""
    home = tmp_path / "checkout"
    evil = '<script src="https://example.org/x.js"></script><img src="https://example.org/x.png" alt="far">'
    html = evil + '<p onclick="x()">text</p><img src="../figures/a.png"><link rel="stylesheet" href="//example.org/y">'
    verdict = v4.new_output("display_data", {"text/markdown": "**Verdict.** seen in 3 of 4"})
    notebook(
        home / "notebooks" / "01_first.ipynb",
        "# The first\n\nSee [the plan](PLAN.md), [the second](02_second.ipynb#Table), [data](../data/x.csv), "
        "[gone](gone.md), [out](../../secret.txt), [played](../figures/play.html), "
        "[the paper](https://arxiv.org/abs/2602.11133), [here](#The-first).",
        outputs=[verdict, v4.new_output("display_data", {"text/html": html})],
    )
    notebook(home / "notebooks" / "02_second.ipynb", "# The second\n\n## Table\n\n[a folder](../data)")
    (home / "notebooks" / "PLAN.md").write_text("# Plan\n\nBack to [first](01_first.ipynb), on to [more](MORE.md).\n")
    (home / "notebooks" / "MORE.md").write_text("# More\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n")
    (tmp_path / "secret.txt").write_text("secret")
    (home / "data").mkdir()
    (home / "data" / "x.csv").write_text("a,b\n")
    (home / "figures").mkdir()
    (home / "figures" / "play.html").write_text("<script>play()</script>")
    for name in ("a.png", "a.pdf", "b.png"):
        (home / "figures" / name).write_bytes(b"x")
    (home / "requirements.lock").write_text("torch==1\n")
    fake_records.write(home / "data" / "records", fake_records.records(20, grid=False))
    monkeypatch.setenv("JOT_HOME", str(home))
    return home


def test_every_link_leads_somewhere(checkout: Path, capsys) -> None:
    assert cli.main(["report"]) == 0
    index = Path(capsys.readouterr().out.strip())
    out = checkout / "results" / "report"
    assert index == out / "index.html" and check_links(out) > 20
    first = (out / "notebooks" / "01_first.html").read_text()
    assert 'href="PLAN.md.html"' in first and 'href="02_second.html#table"' in first
    assert 'href="../data/x.csv"' in first and "https://arxiv.org/abs/2602.11133" in first
    assert 'title="not part of this report">gone</a>' in first and 'title="not part of this report">out</a>' in first
    assert 'title="not part of this report">played</a>' in first and not list(out.rglob("play.html"))
    assert "[far]" in first and "example.org" not in first and "onclick" not in first
    assert (out / "notebooks" / "MORE.md.html").is_file() and not list(out.rglob("*secret*"))
    text = index.read_text()
    assert "seen in 3 of 4" in text and "not executed" in text and "figures/a.pdf" in text
    assert "sha256" in text and "test machine" in text and "absent: not a" in text  # no commit of its own
    cells = (out / "cells.html").read_text()
    assert "pocket-dream_pocket-gsm8k_full_test" in cells and ">20<" in cells
    assert not list(checkout.glob("results/.report-*"))


def test_a_second_report_replaces_the_first_and_nothing_else(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report.build(out)
    (out / "stray.html").write_text("x")
    report.build(out)
    assert not (out / "stray.html").exists() and (out / "index.html").is_file()
    for name in ("thesis", "file"):
        other = tmp_path / name
        if name == "file":
            other.write_text("precious")
        else:
            other.mkdir()
            (other / "chapter").write_text("precious")
        with pytest.raises(UserError, match="holds something else than a report"):
            report.build(other)
    assert (tmp_path / "thesis" / "chapter").read_text() == "precious"


def test_what_is_not_there_is_said(checkout: Path, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(UserError, match="there is no .*nowhere"):
        report.build(tmp_path / "out", notebooks=[tmp_path / "nowhere"])
    with pytest.raises(UserError, match="no store at"):
        report.build(tmp_path / "out", records=[tmp_path / "nowhere"])
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("JOT_HOME", str(tmp_path / "empty"))
    (tmp_path / "empty" / "notebooks").mkdir(parents=True)
    text = report.build(tmp_path / "out").read_text()
    assert "No notebooks." in text and "No figures." in text and "records absent" in text
    assert check_links(tmp_path / "out")


def test_folders_without_notebooks_are_refused(checkout: Path, tmp_path: Path, capsys) -> None:
    """Where they were asked for; a failed notebook is none."""
    empty = tmp_path / "store" / "notebooks"
    empty.mkdir(parents=True)
    (empty / "01_first.failed.ipynb").write_text("{}")
    assert cli.main(["report", "--notebooks", str(empty), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert told.out == "" and not (tmp_path / "out").exists()
    assert told.err == f"jot: error: there are no executed notebooks in {empty}; name their folder with --notebooks\n"


def test_notebooks_of_a_grid(checkout: Path, tmp_path: Path) -> None:
    """Executed notebooks from a store: links between them lead to these, a failed one is left out."""
    for name in ("01_first_limit-3-0123456789", "01_first.failed", ".partial"):
        target = tmp_path / "store" / "notebooks" / f"{name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((checkout / "notebooks" / "01_first.ipynb").read_bytes())
    report.build(tmp_path / "out", notebooks=[tmp_path / "store" / "notebooks"])
    made = {p.name for p in (tmp_path / "out" / "notebooks").glob("*.html")}
    assert made == {"01_first_limit-3-0123456789.html", "PLAN.md.html", "MORE.md.html"}
    check_links(tmp_path / "out")


@pytest.mark.slow
def test_the_committed_notebooks(tmp_path: Path) -> None:
    """The real ones, as nbconvert writes them: no script, no remote part, every link good."""
    report.build(tmp_path / "out")
    made = {path.stem for path in (tmp_path / "out" / "notebooks").glob("[0-9]*.html")}
    assert made == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    check_links(tmp_path / "out")
