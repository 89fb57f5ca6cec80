"""Whether the draws of a sampling model had anything to choose: its nucleus against the margins of its commits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from jot.analysis.cells import Cell

DEGENERATE = "degenerate: no draw had a choice"


class Edge(NamedTuple):
    """The margin at which a nucleus begins to hold a runner-up, beside the smallest margin of traced commits (nats)."""

    gap: float
    smallest: float
    n: int  # traced documents

    @property
    def clear(self) -> bool:
        """No traced commit was close enough for a runner-up."""
        return self.smallest > self.gap


def gap(decode: Mapping) -> float | None:
    """The margin, in nats, up to which the nucleus holds the runner-up of two candidates; None without a nucleus.

    With temperature T and nucleus p the runner-up survives only where the leader's tempered probability is at most
    p: with two candidates a margin of at most T ln(p / (1 - p)).
    """
    heat, nucleus = decode.get("temperature") or 0, decode.get("top_p") or 1
    return heat * math.log(nucleus / (1 - nucleus)) if heat and nucleus < 1 else None


def edge(traced: Cell | None) -> Edge | None:
    """The edge of a traced run; None without traces or without a nucleus."""
    if traced is None or "trace_margin" not in traced.recorded.frame:
        return None
    bar = gap(traced.config.get("decode") or {})
    if bar is None:
        return None
    return Edge(bar, float(min(map(np.min, traced.recorded.frame["trace_margin"]))), traced.n)


def _tokens(cell: Cell) -> dict[str, bytes]:
    frame = cell.recorded.frame
    return {i: np.asarray(x, np.int64).tobytes() for i, x in zip(frame["doc_id"], frame["generated"], strict=True)}


def same(cells: Iterable[Cell]) -> bool:
    """Whether runs have the same tokens on every document that they share, and share some."""
    first, *rest = map(_tokens, cells)
    return all(
        first.keys() & other.keys() and all(first[i] == other[i] for i in first.keys() & other.keys()) for other in rest
    )


def degenerate(cells: Iterable[Cell], traced: Cell | None) -> bool:
    """Whether runs under several seeds agree only because no draw had a choice.

    That is: all tokens of all documents are the same, the traced run has those tokens too, and none of its commits
    was close enough for a runner-up to be drawn.
    """
    found = edge(traced)
    return found is not None and found.clear and same([*cells, traced])
