"""Values with their intervals as text: nothing but 0 prints as 0."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from jot import stats
from jot.paper.show import decimals, interval, number, of, points


@pytest.mark.parametrize(
    ("estimate", "digits", "text"),
    [
        ((0.3, 0.03, 0.68), 1, "0.30 [0.03, 0.68]"),  # a limit above 0
        ((0.3, -0.03, 0.68), 1, "0.30 [-0.03, 0.68]"),  # and below
        ((0.3, 0.0, 0.68), 1, "0.3 [0.0, 0.7]"),  # exactly 0
        ((0.0, -1e-17, 0.2), 1, "0.0 [0.0, 0.2]"),
        ((50.02, 50.0, 50.04), 1, "50.02 [50.00, 50.04]"),  # ± 0.0
        ((1.004, 1.0035, 1.0045), 2, "1.0040 [1.0035, 1.0045]"),
        ((0.0, -0.2, 0.2), 1, "0.0 [-0.2, 0.2]"),
        ((5.6, 3.7, 7.5), 1, "5.6 [3.7, 7.5]"),
        ((0.2, 1e-7, 0.5), 1, "0.20 [0.00, 0.50]"),  # not to be shown with two more
    ],
)
def test_decimals(estimate, digits, text):
    assert interval(*estimate, digits=digits, gap=" ") == text


def test_signs_and_units():
    assert interval(0.3, 0.03, 0.68, sign="+") == "+0.30\n[+0.03, +0.68]"
    assert interval(-0.01, -0.3, 0.3, sign="+", gap=" ") == "+0.0 [-0.3, +0.3]"  # no negative zero
    assert interval(27.5, 26.6, 28.5, 2, unit="×", gap=" ", comma=",\u00a0") == "27.50× [26.60,\u00a028.50]"
    assert number(-0.04, 1) == "0.0" and number(-0.06, 1, "+") == "-0.1"
    assert decimals([math.nan, 0.0, 3.0], 1) == 1


def test_rows():
    row = pd.Series(
        {"x": 0.3, "x_low": 0.03, "x_high": 0.68, "y": math.nan, "difference": 0.3, "low": 0.03, "high": 0.68}
    )
    assert of(row, "x") == "0.30\n[0.03, 0.68]" and of(row, "y") == "" and of(row, "z", empty="-") == "-"
    assert points(row) == "+0.30\n[+0.03, +0.68]"


def test_an_interval_of_a_paired_difference_shows_its_side_of_zero():
    low, high = (100 * x for x in stats.tango(7, 1, 2000))  # pocket_mmlu of the main table
    assert f"{low:.1f}" == "0.0" and low > 0
    assert interval(0.3, low, high, sign="+", gap=" ") == f"+0.30 [+{low:.2f}, +{high:.2f}]"


def test_ties_are_rounded_as_python_formats_them():
    for value in np.arange(0.05, 100, 0.1):
        assert number(value, 1) == f"{value:.1f}"
