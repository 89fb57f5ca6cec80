"""Recorded runs and their samples as two plain pandas frames: what the notebooks query.

``runs`` has one row a recorded run. Within one dtype the key (model, task, split, method, seed, setting) names each run
uniquely, where ``setting`` is what differs from the defaults of its family, task and method. ``samples`` has one row a
decoded document of the runs asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from jot.errors import UserError, closest
from jot.models import FAMILIES, home
from jot.records import metas, on, plain, take
from jot.records.load import machine, read_columns
from jot.runs import settings
from jot.tasks import TASKS, read_jsonl, split_file

SAMPLE = ["doc_id", "prompt_hash", "score", "answer", "text", "configured_steps", "steps", "forwards_full",
          "forwards_suffix", "forwards_block", "tokens_non_eos", "empty", "generated"]  # fmt: skip
TRACE = ["trace_step", "trace_rule", "trace_margin", "trace_threshold", "trace_mean_margin", "trace_masked"]
SHOWN = {"tau": "tau_max", "tau_min": "tau_min", "gamma": "gamma", "window": "window", "spatial": "spatial",
         "cache": "cache", "block": "block_length", "temperature": "temperature", "ranking": "ranking"}  # fmt: skip


def folder(store: str | Path | None = None) -> Path:
    """A record folder, ``data/records`` by default."""
    return Path(store) if store else home() / "data" / "records"


def family(model: str) -> str | None:
    """``"llada"`` or ``"dream"``: by the model's name where it tells, else by its configuration file."""
    named = [known.family for _, known, _ in FAMILIES.values() if known.family in Path(model).name.lower()]
    if len(named) == 1:
        return named[0]
    try:
        return getattr(settings.model_class(model), "family", None)
    except UserError:
        return None


@cache
def defaults(family: str, task: str, method: str) -> dict:
    """What `jot evaluate` resolves where no setting is given, those that are off left out."""
    model = next(model for _, model, _ in FAMILIES.values() if model.family == family)
    return settings.in_force(*settings.resolve(model, method, {}, TASKS.get(task)))


def _spell(changed: dict) -> str:
    return " ".join(f"{name}={str(value).replace(' ', '')}" for name, value in sorted(changed.items()))


def _row(cell_id: str, meta: dict) -> dict:
    config = meta["config"]
    method, name = config["method"]["name"], Path(config["model"]).name
    kind = config.get("family") or family(name)
    base = defaults(kind, config["task"], method)
    have = on(plain({**config["decode"], **config["method"]}))
    changed = {key: have.get(key, False) for key in {*have, *base} - {"seed", "name"} if have.get(key) != base.get(key)}
    rest = {key: value for key, value in changed.items() if key != "tau_max"}
    return {
        "cell": cell_id, "model": name, "family": kind, "task": config["task"], "split": config["split"],
        "method": method, "seed": config.get("seed") or 0, "dtype": config["dtype"], "setting": _spell(changed),
        "rest": _spell(rest), **{column: have.get(key) for column, key in SHOWN.items()},
        "n": meta["totals"]["samples"], "weights": config["fingerprint"], "hardware": machine(meta),
    }  # fmt: skip


def runs(store: str | Path | None = None, **where: object) -> pd.DataFrame:
    """One row a recorded run.

    Args:
        store: a record folder, live or packed; ``data/records`` by default.
        **where: values to keep, by column: one, or a list of them.

    Returns:
        Columns ``cell model family task split method seed dtype setting rest`` (``rest``: the setting without
        ``tau_max``), the resolved ``tau tau_min gamma window spatial cache block temperature ranking``, and
        ``n weights hardware``. Models and tasks stand in the order in which they are asked for.

    Raises:
        UserError: there is no such store, or nothing is recorded of a model or task that is asked for.
    """
    if not (cells := metas(folder(store))):
        raise UserError(f"there are no records in {folder(store)}; give a folder that `jot evaluate` has written")
    found = pd.DataFrame([_row(cell_id, meta) for cell_id, meta in cells.items()])
    found = found[found["n"] > 0]
    for column, wanted in where.items():
        wanted = list(wanted) if isinstance(wanted, (list, tuple, set)) else [wanted]
        if column not in ("model", "task"):
            found = found[found[column].isin(wanted)]
            continue
        wanted, known = [Path(name).name for name in wanted], sorted(set(found[column]))
        if absent := [name for name in wanted if name not in known]:
            there = closest(absent[0], known, "recorded")
            raise UserError(f"no recorded runs of {column} {absent[0]!r} in {folder(store)}{there}")
        found = found[found[column].isin(wanted)]
        found = found.sort_values(column, key=lambda names, order=wanted: names.map(order.index), kind="stable")
    return found.reset_index(drop=True)


def samples(
    found: pd.DataFrame, store: str | Path | None = None, columns: Sequence[str] = SAMPLE, limit: int | None = None,
    paired: bool = True,
) -> pd.DataFrame:  # fmt: skip
    """One row a decoded document of these runs, the columns of ``runs`` beside it.

    Args:
        found: rows of ``runs``.
        store: the folder that they were read from.
        columns: of a record; ``TRACE`` where a run was traced.
        limit: the first n documents of each task's fixed order.
        paired: refuse runs of one model, task and split that do not hold the same documents.

    Returns:
        Runs in the order of ``found``, the documents of each in the order of their names as text (which is the order
        that every bootstrap draws from). ``score`` is float64.

    Raises:
        UserError: runs of one model that differ in weights or dtype, or runs of it on one task that differ in
            hardware, prompts or documents, so that no comparison of them is paired; a limit above what is recorded.
    """
    for column in found.columns.intersection(["weights", "dtype", "hardware"]):
        of = found["model"] + (" / " + found["task"] if column == "hardware" else "")  # pairs are of one task
        kinds = found.groupby(of)[column].unique()
        for key, values in kinds[kinds.map(len) > 1].items():
            raise UserError(f"the runs of {key} differ in {column}: {values[0]!r} and {values[1]!r}; choose one kind")
    columns = list(dict.fromkeys(["doc_id", "prompt_hash", *columns]))
    if found.empty:
        return found.drop(columns="n").assign(**{name: [] for name in columns})
    read = read_columns(folder(store), list(found["cell"]), columns)
    read = read.sort_values("doc_id", kind="stable")
    rows = found.drop(columns="n").merge(read, on="cell", validate="one_to_many")
    if limit is not None:
        rows = _first(rows, limit)
    for key, group in rows.groupby(["model", "task", "split"], sort=False):
        sets = group.groupby("cell", sort=False)["doc_id"].agg(frozenset)
        if paired and sets.nunique() > 1:
            raise UserError(
                f"the runs of {' / '.join(key)} do not hold the same documents ({sets.map(len).min()} and "
                f"{sets.map(len).max()}); run them with one --limit, or show fewer methods"
            )
        if (group.groupby("doc_id")["prompt_hash"].nunique() > 1).any():
            raise UserError(f"the runs of {' / '.join(key)} differ in the prompts of some documents; choose one kind")
    return rows


def order(task: str, split: str, ids: Iterable[str]) -> list[str]:
    """Document ids in the fixed order whose first n a ``limit`` takes."""
    ids, spec = list(ids), TASKS.get(task)
    if spec is None or spec.subject is None or not spec.packaged:
        return take(ids)
    documents = read_jsonl(split_file(spec, split, None)[1])
    kept, known = set(ids), [doc["id"] for doc in documents]
    return [doc_id for doc_id in take(known, None, [doc[spec.subject] for doc in documents]) if doc_id in kept]


def _first(rows: pd.DataFrame, limit: int) -> pd.DataFrame:
    """The first ``limit`` documents of each task's fixed order."""
    kept = []
    for (task, split), group in rows.groupby(["task", "split"], sort=False):
        most = group.groupby("cell")["doc_id"].count().max()
        if limit > most:
            raise UserError(f"limit={limit} is above the {most} recorded documents of {task}; use at most {most}")
        kept.append(group[group["doc_id"].isin(order(task, split, group["doc_id"].unique())[:limit])])
    return pd.concat(kept).sort_index().reset_index(drop=True)
