"""``jot report``: a folder of pages that opens from the file system, without a server and without a network."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import nbformat
import pandas as pd
from bs4 import BeautifulSoup
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import markdown2html_mistune as markdown

from jot.errors import Parser, UserError, destination, local
from jot.models import home
from jot.records import metas

Place = str | os.PathLike
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><link rel="icon" href="data:,"><link rel="stylesheet" href="{up}style.css"></head>
<body><nav><a href="{up}index.html">Report</a><a href="{up}cells.html">Recorded cells</a></nav><main>
{body}
</main></body></html>
"""


def executed(places: Iterable[Place]) -> list[Path]:
    """The notebooks in files and folders, in order, without those that failed or are being written.

    Raises:
        UserError: a place is not there.
    """
    found: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            found += sorted(p for p in place.glob("*.ipynb") if p.name[0] != "." and not p.stem.endswith(".failed"))
        elif place.is_file():
            found.append(place)
        else:
            raise UserError(f"there is no {place}; give executed notebooks, or folders of them, with --notebooks")
    return list(dict.fromkeys(found))


def recorded(places: Iterable[Place] | None) -> pd.DataFrame:
    """One row a recorded cell of these stores; by default of data/records and the record sets in it, if any."""
    main = home() / "data" / "records"
    default = [main, *sorted(path.parent for path in main.glob("*/manifest.json"))]
    rows = []
    for folder in map(Path, places) if places is not None else filter(Path.is_dir, default):
        for name, meta in metas(folder).items():
            config, totals, hardware = meta["config"], meta["totals"], meta["hardware"]
            n, versions = totals["samples"], meta.get("versions", {})
            words = [f"{package} {versions.get(package, '?')}" for package in ("torch", "transformers")]
            words = [hardware["kind"], hardware.get("driver_version", ""), *words]
            rows.append({
                "store": _shown(folder), "cell": name, "model": config["model"], "task": config["task"],
                "split": config["split"], "dtype": config["dtype"], "n": n,
                "score, %": f"{100 * totals['score'] / n:.1f}" if n and totals["score"] is not None else "",
                "step speedup": f"{totals['configured_steps'] / totals['steps']:.2f}" if totals["steps"] else "",
                "decoded on": ", ".join(filter(None, words)),
            })  # fmt: skip
    return pd.DataFrame(rows)


def commit() -> str:
    """The commit of the checkout, and whether files differ from it."""
    words = ["git", "describe", "--always", "--dirty=, with changes", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run(words, cwd=home(), capture_output=True, text=True) if (home() / ".git").exists() else None
    except OSError:  # no git
        done = None
    return done.stdout.strip() if done and not done.returncode else "absent: not a git checkout"


def provenance(cells: pd.DataFrame) -> str:
    """Commit, lock and what the records were decoded on, as a list in Markdown."""
    lock = home() / "requirements.lock"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else "absent"
    rows = [f"commit {commit()}", f"requirements.lock sha256 {digest}", f"report of {time.strftime('%Y-%m-%d %H:%M')}"]
    groups = cells.groupby("decoded on")["n"].agg(["size", "sum"]).itertuples() if len(cells) else ()
    rows += [f"records: {group.size:,} cells, {group.sum:,} samples: {group.Index}" for group in groups]
    return "\n".join(f"* {row}" for row in rows + ["records absent"] * (not len(cells)))


def _shown(path: Path) -> str:
    """A path as a reader of another machine may see it."""
    path = path.resolve()
    return path.relative_to(home().resolve()).as_posix() if path.is_relative_to(home().resolve()) else path.name


def _anchor(name: str) -> str:
    """The id of a heading as code hosts form it, and as the project's Markdown refers to it."""
    return re.sub(r"[^\w-]", "", name.lower())


class Folder:
    """The report's folder, laid out as the checkout: pages stand where their notebook or Markdown file does, and what
    they refer to where it does, so that relative links hold. Scripts and remote parts are left out.

    Args:
        notebooks: names of those that have a page.
    """

    def __init__(self, out: Path, notebooks: Iterable[str]) -> None:
        self.out, self.home, self.texts = out, home().resolve(), []  # Markdown files, as they are met
        self.notebooks = {self.home / "notebooks" / f"{name}.ipynb" for name in notebooks}

    def write(self, address: str, title: str, body: str) -> None:
        """A page, of which ``body`` has the links that it has at that address in the checkout."""
        soup = BeautifulSoup(body, "html.parser")
        for tag in soup(["script", "link", "iframe", "object", "embed", "base", "meta"]):
            tag.decompose()
        for tag in soup(True):
            for name in [name for name in tag.attrs if name.lower().startswith("on")]:
                del tag[name]
        for tag in soup(re.compile("h[1-6]"), id=True):
            tag["id"] = _anchor(tag["id"])
        for tag in soup(["a", "img"]):
            name = "href" if tag.name == "a" else "src"
            if name not in tag.attrs:
                continue
            target = self._target(tag[name], (self.home / address).parent)
            if target is None or (name == "src" and urlsplit(target).scheme in ("http", "https")):
                if name == "src":
                    tag.replace_with(f"[{tag.get('alt') or 'a picture that is not here'}]")
                else:
                    del tag["href"]
                    tag["title"] = "not part of this report"
            else:
                tag[name] = target
        path = self.out / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(title=escape(title), up="../" * address.count("/"), body=soup), encoding="utf-8")

    def _target(self, address: str, base: Path) -> str | None:
        """An address on a page in ``base``, or None for what the report does not hold."""
        parts = urlsplit(address)
        if not (parts.scheme or parts.netloc):
            parts = parts._replace(fragment=_anchor(unquote(parts.fragment)))
            address = parts.geturl()
        if parts.scheme in ("http", "https", "mailto", "data") or (not parts.path and parts.fragment):
            return address
        path, place = (base / unquote(parts.path)).resolve(), f"#{parts.fragment}" if parts.fragment else ""
        if path in self.notebooks:
            return quote(os.path.relpath(path.with_suffix(".html"), base)) + place
        if parts.scheme or not path.is_relative_to(self.home) or not path.is_file() or path.suffix == ".html":
            return None  # a page of another's may hold scripts, as a replay does
        if path.suffix == ".md":
            self.texts += [path] * (path not in self.texts)
            return quote(os.path.relpath(f"{path}.html", base)) + place
        copy = self.out / path.relative_to(self.home)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        return quote(os.path.relpath(path, base))

    def finish(self) -> None:
        """Writes the Markdown files that pages have referred to, and those that they refer to."""
        for path in self.texts:  # which grows meanwhile
            text = path.read_text(encoding="utf-8")
            first = next((line[2:] for line in text.splitlines() if line.startswith("# ")), path.name)
            self.write(f"{path.relative_to(self.home).as_posix()}.html", first, markdown(text))


def _notebook(path: Path) -> tuple[str, str, str]:
    """Title, what it says came out (its first printed Markdown), and HTML of an executed notebook."""
    notebook = nbformat.read(path, as_version=4)
    text = [line for cell in notebook.cells if cell.cell_type == "markdown" for line in cell.source.splitlines()]
    title = next((line[2:].strip() for line in text if line.startswith("# ")), path.stem)
    said = (o.get("data", {}).get("text/markdown") for c in notebook.cells for o in c.get("outputs", ()))
    logging.getLogger("traitlets").setLevel(logging.ERROR)  # one line a picture without a description
    body, _ = HTMLExporter(template_name="basic", anchor_link_text="").from_notebook_node(notebook)
    return title, next(filter(None, said), ""), body


def _picture(path: Path) -> str:
    """A figure in Markdown, a link to its PDF if it has one."""
    name, pdf = path.stem.replace("_", " "), path.with_suffix(".pdf")
    return f"* [![{name}](figures/{path.name})](figures/{(pdf if pdf.is_file() else path).name})\n  {name}"


def build(out: Place, notebooks: Sequence[Place] | None = None, records: Sequence[Place] | None = None) -> Path:
    """Build the report; the folder ``out`` is replaced when the new one is whole. Returns its index.

    Args:
        notebooks: executed notebooks or folders of them; default ``notebooks/``, whose outputs are committed.
        records: stores; default ``data/records`` and the record sets in it.

    Raises:
        UserError: a place is not there, the given ones hold no notebooks, or ``out`` is a folder of something else.
    """
    out = local("--out", out).resolve()
    if out.exists() and not (out / "style.css").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} holds something else than a report; name another folder with --out")
    destination("--out", out)
    root = home()
    if not (files := executed(notebooks or [root / "notebooks"])) and notebooks:
        places = ", ".join(map(str, notebooks))
        raise UserError(f"there are no executed notebooks in {places}; name their folder with --notebooks")
    cells = recorded(records)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".report-") as temporary:
        new = Path(temporary) / "report"
        new.mkdir()
        shutil.copyfile(Path(__file__).with_suffix(".css"), new / "style.css")
        made, index = Folder(new, [path.stem for path in files]), ["# Just on Time: report", "## Notebooks"]
        for path in files:
            title, said, body = _notebook(path)
            made.write(f"notebooks/{path.stem}.html", title, body)
            index += [f"### [{title}](notebooks/{quote(path.stem)}.ipynb)", path.stem, said or "not executed"]
        pictures = [_picture(path) for path in sorted((root / "figures").glob("*.png"))]
        index += ["No notebooks."] * (not files) + ["## Figures", "\n".join(pictures) or "No figures."]
        index += ["## Provenance", provenance(cells)]
        made.write("index.html", "Just on Time: report", markdown("\n\n".join(index)))
        words = "one row a resolved configuration; the id ends with a hash of all of it"
        with pd.option_context("display.max_colwidth", None):
            listed = cells.to_html(index=False, border=0) if len(cells) else "No records."
        body = f'<h1>Recorded cells</h1><p>{len(cells)}: {words}.</p><div class="wide">{listed}</div>'
        made.write("cells.html", "Recorded cells", body)
        made.finish()
        if out.exists():
            shutil.rmtree(out)
        os.replace(new, out)
    return out / "index.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """``jot report``. Returns the exit code; mistakes are raised as UserError."""
    parser = Parser(prog="jot report", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", help="folder, replaced if it holds a report (default results/report)")
    parser.add_argument("--notebooks", nargs="+", help="executed notebooks or folders of them (default notebooks/)")
    parser.add_argument("--store", nargs="+", dest="records", help="record folders (default data/records)")
    options = parser.parse_args(arguments)
    for name, given in (("notebooks", options.notebooks), ("store", options.records)):
        if "" in (given or ()):
            raise UserError(f"--{name} is empty; name a folder")
    out = home() / "results" / "report" if options.out is None else options.out
    print(build(out, options.notebooks, options.records))
    return 0
