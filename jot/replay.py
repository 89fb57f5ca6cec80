"""A decoding to look at: live in a terminal, as plain lines, and as a page that replays it."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from importlib.resources import files

from jot.decode import Commits
from jot.errors import UserError, local
from jot.models.base import DiffusionModel
from jot.sampler.config import DecodeConfig
from jot.sampler.output import EXITED, SCHEDULED, Output

HEAD = ("step", "position", "rule", "margin", "threshold", "token")
RULES = {0: "", SCHEDULED: "schedule", EXITED: "exit", SCHEDULED | EXITED: "both"}
STYLES = {0: "dim", SCHEDULED: "#d55e00", EXITED: "underline #0072b2", SCHEDULED | EXITED: "italic underline #d55e00"}


def piece(model: DiffusionModel, token: int) -> str:
    """The text of one token, special or not; half of a character is the replacement character."""
    return model.tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _shown(model: DiffusionModel, token: int) -> str:
    """The same as it stands on a canvas, in one line and without what steers a terminal."""
    if token in (*model.tokenizer.all_special_ids, model.eos_id):
        return "·"
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "�", piece(model, token).replace("\n", "↵"))


def _rows(model: DiffusionModel, commits: Commits) -> Iterator[tuple[str, ...]]:
    """Step and position, both from 1, rule, margin, threshold and text of each commit of a step."""
    for at, token, rule, margin, threshold in zip(*map(list, commits[1:]), strict=True):
        bar = "" if math.isnan(threshold) else f"{threshold:.2f}"
        text = json.dumps(piece(model, token))
        yield f"{commits.step + 1}", f"{at + 1}", RULES[int(rule)], f"{margin:.2f}", bar, text


def watch(model: DiffusionModel, config: DecodeConfig, steps: Generator[Commits, None, Output], console=None) -> Output:
    """Show the steps of ``jot.decode_steps`` as they come, and return its output.

    Args:
        console: of ``rich``; None takes standard output, where what is no terminal gets a plain line for each commit.
    """
    if console is None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from rich.console import Console

        console = Console()
    out: list[Output] = []

    def commits() -> Iterator[Commits]:
        out.append((yield from steps))

    if console is not None:
        _live(model, config, commits(), console)
    else:
        form = "{:>5} {:>8} {:<8} {:>7} {:>9}  {}".format
        print(form(*HEAD))
        for row in itertools.chain.from_iterable(_rows(model, step) for step in commits()):
            print(form(*row), flush=True)
    return out[0]


def _live(model: DiffusionModel, config: DecodeConfig, steps: Iterator[Commits], console) -> None:
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    canvas = [("░", "dim")] * config.length
    for at, token in config.constraints:
        canvas[at] = (_shown(model, token), STYLES[0])
    rows: list[tuple[str, str, str, Text]] = []

    def view(fresh: Sequence[int] = ()) -> Table:
        """The canvas, and the last steps beside it."""
        text = Text(overflow="fold")
        for at, (shown, style) in enumerate(canvas):
            text.append(shown, f"bold {style}" if at in fresh else style)
        beside = Table("step", "tokens", "least margin", "committed", box=None)
        for row in rows[-max(4, console.height - 6) :]:
            beside.add_row(*row)
        both = Table.grid(padding=(0, 2), expand=True)
        both.add_column(ratio=1)
        both.add_column(ratio=1)
        both.add_row(text, beside)
        return both

    with Live(view(), console=console, auto_refresh=False) as live:
        for step in steps:
            for at, token, rule in zip(step.position, step.token, step.rule, strict=True):
                canvas[at] = (_shown(model, token), STYLES[int(rule)])
            made = Text.assemble(*(canvas[at] for at in step.position), no_wrap=True, overflow="ellipsis")
            least = f"{step.margin.min():.2f}" if len(step.margin) else ""
            rows.append((f"{step.step + 1}", f"{len(step.position)}", least, made))
            live.update(view(step.position), refresh=True)
        live.update(view(), refresh=True)


def check_file(name: str) -> None:
    """Refuse a file that cannot be written, before anything is decoded; an OSError has the system's reason."""
    path = local("--html", name, "file")
    if path.is_fifo() and path.absolute().parts[1] not in ("dev", "proc") or path.is_socket() or path.is_block_device():
        raise UserError(f"--html {name} is no regular file; name one")  # opened, a pipe waits for its reader
    fresh = not os.path.lexists(name)
    open(name, "a", encoding="utf-8").close()
    if fresh:
        os.remove(name)


def page(model: DiffusionModel, config: DecodeConfig, prompt: str, sides: Mapping[str, Output]) -> str:
    """HTML that replays decodings of one prompt side by side and loads nothing; each output has its trace.

    Its data hold for each side and position: what the box shows, text, step, rule, margin and threshold in nats.
    """
    given, first = dict(config.constraints), next(iter(sides))

    def cells(out: Output) -> Iterator[list]:
        for at, (token, rule) in enumerate(zip(out.generated, out.trace.rule.tolist(), strict=True)):
            # What no step committed: constraints stand from the start, what is behind an end of text after the last.
            step = int(out.trace.step[at]) if rule else -1 if at in given else out.steps - 1
            nats = (float(table[at]) for table in (out.trace.margin, out.trace.threshold))
            nats = [round(x, 4) if math.isfinite(x) else None for x in nats]
            yield [_shown(model, token), piece(model, token), step, rule, *nats]

    made = []
    for name, out in sides.items():
        note = f"speedup {config.existing_steps / out.steps:.2f}×"
        if name != first:
            differ = sum(a != b for a, b in zip(out.generated, sides[first].generated, strict=True))
            note += f", {differ} of {config.length} tokens differ from {first}"
        made.append({"name": name, "note": note, "steps": out.steps, "cells": list(cells(out))})
    title = f"{os.path.basename(model.name)}: {' and '.join(sides)}"
    data = json.dumps({"title": title, "prompt": prompt, "sides": made}, allow_nan=False)
    for sign in "<>&":  # nothing in the data ends its element
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    return files("jot").joinpath("replay.html").read_text(encoding="utf-8").replace("__DATA__", data)
