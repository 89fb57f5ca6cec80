"""Where the data of the checkout is."""

from __future__ import annotations

import os
from pathlib import Path

HOME = Path(os.environ.get("JOT_HOME") or Path(__file__).resolve().parents[2])
TASKS = HOME / "data" / "tasks"
MODELS = HOME / "data" / "models"
