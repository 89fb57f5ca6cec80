"""Moved to ``jot.paper.show``."""

from jot.paper.show import decimals, interval, number, of  # noqa: F401
