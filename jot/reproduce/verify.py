"""``jot verify-records``: decode a sample of the recorded cells again on this machine and compare."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from jot.errors import Parser, UserError
from jot.models import home
from jot.records import load_store
from jot.reproduce.again import Agreement, agreement, redecode, total
from jot.runs.frames import runs

REACH = 0.99  # share of token sequences that must come out equal, by family


def spread(found: pd.DataFrame, samples: int) -> pd.Series:
    """Documents to decode of each run, ``samples`` a family, evenly over its runs, the rest to the first."""
    size, place = found.groupby("family")["n"].transform("size"), found.groupby("family").cumcount()
    counts = (samples // size + (place < samples % size)).clip(upper=found["n"])
    return counts[counts > 0]


def judge(found: pd.DataFrame, seen: Mapping[str, Agreement]) -> bool:
    """Say how each family agrees; whether all reach `REACH` and every difference began at a close decision.

    Runs in half precision are told and not judged: another processor rounds them otherwise, at wide margins too.
    """
    good = bool(seen)
    for (name, dtype), cells in found.groupby(["family", "dtype"], sort=False).groups.items():
        if part := [seen[cell] for cell in cells if cell in seen]:
            one = total(part)
            if dtype == "float32":
                good &= one.tokens >= REACH * one.n and one.explained
                print(f"{name}: {one.told('token sequences')}{one.close()}{one.parted(': ')}", flush=True)
            else:
                told = one.told("token sequences")
                print(f"{name}, {dtype}: {told}; not judged, as another processor rounds otherwise", flush=True)
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit code 1 where the records are not reproduced."""
    parser = Parser(prog="jot verify-records", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", default="data/records", help="packed or live records (default %(default)s)")
    parser.add_argument("--samples", type=int, default=400, help="documents a family, over its cells (default 400)")
    parser.add_argument("--cells", default="", help="only cells whose id holds this text")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no further cell after so long")
    parser.add_argument("--device")
    options = parser.parse_args(arguments)
    if options.samples < 1:
        raise UserError(f"--samples {options.samples} must be at least 1")
    place = Path(options.store)
    place = place if place.is_absolute() or place.is_dir() else home() / place
    found = runs(place).set_index("cell")
    chosen = found[found.index.str.contains(options.cells, regex=False)]
    if chosen.empty:
        raise UserError(f"no recorded cell has {options.cells!r} in its id; see {options.store}/manifest.json")
    here = chosen[[(home() / "data" / "models" / name / "config.json").is_file() for name in chosen["model"]]]
    if missing := sorted(set(chosen["model"]) - set(here["model"])):
        print(f"left out, their weights are not here: {', '.join(missing)}", flush=True)
    counts = spread(here, options.samples)
    print(f"{counts.sum()} documents of {len(counts)} of {len(chosen)} cells", flush=True)
    known, store, seen = load_store(place, counts.index), home() / "results" / "verify", {}
    shutil.rmtree(store, ignore_errors=True)
    for cell, frame in redecode(known, counts.to_dict(), store, options.seconds, options.device):
        seen[cell] = agreement(known[cell].frame, frame)
        print(f"{cell}: {seen[cell].told()}", flush=True)
    if len(seen) < len(counts):
        print(f"{len(counts) - len(seen)} cells were not begun: out of time", flush=True)
    return 0 if judge(here, seen) and len(seen) == len(counts) else 1
