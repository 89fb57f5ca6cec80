"""How one cell scales over processes on one machine: the same samples by 1, 2, 4 processes of torchrun.

    python tests/speed/scaling.py                       # as many processes as there are GPUs, or 1 and 2 on a CPU
    python tests/speed/scaling.py --limit 8 --processes 1 2 --device cpu     # a dry run

"Decoding" is the time in denoising steps of the slowest process, from its own records; "whole" is the wall clock of
the command, which holds the start of Python, torch and the model, and the scoring. Prints a Markdown table, and whether
every number of processes ended with the same tokens.
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

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


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
    from jot.lines import from_line

    parts = [[from_line(line) for line in path.read_bytes().splitlines()] for path in store.glob("*.jsonl")]
    tokens = {record["doc_id"]: record["generated"] for part in parts for record in part}
    return tokens, max(sum(record["seconds"] for record in part) for part in parts), sorted(map(len, parts))


def main() -> None:
    import torch

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
    options = parser.parse_args()

    rows, seen = [], {}
    for count in options.processes:
        decoding, whole = [], []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as folder:
                whole.append(timed(command(count, Path(folder), options)))
                seen[count], seconds, shares = recorded(Path(folder))
                decoding.append(seconds)
        spread = f"{shares[0]} to {shares[-1]}" if len(shares) > 1 else str(shares[0])
        rows.append((count, spread, statistics.median(decoding), statistics.median(whole)))
    base = rows[0]
    on = torch.cuda.get_device_name(0) if gpus and options.device != "cpu" else f"CPU, {os.cpu_count()} cores"
    what = f"{options.model}, {options.task}/{options.split}, {options.method}, {options.slots} rows a process"
    print(f"{what}; {on}; torch {torch.__version__}\n")
    print("| processes | samples each | decoding s | samples/s | scaling | of ideal | whole s |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for count, spread, seconds, whole in rows:
        gain, n = base[2] / seconds, len(seen[count])
        share = gain / (count / base[0])
        print(f"| {count} | {spread} | {seconds:.2f} | {n / seconds:.2f} | {gain:.2f}x | {share:.0%} | {whole:.1f} |")
    first = seen[options.processes[0]]
    for count in options.processes[1:]:
        equal = sum(first[doc] == ids for doc, ids in seen[count].items() if doc in first)
        print(f"\n{count} processes: {equal}/{len(first)} samples with the tokens of {options.processes[0]}", end="")
    print()


if __name__ == "__main__":
    main()
