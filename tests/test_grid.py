"""Grids: what they expand to, and one sentence for every kind of bad one, before anything is decoded."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from jot import cli
from jot.errors import UserError
from jot.runs import grid, settings
from jot.runs.grid import Point

ROOT = Path(__file__).resolve().parents[1]
GRIDS = sorted((ROOT / "notebooks" / "grids").glob("*.yaml"))


def write(folder: Path, text: str, name: str = "grid.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def cell(text: str) -> str:
    return f"cells:\n  - {{{text}}}\n"


GOOD = "models: pocket-dream, tasks: pocket_mmlu, method: full"
JOT = GOOD.replace("full", "jot")


def test_entries_multiply_out_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, """
about: two entries, one cell in both
store: part
cells:
  - {models: [pocket-dream, pocket-llada], tasks: [pocket_mmlu, pocket_gsm8k], split: [test, dev], method: full}
  - models: pocket-dream
    tasks: pocket_mmlu
    method: [full, jot]
    seeds: [0, 3]
    limit: 5
    trace: true
  - {models: pocket-dream, tasks: pocket_mmlu, method: full, split: test}
  - {models: pocket-llada, tasks: pocket_gsm8k, method: jot, set: {spatial: [true, false], tau_max: [10, 1e1, 30]}}
""")  # fmt: skip
    points = grid.read(path)
    assert len(points) == 8 + 4 + 0 + 6  # the third entry repeats the first cell; YAML reads 1e1 as text
    assert [(p.model, p.task, p.split) for p in points[:3]] == [
        ("pocket-dream", "pocket_mmlu", "test"),
        ("pocket-dream", "pocket_mmlu", "dev"),
        ("pocket-dream", "pocket_gsm8k", "test"),
    ]
    assert [(p.method, p.seed, p.limit, p.trace) for p in points[8:12]] == [
        ("full", 0, 5, True), ("full", 3, 5, True), ("jot", 0, 5, True), ("jot", 3, 5, True),
    ]  # fmt: skip
    assert points[12].params == {"tau_max": 10, "spatial": True} and points[13].params["tau_max"] == "1e1"
    assert {p.store for p in points} == {"part"}
    assert grid.parse(path, path).cells == points


def test_points() -> None:
    point = Point.of("pocket-llada", "pocket_gsm8k", "jot", "dev", 2, tau_max=30, spatial=False)
    assert point == Point.of("pocket-llada", "pocket_gsm8k", "jot", "dev", 2, spatial=False, tau_max=30)
    assert point.params == {"spatial": False, "tau_max": 30} and point.own_split == "dev"
    assert Point.of("m", "mmlu", "full").own_split == "test" and Point.of("m", "hellaswag", "full").split == "test"
    with pytest.raises(UserError, match="unknown task"):
        Point.of("pocket-llada", "pocket_gsm", "full").check()


def test_a_cell_is_one_evaluate_line(tmp_path: Path, capsys) -> None:
    settings = "set: {cache: none, tau_max: 5, suppress_tokens: '1,2'}"
    entry = f"models: org/a llada, tasks: mmlu, method: jot, seeds: 3, limit: 7, {settings}"
    path = write(tmp_path, "store: sub\n" + cell(entry))
    assert cli.main(["cells", str(path), "--print", "--store", "results/x"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[:2] == ["jot", "evaluate"]
    options = dict(zip(words[2::2], words[3::2], strict=True)) | {"--set": None}
    assert options == {"--model": "org/a llada", "--task": "mmlu", "--split": "test", "--method": "jot",
                       "--store": "results/x/sub", "--set": None, "--seed": "3", "--limit": "7"}  # fmt: skip
    chosen = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert chosen == ["cache=none", "suppress_tokens=1,2", "tau_max=5"]


def test_options_that_hold_for_all_cells(tmp_path: Path, capsys) -> None:
    path = write(tmp_path, cell("models: pocket-llada, tasks: [humaneval, pocket_mmlu], method: full"))

    def listed(form: str, *more: str) -> str:
        assert cli.main(["cells", str(path), form, *more]) == 0
        return capsys.readouterr().out

    plain = listed("--print")
    assert "--dtype" not in plain and "--allow-code-execution" not in plain  # nothing is allowed unless asked for
    given = listed("--print", "--dtype", "bfloat16", "--allow-code-execution").splitlines()
    for line, before in zip(given, plain.splitlines(), strict=True):
        assert line == f"{before} --dtype bfloat16 --allow-code-execution"
        options = cli._parser().parse_args(shlex.split(line)[1:])
        assert (options.dtype, options.allow_code_execution) == ("bfloat16", True)
    assert cli.main(["cells", str(path), "--dtype", "bfloat16"]) == 0
    assert capsys.readouterr().out.count("dtype=bfloat16") == 2
    keys = [
        [point["key"] for point in json.loads(listed("--json", *more))["cells"]]
        for more in ((), ("--allow-code-execution",), ("--dtype", "bfloat16"))
    ]
    assert keys[0] == keys[1] and not {*keys[0]} & {*keys[2]}
    assert keys[0][1] == "pocket-llada_pocket_mmlu_test_full-d36d0a6825"  # jobs that are done stay done
    for command in (["cells", str(path)], ["run", str(path), "--store", str(tmp_path / "store")]):
        assert cli.main([*command, "--dtype", "float99"]) == 2
        told = capsys.readouterr()
        assert "unknown dtype 'float99'" in told.err and told.err.count("\n") == 1 and not told.out
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a mapping with a list `cells`"),
        ("cells: 3", "must be a mapping with a list `cells`"),
        ("- 1", "must be a mapping with a list `cells`"),
        ("cells: [", "is no YAML"),
        ("cells: []\ncells: []", "the key 'cells' twice"),
        ("cells: []\nmore: 1", "unknown key 'more'; known are about, store, cells"),
        ("cells: []\nstore: /tmp", "must be a subfolder of the store"),
        ("cells: []\nstore: s3://bucket/x", "must be a subfolder of the store"),
        ("cells: []\nstore: a/../../b", "must be a subfolder of the store"),
        ("cells: [full]", "entry 1: it must be a mapping"),
        (cell("models: pocket-dream, method: full"), "entry 1: it lacks 'tasks'"),
        (cell("models: [], tasks: pocket_mmlu, method: full"), "entry 1: it lacks 'models'"),
        (cell(f"{GOOD}, sets: {{a: 1}}"), "unknown key 'sets'"),
        (cell(f"{GOOD}, set: 3"), "set must be a mapping"),
        (cell(f"{GOOD}, set: {{suppress_tokens: [[1, 2]]}}"), "lists as text"),
        (cell(f"{GOOD}, set: {{suppress_tokens: true}}"), "suppress_tokens=True must be a whole number, at least 0"),
        (cell(f"{GOOD}, set: {{suppress_tokens: 0.5}}"), "suppress_tokens=0.5 must be a whole number"),
        (cell(f"{GOOD}, set: {{begin_suppress_tokens: -1}}"), "begin_suppress_tokens=-1 must be a whole number"),
        (cell(f"{GOOD}, set: {{constraints: 5}}"), "constraints=5 must be (offset, token id) pairs"),
        (cell(f"{GOOD}, set: {{length: null}}"), "must be a whole number, at least 1"),
        (cell(f"{GOOD}, set: {{ragged: 7}}"), "ragged=7 must be true or false"),
        (cell(f"{JOT}, set: {{spatial: 0.5, ragged: 7}}"), "must be true or false"),
        (cell(f"{JOT}, set: {{spatial: 5}}"), "spatial=5 must be true or false"),
        (cell(f"{JOT}, set: {{spatial: null}}"), "spatial=None must be true or false"),
        (cell("models: org/unknown, tasks: pocket_mmlu, method: jot, set: {spatial: 5}"), "spatial=5 must be true or"),
        ('store: "a\\0b"\ncells: []', "must be a subfolder of the store"),
        ('store: "a\\ud800b"\ncells: []', "must be a subfolder of the store"),
        (cell("models: [[pocket-dream]], tasks: pocket_mmlu, method: full"), "must be a name"),
        (
            cell(f"{GOOD}, seeds: [{', '.join(map(str, range(400)))}], set: {{eps: [{', '.join(['1'] * 300)}]}}"),
            "multiplies out",
        ),
        (cell(f"{GOOD}, limit: 1e2"), "limit='1e2' must be a whole number"),
        (cell(f"{GOOD}, limit: true"), "limit=True must be a whole number"),
        (cell(f"{GOOD}, limit: 0"), "at least 1"),
        (cell(f"{GOOD}, trace: 1"), "trace=1 must be true or false"),
        (cell(f"{GOOD}, seeds: [0, -1]"), "seeds=-1 must be a whole number"),
        (cell(f"{GOOD}, seeds: true"), "seeds=True must be a whole number"),
        (cell("models: pocket-dram, tasks: pocket_mmlu, method: full"), "did you mean 'pocket-dream'"),
        (cell("models: pocket-dream, tasks: pocket_mml, method: full"), "unknown task"),
        (cell(f"{GOOD}, split: train"), "has no split 'train'; use test or dev"),
        (cell("models: pocket-dream, tasks: pocket_mmlu, method: jott"), "did you mean 'jot'"),
        (cell("models: pocket-dream, tasks: pocket_mmlu, method: jot, set: {tau_mx: 3}"), "did you mean 'tau_max'"),
        (cell("models: pocket-dream, tasks: pocket_mmlu, method: jot, set: {tau_max: few}"), "must be a number"),
        (cell("models: pocket-dream, tasks: pocket_mmlu, method: jot, set: {tau_max: 0.5}"), "tau_max"),
        (cell("models: pocket-dream, tasks: pocket_mmlu, method: full, set: {block_length: 2}"), "does not divide"),
        (cell("models: pocket-dream, tasks: pocket_mmlu, method: full, set: {seed: 2}"), "seed"),
    ],
)
def test_bad_grids_are_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        grid.read(path)
    assert message in str(caught.value) and "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_one_token_id_may_be_a_number(tmp_path: Path) -> None:
    """It is the same cell as the text is; null is no token at all."""
    path = write(tmp_path, cell(f"{GOOD}, set: {{suppress_tokens: [5, '5'], constraints: null}}"))
    points = grid.read(path)
    parsed = [settings.parse(point.method, point.params) for point in points]
    assert parsed[0] == parsed[1] == {"suppress_tokens": (5,), "constraints": ()}
    printed = [word for word in shlex.split(points[0].command()) if "=" in word]
    assert printed == ["constraints=none", "suppress_tokens=5"]
    assert settings.parse("full", dict(word.split("=") for word in printed)) == parsed[0]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UserError, match="cannot read the grid"):
            grid.read(path)
    (tmp_path / "odd.yaml").write_bytes(b"\xff\xfe\x00cells")
    with pytest.raises(UserError, match="is no YAML"):
        grid.read(tmp_path / "odd.yaml")


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_the_grids_of_the_notebooks(path: Path) -> None:
    """Each is valid; training seeds other than the shipped one, sizes and the long pair have no weights here."""
    if "results/models/" in path.read_text() and not (ROOT / "results" / "models").is_dir():
        with pytest.raises(UserError, match="entry 1"):
            grid.read(path)
        return
    points = grid.read(path)
    assert points and len(points) == len(set(points))
