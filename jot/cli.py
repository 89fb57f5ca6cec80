"""The command line: `jot check`, `jot evaluate`, `jot decode`, `jot tasks`, `jot cells`, `jot run`, `jot pack`,
`jot calibrate`, `jot lm-eval`, `jot smol`, `jot notebook`, `jot paper`, `jot verify-records`, `jot figures`,
`jot report`.

A mistake in the input, a full disk or too little memory ends with one sentence on stderr and exit code 2, an
interrupted run with 130. Under torchrun only process 0 prints results.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import os
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from errno import EBADF, EDQUOT, EIO, ENOSPC

from jot import __version__
from jot.errors import Kind, Parser, UserError, local
from jot.runs import distributed

# Commands with a parser of their own: function, help.
FORWARDED = {
    "check": ("jot.reproduce.doctor:main", "see whether this machine is ready, and what to do if not"),
    "lm-eval": ("jot.runs.harness:command", "lm-eval's own command line, with the model and the tasks of jot"),
    "smol": ("jot.models.smol:main", "fetch and convert smol-dream, once, which the name does by itself too"),
    "notebook": ("jot.runs.notebooks:command", "run a notebook with parameters, checked before it starts"),
    "paper": ("jot.reproduce.again:main", "execute the notebooks from the records, decode a sample of them again"),
    "verify-records": ("jot.reproduce.verify:main", "decode a sample of the recorded cells again and compare"),
    "figures": ("jot.reproduce.again:figures", "execute the notebooks in place, redraw figures/ from the records"),
    "report": ("jot.reproduce.report:main", "build the report, a folder of pages that needs no network"),
}
RECORDING = {"evaluate", "run", "calibrate"}  # what they had finished is there at their next run
COUNT, SHARE = Kind(int, 1, optional=True), Kind(float, 0, 1, open=True, optional=True)
KINDS = {"workers": COUNT, "slots": COUNT, "limit": COUNT, "seconds": Kind(float, 0, optional=True),
         "epsilon": SHARE, "delta": SHARE}  # fmt: skip


def _pairs(words: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UserError(f"--set {word!r} must be of the form key=value, as in --set tau_max=90")
        pairs[name.strip().replace("-", "_")] = value
    return pairs


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="jot", description="Token-level early stopping for diffusion language models.")
    parser.add_argument("--version", action="version", version=f"jot {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    # What several commands take.
    model, rule, weights, consent, documents, data, grids = (argparse.ArgumentParser(add_help=False) for _ in range(7))
    model.add_argument(
        "--model", required=True, help="pocket-llada, pocket-dream, smol-dream, a local folder, or a hub id"
    )
    model.add_argument("--device", help="cpu, cuda or cuda:N (default: CUDA where there is one)")
    rule.add_argument("--revision", help="commit, tag or branch of a hub id")
    rule.add_argument("--method", default="jot", help="exit rule: jot (default), full, ...")
    rule.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="a setting of the method or of the decoding loop, as in tau_max=90; repeat for more",
    )  # fmt: skip
    rule.add_argument("--seed", type=int, default=0, help="of the random draws (default 0)")
    weights.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 for small models)")
    consent.add_argument(
        "--allow-code-execution", action="store_true",
        help="consent to run code that a full-size model writes, in the sandbox",
    )  # fmt: skip
    documents.add_argument("--task", required=True, help="see `jot tasks`")
    documents.add_argument("--limit", type=int, help="only the first so many documents of a fixed permutation")
    documents.add_argument("--slots", type=int, default=16, help="rows of the batch (default 16; 1 for timings)")
    data.add_argument("--data", help="local folder with the benchmarks' files, in place of the hub")
    grids.add_argument("grids", nargs="+", metavar="GRID", help="YAML files, as in notebooks/grids")
    grids.add_argument("--store", default="results/records", help="folder of the records (default %(default)s)")

    evaluate = commands.add_parser(
        "evaluate", parents=[model, rule, documents, data, weights, consent],
        help="decode and score a task, recorded and resumable",
    )  # fmt: skip
    evaluate.add_argument("--split", help="default: the task's first")
    evaluate.add_argument("--store", default="results/records", help="folder of the records (default results/records)")
    evaluate.add_argument("--trace", action="store_true", help="record how each canvas was filled")
    evaluate.add_argument("--certified", metavar="FILE", help="JoT at the threshold that `jot calibrate` certified")
    evaluate.set_defaults(run=_evaluate)

    calibrate = commands.add_parser(
        "calibrate", parents=[model, documents, data, weights, consent],
        help="certify a threshold: its risk is bounded, with a chance you name",
    )  # fmt: skip
    calibrate.add_argument("--epsilon", type=float, default=0.03, help="risk that may not be exceeded (default 0.03)")
    calibrate.add_argument("--delta", type=float, default=0.05, help="chance that it is, over calibration sets (0.05)")
    calibrate.add_argument(
        "--loss", choices=("breaks", "answers", "score"), default="breaks",
        help="breaks: full decoding right, JoT wrong; answers: another final answer; score: repairs offset breaks",
    )  # fmt: skip
    calibrate.add_argument("--split", help="documents to calibrate on (default: calibration, or the second split)")
    calibrate.add_argument("--store", help="records; what they lack is decoded (default: data/records as recorded)")
    calibrate.add_argument("--out", help="file for the result (default STORE/certified, or results/certified)")
    calibrate.set_defaults(run=lambda options: importlib.import_module("jot.runs.calibrate").run(options))

    decode = commands.add_parser("decode", parents=[model, rule, weights], help="decode one prompt")
    decode.add_argument("prompt", help="the user's turn")
    decode.add_argument("--no-chat", action="store_true", help="take the prompt as it is, without the chat template")
    decode.add_argument("--watch", action="store_true", help="show the canvas as it fills; plain lines where piped")
    decode.add_argument("--html", metavar="FILE", help="write a page that replays it beside full decoding")
    decode.set_defaults(run=_decode)

    commands.add_parser("tasks", help="list the tasks").set_defaults(run=_tasks)

    listed = commands.add_parser(
        "cells", parents=[grids, weights, consent], help="list what parameter grids hold, with an estimate of its time"
    )
    form = listed.add_mutually_exclusive_group()
    form.add_argument("--print", action="store_true", dest="lines", help="a plain command line each, for any scheduler")
    form.add_argument("--json", action="store_true", help="the same as JSON, with the files that each makes")
    listed.set_defaults(run=_cells)

    grid = commands.add_parser(
        "run", parents=[grids, data, weights, consent],
        help="decode the cells of parameter grids and run their notebooks, resumably",
    )  # fmt: skip
    grid.add_argument("--workers", type=int, default=1, help="processes; they share the GPUs (default 1)")
    grid.add_argument("--slots", type=int, default=16, help="rows of a batch (default 16; 1 for timings)")
    grid.add_argument("--limit", type=int, help="at most so many documents a cell")
    grid.add_argument("--seconds", type=float, help="begin no further cell or notebook after so long")
    grid.add_argument("--device", help="cpu, cuda or cuda:N (default: CUDA where there is one)")
    grid.set_defaults(run=_run)

    packing = commands.add_parser("pack", help="pack a store into few Parquet files")
    packing.add_argument("store")
    packing.add_argument("folder", help="where they go; Parquet files there are replaced")
    packing.add_argument("--traces", action="store_true", help="keep the traces")
    packing.set_defaults(run=_pack)

    for name, (_, words) in FORWARDED.items():
        commands.add_parser(name, help=words, add_help=False)
    return parser


def _check(options: argparse.Namespace) -> None:
    """Refuse what no command can use, before anything is read or made."""
    for name, kind in KINDS.items():
        kind.check(f"--{name}", getattr(options, name, None))
    for name in ("store", "folder"):
        if getattr(options, name, None) is not None:
            local(name if options.command == "pack" else f"--{name}", getattr(options, name))
    if getattr(options, "device", None) is not None:
        from jot.models import resolve_device

        resolve_device(options.device)


def _evaluate(options: argparse.Namespace) -> None:
    from jot.runs import settings
    from jot.runs.harness import evaluate
    from jot.stats import ratio_bootstrap, wilson

    chosen = settings.parse(options.method, _pairs(options.settings))
    if options.certified:
        from jot.runs.calibrate import read

        if options.method != "jot" or "tau_max" in chosen:
            raise UserError("--certified gives JoT its threshold; leave out another --method or tau_max")
        made = read(options.certified, options.model, options.task, options.dtype)
        chosen["tau_max"], options.dtype = math.inf if made["tau_max"] is None else made["tau_max"], made["dtype"]
    summary = evaluate(
        options.model, options.task, options.method, split=options.split, limit=options.limit,
        store=options.store, seed=options.seed, slots=options.slots, data=options.data, trace=options.trace,
        allow_code_execution=options.allow_code_execution, revision=options.revision,
        device=distributed.device(options.device), dtype=options.dtype, **chosen,
    )  # fmt: skip
    if not distributed.first():
        return
    meta, frame = summary.recorded.meta, summary.frame
    config, method = meta["config"], dict(meta["config"]["method"])
    name, shown = method.pop("name"), ", ".join(f"{k}={v}" for k, v in method.items() if k != "name")
    kind = meta["hardware"]["kind"]
    print(f"{config['model']}  {config['task']}/{config['split']}  {config['dtype']} on {kind}")
    print(f"  method    {name}{f' ({shown})' if shown else ''}")
    done = f"{summary.decoded} decoded now" if summary.decoded else "nothing to decode: all were recorded"
    print(f"  samples   {summary.n} ({done})")
    if math.isnan(summary.score):
        print("  score     none: this task is for generation only")
    else:
        low, high = wilson(int(frame["score"].sum()), summary.n)
        print(f"  score     {100 * summary.score:.1f} % [{100 * low:.1f}, {100 * high:.1f}] (Wilson 95 %)")
    speedup, low, high = ratio_bootstrap(frame["configured_steps"].to_numpy(), frame["steps"].to_numpy())
    print(f"  speedup   {speedup:.2f}x [{low:.2f}, {high:.2f}] (ratio of step sums; bootstrap over documents)")
    tokens, length = frame["tokens_non_eos"].sum(), frame["generated"].map(len).sum()
    padding = length / tokens if tokens else math.inf
    forwards = frame.filter(like="forwards_").sum(axis=None)
    print(f"            = {tokens / forwards:.2f} tokens a forward x {padding:.2f} length over tokens")
    print(f"  seconds   {frame['seconds'].mean():.3f} a sample, {frame['slots'].max()} at a time")
    print(f"  records   {options.store}/{summary.cell}.json")


def _decode(options: argparse.Namespace) -> None:
    from jot import replay
    from jot.decode import decode, decode_steps
    from jot.models import load, smol
    from jot.runs import settings
    from jot.tasks.text import answer_ids, check_text, encode, render, to_text, untemplated

    if not options.prompt.strip():
        raise UserError("the prompt is empty; give some text")
    check_text(options.prompt)
    if options.html is not None:
        replay.check_file(options.html)
    chosen = settings.parse(options.method, _pairs(options.settings))
    if options.model == smol.NAME:
        chosen = {**smol.DECODE, **chosen}
    if (known := settings.model_class(options.model)) is not None:
        settings.resolve(known, options.method, chosen, seed=options.seed)
    model = load(options.model, revision=options.revision, device=options.device, dtype=options.dtype)
    rule, config = settings.resolve(model, options.method, chosen, seed=options.seed)
    chat = [{"role": "user", "content": options.prompt}]
    if not options.no_chat and (told := untemplated(model)):
        print(f"jot: {told}", file=sys.stderr)
    prompt = options.prompt if options.no_chat else render(model, chat, ", or use --no-chat")
    ids, how = encode(model, [prompt])[0], vars(config)
    if options.watch:
        out = replay.watch(model, config, decode_steps(model, ids, rule, **how))
    else:
        out = decode(model, ids, rule, trace=options.html is not None, **how)
    print(to_text(model, answer_ids(model, out.generated)).strip("\n"))
    steps = config.existing_steps
    print(f"[{out.steps} of {steps} steps, speedup {steps / out.steps:.2f}x, {out.seconds:.2f} s]")
    if options.html is not None:
        sides = {" ".join([options.method, *options.settings]): out}
        if options.method != "full":
            sides = {"full decoding": decode(model, ids, trace=True, **how), **sides}
        with open(options.html, "w", encoding="utf-8") as file:
            file.write(replay.page(model, config, options.prompt, sides))


def _tasks(options: argparse.Namespace) -> None:
    from jot.tasks import TASKS

    width = max(map(len, TASKS))
    for task in TASKS.values():
        source = "packaged" if task.packaged else f"hub {task.hub[0]}, or --data DIR"
        note = "; needs --allow-code-execution" if task.needs_flag else ""
        splits = ", ".join(task.splits)
        print(f"{task.name:<{width}}  {task.summary}; {task.length} tokens; {splits} ({source}{note})")


def _grid(options: argparse.Namespace):
    """The points of the grids, the cells with the options that hold for all of them."""
    from jot.models import resolve_dtype
    from jot.runs.grid import parse

    resolve_dtype(options.dtype)
    grid = parse(*options.grids)
    if not grid.cells and not grid.notebooks:
        raise UserError(f"{' '.join(options.grids)}: no cells and no notebooks")
    given = {name: getattr(options, name) for name in ("dtype", "allow_code_execution")}
    return dataclasses.replace(grid, cells=[dataclasses.replace(point, **given) for point in grid.cells])


def _cells(options: argparse.Namespace) -> None:
    grid = _grid(options)
    if options.lines:
        print("\n".join(point.command(options.store) for point in [*grid.cells, *grid.notebooks]))
    elif options.json:
        cells = [{"key": p.key, "command": p.command(options.store)} for p in grid.cells]
        notebooks = [
            {"key": p.key, "command": p.strict(options.store), "out": str(p.out(options.store)),
             "reads": [str(path) for path in p.reads(options.store)]} for p in grid.notebooks
        ]  # fmt: skip
        stores = sorted({os.path.join(options.store, p.store).rstrip("/") for p in grid.cells})
        print(json.dumps({"cells": cells, "notebooks": notebooks, "stores": stores}, indent=1))
    else:
        from jot.runs import cost

        print("\n".join(cost.listing(grid, cost.recorded())))


def _run(options: argparse.Namespace) -> int:
    from jot import tasks
    from jot.records.store import writable
    from jot.runs.run import run

    if options.workers > 1 and distributed.world() > 1:
        raise UserError("torchrun already starts the processes; leave --workers out")
    grid = _grid(options)
    points = grid.cells
    if refused := [p.task for p in points if tasks.get(p.task).needs_flag and not p.allow_code_execution]:
        raise UserError(f"{refused[0]} runs code that the model writes; consent with --allow-code-execution")
    if options.limit:
        points = [dataclasses.replace(p, limit=min(p.limit or options.limit, options.limit)) for p in points]
    writable(options.store)
    rows = run(points, options.store, notebooks=grid.notebooks, workers=options.workers,
               device=distributed.device(options.device), slots=options.slots, data=options.data,
               seconds=options.seconds, say=lambda line: print(line, flush=True))  # fmt: skip
    failed, cells = sum(bool(row["error"]) for row in rows), sum(not row["notebook"] for row in rows)
    left = len(points) + len(grid.notebooks) - len(rows)
    if distributed.first():
        notes = f", {len(rows) - cells} of {len(grid.notebooks)} notebooks" if grid.notebooks else ""
        print(f"{cells} of {len(points)} cells{notes} run, {failed} failed, {left} not begun")
        print(f"summary: {options.store}/summary.csv")
    return 1 if failed or (left and options.seconds is None and distributed.first()) else 0


def _pack(options: argparse.Namespace) -> None:
    from jot.records.pack import pack

    print(f"packed into {pack(options.store, options.folder, options.traces)}")


def _refusal(error: Exception, kept: bool) -> str | None:
    """One sentence for what a user can put right; None for what is a fault of the program. ``kept``: it records."""
    if isinstance(error, UserError):
        return str(error)
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        told = "; what was finished is recorded" if kept else ""
        return f"out of memory: use a smaller model, fewer --slots or another --device{told}"
    if isinstance(error, BrokenProcessPool):
        return "one of its processes was killed, most often because memory ran out; free some and run again"
    if isinstance(error, OSError) and error.errno in (ENOSPC, EBADF, EIO, EDQUOT) and not error.filename:
        told = ", what was decoded is recorded" if kept else ""
        return f"cannot write the output ({error.strerror}); give it another place{told}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"cannot read or write {error.filename} ({error.strerror}); put that right and run again"
    return None


def _mute() -> None:
    """Sends the rest of the output nowhere, where its place takes none: Python would complain once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    records = not RECORDING.isdisjoint(words[:1])
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # `>&-`
    try:
        if words and words[0] in FORWARDED:
            module, _, name = FORWARDED[words[0]][0].partition(":")
            code = getattr(importlib.import_module(module), name)(words[1:]) or 0
        else:
            options = _parser().parse_args(words)
            _check(options)
            code = options.run(options) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `jot cells GRID | head`
        _mute()
        return 0
    except KeyboardInterrupt:
        kept = "; what was finished is recorded, run again to go on" if records else ""
        print(f"jot: interrupted{kept}", file=sys.stderr)
        return 130
    except Exception as error:
        if (sentence := _refusal(error, records)) is None:
            raise
        try:
            sys.stdout.flush()
        except OSError:
            _mute()
        who = "" if distributed.first() else f" (process {distributed.rank()})"
        print(f"jot: error{who}: {' '.join(sentence.split())}", file=sys.stderr)
        return 2
