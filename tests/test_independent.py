"""Every interval that notebooks 01 and 06 show, computed again from the raw Parquet rows by another path.

Nothing of ``jot.stats`` is used for the expected values: Wilson from its formula, Tango by bisection of
the score test, McNemar from scipy's binomial test, the bootstrap from numpy and the documented index definition,
logistic regression by Newton's method, kappa from its definition. Rows come from pandas, not from ``jot.records``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from functools import cache
from pathlib import Path

import cells
import fake_records
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from scipy.stats import binom, binomtest, norm
from tokenizers import Tokenizer

from jot import stats
from jot.records.pack import pack

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "data" / "records"
Z = norm.isf(0.025)
DEFAULTS = {"tau_min": 1, "gamma": 0.5, "window": 8, "spatial": True, "combine": "or"}
recorded = pytest.mark.skipif(not (RECORDS / "manifest.json").is_file(), reason="no recorded runs")


# --- the other path: numbers --------------------------------------------------------------------------------


def wilson(k: int, n: int) -> tuple[float, float]:
    """In percent."""
    p, z2 = k / n, Z * Z
    middle, half = p + z2 / (2 * n), Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return 100 * (middle - half) / (1 + z2 / n), 100 * (middle + half) / (1 + z2 / n)


def tango(b: int, c: int, n: int) -> tuple[float, float]:
    """In points; the score statistic with the constrained estimate from the roots of its quadratic."""

    def statistic(delta: float) -> float:
        roots = np.roots([2 * n, -b - c + (2 * n - b + c) * delta, -c * delta * (1 - delta)])
        q = max(float(np.real(root)) for root in roots)
        spread = n * (2 * q + delta * (1 - delta))
        return (b - c - n * delta) / math.sqrt(spread) if spread > 1e-12 else math.copysign(math.inf, b - c - n * delta)

    limits = []
    for sign in (1, -1):
        inner, outer = (b - c) / n, -sign * (1 - 1e-9)
        for _ in range(60):
            middle = (inner + outer) / 2
            inner, outer = (middle, outer) if sign * statistic(middle) < Z else (inner, middle)
        limits.append(100 * (inner + outer) / 2)
    return limits[0], limits[1]


def mcnemar(b: int, c: int) -> tuple[float, float]:
    exact = binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    return exact, 1.0 if b == c else exact - binom.pmf(min(b, c), b + c, 0.5)


def resampled(rows: list[np.ndarray]) -> np.ndarray:
    """Sums of each row over 10,000 resamples of its documents, ``[rows, 10000]``; all rows of one length."""
    n, out, values = len(rows[0]), np.empty((len(rows), 10_000)), np.stack(rows, axis=1)
    rng = np.random.default_rng(0)
    for start in range(0, 10_000, 256):
        index = rng.integers(n, size=(min(256, 10_000 - start), n))
        # A row of the matrix picks the drawn documents, one that is drawn twice twice: no copy of what they hold.
        drawn = csr_array((np.ones(index.size), index.ravel(), np.arange(0, index.size + 1, n)), (len(index), n))
        out[:, start : start + len(index)] = (drawn @ values).T
    return out


def newton(design: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and standard errors of a logistic regression; columns scaled for stability."""
    scale = np.abs(design).max(0)
    x, beta = design / scale, np.zeros(design.shape[1])
    for _ in range(60):
        mu = 1 / (1 + np.exp(-x @ beta))
        hessian = x.T @ (x * (mu * (1 - mu))[:, None])
        beta = beta + np.linalg.solve(hessian, x.T @ (y - mu))
    return beta / scale, np.sqrt(np.diag(np.linalg.inv(hessian))) / scale


def test_the_index_definition_is_the_documented_one():
    rng = np.random.default_rng(0)
    for chunk, _ in zip(stats.bootstrap_indices(7), range(3), strict=False):
        assert np.array_equal(chunk, rng.integers(7, size=(256, 7)))


def test_the_other_path_knows_published_values():
    assert [round(x, 1) for x in wilson(30, 100)] == [21.9, 39.6]
    assert [round(x, 1) for x in tango(26, 37, 500)] == [-5.4, 0.9]
    assert [round(x, 1) for x in tango(15, 74, 500)] == [-15.5, -8.3]
    assert [round(x, 3) for x in mcnemar(26, 37)] == [0.207, 0.169]


# --- the other path: rows -----------------------------------------------------------------------------------


class Raw:
    """A packed record folder, read with json, pandas and tokenizers alone, each file once; all columns or these."""

    def __init__(self, folder: Path, *columns: str):
        manifest = json.loads((folder / "manifest.json").read_text())
        self.cells = manifest["cells"]
        for cell in self.cells.values():
            cell["config"]["decode"] = manifest["places"][cell["place"]]["decode"]
        self.words = Tokenizer.from_file(str(ROOT / "data" / "models" / "pocket-llada" / "tokenizer.json"))  # of both
        self.files = cache(lambda name: pd.read_parquet(folder / name, columns=list(columns) or None))
        self.rows = cache(self._rows)

    def _rows(self, name: str) -> pd.DataFrame:
        frame = self.files(self.cells[name]["file"])
        frame = frame[frame["cell"] == name[-10:]].sort_values("doc_id").reset_index(drop=True)
        whole = frame["answer"] == "\0"  # stands for the whole text, which is null where the tokenizer makes it
        tokens = [ids[:n].tolist() for ids, n in frame.loc[whole, ["generated", "tokens_non_eos"]].to_numpy()]
        made = pd.Series(self.words.decode_batch(tokens), frame.index[whole], dtype="str")
        return frame.assign(answer=frame["answer"].mask(whole, frame["text"].fillna(made)))

    def find(self, model: str, task: str, method: str, tau=None, split="test", seed=0) -> str | None:
        """The cell with the family's own decoding: the one that full decoding of the task has most often."""
        usual = [json.dumps(on(m["config"]["decode"]), sort_keys=True) for m in self.cells.values()
                 if (m["config"]["model"], m["config"]["task"]) == (model, task)]  # fmt: skip
        usual = max(set(usual), key=usual.count) if usual else ""
        for name, meta in self.cells.items():
            config = meta["config"]
            rule = on(config["method"])
            wanted = {"name": method, **(on(DEFAULTS | {"tau_max": tau}) if method == "jot" else {})}
            here = (config["model"], config["task"], config["split"], config.get("seed") or 0)
            same = json.dumps(on(config["decode"]), sort_keys=True) == usual
            if here == (model, task, split, seed) and rule == wanted and same:
                return name
        return None


def on(parameters: dict) -> dict:
    return {k: v for k, v in parameters.items() if v not in (None, False, [], ())}


def counts(raw: Raw, one: str, two: str, ids=None) -> tuple[int, int, int]:
    """Repairs, breaks and documents of two cells."""
    both = raw.rows(one).merge(raw.rows(two), on="doc_id")
    both = both if ids is None else both[both["doc_id"].isin(ids)]
    x, y = both["score_x"] > 0.5, both["score_y"] > 0.5
    return int((x & ~y).sum()), int((~x & y).sum()), len(both)


def close(found, expected, tolerance=1e-5) -> None:
    assert list(map(float, found)) == pytest.approx(list(map(float, expected)), abs=tolerance, nan_ok=True)


def paired(row, b: int, c: int, n: int, prefix: str = "") -> None:
    """The difference of a row and its limits."""
    close((row[f"{prefix}difference"], row[f"{prefix}low"], row[f"{prefix}high"]), (100 * (b - c) / n, *tango(b, c, n)))


class Ratios:
    """Bootstrap intervals asked for one by one and computed together, one index set per number of documents."""

    def __init__(self):
        self.asked: list[tuple[np.ndarray, np.ndarray, tuple]] = []

    def expect(self, top: pd.Series, bottom: pd.Series, shown: tuple) -> None:
        self.asked.append((top.to_numpy(float), bottom.to_numpy(float), shown))

    def check(self) -> int:
        for n in {len(top) for top, _, _ in self.asked}:
            asked = [entry for entry in self.asked if len(entry[0]) == n]
            distinct = {values.tobytes(): values for top, bottom, _ in asked for values in (top, bottom)}
            sums = dict(zip(distinct, resampled(list(distinct.values())), strict=True))
            for top, bottom, shown in asked:
                draws = sums[top.tobytes()] / sums[bottom.tobytes()]
                close(shown, (top.sum() / bottom.sum(), *np.percentile(draws, [2.5, 97.5])))
        return len(self.asked)


# --- notebook 01 --------------------------------------------------------------------------------------------


def check_main(space: dict, folder: Path) -> tuple[int, int]:
    """All intervals in the frames of notebook 01; how many bootstrap and calibration intervals were compared."""
    columns = "cell doc_id score answer text generated tokens_non_eos configured_steps steps"
    raw, ratios = Raw(folder, *columns.split()), Ratios()
    for row in space["main"].to_dict("records"):
        rows = raw.rows(row["cell"])
        right = int((rows["score"] > 0.5).sum())
        close((row["score"], row["score_low"], row["score_high"]), (100 * right / len(rows), *wilson(right, len(rows))))
        shown = (row["speedup"], row["speedup_low"], row["speedup_high"])
        ratios.expect(rows["configured_steps"], rows["steps"], shown)
        tau = None if row["method"] != "jot" else row["tau"]
        if row["name"] in ("full", "prophet", "jot", "calibrated"):  # found by the family's own decoding
            known = raw.find(row["model"], row["task"], row["method"], tau)
            assert known == row["cell"] or row["name"] == "prophet"
    for row in space["pairs"].to_dict("records"):
        b, c, n = counts(raw, row["cell"], row["base"])
        assert (row["b"], row["c"], row["n"]) == (b, c, n)
        paired(row, b, c, n)
        close((row["p"], row["midp"]), mcnemar(b, c), 1e-12)
    for row in space["others"].to_dict("records"):
        paired(row, *counts(raw, row["cell"], row["base"]))
        steps = (raw.rows(row[name])["steps"] for name in ("base", "cell"))
        ratios.expect(*steps, (row["speedup"], row["speedup_low"], row["speedup_high"]))
        if full := raw.find(row["model"], row["task"], "full"):
            paired(row, *counts(raw, row["base"], full), prefix="full_")
    chosen = 0
    for (model, task, _), tau in space["chosen"].dropna().items():
        jot = raw.find(model, task, "jot", tau)
        paired(space["on_test"].loc[(model, task, tau)], *counts(raw, jot, raw.find(model, task, "full")))
        chosen += 1
    check_seeds(space, raw, ratios)
    return ratios.check(), chosen


def check_seeds(space: dict, raw: Raw, ratios: Ratios) -> None:
    """Tables of other seeds, where they are recorded."""
    for row in space["by_seed"].to_dict("records"):
        model = row["model"] + (f"-seed{row['trained']}" if row["trained"] else "")
        tau = 90 if "dream" in model else 30
        full, jot = raw.find(model, row["task"], "full"), raw.find(model, row["task"], "jot", tau)
        assert all(known == shown or pd.isna(shown) for known, shown in ((full, row["base"]), (jot, row["cell"])))
        if pd.notna(row["speedup"]):
            shown = (row["speedup"], row["speedup_low"], row["speedup_high"])
            ratios.expect(raw.rows(jot)["configured_steps"], raw.rows(jot)["steps"], shown)
        if pd.notna(row["difference"]):
            paired(row, *counts(raw, jot, full))
    for row in space["floor"].to_dict("records"):
        at = [int(word) for word in row["way"].replace("\xa0", " ").split() if word.isdigit()]
        one = raw.find(row["model"], row["task"], "full", seed=at[0])
        method = "full" if row["way"].startswith("Full") else "jot"
        two = raw.find(row["model"], row["task"], method, 90, seed=at[-1])
        paired(row, *counts(raw, two, one))
        both = raw.rows(two).merge(raw.rows(one), on="doc_id")
        same = {"outcomes": both["score_x"] == both["score_y"],
                "answers": both["answer_x"].fillna("") == both["answer_y"].fillna("")}  # fmt: skip
        for key, hits in same.items():
            close((row[f"{key}_low"], row[f"{key}_high"]), wilson(int(hits.sum()), len(both)))


def test_main_results_on_made_up_records(tmp_path):
    fake_records.write(tmp_path / "live", fake_records.records(40))
    pack(tmp_path / "live", tmp_path / "packed")
    space, _ = cells.run("01_main_results", until="noise-runs", store=tmp_path / "packed", out=tmp_path,
                         models=["pocket-llada"], methods=["full", "jot", "calibrated"])  # fmt: skip
    assert check_main(space, tmp_path / "packed")[0] >= 8


@recorded
@pytest.mark.slow
def test_main_results_as_recorded(tmp_path):
    """What is committed is what the records give, and so are the frames that it is printed from."""
    frames = ("main", "pairs", "others", "chosen", "on_test", "by_seed", "floor")
    ratios, chosen = check_main(cells.check_committed("01_main_results", tmp_path, frames), RECORDS)
    assert ratios > 16 and chosen > 0


# --- notebook 06 --------------------------------------------------------------------------------------------


def first(ids, n: int) -> set[str]:
    """The first n of the fixed order, from its definition: by a keyed hash of the id."""
    return set(sorted(ids, key=lambda i: hashlib.sha256(f"20260101/{i}".encode()).digest()[:7])[:n])


def number(doc_id: str) -> int:
    return int(doc_id.rpartition("/")[2])


def shown(text: str, value: float, low: float, high: float, digits: int = 1) -> None:
    """Whether a printed value with its interval is this one, to the digits that are printed."""
    found = [float(x) for x in re.findall(r"[-+]?\d+(?:\.\d+)?", text)]
    assert found == pytest.approx([value, low, high], abs=0.5001 * 10.0**-digits), text


def shares(text: str, hits) -> None:
    n, k = len(hits), int(np.sum(hits))
    shown(text, 100 * k / n, *wilson(k, n))


def joined(raw: Raw, jot: str, full: str) -> pd.DataFrame:
    both = raw.rows(jot).merge(raw.rows(full), on="doc_id", suffixes=("_a", "_b"))
    return both.iloc[np.argsort(both["doc_id"].map(number), kind="stable")].reset_index(drop=True)


def check_outcomes(raw: Raw, space: dict, model: str, outcomes: pd.DataFrame, agreement: pd.DataFrame) -> None:
    base = raw.find(model, "pocket_gsm8k", "full")
    for (key, n), t in space["tests"].iterrows():
        last = float(key.rpartition(" ")[2])
        how = {"method": "full", "seed": int(last)} if key.startswith("full") else {"method": "jot", "tau": last}
        both = joined(raw, raw.find(model, "pocket_gsm8k", **how), base)
        both = both[both["doc_id"].isin(first(both["doc_id"], n))]
        right, full = both["score_a"] > 0.5, both["score_b"] > 0.5
        b, c = int((right & ~full).sum()), int((~right & full).sum())
        assert (t["b"], t["c"], t["n"]) == (b, c, n) == (b, c, len(both))
        paired(t, b, c, n)
        close((t["p"], t["midp"]), mcnemar(b, c), 1e-12)
        row = outcomes[(outcomes["Run"] == key) & (outcomes["n"] == f"{n:,}")].iloc[0]
        shares(row["Score, %"], right)
        same = agreement[(agreement["Run"] == key) & (agreement["n"] == f"{n:,}")].iloc[0]
        if "degenerate" not in row["Repairs, %"]:
            shares(row["Repairs, %"], right & ~full)
            shares(row["Breaks, %"], ~right & full)
            shares(same["Same outcome, %"], right == full)
            shares(same["Same final answer, %"], both["answer_a"].fillna("") == both["answer_b"].fillna(""))
            tokens = zip(both["generated_a"], both["generated_b"], strict=True)
            shares(same["Same tokens throughout, %"], [np.array_equal(x, y) for x, y in tokens])


def check_group(row: pd.Series, part: pd.DataFrame) -> None:
    shares(row["JoT error, %"], part["score_a"] < 0.5)
    shares(row["Full error, %"], part["score_b"] < 0.5)
    b = int(((part["score_a"] > 0.5) & (part["score_b"] < 0.5)).sum())
    c = int(((part["score_a"] < 0.5) & (part["score_b"] > 0.5)).sum())
    shown(row["JoT minus full, score points"], 100 * (b - c) / len(part), *tango(b, c, len(part)))
    steps = [int(x) for x in row["Steps"].split(" to ")]
    assert (row["n"], steps[0], steps[-1]) == (f"{len(part):,}", part["steps_a"].min(), part["steps_a"].max())


def check_groups(both: pd.DataFrame, value: pd.Series, fifths: pd.DataFrame) -> None:
    order = sorted(range(len(both)), key=lambda i: (value[i], number(both["doc_id"][i])))
    at = 0
    for _, row in fifths.iterrows():
        check_group(row, both.iloc[order[at : (at := at + int(row["n"].replace(",", "")))]])
    assert at == len(both)


def check_trend(both: pd.DataFrame, scale: pd.Series, length: pd.Series, row: pd.Series) -> None:
    design = np.column_stack([np.ones(len(both)), scale, length])
    beta, error = newton(design, (both["score_a"] < 0.5).to_numpy(float))
    shown(row["Odds ratio"], *np.exp([beta[1], beta[1] - Z * error[1], beta[1] + Z * error[1]]), digits=2)
    assert float(row["p"]) == pytest.approx(2 * norm.sf(abs(beta[1]) / error[1]), rel=0.06)


@recorded
@pytest.mark.slow
@pytest.mark.parametrize(("model", "tau"), [("pocket-dream", 90.0), ("pocket-llada", 30.0)])
def test_failure_analysis_as_recorded(model, tau, tmp_path):
    space, gave = cells.run("06_failure_analysis", model=model, tau_max=tau, out=tmp_path)
    tables = {name: results[-1].frame for name, results in gave.items() if results and hasattr(results[-1], "frame")}
    raw, traced = Raw(RECORDS), Raw(RECORDS / "traces")
    check_outcomes(raw, space, model, tables["outcomes"], tables["agreement"])
    base = raw.find(model, "pocket_gsm8k", "full")
    traces = traced.rows(traced.find(model, "pocket_gsm8k", "full")).set_index("doc_id")["trace_mean_margin"]
    for t in (tau, tau / 3):
        mine = {name: table[table["τ"] == f"{t:g}"] for name, table in tables.items() if "τ" in table}
        both = joined(raw, raw.find(model, "pocket_gsm8k", "jot", t), base)
        speedup = both["configured_steps_a"] / both["steps_a"]
        check_groups(both, speedup, mine["by-speedup"])
        for _, row in mine["by-steps"].iterrows():
            ends = [int(x) for x in row["Steps"].split(" to ")]
            check_group(row, both[both["steps_a"].between(ends[0], ends[-1])])
        part = both[both["doc_id"].isin(traces.index)].reset_index(drop=True)
        margin = part["doc_id"].map(lambda doc: float(traces[doc][0]))
        check_groups(part, margin, mine["by-margin"])
        sets = [(both, np.log2(speedup), side) for side in "ba"], [(part, margin, side) for side in "ba"]
        for rows, words in zip(sets, ("achieved speedup", "mean margin"), strict=True):
            found = mine["trend-table"][mine["trend-table"]["JoT's errors on"].str.startswith(words)]
            for (frame, scale, side), (_, row) in zip(rows, found.iterrows(), strict=True):
                check_trend(frame, scale, frame[f"tokens_non_eos_{side}"], row)
        names = [traced.find(model, "pocket_gsm8k", *how) for how in (("jot", t), ("full",))]
        twins = joined(traced, *names)
        pairs = zip(twins["generated_a"], twins["generated_b"], twins["trace_rule_a"], strict=True)
        rules = [rule[np.flatnonzero(one != two)[0]] for one, two, rule in pairs if (one != two).any()]
        for _, row in mine["differences"].iterrows():
            rule = {"schedule alone": 1, "exit alone": 2, "exit and schedule": 3}[row["Committed by"]]
            assert row["First differences"] == str(rules.count(rule))
            shares(row["Share, %"], np.array(rules) == rule)


def test_the_finders_kappa():
    space, _ = cells.run("06_failure_analysis", until="labels", limit=30)
    frame, modes = space["labels"], space["MEANING"]
    table = np.array([[((frame["label"] == x) & (frame["found"] == y)).mean() for y in modes] for x in modes])
    rows, columns = table.sum(1), table.sum(0)
    agree, chance = np.trace(table), rows @ columns
    kappa = (agree - chance) / (1 - chance)
    # Fleiss, Cohen and Everitt (1969), as in Agresti's textbook
    first_term = sum(table[i, i] * (1 - (rows[i] + columns[i]) * (1 - kappa)) ** 2 for i in range(len(table)))
    off = sum(table[i, j] * (columns[i] + rows[j]) ** 2 for i in range(len(table)) for j in range(len(table)) if i != j)
    variance = first_term + (1 - kappa) ** 2 * off - (kappa - chance * (1 - kappa)) ** 2
    error = math.sqrt(variance / len(frame)) / (1 - chance)
    close(space["kappa"], (kappa, kappa - Z * error, min(1.0, kappa + Z * error)), 1e-8)
