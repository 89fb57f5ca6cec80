"""One environment for all tests: offline, one thread a process, repeatable examples."""

from __future__ import annotations

import os
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]

# "repeatable" draws the same examples on every run, so a failure is a change of the code. To look for new
# failures: pytest --hypothesis-profile=explore
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", parent=settings.get_profile("repeatable"), derandomize=False, max_examples=1000)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` are skipped where there is none; slow ones come first, so that no worker ends with one."""
    import torch

    items.sort(key=lambda item: "slow" not in item.keywords)

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def full_size(request: pytest.FixtureRequest) -> None:
    """For tests that take minutes: they run only where the marker is asked for."""
    if "soak" not in (request.config.getoption("-m") or ""):
        pytest.skip("takes minutes; pytest -m soak runs it")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Material that lies beside the checkout and is not part of it; tests that need it are skipped elsewhere.

    ``JOT_SHARED`` names another folder.
    """
    path = Path(os.environ.get("JOT_SHARED") or ROOT.parent / "shared")
    if not path.is_dir():
        pytest.skip(f"no folder {path} (set JOT_SHARED to use another one)")
    return path
