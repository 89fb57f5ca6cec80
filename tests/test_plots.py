"""One map of methods to markers, colors and lines, and every figure on it."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from jot.analysis import bound_summary, cells, dynamics_view, plots

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
DEFICIENCIES = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


def lab(color: str, matrix=None) -> np.ndarray:
    """CIE L*a*b* of a color, as someone with the deficiency sees it."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(matrix) @ linear, 0, 1) if matrix is not None else linear
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 0.008856))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_every_method_has_one_look():
    assert set(plots.MAIN) <= set(plots.LOOKS) and set(cells.ALL) <= set(plots.LOOKS)
    assert len({(x.marker, x.hollow, x.color) for x in plots.LOOKS.values()}) == len(plots.LOOKS)
    assert len({plots.LOOKS[m].marker for m in plots.MAIN}) == len(plots.MAIN)
    families = set(plots.FAMILY_COLOR.values())
    assert not families & {x.color for x in plots.LOOKS.values()}, "a color of a family is no method's"
    for variant, (_, method, _) in cells.VARIANTS.items():
        assert plots.LOOKS[variant].color == plots.LOOKS[method].color and plots.LOOKS[variant].hollow


@pytest.mark.parametrize("kind", [None, *DEFICIENCIES])
def test_methods_are_told_apart_without_color_vision(kind):
    colors = {plots.LOOKS[m].color for m in plots.MAIN}
    seen = [lab(color, DEFICIENCIES.get(kind)) for color in colors]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12
    shades = [lab(dynamics_view._line(tau, (3, 10, 30, 90))["color"]) for tau in (3, 10, 30, 90)]
    assert all(a[0] - b[0] > 8 for a, b in itertools.pairwise(shades)), "thresholds darken step by step"


def test_points():
    look = plots.LOOKS["full"].points("#123456", edge="white")
    assert look == {"marker": "o", "color": "#123456", "markerfacecolor": "white", "markeredgecolor": "#123456"}
    look = plots.LOOKS["jot"].points(edge="white")
    assert (look["markerfacecolor"], look["markeredgecolor"]) == (plots.LOOKS["jot"].color, "white")


def test_no_figure_of_methods_has_a_map_of_its_own(root):
    """Markers of methods are written in ``plots`` alone; the figures of other series name theirs."""
    own = {"plots.py", "bound_summary.py", "dynamics_view.py"}  # processes, budgets, documents
    for path in (root / "jot" / "analysis").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        found = re.findall(r"""(?:fmt|marker)=["'][a-zA-Z^<>*]["']""", text)
        assert path.name in own or not found, (path.name, found)


def test_panels_have_letters_of_their_own():
    assert bound_summary.letters("b", 1) == ["b"] and bound_summary.letters("b", 3) == ["b1", "b2", "b3"]
