"""The command line: `jot evaluate`, `jot decode`, `jot tasks`, `jot cells`, `jot run`, `jot pack`,
`jot notebook`, `jot paper`, `jot figures`.

A mistake in the input ends with one sentence on stderr and exit code 2; an interrupted run with 130.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from jot import __version__
from jot.errors import UserError


class _Parser(argparse.ArgumentParser):
    """A parser that complains in one sentence."""

    def error(self, message: str):
        raise UserError(f"{message}; see `{self.prog} --help`")


def _pairs(words: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UserError(f"--set {word!r} must be of the form key=value, as in --set tau_max=90")
        pairs[name.strip().replace("-", "_")] = value
    return pairs


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="jot", description="Token-level early stopping for diffusion language models.")
    parser.add_argument("--version", action="version", version=f"jot {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--model", required=True, help="pocket-llada, pocket-dream, a local folder, or a hub id")
    common.add_argument("--revision", help="commit, tag or branch of a hub id")
    common.add_argument("--method", default="jot", help="exit rule: jot (default), full, ...")
    common.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="a setting of the method or of the decoding loop, as in tau_max=90; repeat for more",
    )  # fmt: skip
    common.add_argument("--seed", type=int, default=0, help="of the random draws (default 0)")
    common.add_argument("--device", help="cpu, cuda or cuda:N (default: CUDA where there is one)")
    common.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 for small models)")

    evaluate = commands.add_parser("evaluate", parents=[common], help="decode and score a task, recorded and resumable")
    evaluate.add_argument("--task", required=True, help="see `jot tasks`")
    evaluate.add_argument("--split", help="default: the task's first")
    evaluate.add_argument("--limit", type=int, help="only the first so many documents of a fixed permutation")
    evaluate.add_argument("--store", default="results/records", help="folder of the records (default results/records)")
    evaluate.add_argument("--slots", type=int, default=16, help="rows of the batch (default 16; 1 for timings)")
    evaluate.add_argument("--data", help="local folder with the benchmark's files, in place of the hub")
    evaluate.add_argument("--trace", action="store_true", help="record how each canvas was filled")
    evaluate.add_argument(
        "--allow-code-execution", action="store_true",
        help="consent to run code that a full-size model writes, in the sandbox",
    )  # fmt: skip
    evaluate.set_defaults(run=_evaluate)

    decode = commands.add_parser("decode", parents=[common], help="decode one prompt")
    decode.add_argument("prompt", help="the user's turn")
    decode.add_argument("--no-chat", action="store_true", help="take the prompt as it is, without the chat template")
    decode.set_defaults(run=_decode)

    listing = commands.add_parser("tasks", help="list the tasks")
    listing.set_defaults(run=_tasks)

    listed = commands.add_parser("cells", help="list the cells of parameter grids")
    listed.add_argument("grids", nargs="+", metavar="GRID", help="YAML files, as in notebooks/grids")
    listed.add_argument("--store", default="results/records", help="named in the printed lines (default %(default)s)")
    listed.set_defaults(run=_cells)

    grid = commands.add_parser("run", help="decode the cells of parameter grids, resumably")
    grid.add_argument("grids", nargs="+", metavar="GRID", help="YAML files, as in notebooks/grids")
    grid.add_argument("--store", default="results/records", help="folder of the records (default %(default)s)")
    grid.add_argument("--workers", type=int, default=1, help="processes; they share the GPUs (default 1)")
    grid.add_argument("--slots", type=int, default=16, help="rows of a batch (default 16; 1 for timings)")
    grid.add_argument("--limit", type=int, help="at most so many documents a cell")
    grid.add_argument("--seconds", type=float, help="begin no further cell after so long")
    grid.add_argument("--device", help="cpu, cuda or cuda:N (default: CUDA where there is one)")
    grid.set_defaults(run=_run)

    packing = commands.add_parser("pack", help="pack a store into few Parquet files")
    packing.add_argument("store")
    packing.add_argument("folder", help="where they go; Parquet files there are replaced")
    packing.add_argument("--traces", action="store_true", help="keep the traces")
    packing.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    packing.set_defaults(run=_pack)

    for name, words in NOTEBOOK_COMMANDS.items():
        commands.add_parser(name, help=words, add_help=False)
    return parser


NOTEBOOK_COMMANDS = {
    "notebook": "run one notebook with parameters, checked before its kernel starts",
    "paper": "execute the notebooks from the recorded runs and decode a sample of those runs again",
    "figures": "execute the notebooks in place and redraw figures/ from the recorded runs",
}


def _notebooks(command: str, rest: Sequence[str]) -> int:
    """Hand the rest of the line to the notebook tooling, which has parsers of its own."""
    from jot.analysis import notebooks, paper

    if command == "notebook":
        return notebooks.main(["run", *rest])
    return {"paper": paper.main, "figures": paper.figures}[command](list(rest))


def _evaluate(options: argparse.Namespace) -> None:
    from jot import settings
    from jot.analysis.stats import ratio_bootstrap, wilson
    from jot.harness import evaluate

    chosen = settings.parse(options.method, _pairs(options.settings))
    summary = evaluate(
        options.model, options.task, options.method, split=options.split, limit=options.limit,
        store=options.store, seed=options.seed, slots=options.slots, data=options.data, trace=options.trace,
        allow_code_execution=options.allow_code_execution, revision=options.revision, device=options.device,
        dtype=options.dtype, **chosen,
    )  # fmt: skip
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
    tokens, padding = summary.tokens_per_forward, summary.padding
    print(f"            = {tokens:.2f} tokens a forward x {padding:.2f} length over tokens")
    print(f"  seconds   {summary.seconds_per_sample:.3f} a sample, {frame['slots'].max()} at a time")
    print(f"  records   {options.store}/{summary.cell}.json")


def _decode(options: argparse.Namespace) -> None:
    from jot import settings
    from jot.decode import decode
    from jot.models import load
    from jot.text import answer_ids, encode, render, to_text

    if not options.prompt.strip():
        raise UserError("the prompt is empty; give some text")
    chosen = settings.parse(options.method, _pairs(options.settings))

    def resolve(model):
        rule = settings.build_method(options.method, model.family, chosen)
        return rule, settings.build_decode(model, chosen, seed=options.seed, method=options.method)

    if (known := settings.model_class(options.model)) is not None:
        resolve(known)
    model = load(options.model, revision=options.revision, device=options.device, dtype=options.dtype)
    rule, config = resolve(model)
    prompt = options.prompt if options.no_chat else render(model, [{"role": "user", "content": options.prompt}])
    out = decode(model, encode(model, [prompt])[0], rule, **vars(config))
    print(to_text(model, answer_ids(model, out.generated)).strip("\n"))
    print(f"[{out.steps} of {config.steps} steps, speedup {config.steps / out.steps:.2f}x, {out.seconds:.2f} s]")


def _tasks(options: argparse.Namespace) -> None:
    from jot.tasks import TASKS

    width = max(map(len, TASKS))
    for task in TASKS.values():
        source = "packaged" if task.packaged else f"hub {task.hub[0]}, or --data DIR"
        note = "; needs --allow-code-execution" if task.needs_flag else ""
        splits = ", ".join(task.splits)
        print(f"{task.name:<{width}}  {task.summary}; {task.length} tokens; {splits} ({source}{note})")


def _points(options: argparse.Namespace) -> list:
    from jot.grid import read_all

    points = read_all(options.grids)
    if not points:
        raise UserError(f"{' '.join(options.grids)}: no cells")
    return points


def _cells(options: argparse.Namespace) -> None:
    for point in _points(options):
        print(point.command(options.store))


def _run(options: argparse.Namespace) -> int:
    import dataclasses

    from jot.records import take
    from jot.run import run
    from jot.store import writable

    for name in ("workers", "slots"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)} must be at least 1")
    take([], options.limit)
    points = _points(options)
    if options.limit:
        points = [dataclasses.replace(p, limit=min(p.limit or options.limit, options.limit)) for p in points]
    writable(options.store)
    rows = run(points, options.store, workers=options.workers, device=options.device, slots=options.slots,
               seconds=options.seconds, say=lambda line: print(line, flush=True))  # fmt: skip
    failed = sum(bool(row["error"]) for row in rows)
    left = len(points) - len(rows)
    print(f"{len(rows) - failed} of {len(points)} cells done, {failed} failed, {left} not begun")
    print(f"summary: {options.store}/summary.csv")
    return 1 if failed else 0


def _pack(options: argparse.Namespace) -> None:
    from jot.packed import pack

    print(f"packed into {pack(options.store, options.folder, options.traces, options.workers)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words and words[0] in NOTEBOOK_COMMANDS:
            return _notebooks(words[0], words[1:]) or 0
        else:
            options = _parser().parse_args(words)
            return options.run(options) or 0
    except UserError as error:
        print(f"jot: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jot: interrupted; what was finished is recorded, run again to go on", file=sys.stderr)
        return 130
    return 0
