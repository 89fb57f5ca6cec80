"""Pages of the report: one frame, one style sheet, links that stay inside the folder, nothing loaded from outside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --page: #fff; --shade: #f5f7f9; --link: #0b5cad;
        --good: #0b6b4f; --bad: #a3291b; --open: #7a5a00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --soft: #9aa5b3; --line: #333c48; --page: #14181e; --shade: #1c222a; --link: #7db7f2;
          --good: #5fc7a3; --bad: #f0907f; --open: #e0b84c; }
  img { background: #fff; }
}
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.55 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; color: var(--ink);
       background: var(--page); }
nav { border-bottom: 1px solid var(--line); background: var(--shade); padding: .6rem 1.2rem; display: flex;
      flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .9rem; }
main { max-width: 78rem; margin: 0 auto; padding: 1rem 1.2rem 4rem; }
main > p, main > ul, main > ol, .text_cell_render > p, .text_cell_render > ul { max-width: 46rem; }
a { color: var(--link); }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 1rem 0 .6rem; }
h2 { font-size: 1.25rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .4rem; }
.wide, .output_subarea { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .86rem; margin: .5rem 0 1rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, pre { font: .85em/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: var(--shade); border: 1px solid var(--line); padding: .6rem .8rem; overflow-x: auto;
      margin: .3rem 0; }
td p, td ul { margin: .15rem 0; }
td code { overflow-wrap: anywhere; }
.claim { min-width: 26rem; }
img { max-width: 100%; height: auto; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: 1rem; align-items: start; }
.figures img { width: 100%; max-height: 17rem; object-fit: contain; object-position: left top; }
figure { margin: 0; border: 1px solid var(--line); padding: .6rem; }
figcaption { font-size: .85rem; color: var(--soft); }
.soft { color: var(--soft); }
.holds, .seen { color: var(--good); font-weight: 600; white-space: nowrap; }
.fails, .not-seen { color: var(--bad); font-weight: 600; white-space: nowrap; }
.undecided, .not-shown, .needs-the-full-size-weights { color: var(--open); white-space: nowrap; }
.prompt { display: none; }
.cell { margin: .4rem 0; }
.input_area pre { font-size: .8rem; }
.highlight .k, .highlight .kn, .highlight .kc, .highlight .ow, .highlight .nb { color: var(--link); }
.highlight .s1, .highlight .s2, .highlight .sa, .highlight .si { color: var(--good); }
.highlight .c1 { color: var(--soft); font-style: italic; }
.output_stderr pre { border-color: var(--bad); }
"""


def document(title: str, body: str, links: Iterable[tuple[str, str]], depth: int = 0) -> str:
    """A whole page. ``links`` are (text, address from the report's top); ``depth`` folders below it."""
    up = "../" * depth
    bar = "".join(f'<a href="{escape(up + address)}">{escape(text)}</a>' for text, address in links)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f'<link rel="stylesheet" href="{up}style.css">\n'
        f"</head>\n<body>\n<nav>{bar}</nav>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]], numbers: Iterable[int] = ()) -> str:
    """A table of ready-made HTML cells; columns in ``numbers`` are set to the right."""
    numbers = set(numbers)

    def row(tag: str, cells: Iterable[str]) -> str:
        inner = (f"<{tag}{' class=n' if i in numbers else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(inner)}</tr>"

    body = "\n".join(row("td", cells) for cells in rows)
    return f'<div class="wide"><table><thead>{row("th", head)}</thead><tbody>\n{body}\n</tbody></table></div>'


def markdown(text: str) -> str:
    """Markdown as HTML, as nbconvert renders it."""
    from nbconvert.filters.markdown_mistune import markdown2html_mistune

    return markdown2html_mistune(text)


def notebook_body(path: Path) -> tuple[str, str]:
    """Title and HTML of an executed notebook, without scripts."""
    import logging

    import nbformat
    from nbconvert import HTMLExporter

    notebook = nbformat.read(path, as_version=4)
    logging.getLogger("traitlets").setLevel(logging.ERROR)  # one line a picture without a description
    exporter = HTMLExporter(template_name="basic", anchor_link_text="")
    body, _ = exporter.from_notebook_node(notebook)
    return title_of(json.loads(path.read_text(encoding="utf-8"))) or path.stem, body


def title_of(notebook: Mapping) -> str:
    """The first heading."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            for line in "".join(cell["source"]).splitlines():
                if line.startswith("# "):
                    return line[2:].strip()
    return ""


def verdict_of(notebook: Mapping) -> str:
    """The first Markdown that a cell has printed: what the notebook says came out. "" for one without outputs."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if text := output.get("data", {}).get("text/markdown"):
                return "".join(text)
    return ""


class Folder:
    """The report's folder: writes pages into it and mends their links.

    Args:
        out: where the report goes.
        home: the checkout; nothing outside it is copied.
        pages: files of the checkout that have a page, and its address from the report's top.
        links: the bar over each page.
    """

    def __init__(self, out: Path, home: Path, pages: Mapping[Path, str], links: list[tuple[str, str]]) -> None:
        self.out, self.home, self.pages, self.links = out, home.resolve(), dict(pages), links
        self.waiting: list[Path] = []  # Markdown files that a page refers to

    def write(self, address: str, title: str, body: str, base: Path) -> None:
        """A page; ``base`` is the folder that its relative links start from."""
        depth = address.count("/")
        soup = BeautifulSoup(body, "html.parser")
        for tag in soup(["script", "link", "iframe", "object", "embed", "base", "meta"]):
            tag.decompose()
        for tag in soup(True):
            for name in [name for name in tag.attrs if name.lower().startswith("on")]:
                del tag[name]
        for tag in soup.select("a.anchor-link"):
            tag.decompose()
        for tag in soup("a", href=True):
            target = self._target(tag["href"], base, depth)
            if target is None:
                del tag["href"]
                tag["title"] = "not part of this report"
            else:
                tag["href"] = target
        for tag in soup("img", src=True):
            target = self._target(tag["src"], base, depth)
            if target is None or urlsplit(target).scheme in ("http", "https"):
                tag.replace_with(f"[{tag.get('alt') or 'a picture that is not here'}]")
            else:
                tag["src"] = target
        path = self.out / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document(title, str(soup), self.links, depth), encoding="utf-8")

    def _target(self, address: str, base: Path, depth: int) -> str | None:
        """An address from a page ``depth`` folders down, or None for what the report does not hold."""
        parts = urlsplit(address)
        if parts.scheme in ("http", "https", "mailto", "data") or (not parts.path and parts.fragment):
            return address
        path = (base / unquote(parts.path)).resolve()
        if parts.scheme or not path.is_relative_to(self.home) or not path.is_file():
            return None
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        if path not in self.pages and path.suffix == ".md":
            self.pages[path] = f"pages/{path.relative_to(self.home).with_suffix('.html').as_posix()}"
            self.waiting.append(path)
        if path in self.pages:
            return "../" * depth + self.pages[path] + fragment
        copy = Path("files") / path.relative_to(self.home)
        (self.out / copy).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, self.out / copy)
        return "../" * depth + copy.as_posix()

    def finish(self) -> None:
        """Writes the Markdown files that pages have referred to, and those that they refer to."""
        while self.waiting:
            path = self.waiting.pop()
            text = path.read_text(encoding="utf-8")
            first = next((line[2:] for line in text.splitlines() if line.startswith("# ")), path.name)
            self.write(self.pages[path], first, markdown(text), path.parent)
