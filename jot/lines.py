"""One line of a record store: its fields, and the checksum that tells a changed line from a whole one."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping

FIELDS = (
    "cell", "doc_id", "prompt_hash", "prompt_tokens", "text", "answer", "score", "configured_steps", "steps",
    "forwards_full", "forwards_suffix", "forwards_block", "seconds", "slots", "tokens_non_eos", "empty",
    "generated",
)  # fmt: skip
EXTRA = ("loop",)  # which loop decoded the sample, where it was not the plain one
TRACE = ("step", "rule", "margin", "threshold", "mean_margin", "masked")  # optional, under "trace"

_NUMBER = (int, float)
_TYPES = {name: (str,) for name in ("cell", "doc_id", "prompt_hash", "text")} | {
    "generated": (list,), "empty": (bool,), "score": (*_NUMBER, type(None)), "answer": (str, type(None)),
}  # fmt: skip
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
    if missing := [field for field in FIELDS if field not in record]:
        raise ValueError(f"no {missing[0]}")
    record.pop("crc32", None)
    if wrong := [field for field in FIELDS if not isinstance(record[field], _TYPES.get(field, _NUMBER))]:
        raise ValueError(f"{wrong[0]} is no {_TYPES.get(wrong[0], _NUMBER)[0].__name__}")
    if not isinstance(record.get("trace"), (dict, type(None))):
        raise ValueError("trace is no mapping")
    if unknown := [name for name in record if name not in FIELDS + EXTRA and not name.startswith("trace")]:
        raise ValueError(f"unknown {unknown[0]}")
    return record
