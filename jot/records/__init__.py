"""Per-sample records: cells, a store that no kill harms, and packed folders, read through the same functions."""

from jot.records.cells import Cell, Recorded, natural, on, plain, take
from jot.records.lines import EXTRA, FIELDS, TRACE
from jot.records.load import Rows, load_store, metas, read_meta, to_frame, totals

__all__ = [
    "Cell", "EXTRA", "FIELDS", "Recorded", "Rows", "TRACE", "load_store", "metas", "natural", "on", "plain",
    "read_meta", "take", "to_frame", "totals",
]  # fmt: skip
