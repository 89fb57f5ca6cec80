"""How one cell scales over processes on one machine: the same samples by 1, 2, 4 processes of torchrun.

    python tests/speed/scaling.py                       # as many processes as there are GPUs, or 1 and 2 on a CPU
    python tests/speed/scaling.py --out data/records/speed/scaling.json
    python tests/speed/scaling.py --limit 8 --processes 1 2 --device cpu     # a dry run

"Decoding" is the time in denoising steps of the slowest process, from its own records; "whole" is the wall clock of
the command, which holds the start of Python, torch and the model, and the scoring. "shares" are the samples of each
process; "equal_tokens" counts the samples with the tokens of the first number of processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
import torch

ROOT = common.ROOT
FORMAT = ("processes", "samples", "shares", "decoding_s", "per_second", "gain", "of_ideal", "whole_s", "equal_tokens")


def command(processes: int, store: Path, options: argparse.Namespace) -> list[str]:
    evaluate = ["-m", "jot", "evaluate", "--model", options.model, "--task", options.task, "--split", options.split,
                "--method", options.method, "--slots", str(options.slots), "--store", str(store)]  # fmt: skip
    evaluate += ["--limit", str(options.limit)] if options.limit else []
    evaluate += ["--device", options.device] if options.device else []
    evaluate += [word for pair in options.set for word in ("--set", pair)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return [sys.executable, *launcher, *evaluate] if processes > 1 else [sys.executable, *evaluate]


def timed(words: list[str]) -> float:
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    begun = time.perf_counter()
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    return time.perf_counter() - begun


def recorded(store: Path) -> tuple[dict[str, list[int]], float, list[int]]:
    """Tokens by document, seconds in steps of the slowest process, samples of each process."""
    from jot.records.lines import from_line

    parts = [[from_line(line) for line in path.read_bytes().splitlines()] for path in store.glob("*.jsonl")]
    tokens = {record["doc_id"]: record["generated"] for part in parts for record in part}
    return tokens, max(sum(record["seconds"] for record in part) for part in parts), sorted(map(len, parts))


def main() -> None:
    gpus = torch.cuda.device_count()
    counts = [n for n in (1, 2, 4, 8) if n <= gpus] or [1, 2]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=counts, help="default: %(default)s")
    parser.add_argument("--model", default="pocket-dream")
    parser.add_argument("--task", default="pocket_gsm8k")
    parser.add_argument("--split", default="test")
    parser.add_argument("--method", default="full")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--limit", type=int, help="samples (default: the whole split)")
    parser.add_argument("--slots", type=int, default=64 if gpus else 8, help="rows a process (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each, the median is shown")
    parser.add_argument("--device", help="as of jot evaluate")
    parser.add_argument("--out", help="JSON file for the rows, as in data/records/speed/")
    options = parser.parse_args()
    on_gpu = bool(gpus) and options.device != "cpu"
    if on_gpu and max(options.processes) > gpus:
        sys.exit(f"{max(options.processes)} processes need as many GPUs, and there are {gpus}; give fewer --processes")

    found = common.machine(torch.device("cuda" if on_gpu else "cpu"))
    rows, seen = [], {}
    for count in options.processes:
        decoding, whole = [], []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as folder:
                whole.append(timed(command(count, Path(folder), options)))
                seen[count], seconds, shares = recorded(Path(folder))
                decoding.append(seconds)
        first, base = seen[options.processes[0]], rows[0] if rows else None
        seconds = statistics.median(decoding)
        gain = base["decoding_s"] / seconds if base else 1.0
        rows.append(
            {
                "processes": count, "model": options.model, "task": options.task, "split": options.split,
                "method": options.method, "slots": options.slots, "samples": len(seen[count]), "shares": shares,
                "decoding_s": seconds, "decoding_runs": decoding, "whole_s": statistics.median(whole),
                "per_second": len(seen[count]) / seconds, "gain": gain,
                "of_ideal": gain * (base["processes"] if base else count) / count,
                "equal_tokens": sum(first.get(doc) == ids for doc, ids in seen[count].items()),
            }
        )  # fmt: skip
        common.write(options, "scaling", found, rows)
    what = f"{options.model}, {options.task}/{options.split}, {options.method}, {options.slots} rows a process"
    print(f"{what}; {common.headline(found)}")
    common.show("Processes on one machine", rows, FORMAT)


if __name__ == "__main__":
    main()
