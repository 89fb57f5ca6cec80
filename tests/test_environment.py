"""One lock, used by every install path."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

NAMED = ("jupyterlab", "papermill", "torch", "transformers", "lm-eval", "matplotlib", "scipy", "statsmodels")


def pins(lines) -> dict[str, Version]:
    """Canonical name -> exact version; any other kind of requirement fails."""
    found = {}
    for line in lines:
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)", line)
        assert match, f"not an exact pin without a local suffix: {line!r}"
        name = canonicalize_name(match[1])
        assert name not in found, f"{name} is pinned twice"
        found[name] = Version(match[2])
    return found


@pytest.fixture(scope="module")
def lock(root) -> dict[str, Version]:
    lines = (root / "requirements.lock").read_text().splitlines()
    return pins(line for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def project(root) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def conda(root) -> dict:
    return yaml.safe_load((root / "environment.yml").read_text())


def test_environment_has_a_thin_conda_part(conda):
    assert conda["name"] == "jot"
    assert [line for line in conda["dependencies"] if isinstance(line, str)] == ["python=3.11", "pip"]


def test_environment_equals_the_lock(conda, lock):
    (block,) = [part["pip"] for part in conda["dependencies"] if isinstance(part, dict)]
    assert pins(block) == lock


@pytest.mark.parametrize("name", NAMED)
def test_environment_names_the_packages_of_the_paper(conda, name):
    (block,) = [part["pip"] for part in conda["dependencies"] if isinstance(part, dict)]
    assert name in {canonicalize_name(line.partition("==")[0]) for line in block}


def test_lock_covers_the_project(project, lock):
    wanted = [*project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        wanted += [] if extra in ("all", "smol") else requirements
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert name in lock, f"{name} is not in requirements.lock; run: make lock"
        assert requirement.specifier.contains(lock[name]), f"{requirement} does not allow {name} {lock[name]}"


def test_the_extra_beside_the_lock_is_pinned(project, lock):
    """`make smol` alone installs it: neither main command does."""
    for requirement in map(Requirement, project["optional-dependencies"]["smol"]):
        assert [spec.operator for spec in requirement.specifier] == ["=="]
        assert canonicalize_name(requirement.name) not in lock


def test_supported_versions(project):
    requirement = next(r for r in map(Requirement, project["dependencies"]) if r.name == "torch")
    allowed = [v for v in ("2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.0") if v in requirement.specifier]
    assert allowed == ["2.11.0", "2.12.1", "2.13.0"]
    assert project["requires-python"] == ">=3.11,<3.13"


def test_installed_packages_are_closed_under_the_lock(lock):
    """Whatever an installed package of the lock requires on this platform is in the lock, and fits.

    The libraries that only a CUDA build of torch brings are pinned by torch itself.
    """
    for name, version in lock.items():
        try:
            requires = importlib.metadata.requires(name) or []
            if Version(importlib.metadata.version(name).partition("+")[0]) != version:
                continue
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, requires):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            dependency = canonicalize_name(requirement.name)
            if name == "torch" and re.match(r"nvidia-|cuda-|triton|pytorch-triton", dependency):
                continue
            assert dependency in lock, f"{name} requires {dependency}, which is not in the lock"
            assert requirement.specifier.contains(lock[dependency], prereleases=True), f"{name}: {requirement}"


def test_pins_install_on_every_supported_python(lock):
    """A pin may not ask for a later patch release than distributions ship: Debian 12 has 3.11.2."""
    for name, version in lock.items():
        try:
            metadata = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        python = SpecifierSet(metadata["Requires-Python"] or "")
        if Version(metadata["Version"].partition("+")[0]) == version:
            assert "3.11.0" in python and "3.12.0" in python, f"{name} {version} wants Python {python}"


def test_preflight_names_all_that_is_missing(root, tmp_path):
    """A copy without an environment, an interpreter that is not there: one sentence, exit code 1."""
    (tmp_path / ".ci").mkdir()
    for name in (".ci/preflight", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((root / name).read_bytes())
    command = ["bash", str(tmp_path / ".ci" / "preflight"), str(tmp_path / "no-python")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout
    assert "missing: Python 3.11 or 3.12" in done.stderr

    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run([*command[:2], sys.executable], capture_output=True, text=True, env=os.environ | nowhere)
    assert done.returncode == 1 and not done.stdout
    assert "missing: torch 2.13.0" in done.stderr


def test_make_offers_the_promised_targets(root):
    makefile = (root / "Makefile").read_text()
    for target in ("setup", "paper", "figures", "test", "lab", "clean", "lint", "smol"):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    assert "make test" in (root / ".ci" / "run").read_text()
    assert os.access(root / ".ci" / "run", os.X_OK)


def test_the_crate_names_the_files_of_the_manifest(root):
    """Provenance beside the records: each packed file once, with its hash and what decoded it (.ci/crate.py)."""
    records = root / "data" / "records"
    manifest = json.loads((records / "manifest.json").read_text())["cells"].values()
    graph = {part["@id"]: part for part in json.loads((records / "ro-crate-metadata.json").read_text())["@graph"]}
    files = {name: part["sha256"] for name, part in graph.items() if part["@type"] == "File"}
    assert files == {cell["file"]: cell["sha256"] for cell in manifest}
    made = [part for part in graph.values() if part["@type"] == "CreateAction"]
    assert {part["result"]["@id"] for part in made} == set(files)
    assert all(tool["@id"] in graph for part in made for tool in part["instrument"])
