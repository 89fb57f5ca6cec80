"""One style for every figure: Okabe-Ito colors and one of Tol's, one look a method, legible in print; saving, showing.

The rule of colors: **a color means a method, the same one in every figure** (``LOOKS``): full decoding black, JoT
green, Fast-dLLM orange, KLASS light blue, Prophet purple, the entropy budget blue, LocalLeap vermillion,
CreditDecoding yellow, SchED the wine of Paul Tol's muted scheme, as Okabe and Ito's eight are taken. A variant has its
method's color and a hollow marker or another line. A model family is told by its panel. What belongs to no method (a
person's text, a bound, a random process) takes a color that no method has. Published points of the large models never
stand on axes that are titled with an embedded model's task: they get a panel of their own.
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from PIL import Image

# Okabe and Ito's palette, told apart under the common color-vision deficiencies.
COLORS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
    "gray": "#777777",
}


class Look(NamedTuple):
    """How a method is drawn in every figure."""

    marker: str
    color: str
    hollow: bool = False
    line: str = "-"

    def points(self, color: str | None = None, edge: str | None = None) -> dict[str, str]:
        """Marker, color and fill as ``plot``, ``errorbar`` and ``Line2D`` take them.

        Args:
            color: another shade than the method's.
            edge: color of a filled marker's edge, so that neighbors stay apart.
        """
        color = color or self.color
        edge = color if self.hollow or edge is None else edge
        face = "white" if self.hollow else color
        return {"marker": self.marker, "color": color, "markerfacecolor": face, "markeredgecolor": edge}


LOOKS = {
    "full": Look("o", COLORS["black"], hollow=True, line="--"),
    "prophet": Look("D", COLORS["purple"]),
    "klass": Look("v", COLORS["sky"]),
    "fastdllm": Look("X", COLORS["orange"]),
    "jot": Look("s", COLORS["green"]),
    "calibrated": Look("^", COLORS["green"]),
    "eb": Look("*", COLORS["blue"]),
    "localleap": Look("P", COLORS["vermillion"]),
    "credit": Look("h", COLORS["yellow"]),
    "sched": Look("d", "#882255"),
    "sched-bar": Look("d", "#882255", hollow=True, line=":"),
    "prophet-answer": Look("D", COLORS["purple"], hollow=True, line=":"),
    "klass-ported": Look("v", COLORS["sky"], hollow=True, line=":"),
    "fastdllm-nocache": Look("X", COLORS["orange"], hollow=True, line=":"),
    "fastdllm-raw": Look("P", COLORS["orange"], hollow=True, line=":"),  # its gate reads untempered probabilities
    "full-confidence": Look("h", COLORS["black"], hollow=True, line=":"),  # Dream ranked by confidence, as KLASS does
    "full-blocks": Look("H", COLORS["black"], hollow=True, line="-."),  # -blocks: greedy in blocks, no cache
    "full-dual": Look("8", COLORS["black"], hollow=True, line=":"),  # -dual, -prefix: so, under that cache
    "full-prefix": Look("d", COLORS["black"], hollow=True, line=":"),
    "jot-blocks": Look("s", COLORS["green"], hollow=True, line=":"),
    "jot-dual": Look(">", COLORS["green"]),
    "jot-block-start": Look("<", COLORS["green"], hollow=True, line=":"),  # in the dual cache, exits as a block opens
    "jot-prefix": Look("p", COLORS["green"], hollow=True, line=":"),
}
CAPS = {"mmlu": 3, "hellaswag": 5}  # speedup cannot pass the generated length
SPEED_TICKS = (1, 1.5, 2, 3, 5, 10, 20, 40, 100)
DPI = 150

RC = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "lines.markersize": 5,
    "errorbar.capsize": 1.5,
    "pdf.fonttype": 42,
    "savefig.dpi": DPI,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


def style() -> AbstractContextManager:
    """Context in which every figure of the project is made."""
    return mpl.rc_context(RC)


def _png(figure: Figure, dpi: int) -> bytes:
    """The figure as a PNG with at most 256 colors: a third of the size, and no difference that the eye sees."""
    buffer, small = io.BytesIO(), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    image = Image.open(buffer).convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    image.save(small, format="PNG", optimize=True, dpi=(dpi, dpi))
    return small.getvalue()


def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write ``stem.png`` (150 dpi) and ``stem.pdf``, byte for byte the same for the same figure."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(stem.name + suffix) for suffix in (".png", ".pdf")]
    with style():
        paths[0].write_bytes(_png(figure, DPI))
        figure.savefig(paths[1], metadata={"CreationDate": None, "Producer": None, "Creator": None})
    return paths


def show(figure: Figure, alt: str = "", dpi: int = 110):
    """The figure as one PNG for a notebook's output."""
    from IPython.display import Image as Shown

    with style():
        return Shown(data=_png(figure, dpi), format="png", alt=alt)


def spread(row: pd.Series, name: str) -> list[list[float]]:
    """Distances from a value down and up to its limits, as ``errorbar`` takes them."""
    return [[max(0.0, row[name] - row[f"{name}_low"])], [max(0.0, row[f"{name}_high"] - row[name])]]


def speed_axis(axis, low: float, high: float) -> None:
    """A log axis of speedups with plain ticks, from ``low`` to ``high``."""
    axis.set_xscale("log")
    axis.set_xlim(low / 1.12, high * 1.12)
    ticks = SPEED_TICKS if high < 8 else [t for t in SPEED_TICKS if t not in (1.5, 3)]
    axis.set_xticks([t for t in ticks if low / 1.12 <= t <= high * 1.12])
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(axis="x", which="minor", length=0)
