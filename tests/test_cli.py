"""The command line: what it prints, and one sentence with exit code 2 for every mistake."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import children
import pytest
import tiny

from jot import models, tasks
from jot.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny.build(tmp_path_factory.mktemp("tiny") / "tiny-llada"))


def evaluate(model: str, store: Path, *more: str, task: str = "pocket_mmlu") -> list[str]:
    return ["evaluate", "--model", model, "--task", task, "--split", "dev", "--limit", "3", "--device", "cpu",
            "--store", str(store), *more]  # fmt: skip


def fails(capsys, arguments: list[str]) -> str:
    """Runs the command and returns its one sentence."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("jot: error: ") and captured.err.count("\n") == 1, captured
    return captured.err


def test_evaluate_prints_and_resumes(model: str, tmp_path: Path, capsys) -> None:
    assert main(evaluate(model, tmp_path)) == 0
    captured = capsys.readouterr()
    for words in (
        "tiny-llada  pocket_mmlu/dev  float32 on cpu", "jot (", "tau_max=30", "3 (3 decoded now)",
        "Wilson 95 %", "speedup ", "bootstrap", "tokens a forward", "length over tokens",
        "a sample, 16 at a time",
    ):  # fmt: skip
        assert words in captured.out
    assert "3/3" in captured.err and "sample/s" in captured.err or "s/sample" in captured.err
    assert main(evaluate(model, tmp_path)) == 0
    again = capsys.readouterr()
    assert "nothing to decode" in again.out and again.err == ""
    assert again.out.split("score")[1] == captured.out.split("score")[1]


def test_evaluate_prose_and_settings(model: str, tmp_path: Path, capsys) -> None:
    more = [
        "--set",
        "length=8",
        "--set",
        "block_length=4",
        "--set",
        "temperature=0.5",
        "--seed",
        "3",
        "--method",
        "full",
    ]
    assert main(evaluate(model, tmp_path, *more, task="pocket_prose")) == 0
    assert "generation only" in capsys.readouterr().out
    (config,) = (json.loads(path.read_text())["config"] for path in tmp_path.glob("*.json"))
    assert config["decode"]["block_length"] == 4 and config["decode"]["temperature"] == 0.5 and config["seed"] == 3


def test_decode(model: str, capsys) -> None:
    arguments = ["decode", "--model", model, "Q: 1 + 1?", "--device", "cpu", "--set", "length=8"]
    assert main(arguments) == 0
    text, steps = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
    assert text and "of 8 steps, speedup" in steps
    assert main([*arguments, "--no-chat"]) == 0
    capsys.readouterr()
    assert main([*arguments, "--method", "full", "--set", "steps=64"]) == 0
    assert "[8 of 8 steps, speedup 1.00x" in capsys.readouterr().out


def test_tasks(capsys) -> None:
    assert main(["tasks"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == list(tasks.TASKS)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--task", "pocket_gsm8"], "did you mean 'pocket_gsm8k'"),
        (["--task", "xyz"], "unknown task 'xyz'; known are pocket_gsm8k, "),
        (["--method", "jott"], "did you mean 'jot'"),
        (["--method", "xyz"], "unknown method 'xyz'; known are full, jot, "),
        (["--set", "tau_mx=3"], "did you mean 'tau_max'"),
        (["--set", "xyz=3"], "unknown setting 'xyz' for method 'jot'; known are "),
        (["--set", "tau_max"], "key=value"),
        (["--set", "=3"], "key=value"),
        (["--set", "tau_max=abc"], "must be a number"),
        (["--set", "tau_max=nan"], "must be a number"),
        (["--set", "tau_max="], "must be a number"),
        (["--set", "window=2.5"], "must be a whole number"),
        (["--set", "window=0"], "window"),
        (["--set", "spatial=maybe"], "true or false"),
        (["--set", "combine=and"], "combine"),
        (["--set", "tau_max=0.5"], "tau_max"),
        (["--set", "tau_min=0"], "tau_min"),
        (["--set", "gamma=0"], "gamma"),
        (["--set", "gamma=1"], "gamma"),
        (["--set", "gamma=-0.5"], "gamma"),
        (["--set", "tau_min=40"], "tau_min"),
        (["--set", "tau_max=3", "--set", "tau_min=4"], "tau_min"),
        (["--method", "full", "--set", "tau_max=3"], "unknown setting 'tau_max'"),
        (["--set", "seed=3"], "--seed"),
        (["--set", "limit=3"], "unknown setting 'limit'"),
        (["--set", "model=x"], "unknown setting 'model'"),
        (["--set", "steps=4", "--set", "length=6", "--set", "block_length=2"], "steps"),
        (["--set", "length=7", "--set", "block_length=2"], "does not divide"),
        (["--set", "steps=0"], "steps"),
        (["--set", "length=-1"], "length"),
        (["--set", "temperature=-1"], "temperature"),
        (["--set", "ranking=best"], "ranking"),
        (["--set", "suppress_tokens=a"], "suppress_tokens='a' must be a whole number"),
        (["--set", "suppress_tokens=²"], "suppress_tokens='²' must be a whole number"),
        (["--set", f"suppress_tokens={'9' * 5000}"], "must be a whole number, at least 0"),
        (["--set", "constraints=²:1"], "offset:token pairs"),
        (["--seed", "x"], "--seed"),
        (["--seed", "-1"], "seed"),
        (["--limit", "-1"], "at least 1"),
        (["--limit", "0"], "at least 1"),
        (["--limit", "many"], "--limit"),
        (["--slots", "0"], "slots"),
        (["--split", "train"], "no split"),
        (["--data", "/nowhere"], "there is no /nowhere"),
        (["--device", "tpu9"], "device"),
        (["--device", "mkl"], "unknown device 'mkl'; use cpu, cuda or cuda:N"),
        (["--device", "meta"], "device 'meta' is not usable here; use cpu, cuda or cuda:N"),
        (["--device", "cpu:99"], "device 'cpu:99' is not usable here"),
        (["--store", ""], "--store is empty; name a folder"),
        (["--dtype", "float99"], "dtype"),
        (["--bogus"], "--bogus"),
    ],
)
def test_bad_input_before_the_model_is_read(
    model: str, tmp_path: Path, capsys, monkeypatch, more: list[str], words: str
) -> None:
    if "--device" not in more and "--dtype" not in more:
        monkeypatch.setattr("jot.runs.harness.load", lambda *_, **__: pytest.fail("the model was read"))
    assert words in fails(capsys, [*evaluate(model, tmp_path / "store"), *more])
    assert not list(tmp_path.glob("store/*"))


def test_bad_models(tmp_path: Path, capsys, monkeypatch) -> None:
    assert "did you mean 'pocket-llada'" in fails(capsys, evaluate("pocket-lada", tmp_path))
    assert "unknown model" in fails(capsys, evaluate("xyz", tmp_path))
    assert "config.json" in fails(capsys, evaluate(str(tmp_path), tmp_path))
    monkeypatch.setenv("JOT_HOME", str(tmp_path))
    assert "JOT_HOME" in fails(capsys, evaluate("pocket-llada", tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "huggingface_hub.snapshot_download",
            lambda *_, **__: (_ for _ in ()).throw(ConnectionError("offline")),
        )
        monkeypatch.delenv("JOT_HOME")
        assert "from the hub" in fails(capsys, evaluate("someone/llada-thing", tmp_path))
    assert models.home().is_dir()


def test_bad_stores(model: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "is a file" in fails(capsys, evaluate(model, file))
    assert "file" in fails(capsys, evaluate(model, file / "below"))
    for words in (["report", "--out", str(file / "x")], ["pack", str(tmp_path), str(file)]):
        assert f"{file} is a file; name a folder" in fails(capsys, words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "load", lambda *_, **__: pytest.fail("the weights were read"))
        for option in ("--store", "--out"):
            assert f"{file} is a file" in fails(capsys, [*CALIBRATE, option, str(file / "x")])
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        assert "not writable" in fails(capsys, evaluate(model, tmp_path / "locked"))
    assert "store" in fails(capsys, evaluate(model, Path("/proc/store")))


def test_stores_of_other_configurations(model: str, tmp_path: Path, capsys) -> None:
    assert main(evaluate(model, tmp_path)) == 0
    assert main(evaluate(model, tmp_path, "--set", "tau_max=5")) == 0
    capsys.readouterr()
    (config,) = tmp_path.glob("*tau30*.json")
    good = config.read_text()
    config.write_text(good.replace('"tau_max": 30', '"tau_max": 31'))
    assert "another configuration" in fails(capsys, evaluate(model, tmp_path))
    config.write_text("{")
    assert "not a cell's configuration" in fails(capsys, evaluate(model, tmp_path))
    config.write_text(good)

    (records,), (foreign,) = tmp_path.glob("*tau30*.jsonl"), tmp_path.glob("*tau5*.jsonl")
    lines = records.read_text().splitlines(keepends=True)
    records.write_text(lines[0] + lines[1][:40] + "\n" + lines[2])
    sentence = fails(capsys, evaluate(model, tmp_path))
    assert f"line 2 of {records}" in sentence
    records.write_text(foreign.read_text())
    assert "another configuration" in fails(capsys, evaluate(model, tmp_path))
    records.write_text("".join(lines))
    assert main(evaluate(model, tmp_path)) == 0


def test_prompts(model: str, tmp_path: Path, capsys) -> None:
    for prompt in ("", " \n"):
        assert "prompt is empty" in fails(capsys, ["decode", "--model", model, prompt])
    assert "positions" in fails(capsys, ["decode", "--model", model, "word " * 400, "--device", "cpu"])
    assert "positions" in fails(capsys, evaluate(model, tmp_path, "--set", "length=512", task="pocket_gsm8k"))
    assert "mask" in fails(capsys, ["decode", "--model", model, "a <|mdm_mask|>", "--device", "cpu"])


def test_prompts_that_are_no_text(model: str, capsys, monkeypatch) -> None:
    """As the shell hands over bytes that are no UTF-8."""
    monkeypatch.setattr("jot.models.load", lambda *_, **__: pytest.fail("the model was read"))
    for prompt in (os.fsdecode(b"\xff\xfe"), "half \ud83d"):
        sentence = fails(capsys, ["decode", "--model", model, prompt])
        assert "the prompt is not UTF-8 text; give it in UTF-8" in sentence
    assert "not usable here" in fails(capsys, ["decode", "--model", model, "Q", "--device", "meta"])


@pytest.mark.parametrize("template", ["{% if %}", "{{ nothing.there.at_all }}", "{{ raise_exception('no') }}", 5])
def test_a_broken_chat_template(model: str, tmp_path: Path, capsys, template) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "copy"))
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    words = ["decode", "--model", str(folder), "Q: 1 + 1?", "--device", "cpu", "--set", "length=8"]
    sentence = fails(capsys, words)
    assert f"the chat template of {folder} cannot be used (" in sentence
    assert "; fetch it again, or use --no-chat" in sentence
    assert main([*words, "--no-chat"]) == 0
    capsys.readouterr()
    sentence = fails(capsys, evaluate(str(folder), tmp_path / "store"))
    assert "cannot be used (" in sentence and "fetch it again" in sentence and "--no-chat" not in sentence


def test_commands(capsys) -> None:
    for arguments in ([], ["xyz"], ["evaluate"], ["decode", "--model", "x"]):
        fails(capsys, arguments)
    for arguments in (["--help"], ["evaluate", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    capsys.readouterr()


CALIBRATE = ["calibrate", "--model", "pocket-llada", "--task", "pocket_mmlu"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report", "--foo"], "unrecognized arguments: --foo; see `jot report --help`"),
        (["figures", "--foo"], "unrecognized arguments: --foo; see `jot figures --help`"),
        (["paper", "--foo"], "unrecognized arguments: --foo; see `jot paper --help`"),
        (["paper", "--seconds", "x"], "argument --seconds: invalid float value: 'x'"),
        (["verify-records", "--samples", "x"], "argument --samples: invalid int value: 'x'"),
        (["notebook"], "the following arguments are required: name; see `jot notebook --help`"),
        (["notebook", "x", "--foo"], "unrecognized arguments: --foo; see `jot notebook --help`"),
        (["run", "a", "--workers", "0"], "--workers=0 must be a whole number, at least 1"),
        (["pack", "", "b"], "store is empty; name a folder"),
        (["pack", "a", ""], "folder is empty; name a folder"),
        (["cells", "x.yaml", "--store", ""], "--store is empty; name a folder"),
        (["run", "x.yaml", "--store", ""], "--store is empty; name a folder"),
        (["report", "--store", ""], "--store is empty; name a folder"),
        (["report", "--notebooks", ""], "--notebooks is empty; name a folder"),
        (["report", "--out", ""], "--out is empty; name a folder"),
        (["report", "--out", "s3://b/x"], "--out s3://b/x is an address, and only local files are read and written"),
        (["run", "x.yaml", "--store", "s3://b/x"], "--store s3://b/x is an address"),
        (["cells", "x.yaml", "--store", "s3://b/x"], "--store s3://b/x is an address"),
        (["pack", "a", "s3://b/x"], "folder s3://b/x is an address"),
        (["pack", "s3://b/x", "a"], "store s3://b/x is an address"),
        (evaluate("pocket-llada", "s3:/b/x"), "--store s3:/b/x is an address"),
        ([*CALIBRATE, "--store", ""], "--store is empty; name a folder"),
        ([*CALIBRATE, "--store", "s3://b/x"], "--store s3://b/x is an address"),
        ([*CALIBRATE, "--out", "s3://b/x"], "--out s3://b/x is an address"),
        ([*CALIBRATE, "--out", "."], "--out . is a folder; name a file, as in pocket-llada_pocket_mmlu_breaks.json"),
        (["decode", "--model", "pocket-llada", "Hi", "--html", "s3://b/x"], "--html s3://b/x is an address"),
    ],
)
def test_mistakes_on_the_command_line(capsys, tmp_path: Path, monkeypatch, words: list[str], told: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in fails(capsys, words)
    assert not list(tmp_path.iterdir())


def test_a_mistake_in_jot_check(capsys) -> None:
    """Its parser is its own: it runs where nothing is installed."""
    with pytest.raises(SystemExit) as stop:
        main(["check", "--foo"])
    told = capsys.readouterr().err
    assert stop.value.code == 2 and told == "jot: error: unrecognized arguments: --foo; see `jot check --help`\n"


def test_help_of_the_forwarded_commands(capsys) -> None:
    for command in ("check", "notebook", "paper", "verify-records", "figures", "report"):
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0 and capsys.readouterr().out.startswith(f"usage: jot {command} ")


def test_interrupted(model: str, tmp_path: Path, capsys, monkeypatch) -> None:
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("jot.runs.harness.decode_stream", stop)
    assert main(evaluate(model, tmp_path)) == 130
    assert "run again" in capsys.readouterr().err
    monkeypatch.setattr(sys.modules["jot.decode"], "decode", stop)  # `jot.decode` is the function
    assert main(["decode", "--model", model, "Hi", "--device", "cpu"]) == 130
    assert capsys.readouterr().err == "jot: interrupted\n"  # it records nothing


def test_an_output_without_room(model: str, tmp_path: Path, capsys, monkeypatch) -> None:
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    for name, words in (
        ("decode_stream", evaluate(model, tmp_path)),
        ("decode", ["decode", "--model", model, "Hi", "--device", "cpu"]),
    ):
        monkeypatch.setattr(sys.modules["jot.runs.harness" if name == "decode_stream" else "jot.decode"], name, full)
        assert main(words) == 2
        assert ("what was decoded is recorded" in capsys.readouterr().err) == (words[0] == "evaluate")


@pytest.mark.parametrize(
    ("place", "code", "told"),
    [
        (">/dev/full", 2, "jot: error: cannot write the output (No space left on device); give it another place"),
        ("| true", 0, ""), (">&- 2>&-", 0, ""),
    ],
)  # fmt: skip
def test_an_output_that_takes_nothing(root: Path, place: str, code: int, told: str) -> None:
    if "full" in place and not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    words = ["bash", "-c", f"set -o pipefail; {sys.executable} -m jot tasks {place}"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=root, env=os.environ)
    assert (done.returncode, done.stderr.startswith(told)) == (code, True), done.stderr
    assert done.stderr.count("\n") == (code == 2)


def test_an_output_that_is_closed(capfd) -> None:
    """``>&-``, where Python has no stream."""

    def tasks() -> int:
        os.close(1)
        sys.stdout, sys.stderr = None, open(2, "w")
        return main(["tasks"])

    assert children.join(children.fork(tasks)) == 0
    assert capfd.readouterr() == ("", "")


def test_as_a_module(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jot", "evaluate", "--model", "pocket-lada", "--task", "pocket_mmlu"],
        capture_output=True, text=True, cwd=root, env=os.environ,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (
        2,
        "",
        1,
    ) and "did you mean" in done.stderr
