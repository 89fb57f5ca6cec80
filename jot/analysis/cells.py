"""Which recorded run is which: cells of a record set found by what they are, never by their id."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jot.errors import UserError
from jot.records import Recorded, on, plain
from jot.runs.grid import Point
from jot.tasks import TASKS as TASK_TABLE

TAUS = (10, 30, 60, 90, 120, 150)  # the grid of the paper's threshold ablations
DEFAULT_TAU = {"dream": 90, "llada": 30}
STANDARD_JOT = {"tau_min": 1, "gamma": 0.5, "window": 8, "spatial": True, "combine": "or", "block_start": False,
                "sample": False}  # fmt: skip
MODELS = ("pocket-dream", "pocket-llada")  # the paper's order: Dream first
TASKS = ("pocket_gsm8k", "pocket_mmlu", "pocket_hellaswag", "pocket_humaneval")
PLANNED = {"pocket_gsm8k": 2000, "pocket_mmlu": 2000, "pocket_hellaswag": 2000, "pocket_humaneval": 1000}
METHODS = {"full": "Full decoding", "jot": "JoT (default)", "calibrated": "JoT (calibrated)"}
BASELINES = {"prophet": "Prophet (our port)", "klass": "KLASS", "fastdllm": "Fast-dLLM"}
ANSWER = {"region": "answer", "answer_start": 102, "constraints": "100:409"}  # " ####" fixed at offset 100
VARIANTS = {  # name -> label, method, settings; shown below the paper's methods and left out of the marks
    "prophet-answer": ("Prophet (official answer region)", "prophet", ANSWER),
    "klass-ported": ("KLASS (ported)", "klass", {"first_kl": "skip"}),
    "fastdllm-nocache": ("Fast-dLLM, no cache (ours)", "fastdllm", {"cache": "none"}),
}
ALL = ("full", *BASELINES, "jot", "calibrated", *VARIANTS)  # the order of a table's rows
LABELS = METHODS | BASELINES | {name: label for name, (label, *_) in VARIANTS.items()}
PUBLISHED = METHODS | {"prophet": "Prophet", "klass": "KLASS", "fastdllm": "Fast-dLLM (DualCache)", "jot": "JoT"}
PAPER_METHODS = ("full", *BASELINES, "jot")
TRAINING_SEEDS = (1, 2)  # beside the shipped seed 0
NOISE_SEEDS = (1, 2)
CONFIRMATORY = len(MODELS) * len(TASKS)

Records = Mapping[str, Recorded]


class Cell(NamedTuple):
    """One recorded run, by its id."""

    id: str
    recorded: Recorded

    @property
    def config(self) -> Mapping:
        return self.recorded.meta["config"]

    @property
    def tau(self) -> float | None:
        return method_params(self.config).get("tau_max")

    @property
    def n(self) -> int:
        return self.recorded.n

    def column(self, name: str) -> np.ndarray:
        """One field of every sample, float64 of shape (n,), ordered by document."""
        return self.recorded.frame.sort_values("doc_id", kind="stable")[name].to_numpy(dtype=float)


def short(model: str) -> str:
    """A model's name as cells carry it: the last part of a hub id or path."""
    return Path(model).name


def family(config: Mapping) -> str:
    """``"llada"`` or ``"dream"``: as recorded, else by the model's name, else by its configuration file."""
    if "family" in config:
        return config["family"]
    named = [name for name in DEFAULT_TAU if name in short(config["model"]).lower()]
    if len(named) == 1:
        return named[0]
    from jot.runs.settings import model_class

    return model_class(config["model"]).family


def split_of(task: str, role: str) -> str | None:
    """The task's own name of its "test" or "dev" split; None where it has no second split to calibrate on."""
    splits = TASK_TABLE[task].splits if task in TASK_TABLE else ("test", "dev")
    return splits[0] if role == "test" else splits[1] if len(splits) > 1 else None


def method_name(config: Mapping) -> str:
    return str(config["method"]["name"])


def method_params(config: Mapping) -> dict:
    return {k: v for k, v in config["method"].items() if k != "name"}


def _agrees(found: Mapping, wanted: Mapping) -> bool:
    return all(found[k] == v for k, v in wanted.items() if k in found)


@cache
def standard_decoding(family: str, task: str, method: str = "full") -> dict:
    """The decoding parameters that ``evaluate`` resolves when none is given, as a cell records them."""
    from jot.models import FAMILIES
    from jot.runs.settings import build_decode

    model = next(model for _, model, _ in FAMILIES.values() if model.family == family)
    resolved = dataclasses.asdict(build_decode(model, {}, TASK_TABLE.get(task), method=method))
    return {k: v for k, v in plain(resolved).items() if k != "seed"}


def is_standard(config: Mapping) -> bool:
    """Decoded with the family's defaults for the task; for JoT, all but ``tau_max`` at its default too."""
    standard = standard_decoding(family(config), config["task"], method_name(config))
    return _agrees(config.get("decode") or {}, standard) and (
        method_name(config) != "jot" or _agrees(method_params(config), STANDARD_JOT)
    )


@cache
def resolved(point: Point) -> tuple[dict, dict]:
    """Method and decoding parameters that ``evaluate`` would record for a point, those that are off left out."""
    from jot.models import FAMILIES
    from jot.runs import settings

    chosen = settings.parse(point.method, point.params)
    name = family({"model": point.model})
    model = next(model for _, model, _ in FAMILIES.values() if model.family == name)
    rule = settings.build_method(point.method, name, chosen)
    decode = dataclasses.asdict(settings.build_decode(model, chosen, TASK_TABLE.get(point.task), method=point.method))
    return on(plain(settings.describe(rule))), on(plain({k: v for k, v in decode.items() if k != "seed"}))


def lookup(records: Records, point: Point) -> Cell | None:
    """The recorded cell of exactly a point's resolved configuration, or None; ``limit`` and ``trace`` play no part."""
    method, decode = resolved(point)
    for cell in map(Cell._make, records.items()):
        config = cell.config
        if (
            (config["model"], config["task"], config["split"], config.get("seed") or 0)
            == (short(point.model), point.task, point.own_split, point.seed)
            and on(plain(config["method"])) == method
            and on(plain(config["decode"])) == decode
            and cell.n
        ):
            return cell
    return None


def baseline(model: str, task: str, method: str, split: str = "test", seed: int = 0) -> Point | None:
    """What a baseline or variant of the main table decodes; None where it does not apply.

    The official region of Prophet needs the tokens that announce an answer: one of the pocket tokenizer.
    """
    if method in BASELINES:
        return Point.of(model, task, method, split, seed)
    _, rule, settings = VARIANTS[method]
    if method == "prophet-answer" and not (task == "pocket_gsm8k" and short(model).startswith("pocket-")):
        return None
    return Point.of(model, task, rule, split, seed, **settings)


def trained(model: str, seed: int) -> str:
    """The same model from another training seed, by the name of its records; seed 0 is the shipped one."""
    return f"{model}-seed{seed}" if seed else model


def find(
    records: Records,
    model: str,
    task: str,
    method: str = "full",
    *,
    tau: float | None = None,
    split: str = "test",
    seed: int = 0,
    accept: Callable[[Mapping], bool] = is_standard,
) -> Cell | None:
    """The one cell that fits, or None.

    Args:
        tau: JoT's ``tau_max``.
        split: "test" or "dev"; the task's own name for it is looked up.
        accept: a further filter on the configuration.

    Raises:
        UserError: several cells fit, so that the table would depend on their order.
    """
    hits = [
        cell
        for cell in map(Cell._make, records.items())
        if (cell.config["model"], cell.config["task"], cell.config["split"])
        == (short(model), task, split_of(task, split))
        and method_name(cell.config) == method
        and (cell.config.get("seed") or 0) == seed
        and (tau is None or cell.tau == tau)
        and cell.n
        and accept(cell.config)
    ]
    if len(hits) > 1:
        raise UserError(
            f"{len(hits)} recorded cells fit {model} / {task} / {split} / {method}: "
            f"{', '.join(sorted(cell.id for cell in hits))}; use a store that holds one of them"
        )
    return hits[0] if hits else None
