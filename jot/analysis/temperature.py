"""The plan's criteria on temperature for the ledger; their home is ``jot.paper.criteria``."""

from __future__ import annotations

from jot.analysis.cells import Records, family
from jot.analysis.phenomena import DREAM, LLADA, MARGIN, difference, every
from jot.paper.criteria import Judged
from jot.runs.grid import Point

GSM8K, HUMANEVAL = "pocket_gsm8k", "pocket_humaneval"
GATES = {"full": ("full", {}), "jot": ("jot", {}), "fastdllm": ("fastdllm", {"gate": "proposal"}),
         "fastdllm-raw": ("fastdllm", {"gate": "raw"})}  # fmt: skip


def point(model: str, task: str, method: str, temperature: float) -> Point:
    """Dream samples from the nucleus of 0.9, as in the main table."""
    rule, settings = GATES[method]
    nucleus = {"top_p": 0.9} if family({"model": model}) == "dream" else {}
    return Point.of(model, task, rule, temperature=temperature, **nucleus, **settings)


def collapse(records: Records) -> Judged:
    found = difference(records, *(point(DREAM, HUMANEVAL, "fastdllm", t) for t in (0.1, 0.0)))
    return every({"T = 0.1 minus T = 0": found}, lambda x: x.high < -10, lambda x: x.low > -MARGIN)


def unit(records: Records) -> Judged:
    found = difference(records, *(point(DREAM, HUMANEVAL, m, 0.1) for m in ("fastdllm-raw", "fastdllm")))
    return every({"raw gate minus published": found}, lambda x: x.low > 0, lambda x: x.high < 0)


def transfer(records: Records) -> Judged:
    parts = {
        f"{model} T = {t:g}": difference(records, *(point(model, GSM8K, m, t) for m in ("jot", "full")))
        for model in (DREAM, LLADA)
        for t in (0.0, 0.1, 0.5, 1.0)
    }
    return every(parts, lambda x: x.low > -MARGIN, lambda x: x.high < -MARGIN)


PHENOMENA = {
    "temperature-collapse": collapse,
    "temperature-unit": unit,
    "temperature-transfer": transfer,
}
