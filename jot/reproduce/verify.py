"""``jot verify-records``: decode a sample of the recorded cells again on this machine and compare."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from jot.errors import Parser, UserError
from jot.models import home
from jot.records import Recorded, load_store
from jot.reproduce import again as paper
from jot.tasks import TASKS

REACH = 0.99  # share of token sequences that must come out equal, by family
Found = dict[str, paper.Agreement]


def spread(records: Mapping[str, Recorded], samples: int) -> dict[str, int]:
    """Documents to decode of each cell, ``samples`` a family, evenly over its cells, the rest to the first."""
    counts: dict[str, int] = {}
    for name in ("dream", "llada"):
        mine = [cell_id for cell_id, recorded in records.items() if recorded.meta["config"]["family"] == name]
        for i, cell_id in enumerate(mine):
            share = samples // len(mine) + (i < samples % len(mine))
            counts[cell_id] = min(share, records[cell_id].n)
    return {cell_id: n for cell_id, n in counts.items() if n}


def reachable(records: Mapping[str, Recorded]) -> tuple[dict[str, Recorded], list[str]]:
    """The cells whose weights are here, and the models of the others."""
    here, missing = {}, []
    for cell_id, recorded in records.items():
        config = recorded.meta["config"]
        if (home() / "data" / "models" / config["model"] / "config.json").is_file():
            here[cell_id] = recorded
        else:
            missing.append(config["model"])
    return here, sorted(set(missing))


def verify(
    records: Mapping[str, Recorded], counts: Mapping[str, int], store: Path, seconds: float, device: str | None = None
) -> Iterator[tuple[str, paper.Agreement]]:
    """Decode ``counts[cell]`` documents of each cell into ``store``, short tasks first; yields the agreements."""
    from jot.models import load

    begun = time.perf_counter()
    models: dict[str, object] = {}
    for cell_id in sorted(counts, key=lambda c: TASKS[records[c].meta["config"]["task"]].length):
        if time.perf_counter() - begun > seconds:
            return
        config = records[cell_id].meta["config"]
        name = config["model"]
        if name not in models:
            models[name] = load(name, dtype=config["dtype"], device=device)
        summary = paper.replay(config, models[name], counts[cell_id], store)
        if summary.cell != cell_id:
            raise UserError(
                f"the weights or prompts of {name} are not those of the records ({summary.cell} instead of {cell_id}); "
                "check out data/ anew"
            )
        yield cell_id, paper.agreement(records[cell_id].frame, summary.frame)


def totals(records: Mapping[str, Recorded], found: Mapping[str, paper.Agreement]) -> dict[str, paper.Agreement]:
    """Agreement by family."""
    sums: dict[str, paper.Agreement] = {}
    for cell_id, seen in found.items():
        name = records[cell_id].meta["config"]["family"]
        old = sums.get(name, paper.Agreement(0, 0, 0, []))
        sums[name] = paper.Agreement(*(a + b for a, b in zip(old, seen, strict=True)))
    return sums


def judge(sums: Mapping[str, paper.Agreement], say: Callable[[str], None]) -> bool:
    """Say how each family agrees; whether all reach `REACH` and every difference began at a close decision."""
    good = bool(sums)
    for name, seen in sums.items():
        near = sum(margin < paper.SMALL for margin in seen.margins)
        good &= seen.tokens >= REACH * seen.n and near == len(seen.margins)
        say(
            f"{name}: {seen.scores}/{seen.n} scores equal, {seen.tokens}/{seen.n} token sequences equal"
            + (f"; {near} of {len(seen.margins)} differences began at a margin under {paper.SMALL:g}: "
               + ", ".join(f"{margin:.1e}" for margin in seen.margins) if seen.margins else "")
        )  # fmt: skip
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
    here, missing = reachable(chosen)
    if missing:
        print(f"left out, their weights are not here: {', '.join(missing)}", flush=True)
    counts = spread(here, options.samples)
    print(f"{sum(counts.values())} documents of {len(counts)} of {len(chosen)} cells", flush=True)
    store = home() / "results" / "verify"
    shutil.rmtree(store, ignore_errors=True)
    found: Found = {}
    for cell_id, seen in verify(here, counts, store, options.seconds, options.device):
        found[cell_id] = seen
        print(f"{cell_id}: {seen.scores}/{seen.n} scores equal, {seen.tokens}/{seen.n} tokens equal", flush=True)
    if len(found) < len(counts):
        print(f"{len(counts) - len(found)} cells were not begun: out of time", flush=True)
        judge(totals(here, found), lambda text: print(text, flush=True))
        return 1
    return 0 if judge(totals(here, found), lambda text: print(text, flush=True)) else 1
