"""What do the embedded models cost on this CPU, by threads and batch shape, and is the time in matrix products?

    OMP_NUM_THREADS=2 python tests/speed/cpu_pocket.py --out data/records/speed/cpu_pocket.json
    python tests/speed/cpu_pocket.py --record data/records/cpu                         # what 04_wallclock reads
    python tests/speed/cpu_pocket.py --tiny                                            # a dry run

Seconds a sample of full decoding and JoT on the first documents of pocket_gsm8k, float32, through ``decode_stream`` as
``jot evaluate`` calls it. **cpu_s** is the processor time of all threads: on a machine that others use it says more
than the clock. **products** is the share of operator time in matrix products and attention (torch profiler).

``--record`` times every method at batch 1 on one thread beside full decoding instead, and packs the samples and
``timings.csv`` into the folder; about seven minutes of one core, and a run that was cut off goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import common
import torch
import turns

import jot
from jot.records import take
from jot.records.pack import pack
from jot.runs import settings
from jot.tasks import get
from jot.tasks.bench import Bench

MODELS = ("pocket-dream", "pocket-llada")
TASKS = ("pocket_gsm8k", "pocket_humaneval")
METHODS = ("full", "jot", "prophet", "klass", "fastdllm")
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "attention", "mkldnn_linear", "linear")
FORMAT = ("model", "method", "threads", "slots", "samples", "seconds", "sample_s", "cpu_s", "products")


def products(run) -> float:
    """Share of the operators' own CPU time that matrix products and attention take in one call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    total = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
    wanted = sum(taken for name, taken in total.items() if any(part in name for part in PRODUCTS))
    return wanted / max(1e-9, sum(total.values()))


def measure(model, bench, method: str, slots: int, count: int, options, budget) -> dict:
    """One method at one number of threads and slots."""
    rule = settings.build_method(method, model.family, {})
    config = dataclasses.asdict(settings.build_decode(model, {}, get(bench.name), 0, method))
    samples = [(doc, bench.prompts[doc]) for doc in take(list(bench.docs), count)]

    def run():
        return dict(jot.decode_stream(model, samples, rule, slots=slots, **config))

    def short():
        return dict(jot.decode_stream(model, samples[:1], rule, **{**config, "steps": config["length"] // 8}))

    short()
    spent = []
    for repeat in range(options.repeats):
        if repeat and not budget.has(f"{model.name} {method}, {slots} slots, repetition {repeat + 1}"):
            break
        spent.append(turns.clock(model.device, run)[0])
    middle = turns.median(spent)
    return {
        "model": str(model.name), "method": method, "threads": torch.get_num_threads(), "slots": slots,
        "samples": count, "seconds": common.spread([one.clock for one in spent]), "sample_s": middle.clock / count,
        "cpu_s": middle.cpu / count, "products": products(short if method == "full" else run),
    }  # fmt: skip


def record(options) -> None:
    """``turns.record`` into a live store beside the folder, then packed into it."""
    folder = Path(options.record)
    live = folder.with_name(folder.name + ".live")
    models, methods = MODELS[:1] if options.tiny else MODELS, METHODS[:2] if options.tiny else METHODS
    limit = 1 if options.tiny else options.limit
    turns.record(live, models, TASKS[:1] if options.tiny else TASKS, methods, limit, device="cpu", say=print)
    pack(live, folder)
    shutil.copy(live / turns.FILE, folder / turns.FILE)
    shutil.rmtree(live)
    print(f"packed into {folder}")


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0], seconds=480)
    parser.add_argument("--record", metavar="FOLDER", help="record what 04_wallclock shows, in place of this table")
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=MODELS, help="default: %(default)s")
    parser.add_argument("--limit", type=int, default=24, help="documents a task with --record (default %(default)s)")
    parser.add_argument("--threads", nargs="+", type=int, help="default: 1 and as many as there are")
    parser.add_argument("--slots", nargs="+", type=int, default=[1, 4, 16], help="default: %(default)s")
    options = parser.parse_args()
    if options.record:
        return record(options)
    options.repeats = min(options.repeats, 3)
    device, budget = torch.device("cpu"), common.Budget(options.seconds)
    threads = options.threads or sorted({1, torch.get_num_threads()})
    found, rows = common.machine(device, options.tiny), []
    found["tiny"] = False  # the models are the embedded ones either way
    print(common.headline(found), flush=True)
    for name in MODELS[:1] if options.tiny else options.only:
        model = jot.load(name, device="cpu", dtype="float32")
        bench = Bench(model, get("pocket_gsm8k"), "test", None)
        for count in threads:
            torch.set_num_threads(count)
            for slots in options.slots[:2] if options.tiny else options.slots:
                for method in ("full", "jot"):
                    samples = min(2, slots) if options.tiny else max(4, slots)
                    if budget.has(f"{name} {method}, {count} threads, {slots} slots"):
                        rows.append(measure(model, bench, method, slots, samples, options, budget))
                        common.write(options, "cpu_pocket", found, rows, skipped=budget.skipped)
    common.show("Embedded pair on the CPU, seconds a sample", rows, FORMAT)
    if budget.skipped:
        print(f"\nnot measured, out of time: {', '.join(budget.skipped)}")


if __name__ == "__main__":
    main()
