"""Generated code runs apart from everything: time, memory, files, network, processes."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jot.tasks import sandbox

WORKER = Path(sandbox.__file__).with_name("sandbox_worker.py")


def test_verdicts() -> None:
    prompt, test = "def f(x):\n", "def check(candidate):\n    assert candidate(2) == 4\n"
    assert sandbox.check(prompt, "    return x + 2\n", test, "f") == sandbox.Verdict(True, "passed")
    assert sandbox.check(prompt, "    return x + 3\n", test, "f").reason.startswith("AssertionError")
    assert sandbox.check(prompt, "    return y\n", test, "f").reason.startswith("NameError")
    assert sandbox.check(prompt, "    return (\n", test, "f").reason.startswith("SyntaxError")
    assert not sandbox.check("", "", test, "f").passed


@pytest.mark.parametrize("program",
                         ["import sys\nsys.exit(0)", "import os\nos._exit(0)", "raise SystemExit", "quit()",
                          "exit()",
                                     "import os\nos.abort()", "raise KeyboardInterrupt"])  # fmt: skip
def test_leaving_early_is_no_pass(program: str) -> None:
    assert not sandbox.run(program).passed


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "import signal, time\nfor s in (2, 15):\n    signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)",
        "try:\n    while True: pass\nexcept BaseException:\n    pass",
    ],
)
def test_wall_clock(program: str) -> None:
    start = time.monotonic()
    assert sandbox.run(program, timeout=0.4) == sandbox.Verdict(False, "timed out")
    assert time.monotonic() - start < 5
    assert sandbox.run("assert True").passed  # the worker goes on


def test_memory_and_recursion() -> None:
    assert "MemoryError" in sandbox.run("x = [0] * 10**10").reason
    assert "MemoryError" in sandbox.run("x = bytearray(2 << 30)").reason
    assert "RecursionError" in sandbox.run("def f(): return f()\nf()").reason


def test_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1")
    for program in (
        f"open({str(secret)!r}).read()",
        f"open({str(secret)!r}, 'w').write('x')",
        f"import os\nos.open({str(secret)!r}, os.O_WRONLY)",
        f"import os\nos.remove({str(secret)!r})",
        f"import os\nos.rename({str(secret)!r}, 'here')",
        f"import os\nos.mkdir({str(tmp_path / 'new')!r})",
        f"import os\nos.symlink({str(secret)!r}, 'link')\nopen('link').read()",
        f"import pathlib\npathlib.Path({str(secret)!r}).write_text('x')",
        f"import shutil\nshutil.rmtree({str(tmp_path)!r})",
        "open('../outside', 'w').write('x')",
        "open('/etc/passwd').read()",
    ):
        verdict = sandbox.run(program)
        assert not verdict.passed and "Permission" in verdict.reason, (program, verdict)
    assert secret.read_text() == "1" and os.listdir(tmp_path) == ["secret"]
    assert sandbox.run("open('a', 'w').write('x')\nassert open('a').read() == 'x'").passed
    assert sandbox.run("import os\nassert os.listdir() == []").passed  # nothing of the program before is left
    assert "too large" in sandbox.run("with open('a', 'w') as f: f.write('x' * (4 << 20))").reason


@pytest.mark.parametrize(
    "program",
    [
        "import socket",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1')",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "import os\nos.fork()",
        "import os\nos.execv('/bin/true', ['true'])",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})",
        "import os\nos.kill(os.getppid(), 9)",
        "import ctypes",
        "import _posixsubprocess",
        "import multiprocessing",
        "import sys\nsys.modules['ctypes']",
    ],
)
def test_network_and_processes(program: str) -> None:
    verdict = sandbox.run(program)
    assert not verdict.passed
    assert any(word in verdict.reason for word in ("refuses", "KeyError")), verdict


def test_kernel_keeps_what_the_hook_cannot(tmp_path: Path) -> None:
    """The worker's own isolation, without the audit hook, in a process of its own."""
    (tmp_path / "in").mkdir()
    script = textwrap.dedent(f"""
        import runpy, socket
        worker = runpy.run_path({str(WORKER)!r})
        print(sorted(worker["isolate"]({str(tmp_path / "in")!r})))
        open({str(tmp_path / "in" / "ok")!r}, "w").write("1")
        try:
            open({str(tmp_path / "out")!r}, "w")
            print("wrote")
        except OSError:
            print("refused")
        try:
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))
            print("connected")
        except OSError:
            print("unreachable")
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    in_force, wrote, connected = done.stdout.split("\n")[:3]
    if "files" not in in_force and "network" not in in_force:
        pytest.skip("this kernel or user has neither Landlock nor network namespaces")
    assert wrote == "refused" or "files" not in in_force
    assert connected == "unreachable" or "network" not in in_force


def test_verdicts_repeat() -> None:
    """Hash order and random numbers are fixed, so a recorded verdict can be had again."""
    program = "import random\nassert list({'a', 'b', 'c', 'd', 'e'})[0] == %r and random.random() == %r"
    found = [sandbox.run("assert 0, (list({'a', 'b', 'c', 'd', 'e'})[0], __import__('random').random())").reason]
    sandbox._stop()
    first, number = eval(found[0].removeprefix("AssertionError: "))
    assert sandbox.run(program % (first, number)).passed


def test_a_killed_worker_is_replaced() -> None:
    assert sandbox.run("assert 1").passed
    os.killpg(sandbox._CURRENT.process.pid, signal.SIGKILL)
    assert sandbox.run("assert 1").passed


def test_human_eval_references_pass(shared) -> None:
    path = shared / "data" / "humaneval.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        verdict = sandbox.check(row["prompt"], row["canonical_solution"], row["test"], row["entry_point"])
        assert verdict.passed, (row["id"], verdict)


@settings(max_examples=30)
@given(st.text(max_size=80))
def test_any_text_is_a_program_that_fails_or_ends(text: str) -> None:
    assert isinstance(sandbox.run(text, timeout=1.0).passed, bool)
