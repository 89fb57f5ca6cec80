"""``jot verify-records``: decode a sample of the recorded cells again on this machine and compare."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from jot.errors import Parser, UserError
from jot.models import home
from jot.records import Recorded, load_store
from jot.reproduce.again import Agreement, agreement, redecode, total

REACH = 0.99  # share of token sequences that must come out equal, by family


def spread(records: Mapping[str, Recorded], samples: int) -> dict[str, int]:
    """Documents to decode of each cell, ``samples`` a family, evenly over its cells, the rest to the first."""
    counts: dict[str, int] = {}
    for name in ("dream", "llada"):
        mine = [cell_id for cell_id, recorded in records.items() if recorded.meta["config"]["family"] == name]
        for i, cell_id in enumerate(mine):
            counts[cell_id] = min(samples // len(mine) + (i < samples % len(mine)), records[cell_id].n)
    return {cell_id: n for cell_id, n in counts.items() if n}


def judge(records: Mapping[str, Recorded], found: Mapping[str, Agreement]) -> bool:
    """Say how each family agrees; whether all reach `REACH` and every difference began at a close decision."""
    good, parts = bool(found), {}
    for cell, seen in found.items():
        parts.setdefault(records[cell].meta["config"]["family"], []).append(seen)
    for name, part in parts.items():
        seen = total(part)
        good &= seen.tokens >= REACH * seen.n and seen.explained
        print(f"{name}: {seen.told('token sequences')}{seen.close()}{seen.parted(': ')}", flush=True)
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
    records = load_store(place if place.is_absolute() or place.is_dir() else home() / place)
    chosen = {cell_id: recorded for cell_id, recorded in records.items() if options.cells in cell_id}
    if not chosen:
        raise UserError(f"no recorded cell has {options.cells!r} in its id; see {options.store}/manifest.json")
    models = {recorded.meta["config"]["model"] for recorded in chosen.values()}
    missing = {name for name in models if not (home() / "data" / "models" / name / "config.json").is_file()}
    if missing:
        print(f"left out, their weights are not here: {', '.join(sorted(missing))}", flush=True)
    here = {cell: recorded for cell, recorded in chosen.items() if recorded.meta["config"]["model"] not in missing}
    counts = spread(here, options.samples)
    print(f"{sum(counts.values())} documents of {len(counts)} of {len(chosen)} cells", flush=True)
    store = home() / "results" / "verify"
    shutil.rmtree(store, ignore_errors=True)
    found = {}
    for cell, frame in redecode(here, counts, store, options.seconds, options.device):
        found[cell] = agreement(here[cell].frame, frame)
        print(f"{cell}: {found[cell].told()}", flush=True)
    if len(found) < len(counts):
        print(f"{len(counts) - len(found)} cells were not begun: out of time", flush=True)
    return 0 if judge(here, found) and len(found) == len(counts) else 1
