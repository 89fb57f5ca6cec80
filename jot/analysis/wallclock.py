"""Speedup on the clock beside speedup in steps: our recordings, the speed scripts' rows, and the paper's table.

A *kept* share is speedup on the clock over speedup in steps: 1 where a step of the method costs what a step of full
decoding costs, below where it costs more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis import published
from jot.analysis.cells import MODELS, Records, family, short
from jot.errors import UserError
from jot.paper import criteria as judgment
from jot.records import metas
from jot.runs.parameters import NotebookError, home
from jot.tasks import TASKS as TASK_TABLE

FILE = "timings.csv"  # beside the cells of a store, one line a decoding (see ``jot.paper.timing``)
TASKS = ("pocket_gsm8k", "pocket_humaneval")
METHODS = ("full", "jot", "prophet", "klass", "fastdllm")
NAMES = {"full": "Full decoding", "jot": "JoT", "prophet": "Prophet (our port)", "klass": "KLASS",
         "fastdllm": "Fast-dLLM (dual cache)"}  # fmt: skip
LIVE_LIMIT = 24  # documents a task that a live run times unless told otherwise
KEYS = ["model", "task", "method"]
BUSY = 1.1  # clock over processor time from which the machine had other work
SAME = ["card", *KEYS, "dtype", "cache", "slots", "threads", "processes"]  # name a row of the speed scripts


# --- recordings of the embedded pair ------------------------------------------------------------------------


def folder_of(folder: str | Path | None = None) -> Path:
    """A folder of timings; ``data/records/cpu`` unless another is named."""
    return Path(folder) if folder else home() / "data" / "records" / "cpu"


def timings(folder: str | Path | None = None) -> pd.DataFrame:
    """One row per model, task, method and document: medians over the repetitions, steps, the bare forward.

    Columns: ``model task method doc_id prompt_tokens rows steps forwards_full forwards_block repeats seconds
    cpu_seconds spread bare_seconds bare_cpu_seconds machine``; ``spread`` is slowest over fastest repetition.

    Raises:
        NotebookError: nothing is recorded there.
    """
    try:
        raw = pd.read_csv(folder_of(folder) / FILE)
    except (OSError, ValueError):
        raise NotebookError(
            f"there are no timings in {folder or 'data/records/cpu'}: check that folder out, or pass source=live to "
            "time this machine"
        ) from None
    by = raw.groupby([*KEYS, "doc_id"], sort=False)
    found = by[["seconds", "cpu_seconds", "bare_seconds", "bare_cpu_seconds"]].median()
    found[["prompt_tokens", "rows", "steps", "forwards_full", "forwards_block"]] = by[
        ["prompt_tokens", "rows", "steps", "forwards_full", "forwards_block"]
    ].first()
    found["repeats"], found["spread"] = by.size(), by["seconds"].max() / by["seconds"].min()
    return found.reset_index().assign(machine=machine(folder))


def machine(folder: str | Path | None = None) -> str:
    """What the timings were taken on, in a word for captions: "CPU", or the name of the card."""
    kinds = {meta["hardware"]["kind"] for meta in _metas(folder).values()}
    return " and ".join(sorted("CPU" if kind == "cpu" else kind for kind in kinds)) or "machine not recorded"


def _metas(folder: str | Path | None) -> dict[str, dict]:
    try:
        return metas(folder_of(folder))
    except UserError:  # the file stands alone
        return {}


def load(p: SimpleNamespace) -> pd.DataFrame:
    """The timings that the notebook's parameters ask for; ``source="live"`` times what the store lacks first.

    Raises:
        NotebookError: nothing of that kind is recorded, or ``limit`` is above what is.
    """
    models = [model for model in p.models if family({"model": model}) in p.families]
    if not models:
        raise NotebookError(f"no model of {', '.join(p.models)} is of the families {', '.join(p.families)}")
    methods = list(dict.fromkeys(["full", *p.methods]))
    place = p.store
    if p.source == "live":
        from jot.paper import timing

        place = place or home() / "results" / "wallclock" / f"{p.dtype}-seed{p.seed}"
        timing.record(place, models, p.tasks, methods, p.limit or LIVE_LIMIT, seed=p.seed, device=p.device,
                      dtype=p.dtype, data=p.data)  # fmt: skip
    found = timings(place)
    kinds = {(meta["config"]["dtype"], meta["config"].get("seed") or 0) for meta in _metas(place).values()}
    if kinds and kinds != {(p.dtype, p.seed)}:
        there = ", ".join(f"{dtype} with seed {seed}" for dtype, seed in sorted(kinds))
        raise NotebookError(f"no timings of {p.dtype} with seed {p.seed} alone; recorded are {there}")
    for column, names in (("model", list(map(short, models))), ("task", p.tasks), ("method", methods)):
        for name in names:
            if name not in (known := sorted(set(found[column]))):
                raise NotebookError(f"no timings of {column} {name!r}; recorded are {', '.join(known)}")
        found = found[found[column].isin(names)]
    return first(found, p.limit)


def first(found: pd.DataFrame, limit: int | None) -> pd.DataFrame:
    """The first ``limit`` documents of each task's fixed order."""
    if limit is None:
        return found
    from jot.analysis.sources import order

    kept = []
    for task, group in found.groupby("task", sort=False):
        ids = set(group["doc_id"])
        if limit > len(ids):
            n = len(ids)
            raise NotebookError(f"limit={limit} is above the {n} timed documents of {task}; use at most {n}")
        split = TASK_TABLE[task].splits[0] if task in TASK_TABLE else "test"
        kept.append(group[group["doc_id"].isin(order(task, split, ids)[:limit])])
    return pd.concat(kept, ignore_index=True)


def _estimate(draws: np.ndarray, value: float) -> stats.Estimate:
    low, high = np.quantile(draws, [stats.ALPHA / 2, 1 - stats.ALPHA / 2])
    return stats.Estimate(float(value), float(low), float(high))


def speedups(full: pd.DataFrame, method: pd.DataFrame, seconds: str = "seconds") -> dict[str, stats.Estimate]:
    """``step``, ``clock`` and ``kept`` speedups of one method over the documents that both have.

    Ratios of sums with percentile bootstrap intervals over documents, all from one set of resamples. Steps of full
    decoding are the configured ones.
    """
    both = full.merge(method, on="doc_id", suffixes=("_full", ""))
    if both.empty:
        raise UserError("the two methods were timed on different documents; time them together")
    names = ("steps_full", "steps", f"{seconds}_full", seconds)
    values = both[list(names)].to_numpy(dtype=float).T
    sums = stats.bootstrap_sums(values)
    total = values.sum(1)
    return {
        "step": _estimate(sums[0] / sums[1], total[0] / total[1]),
        "clock": _estimate(sums[2] / sums[3], total[2] / total[3]),
        "kept": _estimate(sums[2] * sums[1] / (sums[3] * sums[0]), total[2] * total[1] / (total[3] * total[0])),
    }


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Per model, task and method: ``speedups`` with their limits, and ``cpu``, the kept share by processor time."""
    rows = []
    for (model, task), group in found.groupby(["model", "task"], sort=False):
        full = group[group["method"] == "full"]
        for method in [name for name in METHODS if name != "full" and name in set(group["method"])]:
            mine = group[group["method"] == method]
            row: dict[str, object] = {"model": model, "task": task, "method": method, "n": len(mine)}
            row["machine"] = mine["machine"].iloc[0]
            for kind, estimate in speedups(full, mine).items():
                row |= {kind: estimate.value, f"{kind}_low": estimate.low, f"{kind}_high": estimate.high}
            cpu = speedups(full, mine, "cpu_seconds")["kept"]
            rows.append(row | {"cpu": cpu.value, "cpu_low": cpu.low, "cpu_high": cpu.high})
    return pd.DataFrame(rows)


def steps(found: pd.DataFrame) -> pd.DataFrame:
    """Per model, task and method, medians and quartiles over documents: ms a step, the bare forward, what lies between.

    In ms, on a CPU of processor time: on one thread that is what the clock shows on an idle machine. ``overhead`` is of
    a step, with the set-up of a run in it; nan under a cache, where forwards differ in kind.
    """
    rows = []
    for keys, group in found.groupby(KEYS, sort=False):
        kind = "cpu_seconds" if (group["machine"] == "CPU").all() else "seconds"
        step, bare = 1e3 * group[kind] / group["steps"], 1e3 * group[f"bare_{kind}"]
        low, middle, high = np.quantile(step, [0.25, 0.5, 0.75])
        rows.append(
            {
                **dict(zip(KEYS, keys, strict=True)),
                "n": len(group),
                "machine": group["machine"].iloc[0],
                "steps": group["steps"].mean(),
                "rows": group["rows"].mean(),
                "step_ms": middle,
                "step_low": low,
                "step_high": high,
                "clock_ms": (1e3 * group["seconds"] / group["steps"]).median(),
                "bare_ms": bare.median(),
                "overhead_ms": (step - bare).median(),
                "over": (step / bare).median(),
            }
        )
    return pd.DataFrame(rows)


def busy(found: pd.DataFrame) -> float:
    """Clock over processor time of all decodings together; on one thread, 1 on an idle machine."""
    return float(found["seconds"].sum() / found["cpu_seconds"].sum())


# --- the paper ----------------------------------------------------------------------------------------------


def paper() -> pd.DataFrame:
    """The paper's step and wall-clock speedups and their ratio, with the limits that its rounding leaves."""
    step, clock = published.load("main_results"), published.load("wallclock")
    step = step[step["metric"] == "speedup"].rename(columns={"value": "step"})
    clock = clock[clock["metric"] == "wallclock_speedup"].rename(columns={"value": "clock"})
    both = clock[[*KEYS, "clock", "digits"]].merge(step[[*KEYS, "step", "digits"]], on=KEYS, suffixes=("", "_step"))
    both = both[both["method"] != "full"].reset_index(drop=True)
    half, half_step = 0.5 * 10.0 ** -both["digits"], 0.5 * 10.0 ** -both["digits_step"]
    both["kept"] = both["clock"] / both["step"]
    both["kept_low"] = (both["clock"] - half) / (both["step"] + half_step)
    both["kept_high"] = (both["clock"] + half) / (both["step"] - half_step)
    return both.drop(columns=["digits", "digits_step"])


# --- rows of the speed scripts ------------------------------------------------------------------------------


def speed(folder: str | Path | None = None) -> dict[str, pd.DataFrame]:
    """Rows of ``tests/speed`` by script, with ``card``; medians as numbers, their range in ``<name>_low``, ``_high``.

    Dry runs are left out; of rows measured twice on one card the later file's counts, but a file of ``scaling`` stays
    whole, for its rows are over its own first. Empty where nothing is recorded.
    """
    place = Path(folder) if folder else home() / "data" / "records" / "speed"
    parts: dict[str, list[dict]] = {}
    for path in sorted(place.glob("*.json"), key=lambda path: path.stem) if place.is_dir() else ():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            script, rows, hardware = content["script"], content["rows"], content["hardware"]
        except (ValueError, KeyError, TypeError) as error:
            raise NotebookError(f"{path.name} in data/records/speed is no output of a speed script ({error})") from None
        if content.get("tiny"):
            continue
        about = {"card": _card(hardware), "driver": hardware.get("driver_version"),
                 "torch": content["versions"].get("torch"), "file": path.name}  # fmt: skip
        parts.setdefault(script, []).extend({**about, **_flat(row)} for row in rows)
        plain = [{**about, **_flat(row)} for row in content.get("plain", ())]
        parts.setdefault("plain", []).extend(plain)
    found = {}
    for script, rows in parts.items():
        frame = pd.DataFrame(rows)
        if len(frame):
            same = [name for name in SAME + ["file"] * (script == "scaling") if name in frame]
            found[script] = frame.drop_duplicates(same, keep="last").reset_index(drop=True)
    if "step_cost" in found:  # a run that was cut off has not compared its rows
        rows = found["step_cost"]
        full = rows[rows["method"] == "full"].set_index(["card", "model", "task"])["step_ms"].to_dict()
        keys = rows[["card", "model", "task"]].itertuples(index=False, name=None)
        rows["kept"] = np.array([full.get(key, np.nan) for key in keys]) / rows["step_ms"]
    return found


def _card(hardware: Mapping) -> str:
    kind = str(hardware.get("kind"))
    return f"{hardware.get('cpu')}" if kind == "cpu" else kind


def _flat(row: Mapping) -> dict:
    made = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and "median" in value:
            made |= {name: value["median"], f"{name}_low": value["low"], f"{name}_high": value["high"]}
            made |= {f"{name}_n": value["n"]} if "n" in value else {}
        else:
            made[name] = value
    return made


def roofline(rows: pd.DataFrame) -> pd.DataFrame:
    """``step_cost`` rows with the binding floor in ms, arithmetic or weight read, and the floor's share of a step."""
    floor = rows[["flop_ms", "read_ms"]].max(axis=1)
    bound = np.where(rows["flop_ms"] >= rows["read_ms"], "arithmetic", "weight read")
    return rows.assign(floor_ms=floor, bound=bound, share=100 * floor / rows["step_ms"])


def on_card(rows: pd.DataFrame | None, word: str) -> pd.DataFrame | None:
    """The rows of cards whose name holds ``word``; None where there are none."""
    if rows is None:
        return None
    mine = rows[rows["card"].str.contains(word, case=False)]
    return mine if len(mine) else None


# --- the plan's criterion -----------------------------------------------------------------------------------


def criterion(found: pd.DataFrame) -> tuple[str, str]:
    """ "wallclock-below": on the CPU at batch 1, JoT, gsm8k and humaneval, both models: clock over steps below 1."""
    parts: dict[str, stats.Estimate | None] = {}
    for model in MODELS:
        for task in TASKS:
            mine = found[(found["model"] == model) & (found["task"] == task) & (found["machine"] == "CPU")]
            full, jot = (mine[mine["method"] == name] for name in ("full", "jot"))
            parts[f"{model} {task}"] = speedups(full, jot)["kept"] if len(full) and len(jot) else None
    word, detail = judged(parts)
    n = found[found["machine"] == "CPU"].groupby(["model", "task"])["doc_id"].nunique().min()
    if (ratio := busy(found)) > BUSY:  # then the clock says more about what else ran
        word, detail = judgment.NOT_SHOWN, f"the machine was busy, clock over processor time {ratio:.1f}; {detail}"
    return word, f"{detail}; n = {n} a task"


def below(records: Records | None = None, folder: str | Path | None = None) -> tuple[str, str]:
    """``criterion`` of the recorded timings; ``records`` plays no part."""
    try:
        return criterion(timings(folder))
    except NotebookError:
        return judgment.NOT_SHOWN, "not recorded"


def judged(parts: Mapping[str, stats.Estimate | None]) -> tuple[str, str]:
    """Seen where every kept share is below 1, not seen where all are above; the intervals stand in the detail."""
    known = [part.value for part in parts.values() if part is not None]
    detail = "; ".join(
        f"{name} " + ("not recorded" if part is None else f"{part.value:.2f} [{part.low:.2f}, {part.high:.2f}]")
        for name, part in parts.items()
    )
    apart = sum(part is not None and part.high < 1 for part in parts.values())
    seen, unseen = all(v < 1 for v in known), all(v > 1 for v in known)
    return judgment.judged(
        len(known) == len(parts), seen, unseen, f"{detail}; {apart} of {len(parts)} intervals wholly below 1"
    )


PHENOMENA = {"wallclock-below": below}


# --- checks -------------------------------------------------------------------------------------------------


def same_tokens(records: Records, samples: Records, models: Iterable[str] = MODELS) -> list[dict]:
    """The timed samples against the recorded runs of the same cells: documents in both, and equal tokens."""
    rows = []
    for name, mine in samples.items():
        theirs = records.get(name)
        if theirs is None or mine.meta["config"]["model"] not in models:
            continue
        both = mine.frame.merge(theirs.frame, on="doc_id", suffixes=("", "_recorded"))
        equal = sum(list(a) == list(b) for a, b in zip(both["generated"], both["generated_recorded"], strict=True))
        rows.append({"cell": name, "n": len(both), "equal": equal})
    return rows
