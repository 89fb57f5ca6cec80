"""A decoding to look at: plain lines where piped, a canvas in a terminal, a page that replays it and loads nothing."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import tiny
from rich.console import Console

import jot
from jot import replay, tasks
from jot.cli import main
from jot.runs import settings
from jot.sampler.config import DecodeConfig
from jot.tasks.text import encode, render

SHORT = ["--device", "cpu", "--set", "length=8", "--set", "block_length=4", "--set", "tau_max=2"]
STEERING = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(tiny.build(tmp_path_factory.mktemp("tiny") / "tiny-llada"))


@pytest.fixture(scope="module")
def model(folder):
    return jot.load(folder, device="cpu")


class Page(HTMLParser):
    """Tags, attributes and the scripts of a page; every element is closed, in order."""

    EMPTY = {"meta", "link", "input"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.attributes += attributes
        if tag not in self.EMPTY:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


def data(text: str) -> dict:
    return json.loads(Page(text).scripts[0])


def made(model, prompt="Q", ids=(5, 6, 7), **how) -> tuple[str, jot.Output, jot.Output]:
    """A page of full decoding and JoT, and the two outputs."""
    config = DecodeConfig.of({"length": 16, "block_length": 8, **how}).resolve(model)
    rules = {"full decoding": None, "jot": jot.JoT(tau_max=2.0)}
    sides = {name: jot.decode(model, ids, rule, trace=True, **vars(config)) for name, rule in rules.items()}
    return (replay.page(model, config, prompt, sides), *sides.values())


# --- the command ----------------------------------------------------------------------------------------------


def test_watch_in_a_pipe_is_plain_lines(folder, model, capsys):
    """A line a commit, in the order of the steps, then what the command prints without it."""
    words = ["decode", "--model", folder, "Q: 1 + 1?", *SHORT]
    assert main(words) == 0
    usual = capsys.readouterr().out
    assert main([*words, "--watch"]) == 0
    head, *rest = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "position", "rule", "margin", "threshold", "token"]
    rows = [
        re.fullmatch(r" *(\d+) +(\d) (schedule|exit|both) +(\d+\.\d\d) +(\d+\.\d\d)  (\".*\")", row) for row in rest[:8]
    ]
    assert sorted(int(row[2]) for row in rows) == list(range(1, 9))
    steps = [int(row[1]) for row in rows]
    assert steps == sorted(steps) and set(steps) == set(range(1, steps[-1] + 1))
    assert all(float(row[4]) >= float(row[5]) - 0.011 for row in rows if row[3] != "schedule")
    untimed = [re.sub(r", [\d.]+ s\]", "]", text) for text in (usual, "\n".join(rest[8:]) + "\n")]
    assert untimed[0] == untimed[1] and f"[{steps[-1]} of 8 steps" in usual


def test_rich_is_loaded_for_a_terminal_alone(folder):
    code = "import sys; from jot.cli import main; main(sys.argv[1:]); print('rich.live' in sys.modules)"
    words = ["decode", "--model", folder, "Q", *SHORT, "--watch"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.stdout.endswith("False\n"), done.stderr


@pytest.mark.parametrize(("color", "height"), [("truecolor", 60), (None, 12)])
def test_watch_in_a_terminal(model, color, height):
    """The canvas fills from masks to the text; each token looks like the rule that committed it."""
    config = DecodeConfig.of({"length": 16, "block_length": 8, "constraints": {3: 65}}).resolve(model)
    console = Console(file=io.StringIO(), force_terminal=True, color_system=color, width=200, height=height)
    steps = jot.decode_steps(model, [5, 6, 7], jot.JoT(tau_max=2.0), **vars(config))
    out = replay.watch(model, config, steps, console)
    assert out.tokens == jot.decode(model, [5, 6, 7], jot.JoT(tau_max=2.0), **vars(config)).tokens
    shown = console.file.getvalue()
    frames = [frame.count("░") for frame in re.split("step +tokens", STEERING.sub("", shown))]
    left = 15 - np.cumsum(np.bincount(out.trace.step[out.trace.rule > 0]))
    assert frames[: out.steps + 1] == [15, *left] and not any(frames[out.steps :])
    assert ("38;2;213;94;0" in shown) == (color is not None)  # the schedule's orange


def test_a_long_canvas_is_folded_not_cut(model):
    def nothing():
        return "the output"
        yield

    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=70, height=30)
    assert replay.watch(model, DecodeConfig.of({"length": 96}).resolve(model), nothing(), console) == "the output"
    shown = console.file.getvalue()
    assert shown.count("░") == 96 * shown.count("tokens") > 0


def test_no_token_steers_the_terminal(model):
    (escape,) = model.tokenizer("\x1b", add_special_tokens=False)["input_ids"]
    (line,) = model.tokenizer("\n", add_special_tokens=False)["input_ids"]
    assert [replay.piece(model, token) for token in (escape, line)] == ["\x1b", "\n"]
    config = DecodeConfig.of({"length": 8, "constraints": {0: escape, 1: line, 2: model.eos_id}}).resolve(model)
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100, height=30)
    replay.watch(model, config, jot.decode_steps(model, [5], None, **vars(config)), console)
    assert "�↵·░" in STEERING.sub("", console.file.getvalue())


def test_html(folder, tmp_path, capsys):
    file = tmp_path / "replay.html"
    words = ["decode", "--model", folder, "Q: 1 + 1?", *SHORT, "--html", str(file)]
    assert main(words) == 0
    text = capsys.readouterr().out
    found = data(file.read_text(encoding="utf-8"))
    assert [side["name"] for side in found["sides"]] == ["full decoding", "jot length=8 block_length=4 tau_max=2"]
    assert found["prompt"] == "Q: 1 + 1?" and found["sides"][0]["steps"] == 8
    assert f"[{found['sides'][1]['steps']} of 8 steps" in text
    assert main([*words, "--watch"]) == 0 and main([*words[:-2], "--method", "full", "--html", str(file)]) == 2
    assert "tau_max" in capsys.readouterr().err
    full = [word for word in words if word not in ("--set", "tau_max=2", "length=8", "block_length=4")]
    assert main([*full, "--set", "length=4", "--method", "full"]) == 0
    assert len(data(file.read_text(encoding="utf-8"))["sides"]) == 1


@pytest.mark.parametrize("place", ["nowhere/replay.html", "", "taken"])
def test_a_file_that_cannot_be_written(folder, tmp_path, capsys, monkeypatch, place):
    """One sentence before the model is loaded; no file is left behind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    monkeypatch.setattr("jot.models.load", lambda *_, **__: pytest.fail("loaded"))
    assert main(["decode", "--model", folder, "Q", "--html", place]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and (place or "--html is empty") in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_the_check_of_the_file_changes_nothing(tmp_path):
    old, new = tmp_path / "old.html", tmp_path / "new.html"
    old.write_text("kept")
    replay.check_file(str(old))
    replay.check_file(str(new))
    assert old.read_text() == "kept" and not new.exists()


def test_a_pipe_is_no_page(folder, tmp_path, capsys):
    """It would wait for a reader; devices take the page."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for place in (pipe, link):
        assert main(["decode", "--model", folder, "Q", "--html", str(place)]) == 2
        assert capsys.readouterr().err == f"jot: error: --html {place} is no regular file; name one\n"
    replay.check_file("/dev/null")
    read, write = os.pipe()
    replay.check_file(f"/dev/fd/{write}")  # where a shell's `>(less)` and a piped /dev/stdout lead
    os.close(read), os.close(write)
    assert main(["decode", "--model", folder, "Q", *SHORT, "--html", "/dev/null"]) == 0


def test_watch_is_of_decode_alone(folder, capsys):
    assert main(["evaluate", "--model", folder, "--task", "pocket_mmlu", "--watch"]) == 2
    assert "unrecognized arguments: --watch" in capsys.readouterr().err


# --- the page -------------------------------------------------------------------------------------------------


def test_every_committed_token_once(model):
    text, *outputs = made(model)
    for side, out in zip(data(text)["sides"], outputs, strict=True):
        assert side["steps"] == out.steps and len(side["cells"]) == 16
        for at, (_, piece, step, rule, margin, threshold) in enumerate(side["cells"]):
            assert piece == model.tokenizer.decode([out.generated[at]])
            assert (step, rule) == (out.trace.step[at], out.trace.rule[at]) and rule > 0
            assert margin == pytest.approx(out.trace.margin[at], abs=1e-4)
            assert threshold == (
                None if math.isnan(out.trace.threshold[at]) else pytest.approx(out.trace.threshold[at], abs=1e-4)
            )


def test_what_no_step_committed(model):
    """A constraint stands from the start; what is behind the end of a text shows with the last step."""
    written = {0: 65, 2: model.eos_id}
    text, full, fast = made(model, constraints=written, stop_at_eos=True)
    for side, out in zip(data(text)["sides"], (full, fast), strict=True):
        steps = [(step, rule) for _, _, step, rule, *_ in side["cells"]]
        assert steps[0] == steps[2] == (-1, 0) and steps[1][1] > 0
        assert (out.trace.rule[3:] == 0).any()  # the text ended before the canvas was full
        for (step, rule), committed in zip(steps[3:], out.trace.rule[3:], strict=True):
            assert rule == committed and (rule or step == out.steps - 1)


def test_the_page_loads_nothing_and_escapes_all_text(model):
    evil = (
        """</script><script>alert(1)</script><!-- <img src="https://example.org/x.png"> & ' " \\u2028 \u2028 __DATA__"""
    )
    text, *_ = made(model, prompt=evil)
    page = Page(text)
    assert len(page.scripts) == 2 and data(text)["prompt"] == evil
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "srcset", "action", "data", "poster"}
    assert [value for name, value in page.attributes if name == "href"] == ["data:,"]
    usual = made(model)[0]
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch|XMLHttp|import\(|innerHTML", usual)
    assert text.isascii() and "__DATA__" in data(text)["prompt"]


DRIVER = """<script>
const seen = [], sides = [...document.querySelectorAll(".sides section")];
const kinds = ["mask", "new", "schedule", "exit", "both", "given"];
const count = side => kinds.map(kind => side.querySelectorAll(".canvas ." + kind).length);
const look = () => seen.push([label.textContent, ...sides.map(count)]);
const press = (key, target) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
look();
slider.value = 2; slider.dispatchEvent(new Event("input")); look();
press("ArrowRight", document.body); look();
document.getElementById("back").click(); look();
const box = sides[1].querySelector(".t:not(.mask)");
box.dispatchEvent(new Event("mouseenter")); seen.push(info.textContent);
press("ArrowRight", box); seen.push(document.activeElement === box.nextSibling, location.hash);
press(" ", document.body);
setTimeout(() => {
  look(); seen.push(play.textContent);
  document.body.replaceChildren(JSON.stringify(seen));
}, 60000);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_in_a_browser(model, tmp_path):
    """Address, slider, keys, buttons, hover and play, as a browser runs them."""
    text, *outputs = made(model)
    file = tmp_path / "driven.html"
    file.write_text(text.replace("</body>", DRIVER), encoding="utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    command = [CHROMIUM, *words, "--virtual-time-budget=90000", f"{file.as_uri()}#step=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    seen = json.loads(re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)[1].replace("&gt;", ">"))

    def looks(step):
        kinds = []
        for out in outputs:
            made = out.trace.rule[out.trace.step < step]
            fresh = int((out.trace.step == step - 1).sum())
            kinds.append([16 - len(made), fresh, *(int((made == rule).sum()) for rule in (1, 2, 3)), 0])
        return [f"step {step} of {max(out.steps for out in outputs)}", *kinds]

    fast = outputs[1]
    at = min(i for i in range(16) if fast.trace.step[i] < 2)
    assert seen[:4] == [looks(1), looks(2), looks(3), looks(2)]
    assert seen[4].startswith(f"jot, token {at + 1} ") and f"margin {fast.trace.margin[at]:.3f} nats" in seen[4]
    assert f"step {fast.trace.step[at] + 1} " in seen[4] and f"threshold {fast.trace.threshold[at]:.3f} nats" in seen[4]
    assert seen[5:7] == [True, "#step=2"]
    assert seen[7:] == [looks(16), "Play"]


def test_the_committed_page_replays_what_is_decoded_now(root):
    """With the template as it is, the first test document, and the tokens, steps and rules that decoding gives."""
    text = (root / "figures" / "replay.html").read_text(encoding="utf-8")
    model, found = jot.load("pocket-llada", device="cpu"), data(text)
    first = tasks.read_jsonl(root / "data" / "tasks" / "pocket_gsm8k" / "test.jsonl.xz")[0]
    assert found["prompt"] == f"Q: {first['question']}\nA:"
    config = settings.build_decode(model, {})
    ids = encode(model, [render(model, [{"role": "user", "content": found["prompt"]}])])[0]
    rules = {"full decoding": None, "jot": settings.build_method("jot", "llada", {})}
    sides = {name: jot.decode(model, ids, rule, trace=True, **vars(config)) for name, rule in rules.items()}
    again = replay.page(model, config, found["prompt"], sides)
    parts = [re.sub(r"\{\"title.*\}(?=</script>)", "", page) for page in (text, again)]
    assert parts[0] == parts[1] and len(parts[0]) < len(text) / 2
    for then, now in zip(found["sides"], data(again)["sides"], strict=True):
        assert then | {"cells": 0} == now | {"cells": 0}
        assert [cell[:4] for cell in then["cells"]] == [cell[:4] for cell in now["cells"]]
        for at in (4, 5):  # as far as two machines agree
            numbers = [[math.nan if cell[at] is None else cell[at] for cell in side["cells"]] for side in (then, now)]
            np.testing.assert_allclose(*numbers, atol=0.01)
