"""Decoding records again: what counts as equal, and what is judged."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from jot.reproduce import again, verify
from jot.reproduce.again import Agreement, agreement


def frame(*scores: float | None, token: int = 1) -> pd.DataFrame:
    return pd.DataFrame({
        "doc_id": [str(i) for i in range(len(scores))], "score": list(scores),
        "generated": [np.array([token, i]) for i in range(len(scores))],
    })  # fmt: skip


def test_a_share_of_problems_equals_its_record_in_single_precision():
    recorded = frame(float(np.float32(2 / 3)), 1.0, float("nan"), float(np.float32(1 / 3)))
    assert agreement(recorded, frame(2 / 3, 1.0, None, 0.34)) == Agreement(4, 3, 4, [])
    assert agreement(recorded, frame()) == Agreement(0, 0, 0, [])


def test_other_tokens_are_no_equal_sequence():
    assert agreement(frame(1.0), frame(1.0, token=2)).tokens == 0


@pytest.mark.parametrize(("dtype", "good"), [("float32", False), ("bfloat16", True)])
def test_half_precision_is_told_and_not_judged(capsys, dtype, good):
    found = pd.DataFrame({"family": ["dream"], "dtype": [dtype]}, index=pd.Index(["c"], name="cell"))
    assert verify.judge(found, {"c": Agreement(10, 9, 5, [0.7] * 5)}) is good
    said = capsys.readouterr().out
    assert "5/10 token sequences equal" in said and ("not judged" in said) is good


def test_nothing_decoded_is_no_success():
    assert verify.judge(pd.DataFrame({"family": ["dream"], "dtype": ["float32"]}, index=["c"]), {}) is False


def test_each_type_of_weights_is_loaded_for_itself(monkeypatch, tmp_path):
    """One model recorded in two types: each cell meets its own."""
    loaded = []

    def load(name, *, dtype, device):
        loaded.append((name, dtype))
        return dtype

    def evaluate(model, task, method, **how):
        return SimpleNamespace(cell=f"{task}-{model}", frame=frame(1.0))

    monkeypatch.setattr("jot.models.load", load)
    monkeypatch.setattr("jot.runs.harness.evaluate", evaluate)
    known = {
        f"pocket_mmlu-{dtype}": SimpleNamespace(meta={"config": {
            "model": "m", "dtype": dtype, "task": "pocket_mmlu", "split": "test", "seed": 0, "decode": {},
            "method": {"name": "full"},
        }})
        for dtype in ("bfloat16", "float32")
    }  # fmt: skip
    done = dict(again.redecode(known, dict.fromkeys(known, 1), tmp_path, 60.0, None))
    assert list(done) == list(known) and loaded == [("m", "bfloat16"), ("m", "float32")]
