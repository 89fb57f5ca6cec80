"""The guide's table of what can be combined is the one that the code gives; run as a script, this prints it."""

from __future__ import annotations

import itertools
import json
import re

import pytest
import yaml

import jot
from jot.models import FAMILIES, LLaDAModelLM
from jot.runs import settings
from jot.sampler.cache import MODES
from jot.sampler.exits import METHODS

BEGIN, END = "<!-- support: begin -->", "<!-- support: end -->"


def works(family_class, method: str, **given) -> bool:
    """Whether a method of that name resolves with these decoding settings."""
    try:
        settings.build_method(method, family_class.family, {})
        settings.build_decode(family_class, {"length": 64, **given}, method=method)
    except jot.UserError:
        return False
    return True


def table() -> str:
    """Markdown: per method, family and cache, whether it works whole and in blocks, greedy and sampled, and guided."""
    families = [family_class for _, family_class, _ in FAMILIES.values()]
    caches = (None, *MODES)
    head = [f"{f.family} {cache or 'no cache'}" for f, cache in itertools.product(families, caches)]
    lines = ["| method | " + " | ".join(head) + " |", "| --- |" + " --- |" * len(head)]
    for method in (*METHODS, *settings.PRESETS):
        cells = []
        for family_class, cache in itertools.product(families, caches):
            ways = [dict(block_length=b, temperature=t) for b, t in itertools.product((None, 32), (0.0, 0.5))]
            plain = all(works(family_class, method, cache=cache, **way) for way in ways)
            guided = works(family_class, method, cache=cache, guidance=1.0)
            cells.append("no" if not plain else "yes" if guided else "yes, no guidance")
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    refused = "; ".join(f"`{name}` ({why})" for name, why in settings.REFUSED.items())
    return "\n".join([*lines, "", f"Refused by name: {refused}."])


def test_the_guide_holds_the_table(root):
    text = (root / "notebooks" / "GUIDE.md").read_text()
    assert text.split(BEGIN)[1].split(END)[0].strip() == table()


def test_a_refused_method_says_why():
    with pytest.raises(jot.UserError, match="canvas"):
        settings.method_class("fastdllm_canvas_budget")
    assert not works(LLaDAModelLM, "jot", cache="dual", guidance=1.0)
    assert works(LLaDAModelLM, "jot", cache="dual")
    assert not works(LLaDAModelLM, "jot-public", cache="dual")


@pytest.mark.parametrize(
    "page", ["README.md", *(f"notebooks/{name}.md" for name in ("ARTIFACT", "GUIDE", "DIFFERENCES", "ANALYSIS"))]
)
def test_a_page_names_what_is_there(root, page):
    """Paths, notebooks and modules in its code spans and links exist; what a run makes is left out."""
    text = (root / page).read_text()
    linked = {(root / page).parent / name for name in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)}
    named = {root / name for name in re.findall(r"(?<![\w/~.])(?:jot|data|notebooks|figures|tests)/[\w./-]*\w", text)}
    assert len(linked | named) > 1 and sorted(str(path) for path in linked | named if not path.exists()) == []
    anchors = re.findall(r"\]\(([\w./-]+)#([\w-]+)\)", text)
    for name, anchor in anchors:
        heads = re.findall(r"^#+ (.*)$", ((root / page).parent / name).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_readme_is_a_door(root):
    assert len((root / "README.md").read_text().splitlines()) <= 120


def test_the_appendix_quotes_its_notebooks(root):
    """Each quotation in a row that links a notebook stands in that notebook's outputs."""
    rows = [line for line in (root / "notebooks" / "ARTIFACT.md").read_text().splitlines() if ".ipynb)" in line]
    quoted = 0
    for cells in (line.strip("| ").split(" | ") for line in rows):
        if len(cells) < 4:
            continue
        names = sorted(set(re.findall(r"\((\w+\.ipynb)\)", cells[1])))
        books = [json.loads((root / "notebooks" / name).read_text()) for name in names]
        outputs = [o for book in books for c in book["cells"] for o in c.get("outputs", ())]
        kinds = ("text/markdown", "text/plain")
        texts = [o.get("text", "") for o in outputs] + [
            o.get("data", {}).get(kind, "") for o in outputs for kind in kinds
        ]
        page = "\n".join("".join(text) for text in texts).replace("**", "").replace("`", "")
        for quotation in re.findall(r"`([^`]+)`", cells[-1]):
            assert quotation in page, (names, quotation)
            quoted += 1
    assert quoted > 10


def test_citation_and_archive_agree(root):
    archive, citation = (
        json.loads((root / ".zenodo.json").read_text()),
        yaml.safe_load((root / "CITATION.cff").read_text()),
    )
    assert all(archive[key] == citation[key] for key in ("title", "version", "license", "keywords"))


def test_readme_reads_the_frame(root):
    """Its lines for reviewers run and give a speedup for both methods."""
    text = (root / "README.md").read_text()
    (lines,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "frames import" in code]
    space: dict = {}
    exec(lines, space)
    assert set(space["total"].index) == {"full", "jot"} and len(space["pair"]) > 0


if __name__ == "__main__":
    print(table())
