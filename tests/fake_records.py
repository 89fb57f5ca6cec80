"""Small made-up record sets in the shape of ``jot.records.load_store``, for the analysis tests."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd

from jot import records as records_module
from jot.models import FAMILIES
from jot.records.lines import to_line
from jot.records.load import totals
from jot.runs import settings
from jot.runs.frames import family as family_of
from jot.runs.grid import Point
from jot.tasks import TASKS as TASK_TABLE


def _decode(family: str, task: str) -> dict:
    model = next(model for _, model, _ in FAMILIES.values() if model.family == family)
    made = dataclasses.asdict(settings.build_decode(model, {}, TASK_TABLE[task]))
    made.pop("seed")
    return records_module.plain(made)


LENGTH = {"pocket_gsm8k": 128, "pocket_mmlu": 3, "pocket_hellaswag": 5, "pocket_humaneval": 128}
DEFAULT = {"dream": 90, "llada": 30}


def cell(
    model: str, task: str, method: str, rows: pd.DataFrame, *, split: str = "test", seed: int = 0, **params
) -> tuple:
    """(id, Recorded) of one cell."""
    family = model.removeprefix("pocket-")
    decode = dict(_decode(family, task)) | params.pop("decode", {})
    if method == "jot":
        params = {
            "tau_max": DEFAULT[family],
            "tau_min": 1,
            "gamma": 0.5,
            "window": 8,
            "spatial": True,
            "combine": "or",
        } | params
    config = {
        "model": model,
        "fingerprint": model,
        "task": task,
        "task_version": 1,
        "prompt_hash": task,
        "split": split,
        "method": {"name": method, **params},
        "decode": decode,
        "dtype": "float32",
        "seed": seed,
    }
    made = records_module.Cell(config)
    rows = rows.assign(cell=made.key)
    meta = {
        "cell": made.id,
        "config": records_module.plain(config),
        "versions": {"jot": "0"},
        "hardware": {"kind": "test machine"},
        "totals": {"samples": len(rows)},
    }
    return made.id, records_module.Recorded(meta, lambda: rows)


def of(point: Point, rows: pd.DataFrame, dtype: str = "float32") -> tuple:
    """(id, Recorded) of the cell that a grid's point resolves to."""
    resolved, own = point.resolved(), settings.method_class(point.method).__dataclass_fields__
    method = {key: value for key, value in resolved.items() if key in {"name", *own}}
    decode = {key: value for key, value in resolved.items() if key not in method}
    name = Path(point.model).name
    config = {
        "model": name,
        "family": family_of(name),
        "fingerprint": name,
        "task": point.task,
        "task_version": 1,
        "prompt_hash": point.task,
        "split": point.own_split,
        "method": method,
        "decode": decode,
        "dtype": dtype,
        "seed": point.seed,
    }
    made = records_module.Cell(config)
    meta = {
        "cell": made.id,
        "config": records_module.plain(config),
        "versions": {"jot": "0"},
        "hardware": {"kind": "test machine"},
        "totals": {"samples": len(rows)},
    }
    return made.id, records_module.Recorded(meta, lambda: rows.assign(cell=made.key))


def changed(made, **config: object) -> tuple:
    """(id, Recorded) of a run with another configuration, such as of a model that is not there."""
    cell = records_module.Cell({**made.meta["config"], **config})
    meta = {**made.meta, "cell": cell.id, "config": cell.config}
    return cell.id, type(made)(meta, lambda: made.frame.assign(cell=cell.key))


def scored(point: Point, scores: list, steps: int | list | None = None, **columns: object) -> tuple:
    """The cell of a point with these scores; full decoding takes every step, others an eighth of them."""
    length = LENGTH[point.task]
    frame = rows(point.task, point.own_split, np.random.default_rng(0), len(scores), 0.5, length)
    steps = steps if steps is not None else length if point.method == "full" else max(1, length // 8)
    return of(point, frame.assign(score=np.asarray(scores, float), steps=steps, forwards_full=steps, **columns))


def write(folder: Path, records: dict) -> Path:
    """The record set as a live store on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (meta, frame) in records.items():
        rows = list(map(json.loads, frame.to_json(orient="records", lines=True).splitlines()))
        # With its sums, as a run that ended in order leaves it: else every look at the store reads all samples.
        (folder / f"{name}.json").write_text(json.dumps(meta | {"totals": totals(rows)}))
        (folder / f"{name}.jsonl").write_bytes(b"".join(map(to_line, rows)))
    return folder


def rows(task: str, split: str, rng: np.random.Generator, n: int, accuracy: float, steps: float) -> pd.DataFrame:
    """Rows whose scores share the difficulty of each document, so that pairs are correlated."""
    length = LENGTH[task]
    hard = np.random.default_rng(7).random(n)
    score = (0.85 * hard + 0.15 * rng.random(n) < accuracy).astype(float)
    actual = np.full(n, length) if steps >= length else np.clip(rng.poisson(steps, n), 1, length)
    tokens = np.minimum(length, 1 + rng.poisson(0.4 * length, n))
    return pd.DataFrame(
        {
            "doc_id": [f"{task}/{split}/{i}" for i in range(n)],
            "prompt_hash": "p",
            "prompt_tokens": 50,
            "text": "x",
            "answer": "1",
            "score": score,
            "configured_steps": length,
            "steps": actual,
            "forwards_full": actual,
            "forwards_suffix": 0,
            "forwards_block": 0,
            "seconds": 0.01 * actual,
            "slots": 1,
            "tokens_non_eos": tokens,
            "empty": tokens == 0,
            "generated": [[1, 2, int(s)] for s in score],
        }
    )


def records(n: int = 200, grid: bool = True) -> dict:
    """Both models, four tasks, full decoding, JoT and (with ``grid``) the threshold grid on dev and test."""
    rng = np.random.default_rng(0)
    out = {}
    for model in ("pocket-dream", "pocket-llada"):
        default = DEFAULT[model.removeprefix("pocket-")]
        for task, length in LENGTH.items():
            if task == "pocket_gsm8k":
                control = rows(task, "dev", rng, n, 0.4, 5)
                out |= [cell(model, task, "jot", control, split="dev", tau_max=3, spatial=False)]
            for split in ("dev", "test"):
                out |= [cell(model, task, "full", rows(task, split, rng, n, 0.8, length), split=split)]
                for tau in (10, 30, 60, 90, 120, 150) if grid else (default,) if split == "test" else ():
                    data = rows(task, split, rng, n, 0.8 - 1.2 / tau, length * (0.16 + tau / 400))
                    out |= [cell(model, task, "jot", data, split=split, tau_max=tau)]
    return out


def recorded(p: Point, rows: pd.DataFrame) -> tuple:
    """(id, Recorded) of exactly a point's resolved configuration."""
    family = family_of(p.model)
    chosen = settings.parse(p.method, p.params)
    rule = settings.build_method(p.method, family, chosen)
    model = next(m for _, m, _ in FAMILIES.values() if m.family == family)
    decode = dataclasses.asdict(settings.build_decode(model, chosen, TASK_TABLE[p.task], method=p.method))
    decode.pop("seed")
    return cell(p.model, p.task, p.method, rows, decode=decode, **dataclasses.asdict(rule))
