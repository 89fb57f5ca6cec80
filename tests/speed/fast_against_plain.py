"""Does the loop of graphs give the tokens of the plain loop? The embedded pair on documents of pocket_gsm8k (dev).

    python tests/speed/fast_against_plain.py --only pocket-llada float32 --out data/records/speed/fast-llada.json
    python tests/speed/fast_against_plain.py --tiny                        # a dry run on the CPU, without graphs

Every method, with and without caches, each document decoded by both loops. Where two canvases differ, the table says
how near the first differing decision was to going the other way: for an exit with a threshold the distance of its
margin to it, else the top-2 margin there, in nats. The loops round differently (joint matrix products), so float32 may
differ where such a number is tiny, bfloat16 more often.
"""

from __future__ import annotations

import dataclasses
import os

import common
import numpy as np

import jot
from jot.runs import settings

CASES = [
    ("full", None, 32), ("jot", None, 32), ("jot", None, 1), ("klass", None, 32), ("fastdllm", None, 32),
    ("prophet", None, 32), ("jot", "dual", 32), ("fastdllm", "dual", 32), ("jot", "prefix", 32), ("klass", "dual", 1),
]  # fmt: skip
MODELS, DTYPES = ("pocket-llada", "pocket-dream"), ("float32", "bfloat16")
FORMAT = ("model", "dtype", "method", "cache", "slots", "samples", "equal", "nearest", "farthest", "plain_s", "fast_s")


def documents(model, count: int) -> list[tuple[str, list[int]]]:
    from jot.records import take
    from jot.tasks import get
    from jot.tasks.bench import Bench

    bench = Bench(model, get("pocket_gsm8k"), "dev", None)
    return [(doc, bench.prompts[doc]) for doc in take(list(bench.docs), count)]


def closeness(one, two) -> float:
    """Nats by which the first decision that differs was made, the smaller of the two loops'."""
    a, b = one.trace, two.trace
    tokens = np.asarray(one.generated) != np.asarray(two.generated)
    apart = (a.step != b.step) | (a.rule != b.rule) | (tokens & (a.step == b.step))
    if not apart.any():
        return float("nan")
    when = np.where(apart, np.minimum(a.step, b.step), np.iinfo(np.int16).max)
    found = []
    for at in np.flatnonzero(when == when.min()):
        for trace in (a, b):
            if trace.step[at] == when.min():
                exits = trace.rule[at] & 2 and np.isfinite(trace.threshold[at])
                found.append(abs(trace.margin[at] - trace.threshold[at]) if exits else trace.margin[at])
    return float(min(found))


def measure(model, dtype: str, case, samples) -> dict:
    name, cache, slots = case
    block = common.BLOCK if cache or model.family == "llada" else None
    rule = settings.build_method(name, model.family, {})
    chosen = {"length": 128, "cache": cache, "block_length": block}
    if cache and model.family == "dream":
        chosen |= {"temperature": 0.0, "ranking": "confidence"}
    config = dataclasses.asdict(settings.build_decode(model, chosen, None, 0, name))
    seconds, outs = {}, {}
    for mode in ("0", "1"):
        os.environ["JOT_FAST"] = mode
        seconds[mode], outs[mode] = common.timed(
            model.device,
            lambda: dict(jot.decode_stream(model, samples, rule, slots=min(slots, len(samples)), trace=True, **config)),
        )
    loops = {out.loop for out in outs["1"].values()}
    different = [key for key, out in outs["0"].items() if out.tokens != outs["1"][key].tokens]
    near = sorted(closeness(outs["0"][key], outs["1"][key]) for key in different)
    return {
        "model": model.name, "dtype": dtype, "method": name, "cache": cache, "slots": slots, "samples": len(samples),
        "equal": len(samples) - len(different), "nearest": near[0] if near else None,
        "farthest": near[-1] if near else None, "distances": near, "plain_s": seconds["0"], "fast_s": seconds["1"],
        "loops": sorted(loops), "different": different,
    }  # fmt: skip


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0], seconds=280)
    parser.add_argument("--only", nargs="+", default=[], choices=MODELS + DTYPES, help="models, dtypes")
    parser.add_argument("--samples", type=int, default=200, help="documents (default %(default)s)")
    options = parser.parse_args()
    options.device = options.device or ("cpu" if options.tiny else None)
    device, budget = common.device_of(options), common.Budget(options.seconds)
    found, rows = common.machine(device, options.tiny), []
    print(common.headline(found), flush=True)

    def chosen(names):
        return [name for name in names if name in options.only] or list(names)

    for name in chosen(MODELS):
        for dtype in chosen(DTYPES):
            model = jot.load(name, device=str(device), dtype=dtype)
            samples = documents(model, 4 if options.tiny else options.samples)
            for case in CASES:
                few = samples[: max(4, len(samples) // 4)] if case[2] == 1 else samples
                if budget.has(f"{name} {dtype} {' '.join(map(str, case))}"):
                    rows.append(measure(model, dtype, case, few))
                    print({key: rows[-1][key] for key in FORMAT}, flush=True)
                    common.write(options, "fast_against_plain", found, rows, skipped=budget.skipped)
    common.show("Samples with equal tokens", rows, FORMAT)
    if budget.skipped:
        print(f"\nnot measured, out of time: {', '.join(budget.skipped)}")


if __name__ == "__main__":
    main()
