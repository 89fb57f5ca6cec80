"""``jot report``: a folder of pages that opens from the file system, without a server and without a network."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from jot.errors import Parser, UserError
from jot.records import load_store, metas
from jot.reproduce import report_pages as pages
from jot.runs.parameters import home

Metas = Mapping[str, Mapping]
BAR = [("Report", "index.html"), ("Claims", "claims.html"), ("Recorded cells", "cells.html")]


def executed(places: Iterable[str | os.PathLike]) -> list[Path]:
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


def stores(places: Iterable[str | os.PathLike] | None) -> dict[str, Metas]:
    """Cells by store, with totals of all their samples; a store that is not there is left out unless asked for."""
    given = places is not None
    main = home() / "data" / "records"
    folders = map(Path, places or ()) if given else [main, *sorted(p.parent for p in main.glob("*/manifest.json"))]
    found: dict[str, Metas] = {}
    for folder in folders:
        if (folder / "manifest.json").is_file():
            found[str(folder)] = metas(folder)
        elif given or folder.is_dir():  # a live store's own totals are those of the last run that ended in order
            found[str(folder)] = {name: recorded.meta for name, recorded in load_store(folder).items()}
    return found


# ---------------------------------------------------------------- sections


def ledger(store: Path | None) -> tuple[str, str]:
    """A paragraph for the index and the page of all claims: verdicts, or in one sentence why there are none."""
    try:
        from jot.analysis import ledger, sources

        entries = ledger.load()
        try:
            found = {k: r for k, r in sources.recorded(store).items() if r.meta["config"]["dtype"] == "float32"}
        except UserError:
            found = None
        judged = ledger.judge(entries, found)
    except (ImportError, UserError) as error:
        text = f"<p>The ledger of the paper's claims is absent: {escape(str(error))}.</p>"
        return text, f"<h1>Claims of the paper</h1>{text}"
    counts = Counter(judged["status"][~judged["ours"]])
    order = [status for status in ledger.VERDICTS if counts[status]]
    summary = pages.table(
        ["verdict", "claims"], [(_status(status), str(counts[status])) for status in order], numbers=[1]
    )
    intro = (
        "<p>Every number and comparison in the paper's prose, with a check that is code. <b>Holds</b> and <b>fails</b> "
        "are about the paper's own numbers. <b>Seen</b> and <b>not seen</b> are about the embedded models of at most 5 "
        "million parameters, and confirm nothing about 7B models.</p>"
    )
    rows = [
        (f"<div class=claim>{escape(row.claim)}<br><span class=soft>{escape(row.section)} "
         f"<code>{escape(row.id)}</code>{', a check of our own, not counted' * row.ours}</span></div>",
         _status(row.status), escape(row.detail))
        for row in judged.itertuples()
    ]  # fmt: skip
    whole = f"<h1>Claims of the paper</h1>{intro}{summary}" + pages.table(
        ["claim, in our words", "verdict", "numbers"], rows
    )
    index = f'{intro}{summary}<p><a href="claims.html">All {sum(counts.values())} claims with their numbers</a></p>'
    return index, whole


def _status(status: str) -> str:
    return f'<span class="{status.replace(" ", "-")}">{escape(status)}</span>'


def cells_page(found: Mapping[str, Metas]) -> str:
    """Every recorded cell with its n."""
    body = ["<h1>Recorded cells</h1>", by_task(found) if found else "<p>No records.</p>",
            "<p>Below, one row a resolved configuration; its id ends with a hash of all of it.</p>"]  # fmt: skip
    for store, cells in found.items():
        body.append(f"<h2>{escape(_shown(Path(store)))}: {len(cells)} cells</h2>")
        rows = []
        for name, meta in sorted(cells.items()):
            totals, config = meta["totals"], meta["config"]
            n = totals["samples"]
            score = "" if totals["score"] is None or not n else f"{100 * totals['score'] / n:.1f}"
            speedup = f"{totals['configured_steps'] / totals['steps']:.2f}" if totals["steps"] else ""
            rows.append((f"<code>{escape(name)}</code>", escape(config["dtype"]), f"{n:,}", score, speedup,
                         escape(str(meta["hardware"]["kind"]))))  # fmt: skip
        head = ["cell", "dtype", "n", "score, %", "step speedup", "decoded on"]
        body.append(pages.table(head, rows, numbers=[2, 3, 4]))
    return "\n".join(body)


def commit() -> str:
    """The commit of the checkout, and whether files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=home(), capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != home().resolve():
            return "absent: not a checkout of its own"
        return git("rev-parse", "HEAD") + (", with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "absent: not a git checkout"


def provenance(found: Mapping[str, Metas]) -> str:
    """Commit, lock, versions and hardware, as a table."""
    lock = home() / "requirements.lock"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else "absent"
    rows = [
        ("commit", f"<code>{escape(commit())}</code>"),
        ("requirements.lock", f"<code>sha256 {digest}</code>"),
        ("report", escape(f"{time.strftime('%Y-%m-%d %H:%M')} with Python {platform.python_version()}, nbconvert "
                          f"{importlib.metadata.version('nbconvert')}")),
    ]  # fmt: skip
    made: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for cells in found.values():
        for meta in cells.values():
            hardware, versions = meta["hardware"], meta.get("versions", {})
            words = [hardware["kind"], hardware.get("driver_version") and f"driver {hardware['driver_version']}"]
            words += [f"{name} {versions[name]}" for name in ("torch", "transformers") if versions.get(name)]
            key = ", ".join(filter(None, words))
            made[key] = [made[key][0] + 1, made[key][1] + meta["totals"]["samples"]]
    for key, (count, samples) in sorted(made.items(), key=lambda item: -item[1][0]):
        rows.append(("records", escape(f"{count} cells, {samples:,} samples: {key}")))
    if not made:
        rows.append(("records", "absent"))
    return pages.table(["", ""], rows)


def by_task(found: Mapping[str, Metas]) -> str:
    """Cells and samples by model and task."""
    counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for cells in found.values():
        for meta in cells.values():
            entry = counts[meta["config"]["model"], meta["config"]["task"], meta["config"]["split"]]
            n = meta["totals"]["samples"]
            entry[:] = [entry[0] + 1, max(entry[1], n), entry[2] + n]
    rows = [(*map(escape, key), str(c), f"{most:,}", f"{n:,}") for key, (c, most, n) in sorted(counts.items())]
    return pages.table(["model", "task", "split", "cells", "n of the largest", "samples"], rows, numbers=[3, 4, 5])


def _shown(path: Path) -> str:
    """A path as a reader of another machine may see it."""
    path = path.resolve()
    return path.relative_to(home().resolve()).as_posix() if path.is_relative_to(home().resolve()) else path.name


# ---------------------------------------------------------------- building


def build(
    out: str | os.PathLike,
    notebooks: Sequence[str | os.PathLike] | None = None,
    records: Sequence[str | os.PathLike] | None = None,
    figures: str | os.PathLike | None = None,
) -> Path:
    """Build the report; the folder ``out`` is replaced when the new one is whole. Returns its index.

    Args:
        notebooks: executed notebooks or folders of them; default ``notebooks/``, whose outputs are committed.
        records: stores; default ``data/records`` and the record sets in it.
        figures: folder of pictures; default ``figures/``.

    Raises:
        UserError: a place is not there, the given ones hold no notebooks, or ``out`` is a folder of something else.
    """
    out = Path(out).resolve()
    if out.exists() and not (out / "style.css").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} holds something else than a report; name another folder with --out")
    root = home()
    files = executed(notebooks or [root / "notebooks"])
    if notebooks and not files:
        places = ", ".join(map(str, notebooks))
        raise UserError(f"there are no executed notebooks in {places}; name their folder with --notebooks")
    found = stores(records)
    folder = Path(figures) if figures else root / "figures"
    pictures = sorted(folder.glob("*.png")) if folder.is_dir() else []
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".report-") as temporary:
        new = Path(temporary) / "report"
        new.mkdir()
        (new / "style.css").write_text(pages.STYLE, encoding="utf-8")
        known = {path.resolve(): f"notebooks/{path.stem}.html" for path in files}
        for path in files:  # links between notebooks name the committed ones
            known.setdefault((root / "notebooks" / f"{path.stem}.ipynb").resolve(), f"notebooks/{path.stem}.html")
        made = pages.Folder(new, root, known, BAR)
        rows = []
        for path in files:
            title, body = pages.notebook_body(path)
            made.write(known[path.resolve()], title, f"<p class=soft>{escape(path.stem)}</p>{body}", root / "notebooks")
            said = pages.verdict_of(json.loads(path.read_text(encoding="utf-8")))
            said = pages.markdown(said) if said else "<span class=soft>not executed</span>"
            link = f'<a href="{escape(known[path.resolve()])}">{escape(title)}</a>'
            rows.append((f"{link}<br><span class=soft>{escape(path.stem)}</span>", said))
        summary, claims = ledger(Path(records[0]) if records else None)
        body = ["<h1>Just on Time: report</h1>", "<h2>Claims</h2>", summary, "<h2>Notebooks</h2>",
                pages.table(["notebook", "what it says"], rows) if rows else "<p>No notebooks.</p>"]  # fmt: skip
        body += ["<h2>Figures</h2>", _gallery(pictures, new)]
        body += ["<h2>Provenance</h2>", provenance(found),
                 '<p><a href="cells.html">All recorded cells</a></p>']  # fmt: skip
        # Addresses in these three pages are the report's own already.
        for address, title, text in (
            ("index.html", "Just on Time: report", "\n".join(body)),
            ("claims.html", "Claims of the paper", claims),
            ("cells.html", "Recorded cells", cells_page(found)),
        ):
            (new / address).write_text(pages.document(title, text, BAR), encoding="utf-8")
        made.finish()
        if out.exists():
            shutil.rmtree(out)
        os.replace(new, out)
    return out / "index.html"


def _gallery(pictures: Sequence[Path], out: Path) -> str:
    if not pictures:
        return "<p>No figures.</p>"
    (out / "figures").mkdir()
    shown = []
    for path in pictures:
        shutil.copyfile(path, out / "figures" / path.name)
        links = [f'<a href="figures/{escape(path.name)}">PNG</a>']
        if (pdf := path.with_suffix(".pdf")).is_file():
            shutil.copyfile(pdf, out / "figures" / pdf.name)
            links.append(f'<a href="figures/{escape(pdf.name)}">PDF</a>')
        name = escape(path.stem.replace("_", " "))
        shown.append(
            f'<figure><a href="figures/{escape(path.name)}"><img src="figures/{escape(path.name)}" alt="{name}" '
            f'loading="lazy"></a><figcaption>{name} ({", ".join(links)})</figcaption></figure>'
        )
    return f'<div class="figures">{"".join(shown)}</div>'


def main(arguments: Sequence[str] | None = None) -> int:
    """``jot report``. Returns the exit code; mistakes are raised as UserError."""
    parser = Parser(prog="jot report", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", help="folder, replaced if it holds a report (default results/report)")
    parser.add_argument("--notebooks", nargs="+", help="executed notebooks or folders of them (default notebooks/)")
    parser.add_argument("--store", nargs="+", dest="records", help="record folders (default data/records)")
    parser.add_argument("--figures", help="folder of pictures (default figures/)")
    options = parser.parse_args(arguments)
    for name, given in (("notebooks", options.notebooks), ("store", options.records)):
        if "" in (given or ()):
            raise UserError(f"--{name} is empty; name a folder")
    out = options.out or home() / "results" / "report"
    print(build(out, options.notebooks, options.records, options.figures))
    return 0
