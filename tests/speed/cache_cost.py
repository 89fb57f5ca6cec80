"""What does a forward within a cached block cost, and the full forward that opens the block?

    python tests/speed/cache_cost.py --only llada gsm8k --out data/records/speed/cache_cost-llada.json
    python tests/speed/cache_cost.py --tiny                                            # a dry run on the CPU

Dual cache, blocks of 32 (the canvas where it is shorter), random weights, bfloat16, batch 1, prompt and generated
tokens of ``common.SHAPES``. Two runs with different mixes give the two unknowns: one reveals a token a step (31 or 32
forwards within each block), one fills each block at once (one or two). The times of a run are openings x opening_ms +
in-block x block_ms, set-up included. **bare block** is a CUDA graph of the backbone on the block's tokens alone with
the head on as many rows, without the cached keys; **read** is the weight read at the measured bandwidth. A longer
canvas takes

    python tests/speed/cache_cost.py --only llada long2048 jot --repeats 3 --seconds 280 --out ...
"""

from __future__ import annotations

import dataclasses
import statistics

import common
import numpy as np

import jot

METHODS = ("jot", "fastdllm")
FORMAT = ("model", "task", "method", "openings", "in_block", "block_ms", "opening_ms", "bare_block_ms", "read_ms",
          "over_read", "path")  # fmt: skip


def ways(name: str, family: str, length: int, device):
    """The rule twice: never exiting, so that the schedule reveals one a step, and filling a block at once."""
    rule, config = common.method_of(name, family, length, cache="dual", block_length=min(common.BLOCK, length))
    slow = common.Replayed(rule, {0: np.full(length, 1 << 30)}, device)
    quick = common.Replayed(rule, {0: np.ones(length, dtype=np.int64)}, device)  # at the first forward within it
    return slow, quick, dataclasses.asdict(config)


def solve(slow: tuple, quick: tuple) -> tuple[float, float]:
    """ms of an opening and of an in-block forward from two (seconds, openings, in-block forwards)."""
    counts = np.array([slow[1:], quick[1:]], dtype=float)
    return tuple(1e3 * np.linalg.solve(counts, np.array([slow[0], quick[0]])))


def measure(model, family: str, task: str, name: str, prompt, length: int, options, budget) -> dict:
    device = model.device
    slow, quick, parameters = ways(name, family, length, device)

    def run(rule) -> tuple[float, int, int]:
        seconds, out = common.timed(device, lambda: jot.decode(model, prompt, rule, **parameters))
        return seconds, out.forwards["full"], out.forwards["block"]

    with common.path_taken(model) as path:
        run(quick)
    run(slow)
    pairs = []
    for repeat in range(options.repeats):
        if repeat and not budget.has(f"{family} {task} {name}, repetition {repeat + 1}"):
            break
        pairs.append((run(slow), run(quick)))
    solved = [solve(*pair) for pair in pairs]
    return {
        "model": common.NAMES[family], "task": task, "prompt": len(prompt), "length": length, "method": name,
        "openings": pairs[0][0][1], "in_block": pairs[0][0][2], "quick_in_block": pairs[0][1][2],
        "opening_ms": common.spread([x[0] for x in solved]), "block_ms": common.spread([x[1] for x in solved]),
        "runs": pairs, "path": path[0],
    }  # fmt: skip


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0])
    known = (*common.FAMILIES, *common.SHAPES, *METHODS)
    parser.add_argument("--only", nargs="+", default=[], choices=known, help="families, tasks, methods")
    options = parser.parse_args()
    device, budget = common.device_of(options), common.Budget(options.seconds)

    def chosen(names):
        return [name for name in names if name in options.only] or list(names)

    found, rows = common.machine(device, options.tiny), []
    peak = common.peaks(device, options.tiny)
    print(f"{common.headline(found)}; {peak['tbs']:.2f} TB/s measured", flush=True)
    for family in chosen(common.FAMILIES):
        if not budget.has(family):
            continue
        model = common.build(family, device, options.tiny)
        bares: dict[int, dict] = {}
        for task in chosen(common.SHAPES):
            tokens, length = (common.TINY if options.tiny else common.SHAPES)[task]
            size = min(common.BLOCK, length)
            if size not in bares:
                bares[size] = common.bare(model, size, size, repeats=options.repeats, compiled=False)
            bare, work = bares[size], common.work(model, size, size, keys=tokens + length)
            for name in chosen(METHODS):
                if not budget.has(f"{family} {task} {name}"):
                    continue
                row = measure(model, family, task, name, common.prompt_of(model, tokens), length, options, budget)
                row |= common.floor(*work, peak) | {"bare_block_ms": common.yardstick(bare), "bare_ways": bare}
                row["over_read"] = row["block_ms"]["median"] / row["read_ms"]
                rows.append(row)
                common.write(options, "cache_cost", found, rows, peaks=peak, skipped=budget.skipped)
        del model
    common.show("Dual cache, batch 1, ms a forward", rows, FORMAT)
    for row in rows:
        block, whole = row["block_ms"]["median"], row["opening_ms"]["median"]
        print(f"{row['model']} {row['task']} {row['method']}: a block forward is {whole / block:.1f} times cheaper")
    if rows:
        print(f"\nmedian block forward: {statistics.median(r['block_ms']['median'] for r in rows):.2f} ms")
    if budget.skipped:
        print(f"\nnot measured, out of time: {', '.join(budget.skipped)}")


if __name__ == "__main__":
    main()
