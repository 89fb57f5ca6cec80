"""What the files of a record store hold: the fields of a line, with the checksum that tells a changed line from a whole
one, and what a cell's metadata must have.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping

from jot.errors import is_text

FIELDS = (
    "cell", "doc_id", "prompt_hash", "prompt_tokens", "text", "answer", "score", "configured_steps", "steps",
    "forwards_full", "forwards_suffix", "forwards_block", "seconds", "slots", "tokens_non_eos", "empty",
    "generated",
)  # fmt: skip
EXTRA = ("loop",)  # which loop decoded the sample, where it was not the plain one
TRACE = ("step", "rule", "margin", "threshold", "mean_margin", "masked")  # optional, under "trace"
SUMS = ("configured_steps", "steps", "forwards_full", "forwards_suffix", "forwards_block", "tokens_non_eos", "seconds")

_TEXT = ("cell", "doc_id", "prompt_hash", "text")
WHOLE = {"prompt_tokens": 0, "configured_steps": 1, "steps": 1, "forwards_full": 0, "forwards_suffix": 0,
         "forwards_block": 0, "slots": 1, "tokens_non_eos": 0}  # and the least that each can be  # fmt: skip
_TRACE_WHOLE = {"step": (-1, 2**15), "rule": (0, 2**8), "masked": (0, 2**15)}  # least, and what they stay below
_MOST = 2**31  # every number of a record stays below it
_TOKENS = 2**32  # every token's id stays below it
_DEPTH = 50
_SUM = re.compile(rb',"crc32":"([0-9a-f]{8})"}$')


def to_line(record: Mapping) -> bytes:
    """A record as one line of JSON that ends with the CRC-32 of what stands before."""
    body = json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()[:-1]
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def from_line(line: bytes) -> dict:
    """The record on a line without its line feed; a line that another program wrote has no checksum.

    Raises:
        ValueError, TypeError, RecursionError: no record, or a changed one.
    """
    found = _SUM.search(line)
    if found and int(found[1], 16) != zlib.crc32(line[: found.start()]):
        raise ValueError("its checksum does not fit")
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("no mapping")
    if "crc32" in record and not found:
        raise ValueError("its checksum does not fit")
    record.pop("crc32", None)
    if missing := [field for field in FIELDS if field not in record]:
        raise ValueError(f"no {missing[0]}")
    _check(record)
    if unknown := [name for name in record if name not in FIELDS + EXTRA and not name.startswith("trace")]:
        raise ValueError(f"unknown {unknown[0]}")
    return record


def _check(record: Mapping) -> None:
    """Raises a ValueError that says which field has another type or range than a record's."""
    for name in _TEXT:
        if not is_text(record[name]):
            raise ValueError(f"{name} is not a string")
    if record["answer"] is not None and not is_text(record["answer"]):
        raise ValueError("answer is not null or a string")
    for name, least in WHOLE.items():
        if type(record[name]) is not int or record[name] < least:
            raise ValueError(f"{name} is not a whole number, at least {least}")
        if record[name] >= _MOST:
            raise ValueError(f"{name} is not below {_MOST}")
    if record["score"] is not None and not (_is_number(record["score"]) and record["score"] <= 1):
        raise ValueError("score is not null or a number from 0 to 1")
    if not _is_number(record["seconds"]):
        raise ValueError("seconds is not a finite number, at least 0")
    if not isinstance(record["empty"], bool):
        raise ValueError("empty is not true or false")
    if not _are_whole(record["generated"], 0, _TOKENS):
        raise ValueError(f"generated is not a list of whole numbers, at least 0 and below {_TOKENS}")
    if not is_text(record.get("loop", "")):
        raise ValueError("loop is not a string")
    if (trace := record.get("trace")) is not None:
        if not isinstance(trace, dict):
            raise ValueError("trace is no mapping")
        for name in TRACE:
            if trace.get(name) is not None and not _is_trace(name, trace[name]):
                raise ValueError(f"trace.{name} is not a list of numbers in its range")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < _MOST


def _are_whole(values: object, least: int, below: int) -> bool:
    if not isinstance(values, list):
        return False
    return not values or (set(map(type, values)) == {int} and min(values) >= least and max(values) < below)


def _is_trace(name: str, values: object) -> bool:
    if name in _TRACE_WHOLE:
        return _are_whole(values, *_TRACE_WHOLE[name])
    kinds = set(map(type, values)) if isinstance(values, list) else {list}
    whole = [value for value in values if type(value) is int] if int in kinds else []
    return kinds <= {int, float, type(None)} and _are_whole(whole, -_MOST, _MOST)


# ---------------------------------------------------------------- a cell's metadata


def parse(text: str) -> object:
    """JSON that nests no deeper than metadata do.

    Raises:
        ValueError: no JSON, or deeper.
    """
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    level = [content]
    for _ in range(_DEPTH):
        inner = [value for value in level if isinstance(value, (dict, list))]
        level = [child for value in inner for child in (value.values() if isinstance(value, dict) else value)]
    if level:
        raise ValueError("nested too deep")
    return content


def check_meta(meta: object) -> None:
    """Passes metadata that have a configuration, versions and hardware; their totals are not looked at.

    Raises:
        ValueError: one of them is not there, or of another kind.
    """
    if not isinstance(meta, dict):
        raise ValueError("no mapping")
    for name in ("config", "versions", "hardware"):
        if not isinstance(meta.get(name), dict):
            raise ValueError(f"no {name}")
    for name in ("method", "decode"):
        if not isinstance(meta["config"].get(name, {}), dict):
            raise ValueError(f"no config.{name}")
    if not isinstance(meta["hardware"].get("kind"), str):
        raise ValueError("no hardware.kind")


def are_totals(totals: object) -> bool:
    """Whether these can be the sums over a cell's samples."""
    if not isinstance(totals, dict):
        return False
    whole = [totals.get(name) for name in ("samples", *SUMS) if name != "seconds"]
    numbers = [totals.get("seconds"), 0 if totals.get("score") is None else totals["score"]]
    if not _are_whole(whole, 0, 2**63) or not all(type(n) in (int, float) and 0 <= n < math.inf for n in numbers):
        return False
    samples, steps = totals["samples"], totals["steps"]
    return samples <= steps and bool(samples) == bool(steps) and samples <= totals["configured_steps"]
