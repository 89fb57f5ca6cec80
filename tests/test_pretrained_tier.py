"""The benchmarks, the bound and the dynamics in notebook 12 as recorded: numbers by hand, and what decides each
criterion; and the small table that is made of the benchmarks' traces."""

from __future__ import annotations

import cells as notebook
import fake_records
import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from smol import benchmarks
from tokenizers import Tokenizer

from jot import stats
from jot.errors import unpacked
from jot.models import home
from jot.paper import criteria
from jot.records.pack import pack
from jot.runs import grid
from jot.runs.frames import runs, samples

STORE = home() / "data" / "records" / "smol"
FULL, JOT, NEXT, FAST, OWN = "2ded36395f", "aa487b8c74", "b5ebba5e80", "e9dc55f147", "63381c9769"  # of gsm8k


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return notebook.run("12_pretrained", "holds-table", encoder="ngram", out=tmp_path_factory.mktemp("out"))


def raw() -> pd.DataFrame:
    """The samples of GSM8K, read with pandas and tokenizers alone."""
    rows = pd.read_parquet(STORE / "smol-dream.gsm8k.test.parquet")
    words = Tokenizer.from_file(str(unpacked(home() / "data" / "models" / "smol-dream" / "tokenizer.json")))
    tokens = [ids[:n].tolist() for ids, n in rows[["generated", "tokens_non_eos"]].to_numpy()]
    text = rows["text"].fillna(pd.Series(words.decode_batch(tokens)))
    return rows.assign(text=text, answer=rows["answer"].mask(rows["answer"] == "\0", text))


# --- the table of the traces --------------------------------------------------------------------------------


def test_what_is_kept_of_a_trace_by_hand():
    generated = [5, 6, 7, 2, 9, 9]  # ends at its fourth token
    assert benchmarks.measured(generated, [0, 3, 3, 1, 7, 1]) == (4, 4, 2)  # the commit beside the end is of the tail
    assert benchmarks.measured([5, 6, 7], [0, 0, 1]) == (3, 2, 2) and benchmarks.own_text([0, 5]) == 1


def test_the_table_is_made_of_a_live_store(tmp_path):
    points = [p for p in grid.read(home() / "notebooks" / "grids" / "smol_benchmarks.yaml")
              if p.task == "mmlu" and p.name in ("full", "jot") and not p.seed]  # fmt: skip
    rows = pd.DataFrame({
        "doc_id": [f"mmlu/test/{i}" for i in range(4)], "prompt_hash": "p", "prompt_tokens": 9, "text": "A",
        "answer": "A", "score": 1.0, "configured_steps": 3, "steps": 3, "forwards_full": 3,
        "forwards_suffix": 0, "forwards_block": 0,
        "seconds": 0.1, "slots": 16, "tokens_non_eos": 1, "empty": False, "generated": [[5, 2, 2]] * 4,
        "trace": [{"step": [0, 1, 2]}] * 4,
    })  # fmt: skip
    made = dict(fake_records.of(point, rows, "bfloat16") for point in points)
    live = fake_records.write(tmp_path / "live", made)
    pack(live, tmp_path / "packed")
    benchmarks.main([str(live), "--store", str(tmp_path / "packed")])
    found = pd.read_parquet(tmp_path / "packed" / "benchmarks.parquet")
    assert found.columns.tolist() == ["cell", "doc_id", "end", "final", "beside"]
    assert len(found) == 8 and set(found["cell"]) == {name[-10:] for name in made}
    assert found[["end", "final", "beside"]].drop_duplicates().to_numpy().tolist() == [[2, 2, 0]]
    bare = dict(fake_records.of(point, rows.drop(columns="trace"), "bfloat16") for point in points)
    other = fake_records.write(tmp_path / "other", bare)
    with pytest.raises(SystemExit, match="lacks traces of"):
        benchmarks.main([str(other), "--store", str(tmp_path / "packed")])


def test_no_prompt_and_no_reference_is_shipped():
    for file in [STORE / "benchmarks.parquet", *STORE.glob("smol-dream.*.parquet")]:
        assert not {"prompt", "question", "target", "reference", "doc"} & set(pd.read_parquet(file).columns)


def test_texts_that_are_left_out_are_the_tokenizer_s():
    rows = raw()
    left = pd.read_parquet(STORE / "smol-dream.gsm8k.test.parquet", columns=["text"])["text"].isna()
    assert left.mean() > 0.95 and rows["text"].notna().all()
    again = samples(runs(STORE, model="smol-dream", task="gsm8k"), STORE, ["text", "answer"], paired=False)
    both = rows.merge(again.assign(cell=again["cell"].str[-10:]), on=["cell", "doc_id"], suffixes=("", "_read"))
    assert len(both) == len(rows) and (both["text"] == both["text_read"]).all()
    assert both["answer"].fillna("").equals(both["answer_read"].fillna(""))


# --- by hand ------------------------------------------------------------------------------------------------


def test_benchmarks_by_hand(page):
    space, gave = page
    rows = raw()
    full, jot, again = (rows[rows["cell"] == key].set_index("doc_id").sort_index() for key in (FULL, JOT, NEXT))
    small = pd.read_parquet(STORE / "benchmarks.parquet")
    full_small, jot_small = (small[small["cell"] == key].set_index("doc_id").sort_index() for key in (FULL, JOT))
    speed, bare = (
        jot["configured_steps"].sum() / jot["steps"].sum(),
        full_small["final"].sum() / jot_small["final"].sum(),
    )
    assert f"GSM8K {speed:.2f}×" in detail(space["real"], "real-speed")
    assert f"GSM8K {bare:.2f}×" in detail(space["real"], "real-tail")
    said = {name: run["answer"].where(run["answer"].fillna("") != "", run["text"])
            for name, run in (("full", full), ("jot", jot), ("next", again))}  # fmt: skip
    same = [(said[name] == said["full"].reindex(said[name].index)).loc[again.index] for name in ("jot", "next")]
    assert f"GSM8K {100 * (same[0].mean() - same[1].mean()):+.1f} [" in detail(space["real"], "real-answers")
    share = jot_small["beside"] / jot_small["end"]
    tokens = [(a[:end] == b[:end]).mean()
              for a, b, end in zip(jot["generated"], full["generated"], full_small["end"], strict=True)]  # fmt: skip
    assert f"rho {spearmanr(share, tokens).statistic:.2f} [" in detail(space["real"], "real-beside")
    table = gave["benchmark-shown"][-1].frame.set_index(["Benchmark", "Rule"])
    assert table.loc[("GSM8K", "JoT, τ = 90"), "Accuracy, %"].startswith(f"{100 * jot['score'].mean():.1f}\n")
    assert (table.loc["HumanEval", "Accuracy, %"] == "0.0\n[0.0, 2.3]").all()
    assert set(table.loc["GSM8K"].index) == {space["rule_of"](name) for _, name in space["asked"]}
    assert table.loc[("GSM8K", "Fast-dLLM"), "Order"] == "confidence, greedy, blocks of 32, dual cache"


def test_rules_against_each_other_by_hand(page):
    space, gave = page
    rows = raw()
    by = rows.set_index("doc_id").sort_index()
    jot, rule, full, own = (by[by["cell"] == key] for key in (JOT, FAST, FULL, OWN))
    shown = gave["rules-shown"][-1].frame.set_index(["Benchmark", "Rule"])
    row = shown.loc[("GSM8K", "Fast-dLLM")]
    assert row[space["STEPS"]].startswith(f"{rule['steps'].sum() / jot['steps'].sum():.3f}\n")
    assert row["In its own order: documents"] == "500" == str(len(own))
    said = [run["answer"].where(run["answer"].fillna("") != "", run["text"]) for run in (jot, full, rule, own)]
    kept = [(a == b.reindex(a.index))[own.index].mean() for a, b in (said[:2], said[2:])]
    assert row["Same answer, %"].startswith(f"{100 * kept[1]:.1f}\n")
    assert row["Same answer, JoT minus it, points"].startswith(f"{100 * (kept[0] - kept[1]):+.1f}\n")
    assert shown.loc[("MMLU", "Fast-dLLM"), "Same answer, %"] == "" and shown.loc[("MMLU", "Prophet"), "Same answer, %"]
    points = shown.loc[("GSM8K", "Prophet"), "Same answer, JoT minus it, points"].replace("\n", " ")
    assert detail(space["real"], "real-prophet").startswith(f"GSM8K {points} points; {space['LATER']}: ")


def test_texts_that_end_and_texts_that_fill_the_canvas_by_hand(page):
    """JoT against Prophet, and the rank correlation, in the two parts that the criteria pool."""
    space, gave = page
    rows = raw()
    prophet = runs(STORE, model="smol-dream", task="gsm8k", method="prophet")["cell"].item()[-10:]
    full, jot, rule = (rows[rows["cell"] == key].set_index("doc_id").sort_index() for key in (FULL, JOT, prophet))
    small = pd.read_parquet(STORE / "benchmarks.parquet")
    full_small, jot_small = (small[small["cell"] == key].set_index("doc_id").sort_index() for key in (FULL, JOT))
    ends = pd.Series([bool({0, 2} & set(x.tolist())) for x in full["generated"]], full.index)
    said = [run["answer"].where(run["answer"].fillna("") != "", run["text"]) for run in (full, jot, rule)]
    kept, theirs = said[1] == said[0], said[2] == said[0]
    same = [
        (a[:n] == b[:n]).mean() for a, b, n in zip(jot["generated"], full["generated"], full_small["end"], strict=True)
    ]
    share = (jot_small["beside"] / jot_small["end"]).to_numpy()
    table = gave["loops-shown"][-1].frame.set_index(["Benchmark", "Texts"])
    column = "Same answer, JoT minus Prophet, points"
    for words, part in (("full decoding ends the text", ends), ("full decoding fills the canvas", ~ends)):
        pair = stats.paired(kept[part].astype(float), theirs[part].astype(float))
        low, high = (100 * x for x in stats.tango(pair["b"], pair["c"], int(part.sum())))
        gap = f"{100 * (kept[part].mean() - theirs[part].mean()):+.1f}\n[{low:+.1f}, {high:+.1f}]"
        assert table.loc[("GSM8K", words), ["n", column]].tolist() == [str(part.sum()), gap]
        assert f"where {words}: {gap} points".replace("\n", " ") in detail(space["real"], "real-prophet")
        rho = spearmanr(share[part], np.array(same)[part]).statistic
        assert f"where {words}: {rho:+.2f} [" in detail(space["real"], "real-beside")
    assert table.loc[("HumanEval", "all"), column] and len(table.loc["HumanEval"]) == 3


def test_flips_by_hand(page):
    x, third = pd.read_parquet(STORE / "flip_bound" / "true_text.parquet"), 2  # at ten
    x = x[(x["first"] <= third) & (x["last"] >= third) & ~x["leader"].isin([0, 2])]
    x = x[(x["truth"] == x["leader"]) | (x["truth"] == x["runner"])]
    q = 1 / (1 + np.exp(x["margin"].astype(float)))
    row = page[0]["at_tau"](10)
    assert (row["n"], row["flips"]) == (len(x), (x["flip"] >= 0).sum())
    assert row["excess"].value == pytest.approx((x["flip"] >= 0).mean() - 2 * q.mean())
    assert row["fold"].value == pytest.approx((x["truth"] == x["runner"]).sum() / q.sum())


# --- what decides -------------------------------------------------------------------------------------------


def detail(found: pd.DataFrame, name: str) -> str:
    return found.set_index("id").loc[name, "detail"]


def e(value: float, wide: float) -> stats.Estimate:
    return stats.Estimate(value, value - wide, value + wide)


@pytest.mark.parametrize("rule, change, expected", [
    ("within", lambda s: s, "seen"),
    ("within", lambda s: set_flips(s, 90, "excess", e(0.02, 0.01)), "undecided"),
    ("within", lambda s: set_flips(s, 3, "excess", e(0.02, 0.01)), "not seen"),
    ("surely", lambda s: set_flips(s, 10, "fold", e(1.0, 0.2)), "seen"),
    ("surely", lambda s: set_flips(s, 10, "fold", e(2.0, 0.2)), "not seen"),
    ("surely", lambda s: set_flips(s, 10, "fold", e(1.5, 0.2)), "undecided"),
    ("pairing", lambda s: set_pairs(s, e(2, 0.5)), "seen"),
    ("pairing", lambda s: set_pairs(s, e(1.2, 0.5)), "not seen"),
    ("pairing", lambda s: set_pairs(s, e(1.8, 0.9)), "undecided"),
    ("pairing", lambda s: set_pairs(s, e(2, 0.5), 1), "undecided"),
    ("covered", lambda s: set_moves(s, 90, "over", 1.0), "seen"),
    ("covered", lambda s: set_moves(s, 90, "over", -1.0), "not seen"),
    ("falls", lambda s: set_moves(s, None, "rho", -0.5), "seen"),
    ("falls", lambda s: set_moves(s, None, "rho", 0.5), "not seen"),
    ("fewer", lambda s: s, "undecided"),  # both of its halves are met
    ("fewer", lambda s: set_bench(s, "steps", 0.5), "seen"),
    ("fewer", lambda s: set_bench(s, "steps", 1.0), "not seen"),
    ("tail", lambda s: set_bench(s, "final", 1.0), "seen"),
    ("tail", lambda s: set_bench(s, "final", 0.5), "not seen"),
    ("on_prophet", lambda s: set_agrees(s, "prophet", 0.0), "seen"),
    ("on_prophet", lambda s: set_agrees(s, "prophet", 1.0), "not seen"),
])  # fmt: skip
def test_each_criterion_can_fall_either_way(page, rule, change, expected):
    space = page[0]
    keep = {name: space[name] for name in ("flips", "sets", "moves", "bench")}
    try:
        change(space)
        assert space[rule]()[0] == expected
    finally:
        space |= keep


def set_flips(space, tau, name, value):
    space["flips"] = space["flips"].copy()
    at = space["flips"].query("model == 'smol-dream' and tau == @tau").index[0]
    space["flips"].at[at, name], space["flips"].at[at, "few"] = value, False


def set_pairs(space, value, both=11):
    space["sets"] = [{**r, "same": value, "same_both": both, "same_expected": both} if r["tau"] == 3 else r
                     for r in space["sets"]]  # fmt: skip


def set_moves(space, tau, name, value):
    run = space["moves"]["smol-dream", tau]
    space["moves"] = space["moves"] | {("smol-dream", tau): run.assign(**{name: value})}


def set_bench(space, name, factor):
    """As if JoT took that share of the steps on all."""
    base = {"steps": "configured_steps", "final": "full_final"}[name]
    parts = {(task, "jot"): space["bench"][task, "jot"] for task in space["BENCH"]}
    space["bench"] = space["bench"] | {key: x.assign(**{name: factor * x[base]}) for key, x in parts.items()}


def set_agrees(space, name, value):
    run = space["bench"]["gsm8k", name]
    space["bench"] = space["bench"] | {("gsm8k", name): run.assign(agrees=value)}


def test_what_is_not_recorded_is_not_shown(page):
    space = page[0]
    keep = space["bench"]
    try:
        space["bench"] = {key: x for key, x in keep.items() if key not in {("humaneval", "jot"), ("gsm8k", "prophet")}}
        rules = {"real-speed": space["fewer"], "real-tail": space["tail"], "real-prophet": space["on_prophet"]}
        lacking = space["judge"](rules).set_index("id").loc[list(rules)]
    finally:
        space["bench"] = keep
    assert set(lacking["status"]) == {"not shown"} and "HumanEval" in lacking.loc["real-tail", "detail"]
    status = pd.concat([space["real"], space["bounds"]]).set_index("id")["status"]
    assert "not shown" not in set(status)
    plan = criteria.plan()
    assert set(status.index) == set(plan["id"][plan["section"].isin(
        ["Real benchmarks", "The bound and the dynamics of a pretrained network"])])  # fmt: skip


def test_what_holds_is_read_from_intervals(page):
    space = page[0]
    assert (
        set(space["PHENOMENA"])
        == set(space["pocket"]) & set(space["PHENOMENA"])
        == set(space["here"]) & set(space["PHENOMENA"])
    )
    keep = space["here"]
    try:
        for value, word in ((e(3, 0.5), "**holds**"), (e(1, 0.5), "**does not**"), (e(2, 0.5), "open")):
            space["here"] = keep | {"speed gsm8k": value}
            assert space["holds"]("speed gsm8k") == word
        space["here"] = {}
        assert space["holds"]("speed gsm8k") == "open"
    finally:
        space["here"] = keep
