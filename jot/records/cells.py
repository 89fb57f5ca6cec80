"""The per-sample record store: one line a sample, never lost, never repeated, never mixed with another setting's.

The unit is a *cell*: one resolved configuration. `STORE/<cell>.json` holds the configuration, versions,
hardware and totals; each process that decodes appends to a part of its own,
`STORE/<cell>.<host>-<pid>-<random>.jsonl`. A process claims a sample by locking one byte of
`STORE/<cell>.lock`; locks end with the process, so a killed run leaves nothing behind but finished lines and
at most one torn tail, which is cut off and decoded again. Each line ends with a checksum of itself.

This module names cells; `lines.py` is the form of a record, `load.py` reads, `store.py` writes, `pack.py` packs a store
to Parquet.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from jot.errors import COUNT

ORDER_SEED = 20260101  # of the one permutation that every `limit` takes its first n from


def plain(value):
    """`value` as JSON types with one spelling each: 90.0 is 90, infinities are strings, tuples are lists."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in sorted(value.items())}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() else value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"a configuration holds JSON values only, not {type(value).__name__}")


def on(parameters: Mapping) -> dict:
    """The parameters that are on: those that are None, False or empty leave no trace."""
    return {k: v for k, v in parameters.items() if v is not None and v is not False and v != () and v != []}


@dataclass(frozen=True)
class Cell:
    """One resolved configuration; its id is a readable slug and the hash of the canonical JSON."""

    config: Mapping

    @cached_property
    def key(self) -> str:
        """10 hex digits of the hash; each record carries them."""
        # A parameter that is off leaves no trace in the id, so one added later does not orphan older records.
        off = {key: on(self.config[key]) for key in ("method", "decode") if key in self.config}
        how = {"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
        return hashlib.sha256(json.dumps(plain({**self.config, **off}), **how).encode()).hexdigest()[:10]

    @cached_property
    def id(self) -> str:
        config = self.config
        method = dict(config.get("method") or {})
        words = [config.get("model"), config.get("task"), method.get("name")]
        if "tau_max" in method:
            words.append(f"tau{plain(method['tau_max'])}")
        words += [config.get("split"), f"s{config['seed']}" if config.get("seed") else None]
        slug = "_".join(re.sub(r"[^A-Za-z0-9-]+", "-", str(word)).strip("-") for word in words if word)
        return f"{slug[:120]}-{self.key}"


def take(ids: Sequence[str], limit: int | None = None, subjects: Sequence[str] | None = None) -> list[str]:
    """The first `limit` ids of one fixed pseudo-random order of `ids`, so that smaller limits nest in larger ones.

    With `subjects` (one per id) every prefix holds the subjects in nearly their proportions. The order
    depends on the ids alone, not on their given order.
    """
    if limit is not None:
        COUNT.check("limit", limit)

    def draw(text: str) -> float:
        return int.from_bytes(hashlib.sha256(f"{ORDER_SEED}/{text}".encode()).digest()[:7], "big") / 2**56

    subjects = [""] * len(ids) if subjects is None else subjects
    order = sorted(zip(ids, subjects, strict=True), key=lambda pair: (draw(pair[0]), pair[0]))
    # Each subject spreads its documents evenly over the order, from an offset of its own.
    size, seen = Counter(subjects), Counter()
    offsets = {subject: draw("subject/" + subject) for subject in size}
    ranked = []
    for position, (doc_id, subject) in enumerate(order):
        ranked.append(((seen[subject] + offsets[subject]) / size[subject], position, doc_id))
        seen[subject] += 1
    return [doc_id for *_, doc_id in sorted(ranked)][:limit]


def natural(doc_id: str) -> tuple:
    """Sort key that puts "a/10" after "a/9"."""
    words = re.split(r"(\d{1,4000})", doc_id)  # more digits are no number to Python
    return tuple((int(word), "") if word.isdecimal() else (-1, word) for word in words)


class Recorded:
    """One cell: what its `<cell>.json` says, and its samples, one row each, which are read at the first look."""

    def __init__(self, meta: dict, read: Callable[[], pd.DataFrame]) -> None:
        self.meta, self._read = meta, read

    @cached_property
    def frame(self) -> pd.DataFrame:
        return self._read()

    @property
    def n(self) -> int:
        return self.meta["totals"]["samples"]

    def __iter__(self):
        return iter((self.meta, self.frame))
