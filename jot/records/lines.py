"""What the files of a record store hold: a record as a line whose checksum tells a whole one from any other, and what a
cell's metadata must have.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress

from jot.errors import Kind

FIELDS = (
    "cell", "doc_id", "prompt_hash", "prompt_tokens", "text", "answer", "score", "configured_steps", "steps",
    "forwards_full", "forwards_suffix", "forwards_block", "seconds", "slots", "tokens_non_eos", "empty",
    "generated",
)  # fmt: skip
EXTRA = ("loop",)  # which loop decoded the sample, where it was not the plain one
TRACE = ("step", "rule", "margin", "threshold", "mean_margin", "masked")  # optional, under "trace"
SUMS = ("configured_steps", "steps", "forwards_full", "forwards_suffix", "forwards_block", "tokens_non_eos", "seconds")

_SUM = re.compile(rb',"crc32":"([0-9a-f]{8})"}$')
_DEPTH = 50
# What a cell's metadata must have, an entry of a manifest still more.
META = {"config": dict, "config.method": dict, "config.decode": dict, "versions": dict, "hardware": dict,
        "hardware.kind": str}  # fmt: skip
TOTALS = dict.fromkeys(("samples", *SUMS), Kind(int, 0)) | {
    "seconds": Kind(float, 0, sys.float_info.max), "score": Kind(float, 0, sys.float_info.max, optional=True),
}  # fmt: skip
PACKED = META | {"cell": str, "file": str, "sha256": str}


def to_line(record: Mapping) -> bytes:
    """A record as one line of JSON that ends with the CRC-32 of what stands before."""
    body = json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()[:-1]
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def from_line(line: bytes) -> dict:
    """The record on a line without its line feed; a ValueError or RecursionError says that it is none, or changed."""
    found = _SUM.search(line)
    if not found or int(found[1], 16) != zlib.crc32(line[: found.start()]):
        raise ValueError("its checksum does not fit")
    record = json.loads(line)
    if missing := [field for field in FIELDS if field not in record]:
        raise ValueError(f"no {missing[0]}")
    del record["crc32"]
    return record


def parse(text: str) -> object:
    """JSON that nests no deeper than metadata do; else a ValueError."""
    with suppress(RecursionError):
        content = json.loads(text)
        if _depth(content) <= _DEPTH:
            return content
    raise ValueError("nested too deep")


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def check(value: object, kinds: Mapping[str, type]) -> None:
    """A ValueError unless it is a mapping that has these fields, and fields of fields, each of its kind."""
    if not isinstance(value, dict):
        raise ValueError("no mapping")
    for name, kind in kinds.items():
        outer, _, inner = name.rpartition(".")
        if not isinstance((value[outer] if outer else value).get(inner), kind):
            raise ValueError(f"no {name}")


def are_totals(totals: object) -> bool:
    """Whether these can be the sums over a cell's samples."""
    if not isinstance(totals, dict) or not all(kind.fits(totals.get(name)) for name, kind in TOTALS.items()):
        return False
    samples, steps = totals["samples"], totals["steps"]
    return samples <= steps and bool(samples) == bool(steps) and samples <= totals["configured_steps"]
