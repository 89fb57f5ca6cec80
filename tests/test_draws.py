"""Whether draws had a choice: margins against the nucleus, and what tables say where they had none."""

from __future__ import annotations

import math

import fake_records
import numpy as np
import pytest

from jot.analysis import cells, draws, seeds
from jot.runs.grid import Point

TASK = "pocket_gsm8k"


def run(seed: int = 0, n: int = 20, margin: float | None = None, **columns: object) -> tuple:
    point = Point.of("pocket-dream", TASK, "full", seed=seed)
    if margin is not None:
        columns["trace_margin"] = [np.array([9.0, margin, 5.0])] * n
    return fake_records.scored(point, [float(i % 2) for i in range(n)], **columns)


def cell(*args: object, **columns: object) -> cells.Cell:
    return cells.Cell(*run(*args, **columns))


def test_gap_by_hand():
    gap = draws.gap({"temperature": 0.1, "top_p": 0.9})
    assert gap == pytest.approx(0.1 * math.log(9))
    leader = 1 / (1 + math.exp(-gap / 0.1))  # the tempered probability of the leader of two
    assert leader == pytest.approx(0.9)
    assert draws.gap({"temperature": 0, "top_p": 0.9}) is None and draws.gap({"temperature": 1}) is None


def test_edge():
    gap = 0.1 * math.log(9)
    assert draws.edge(cell(margin=gap + 0.01)).clear and not draws.edge(cell(margin=gap - 0.01)).clear
    assert draws.edge(cell(margin=0.5)).n == 20
    assert draws.edge(cell()) is None and draws.edge(None) is None


def test_degenerate_needs_equal_tokens_and_clear_margins():
    one, two, traced = cell(0), cell(1), cell(0, margin=1.0)
    assert draws.degenerate([one, two], traced)
    assert not draws.degenerate([one, two], None)  # equal outcomes alone show nothing of the draws
    assert not draws.degenerate([one, two], cell(0, margin=0.1))
    other = cell(1, generated=[[1, 2, 3]] * 20)
    assert not draws.degenerate([one, other], traced)
    assert not draws.degenerate([one, two], cell(0, 20, 1.0, generated=[[7]] * 20))  # traced from other outputs
    apart = cells.Cell("x", type(two.recorded)(two.recorded.meta, two.recorded.frame.assign(doc_id="none")))
    assert not draws.same([one, apart])


def test_noise_table_says_so_instead_of_an_interval():
    records = dict([run(0), run(1), run(2)])
    plain = seeds.noise(records, tasks=[TASK], traced={})
    assert not plain["degenerate"].any() and "[83.9, 100.0]" in repr(seeds.noise_table(plain))
    frame = seeds.noise(records, tasks=[TASK], traced=dict([run(0, margin=0.25)]))
    assert frame["degenerate"].all() and frame["outcomes"].eq(100).all()
    table = seeds.noise_table(frame)
    assert (table.frame["Outcomes agree, %"] == f"100\n{draws.DEGENERATE}").all()
    assert (table.frame["Difference, points"] == draws.DEGENERATE).all() and "[" not in table.frame.to_csv()
    assert "smallest margin 0.2500 against 0.2197 in 20 traced documents" in table.caption
    assert "Degenerate" not in seeds.noise_table(plain).caption
