"""Tables of the rows that ``tests/speed`` writes: step, loops, caches, batches, processes, CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from jot.analysis import render, wallclock
from jot.analysis.cells import DEFAULT_TAU, family
from jot.analysis.wallclock import NAMES
from jot.paper.show import Note, Table

ABSENT = "not recorded"
Speed = Mapping[str, pd.DataFrame]
COMMANDS = {
    "step_cost": "python tests/speed/step_cost.py --only {family} {task} --out data/records/speed/step_cost-NAME.json",
    "fast_against_plain": "python tests/speed/fast_against_plain.py --only pocket-{family} float32 bfloat16 "
    "--out data/records/speed/fast_against_plain-NAME.json",
    "cache_cost": "python tests/speed/cache_cost.py --out data/records/speed/cache_cost-NAME.json",
    "batch_throughput": "python tests/speed/batch_throughput.py --out data/records/speed/batch_throughput-NAME.json",
    "scaling": "python tests/speed/scaling.py --out data/records/speed/scaling-NAME.json",
    "cpu_pocket": "python tests/speed/cpu_pocket.py --out data/records/speed/cpu_pocket.json",
}
DTYPES = ("float32", "bfloat16")


def number(value, form: str = ".2f") -> str:
    return "" if value is None or pd.isna(value) else f"{value:{form}}"


def spread(row: pd.Series, name: str, form: str = ".2f") -> str:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return number(row[name], form) + (
        "" if low is None or pd.isna(low) else f"\n{low:{form}}\u00a0to\u00a0{high:{form}}"
    )


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
    repeated = f", medians of {spelled(plain['step_ms_n'])} runs" if len(plain) else ""
    full = rows[rows["method"] == "full"]
    pace = full["length"] / full["steps"]
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
        f"Exits follow recorded runs; full decoding and Prophet reveal {spelled(pace)} tokens a step, which shortens "
        f"the run. Plain loop: eager, written as the public ones are{repeated}.",
    )


def spelled(values: pd.Series) -> str:
    """The different values, in order."""
    return ", ".join(f"{value:g}" for value in sorted(set(values)))


def _repeats(rows: pd.DataFrame, column: str) -> str:
    counts = sorted({len(runs) for runs in rows[column]})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def loops(speed: Speed) -> Table | Note:
    """Documents on which the loop of graphs and the plain loop give the same tokens."""
    rows = speed.get("fast_against_plain")
    if rows is None:
        return absent("fast_against_plain", "The loop of graphs against the plain loop")
    rows = rows.assign(cache=rows["cache"].fillna("none"))
    table = []
    for (card, model, method, cache, slots), group in rows.groupby(
        ["card", "model", "method", "cache", "slots"], sort=False
    ):
        table.append(
            {
                "Card": brief(card),
                "Model": model,
                "Method": method_label(method, model).replace(" (dual cache)", ""),
                "Cache": cache,
                "Slots": slots,
                **{f"Equal in {dtype}": _equal(group[group["dtype"] == dtype]) for dtype in DTYPES},
                "Loop": ", ".join(sorted({name for names in group["loops"] for name in names})),
            }
        )
    sums = {dtype: rows[rows["dtype"] == dtype][["equal", "samples"]].sum() for dtype in DTYPES}
    float32, bfloat16 = (f"{one['equal']:,} of {one['samples']:,}" for one in sums.values())
    return Table(
        pd.DataFrame(table),
        f"Tokens of the loop of graphs beside those of the plain loop. {_tier(rows)}; documents of pocket_gsm8k (dev) "
        "in a fixed order, each decoded by both. In the cells: documents with every token equal, of n decoded; counts, "
        "no interval. The loops round differently: float32 should be equal for every document (decodings in all: "
        f"{float32}), bfloat16 need not be ({bfloat16}).",
    )


def _equal(one: pd.DataFrame) -> str:
    if one.empty:
        return ABSENT
    equal, n = int(one["equal"].iloc[0]), int(one["samples"].iloc[0])
    apart = "" if equal == n else f"\n{n - equal} document{'s differ' if n - equal > 1 else ' differs'}"
    return (f"{equal} of {n}" if equal == n else f"**{equal} of {n}**") + apart


def _tier(rows: pd.DataFrame) -> str:
    shown = render.tiers(rows["model"])
    return shown[:1].upper() + shown[1:]


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
            "Pairs": len(r["runs"]),
            "Weight read, ms": number(r["read_ms"]),
            "Within over read": f"**{r['over_read']:.2f}**",
            "Bare 32 tokens, ms": number(r["bare_block_ms"]),
            "Loop": r["path"],
        }
        for _, r in rows.iterrows()
    ]
    return Table(
        pd.DataFrame(table),
        "Dual cache, blocks of 32. Full-size shapes, random weights, bfloat16, batch 1; medians over pairs of runs "
        "with different shares of the two forwards, range in small, no interval.",
    )


def batches(speed: Speed) -> Table | Note:
    """Refilling slots against the ideal and against padding."""
    rows = speed.get("batch_throughput")
    if rows is None:
        return absent("batch_throughput", "Batches")
    rows = rows.sort_values(["card", "model", "slots"], kind="stable")
    pocket = rows["model"].str.startswith("pocket-")
    tiers = ["Full-size shapes with random weights, bfloat16, step counts of recorded runs"] * (not pocket.all())
    tiers += [f"{_tier(rows[pocket])}, pocket_gsm8k, float32"] * bool(pocket.any())
    table = [
        {
            "Card": brief(r["card"]),
            "Model": r["model"],
            "Slots": r["slots"],
            "Samples": r["samples"],
            "Steps in all": f"{r['steps']:,}",
            "Slowest": r["slowest"],
            "Seconds": spread(r, "seconds", ".3f"),
            "Samples a second": f"{r['per_second']:.2f}",
            "Ideal, s": number(r["ideal_s"], ".3f"),
            "Of the ideal": f"**{r['of_ideal']:.2f}**",
            "Of the packed ideal": number(r["of_packed"]),
            "Padded batches, s": number(r["naive_s"], ".3f"),
            "Faster than padded, ×": number(r["over_naive"]),
        }
        for _, r in rows.iterrows()
    ]
    return Table(
        pd.DataFrame(table),
        f"JoT through slots that refill (n: samples). {'; '.join(tiers)}. Medians of repeated streams, range in "
        "small, no interval. Ideal: all slots busy to the end and nothing padded, at the measured cost of a full batch "
        "of one length, a step and token; packed: what the same counts allow when the queue runs dry; padded: batches "
        "as long as their slowest sample and as wide as their longest. Both ideals and the padded batches are computed "
        "from the recorded costs of their steps, not run.",
    )


def processes(speed: Speed) -> Table | Note:
    """The same samples by one process and by several."""
    rows = speed.get("scaling")
    if rows is None:
        return absent("scaling", "Several processes")
    table = [
        {
            "Card": brief(r["card"]),
            "Run": f"{r['model']}\n{r['task']}/{r['split']}",
            "Method": method_label(r["method"], r["model"]),
            "Slots": r["slots"],
            "Processes": r["processes"],
            "Samples": f"{r['samples']:,}",
            "Of each process": _shares(r["shares"]),
            "Decoding, s": f"{r['decoding_s']:.2f}",
            "Samples a second": f"{r['per_second']:.1f}",
            "Scaling, ×": f"{r['gain']:.2f}",
            "Of the ideal": f"**{r['of_ideal']:.2f}**",
            "Whole, s": f"{r['whole_s']:.1f}",
            "Equal tokens": f"{r['equal_tokens']:,}\u00a0of\u00a0{r['samples']:,}",
        }
        for _, r in rows.iterrows()
    ]
    repeats = _repeats(rows, "decoding_runs")
    runs = "one run of each" if repeats == "1" else f"medians of {repeats} runs of each"
    return Table(
        pd.DataFrame(table),
        f"The same samples by more processes, each on a GPU of its own (on a CPU they share its cores). {_tier(rows)}; "
        f"n: samples; {runs}, no interval. Slots: rows a process decodes at once. Decoding: denoising steps of the "
        "slowest process. Scaling: over the first number of processes of its series; of the ideal: that over the ratio "
        "of the two numbers. Whole: the command on the clock, with the start of Python, torch and the model, and the "
        "scoring. Equal tokens: samples with every generated token of that first run.",
    )


def _shares(shares: Sequence[int]) -> str:
    low, high = min(shares), max(shares)
    return f"{low:,}" if len(shares) == 1 else f"{low:,} each" if low == high else f"{low:,} to {high:,}"


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
