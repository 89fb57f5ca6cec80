"""One look a method, told apart without color vision; families by line and fill; figures byte for byte the same."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from jot.paper import draw, show

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
DEFICIENCIES = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
METHODS = ("full", "prophet", "klass", "fastdllm", "jot")
RANKED = (*METHODS, "calibrated")  # what stands in one panel


def lab(color: str, matrix=None) -> np.ndarray:
    """CIE L*a*b* of a color, as someone with the deficiency sees it."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(matrix) @ linear, 0, 1) if matrix is not None else linear
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 0.008856))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_a_color_is_a_method():
    """One look each; a variant has its method's color; all the methods of a table have a look."""
    assert set(show.LABELS) <= set(draw.LOOKS)
    assert len({(x.marker, x.hollow, x.color) for x in draw.LOOKS.values()}) == len(draw.LOOKS)
    assert len({draw.LOOKS[m].color for m in METHODS}) == len(METHODS)
    assert len({draw.LOOKS[m].marker for m in RANKED}) == len(RANKED)
    for name, look in draw.LOOKS.items():
        method = "jot" if name == "calibrated" else name.split("-")[0]
        assert look.color == draw.LOOKS[method].color, name


@pytest.mark.parametrize("kind", [None, *DEFICIENCIES])
def test_methods_are_told_apart_without_color_vision(kind):
    seen = [lab(draw.LOOKS[m].color, DEFICIENCIES.get(kind)) for m in METHODS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12


def test_points():
    look = draw.LOOKS["full"].points("#123456", edge="white")
    assert look == {"marker": "o", "color": "#123456", "markerfacecolor": "white", "markeredgecolor": "#123456"}
    look = draw.LOOKS["jot"].points(edge="white")
    assert (look["markerfacecolor"], look["markeredgecolor"]) == (draw.LOOKS["jot"].color, "white")


def test_no_notebook_gives_a_method_a_color_of_its_own(root):
    """A method's color is read from ``LOOKS``; what is named beside it belongs to no method."""
    taken = {name for name, value in draw.COLORS.items() if value in {x.color for x in draw.LOOKS.values()}}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        named = set(re.findall(r"""COLORS\[["'](\w+)["']\]""", source))
        assert not (named & taken) - {"black"}, (path.name, named & taken)


def test_a_figure_is_the_same_file_twice(tmp_path):
    def figure():
        with draw.style():
            made = Figure(figsize=(2, 2))
            made.subplots().plot([0, 1], [1, 0], **draw.LOOKS["jot"].points(edge="white"))
        return made

    first, again = (draw.save(figure(), tmp_path / name / "f") for name in "ab")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]
    assert [p.name for p in first] == ["f.png", "f.pdf"]
    assert len(draw.show(figure()).data) > 1000


def test_speed_axis_and_spread():
    axis = Figure().subplots()
    draw.speed_axis(axis, 1, 30)
    assert [axis.xaxis.get_major_formatter()(x, None) for x in axis.get_xticks()] == ["1×", "2×", "5×", "10×", "20×"]
    row = pd.Series({"score": 50.0, "score_low": 45.0, "score_high": 52.0})
    assert draw.spread(row, "score") == [[5.0], [2.0]]
    assert draw.spread(row.replace(45.0, 51.0), "score") == [[0.0], [2.0]]  # never negative
