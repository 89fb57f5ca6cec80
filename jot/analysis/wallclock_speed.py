"""Tables of the rows that ``tests/speed`` writes: the step, the caches, batches, the CPU."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from jot.analysis import wallclock
from jot.analysis.cells import DEFAULT_TAU, family
from jot.analysis.display import Note, Table
from jot.analysis.wallclock import COMMANDS, NAMES

ABSENT = "not recorded"
Speed = Mapping[str, pd.DataFrame]


def number(value, form: str = ".2f") -> str:
    return "" if value is None or pd.isna(value) else f"{value:{form}}"


def spread(row: pd.Series, name: str, form: str = ".2f") -> str:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return number(row[name], form) + ("" if low is None or pd.isna(low) else f"\n{low:{form}} to {high:{form}}")


def absent(script: str, what: str) -> Note:
    """What is not recorded, and the command that records it."""
    command = COMMANDS[script].format(family="FAMILY", task="TASK")
    return Note(f"**{what}: {ABSENT}.** `{command}` fills this table.")


def brief(card: str) -> str:
    return next((name for name in ("H100", "H200", "A100") if name in card), card)


def method_label(method: str, model: str) -> str:
    return f"{NAMES[method]}, τ = {DEFAULT_TAU[family({'model': model})]:g}" if method == "jot" else NAMES[method]


def step_cost(speed: Speed) -> Table | Note:
    """The step on networks of the published shapes: bare forward, floor, share of the roofline."""
    rows = speed.get("step_cost")
    if rows is None:
        return absent("step_cost", "A step on the full-size shapes")
    plain = speed.get("plain", pd.DataFrame(columns=["card", "model", "task", "step_ms"]))
    usual = plain.set_index(["card", "model", "task"])["step_ms"].to_dict()
    table = [
        {
            "Card": brief(r["card"]),
            "Shape": f"{r['model']}\n{r['prompt']}+{r['length']} tokens",
            "Method": NAMES[r["method"]].replace("dual", "no"),
            "Rows": f"{r['rows']:.0f}",
            "A step, ms": spread(r, "step_ms"),
            "Bare forward, ms": number(r["bare_ms"]),
            "Step over bare": f"**{number(r['over_bare'])}**" if r["over_bare"] > 0 else "out of time",
            "Over own bare": number(r["over_own"]),
            "Floor, ms": f"{r['floor_ms']:.1f}\n{r['bound']}",
            "Of the roofline, %": f"{r['share']:.0f}",
            "Plain loop, ms": number(usual.get((r["card"], r["model"], r["task"]))) if r["method"] == "full" else "",
            "Extra memory, GiB": number(r["extra_gib"]),
            "Loop": r["path"],
        }
        for _, r in wallclock.roofline(rows).iterrows()
    ]
    return Table(
        pd.DataFrame(table),
        "A denoising step on networks of the published shapes. Full-size shapes, random weights, bfloat16, batch 1; "
        f"medians of {_repeats(rows, 'step_runs')} decodings, range in small, no interval. Bare forward: backbone and "
        "head on the same rows, the faster of a CUDA graph and torch.compile; own bare: a CUDA graph of the loop's "
        "joint kernels where that is faster still. Floor: arithmetic or weight read at the card's measured peaks. "
        "Plain loop: eager, written as the public ones are.",
    )


def _repeats(rows: pd.DataFrame, column: str) -> str:
    counts = sorted({len(runs) for runs in rows[column]})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def cache_cost(speed: Speed) -> Table | Note:
    """Forwards within a cached block and those that open one."""
    rows = speed.get("cache_cost")
    if rows is None:
        return absent("cache_cost", "Forwards under the dual cache")
    table = [
        {
            "Card": brief(r["card"]),
            "Shape": f"{r['model']}\n{r['prompt']}+{r['length']} tokens",
            "Method": NAMES[r["method"]],
            "Within a block, ms": spread(r, "block_ms"),
            "Opening a block, ms": spread(r, "opening_ms"),
            "Weight read, ms": number(r["read_ms"]),
            "Within over read": f"**{r['over_read']:.2f}**",
            "Bare 32 tokens, ms": number(r["bare_block_ms"]),
            "Loop": r["path"],
        }
        for _, r in rows.iterrows()
    ]
    return Table(
        pd.DataFrame(table),
        f"Dual cache, blocks of 32. Full-size shapes, random weights, bfloat16, batch 1; medians of "
        f"{_repeats(rows, 'runs')} pairs of runs with different shares of the two forwards, range in small, no "
        "interval.",
    )


def batches(speed: Speed) -> Table | Note:
    """Refilling slots against the ideal and against padding."""
    rows = speed.get("batch_throughput")
    if rows is None:
        return absent("batch_throughput", "Batches")
    table = [
        {
            "Card": brief(r["card"]),
            "Model": r["model"],
            "Slots": r["slots"],
            "Samples": r["samples"],
            "Steps in all": f"{r['steps']:,}",
            "Slowest": r["slowest"],
            "Seconds": spread(r, "seconds"),
            "Samples a second": f"{r['per_second']:.2f}",
            "Ideal, s": number(r["ideal_s"]),
            "Of the ideal": f"**{r['of_ideal']:.2f}**",
            "Of the packed ideal": number(r["of_packed"]),
            "Padded batches, s": number(r["naive_s"]),
            "Faster than padded, ×": number(r["over_naive"]),
        }
        for _, r in rows.iterrows()
    ]
    return Table(
        pd.DataFrame(table),
        "JoT through slots that refill (n: samples). Embedded tier, 5 M parameters, float32 (pocket names) and "
        "full-size shapes with random weights, bfloat16, step counts of recorded runs. Medians of repeated streams, "
        "range in small, no interval. Ideal: all slots busy to the end at the measured cost of a full batch; packed: "
        "what the same counts allow when the queue runs dry; padded: batches as long as their slowest sample, "
        "computed from the same costs.",
    )


def cpu(speed: Speed) -> Table | Note:
    """Threads and batch shapes of the embedded pair, and where its time goes."""
    rows = speed.get("cpu_pocket")
    if rows is None:
        return absent("cpu_pocket", "The embedded pair by threads and slots")
    table = [
        {
            "Model": r["model"],
            "Method": method_label(r["method"], r["model"]),
            "Threads": r["threads"],
            "Slots": r["slots"],
            "n": r["samples"],
            "Seconds a sample": number(r["sample_s"], ".3f"),
            "Processor seconds a sample": number(r["cpu_s"], ".3f"),
            "Matrix products, %": f"{100 * r['products']:.0f}",
        }
        for _, r in rows.iterrows()
    ]
    return Table(
        pd.DataFrame(table),
        f"The embedded pair on {', '.join(sorted(set(rows['card'])))}, pocket_gsm8k. Embedded tier, 5 M parameters; n "
        "as given; medians of repeated streams, no interval. Matrix products: share of operator time, attention "
        "included (torch profiler).",
    )
