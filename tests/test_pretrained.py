"""Notebook 12 on made-up records of smol-dream: its numbers by hand, what decides each criterion, what is not there;
and what is measured beside the records, with a tiny network in the original's place."""

from __future__ import annotations

import json
from pathlib import Path

import cells as notebook
import fake_records
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import test_smol
import torch
from pocket import encoders
from smol import convert, quality, texts

from jot import stats
from jot.errors import UserError
from jot.models import home
from jot.paper import criteria
from jot.paper.texts import speeches
from jot.records.pack import pack
from jot.runs import grid, live, settings
from jot.runs.harness import evaluate
from jot.runs.parameters import NotebookError

NAME, TASK, N = "12_pretrained", "pocket_prose", 24
GRID = home() / "notebooks" / "grids" / "smol.yaml"
IDS = [f"{TASK}/test/{i}" for i in range(N)]


def set_of(point: grid.Point) -> str:
    if point.method == "full":
        return "full@next" if point.seed else "full"
    return f"{'draw' if point.params['sample'] else 'argmax'}@{point.params['tau_max']:g}"


def frame(tokens: list, steps: list) -> pd.DataFrame:
    return pd.DataFrame({
        "doc_id": IDS, "prompt_hash": "p", "prompt_tokens": 64, "text": [" ".join(map(str, x)) for x in tokens],
        "answer": None, "score": np.nan, "configured_steps": 128, "steps": steps, "forwards_full": steps,
        "forwards_suffix": 0, "forwards_block": 0, "seconds": 0.1, "slots": 16, "tokens_non_eos": 128, "empty": False,
        "generated": [list(map(int, x)) for x in tokens],
    })  # fmt: skip


def store(folder, without=(), quality_too: bool = True):
    """Every run of the grid: the lower the threshold, the fewer steps and, by the argmax, the more a text repeats."""
    rng, made, nats = np.random.default_rng(0), {}, {}
    plain = {
        name: [rng.integers(3, 400, 128) for _ in IDS] for name in ("full", "full@next", "human", "others", "original")
    }
    for point in grid.read(GRID):
        name, tau = set_of(point), point.params.get("tau_max", 200)
        if name in without:
            continue
        tokens, steps = (
            plain.get(name),
            rng.integers(126, 129, N) if tau > 20 else rng.integers(8, 12, N) * max(2, int(tau)),
        )
        if tokens is None:
            loops = round(60 / tau) if name.startswith("argmax") else 0
            tokens = [np.concatenate([x[: 128 - loops], x[:loops]]) for x in (rng.integers(3, 400, 128) for _ in IDS)]
        steps = np.full(N, 128) if point.method == "full" else np.minimum(steps - (tau < 100), 128)
        key, run = fake_records.of(point, frame(tokens, steps.tolist()))
        made |= dict([fake_records.changed(run, dtype="bfloat16")])
        nats[name] = [*made][-1][-10:], 3 - (0.5 / tau if "argmax" in name else 0) + 0.01 * rng.standard_normal(N)
    fake_records.write(folder / "smol", made)
    if quality_too:
        nats |= {name: (name, 2.5 + 0.01 * rng.standard_normal(N)) for name in ("human", "original")}
        write(folder / "smol", {name: plain[name] for name in ("human", "others", "original")}, nats)
    return folder


def write(folder, references: dict, nats: dict) -> None:
    (folder / "quality").mkdir()
    rows = [{"set": name, "doc_id": i, "tokens": x.tolist(), "text": " ".join(map(str, x))}
            for name, some in references.items() for i, x in zip(IDS, some, strict=True)]  # fmt: skip
    pd.DataFrame(rows).to_parquet(folder / "quality" / "references.parquet")
    rows = [{"set": key, "doc_id": i, "nats": x} for key, some in nats.values() for i, x in zip(IDS, some, strict=True)]
    file = folder / "quality" / "likelihood.parquet"
    pd.DataFrame(rows).to_parquet(file)
    pq.write_table(pq.read_table(file).replace_schema_metadata({"about": json.dumps({"dtype": "float32"})}), file)


def run(place, until=None, **how):
    return notebook.run(NAME, until, store=place, out=place / "figures", encoder="ngram", buckets=4, **how)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = store(tmp_path_factory.mktemp("smol"))
    pack(folder / "smol", folder / "packed" / "smol")
    (folder / "smol" / "quality").rename(folder / "packed" / "smol" / "quality")
    return run(folder / "packed")


# --- the grid and its task ----------------------------------------------------------------------------------


def test_the_grid_is_the_plans():
    points = grid.read(GRID)  # read without weights
    assert len(points) == len({set_of(point) for point in points}) == 18 and {point.store for point in points} == {
        "smol"
    }
    taus = {point.params["tau_max"] for point in points if point.method == "jot"}
    assert taus == {1.5, 3, 10, 30, 60, 90, 120, 150} and {point.task for point in points} == {TASK}
    for point in points:
        known = point.resolved()
        assert (known["temperature"], known["top_p"], known["length"], known["steps"]) == (1, 0.95, 128, 128)
        assert "block_length" not in known and known["suppress_tokens"] == [0, 2]  # as SmolLM2 numbers its ends
    assert settings.model_class("smol-dream").family == "dream"


def test_the_grid_of_the_real_benchmarks_is_the_plans():
    points = grid.read(GRID.with_name("smol_benchmarks.yaml"))
    rows = pd.DataFrame([{**vars(point), **point.resolved()} for point in points])
    plain = rows[(rows["settings"].map(len) == 0) & (rows["seed"] == 0)]
    assert plain.groupby("task")["method"].agg(set).tolist() == 4 * [{"full", "jot", "prophet", "klass", "fastdllm"}]
    assert plain.groupby("task")["length"].agg(set).to_dict() == {
        "gsm8k": {256}, "hellaswag": {5}, "humaneval": {512}, "mmlu": {3}
    }  # fmt: skip
    assert set(plain["limit"].fillna(0)) == {0, 2000} and rows["trace"].all() and set(rows["store"]) == {"smol"}
    assert set(rows.loc[rows["seed"] == 1, "task"]) == set(plain["task"]) and len(rows) == 4 * 6 + 2 * 2


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    """Three passages of the task, decoded by a tiny network of that name, and the network that it was made from."""
    place = tmp_path_factory.mktemp("decoded")
    llama = test_smol.tiny_llama()
    state, fields = convert.dream(dict(llama.state_dict()), llama.config.to_dict())
    for name, weights in (("smol-dream", test_smol.changed(state, 2)), ("base", state)):
        convert.save(weights, fields, test_smol.tokenizer(), place / name)
    for point in [grid.read(GRID)[0], grid.read(GRID)[-1]]:
        evaluate(str(place / "smol-dream"), TASK, point.method, **point.params, limit=3, store=place / "live",
                 dtype="bfloat16", device="cpu", progress=False)  # fmt: skip
    pack(place / "live", place / "store")
    return place, llama


def test_prompts_are_the_first_64_tokens_of_the_models_own_tokenizer(decoded):
    place, _ = decoded
    rows = quality.decoded(place / "store", ["prompt_tokens", "generated", "configured_steps"])
    assert set(rows["prompt_tokens"]) == {64} and set(rows["configured_steps"]) == {128} and rows["set"].nunique() == 2
    assert all(len(x) == 128 and not {0, 2} & set(x) for x in rows["generated"])


# --- what is measured beside the records --------------------------------------------------------------------


def test_likelihoods_and_references(decoded, monkeypatch):
    place, llama = decoded
    quality.main(["likelihood", "--store", str(place / "store"), "--weights", str(place / "base"), "--device", "cpu"])
    made, words = place / "store" / "quality", test_smol.tokenizer()
    references, found = (pd.read_parquet(made / f"{name}.parquet") for name in ("references", "likelihood"))
    assert references.groupby("set").size().to_dict() == {"human": 3, "others": 3, "original": 3}
    rows = quality.decoded(place / "store", ["generated"]).rename(columns={"generated": "tokens"})
    known = pd.concat([rows, references]).set_index(["set", "doc_id"])["tokens"]
    docs = {doc["id"]: doc["text"] for doc in quality.load(TASK)["test"]}
    assert len(found) == 4 * 3 and set(found["set"]) == {"human", "original", *rows["set"]}
    for row in found.itertuples():
        prompt = words(docs[row.doc_id])["input_ids"][:64]
        ids = torch.tensor([[*prompt, *map(int, known[row.set, row.doc_id])]])
        labels = ids.clone()
        labels[:, :64] = -100
        assert row.nats == pytest.approx(llama(ids, labels=labels).loss.item(), rel=0.02)  # a folder is of 16 bits
    for row in references.itertuples():
        assert len(row.tokens) == 128 and row.text == words.decode(row.tokens, skip_special_tokens=True)
        if row.set == "human":
            assert docs[row.doc_id].startswith(words.decode([*words(docs[row.doc_id])["input_ids"][:64], *row.tokens]))
        if row.set == "original":
            assert not {0, 2, 259} & set(row.tokens)
    assert json.loads(pq.read_schema(made / "likelihood.parquet").metadata[b"about"])["dtype"] == "float32"

    asked = []
    monkeypatch.setattr(
        encoders, "encode", lambda name, strings, device: asked.append(strings) or np.random.rand(len(strings), 40)
    )
    file = quality.keep(place / "store")
    assert file == place / "store" / "features" / "minilm.npz" and len(asked[0]) == len({*known.index}) == 15
    assert encoders.kept("minilm", list(references["text"]), place / "store").shape == (9, 40)
    quality.keep(place / "store")
    assert len(asked) == 1  # nothing new


def test_other_prompts_are_refused(decoded, capsys, monkeypatch):
    place, _ = decoded
    monkeypatch.setattr(quality, "hashed", lambda ids: "other")
    with pytest.raises(SystemExit, match="make other prompts than those that were decoded"):
        quality.main(
            ["likelihood", "--store", str(place / "store"), "--weights", str(place / "base"), "--device", "cpu"]
        )
    with pytest.raises(SystemExit, match="there is no store at"):
        quality.main(["features", "--store", str(place / "nowhere")])


def test_the_originals_text_stays_in_the_nucleus(decoded):
    """Whatever is left out of the nucleus is never drawn."""
    _, llama = decoded
    model = test_smol.network(*convert.dream(dict(llama.state_dict()), llama.config.to_dict()))
    prefix = torch.randint(3, 259, (1, 4)).expand(300, 4)
    rows, _, _ = texts.write(model, prefix, 5, torch.Generator().manual_seed(0), min_p=0.0, top_p=0.5)
    probs, order = llama(prefix[:1]).logits[0, -1].softmax(0).sort(descending=True)
    nucleus = order[: int((probs.cumsum(0) < 0.5).sum()) + 1]
    assert torch.isin(rows[:, 4], nucleus).all() and rows[:, 4].unique().numel() == len(nucleus)


# --- the page -----------------------------------------------------------------------------------------------


def test_numbers_by_hand(ran):
    space, gave = ran
    assert space["have"] == space["SETS"] and space["n"] == N and len(space["nats"]) == 20
    rows, of = space["rows"], speeches(TASK)
    part = rows[rows["set"] == "argmax@3"]
    assert space["speeds"].loc["argmax@3", "value"] == pytest.approx(128 * N / part["steps"].sum())
    sums = part.assign(speech=part["doc_id"].map(of)).groupby("speech")[["configured_steps", "steps"]].sum()
    assert space["speeds"].loc["argmax@3", ["low", "high"]].tolist() == pytest.approx(
        list(stats.ratio_bootstrap(*sums.T.to_numpy())[1:])
    )
    x, y = space["nats"]["argmax@3"], space["nats"]["full"]
    assert space["gap"]("argmax@3", "nats", np.exp).value == pytest.approx(np.exp(x.mean() - y.mean()))
    table = gave["quality-table"][-1].frame.set_index(["Texts", "τ"])
    shown = table.loc[("JoT, exits take the argmax (the paper's)", "3"), "Perplexity"]
    assert shown.startswith(f"{np.exp(x.mean()):.2f}\n[")
    assert table.loc[("People, what the speaker said next", ""), "MAUVE"].endswith("the ceiling")
    assert len(table) == 21 and "not recorded" not in repr(gave["quality-table"][-1])
    assert len(gave["gaps-table"][-1].frame) == 19 and set(gave["checks"][-1].frame[""]) == {"holds"}
    rep = repetition_of(space, "argmax@90") - repetition_of(space, "full@next")
    told = space["answers"].set_index("id").loc["smol-kept", "detail"].partition(space["LATER"])[2]
    assert told.startswith(f": Rep-4 {rep:+.4f} [") and "by the same rule" in told
    assert "Noise floor" in gave["verdict"][0].text and "Pretrained tier, 135 M parameters" in gave["verdict"][0].text


def repetition_of(space, name: str) -> float:
    """Mean Rep-4 of a set of texts."""
    fours = [{tuple(x[i : i + 4]) for i in range(len(x) - 3)} for x in map(list, space["tokens"][name])]
    return float(np.mean([1 - len(some) / 125 for some in fours]))


def test_the_page_ends_by_hand(ran, capsys):
    run(Path(ran[0]["p"].store))
    assert "times, Rep-4 +" in capsys.readouterr().out


def test_features_come_from_beside_the_records(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    monkeypatch.setattr(encoders, "encode", lambda name, strings, device: rng.normal(size=(len(strings), 40)))
    folder = store(tmp_path)
    quality.keep(folder / "smol")
    monkeypatch.setattr(encoders, "encode", lambda *_: pytest.fail("a model was asked"))
    space, _ = notebook.run(NAME, "mauve", store=folder)
    assert set(space["labels"]) == {*space["SETS"], "original"} and 0 < space["ceiling"] <= 1


def test_a_live_page_decodes_its_grid_and_measures(tmp_path, monkeypatch):
    asked, folder = [], store(tmp_path)
    monkeypatch.setattr(live, "_decode", lambda point, place, p: asked.append((set_of(point), place, p.dtype)))
    monkeypatch.setattr(quality, "record", lambda *what: asked.append(what))
    space, _ = notebook.run(NAME, "texts", source="live", store=folder)
    assert asked.pop() == (folder / "smol", None, None)
    assert asked == [(name, folder / "smol", "bfloat16") for name, *_ in asked] and {x for x, *_ in asked} == {
        *space["SETS"]
    }


def test_the_figure_has_all_runs(ran):
    figure = ran[0]["figure"]
    assert [axis.get_ylabel() for axis in figure.axes] == list(ran[0]["PANELS"].values())
    for axis in figure.axes:
        sizes = [len(bars.lines[0].get_xdata()) for bars in axis.containers]
        assert sorted(sizes) == [2, 8, 8] and "Speedup" in axis.get_xlabel()
    assert (ran[0]["p"].out / "pretrained.png").is_file()


def test_without_records_one_sentence(tmp_path):
    fake_records.write(
        tmp_path, dict([fake_records.scored(grid.Point.of("pocket-dream", "pocket_gsm8k", "full"), [1.0])])
    )
    space, gave = run(tmp_path)
    assert gave["verdict"][0].text.startswith("**Verdict.** No continuation of smol-dream is recorded yet")
    assert set(space["answers"]["status"]) == {"not shown"} and not (tmp_path / "figures").exists()


def test_without_what_stands_beside_the_records(tmp_path):
    space, gave = run(store(tmp_path, quality_too=False))
    status = space["answers"].set_index("id")["status"]
    assert status["smol-mauve"] == status["smol-likelier"] == status["smol-policy"] == "not shown"
    assert status["smol-kept"] != "not shown" and "MAUVE is not known" in gave["discriminates"][-1].text
    assert "without a likelihood" in gave["verdict"][0].text
    assert gave["checks"][-1].frame[""].tolist().count("**does not hold**") == 1


def test_a_run_that_lacks_is_told_and_decides_nothing(tmp_path):
    space, gave = run(store(tmp_path, without={"argmax@3", "draw@10", "full@next"}))
    status = space["answers"].set_index("id")["status"]
    lacking = {"smol-order", "smol-kept-fast", "smol-likelier", "smol-policy", "smol-mauve", "smol-worth"}
    assert set(status[status == "not shown"].index) == lacking and "Noise floor" not in gave["verdict"][0].text
    rows = gave["quality-table"][-1].frame
    assert (rows["Steps"] == "not recorded").sum() == 3
    assert set(run(tmp_path, limit=10)[0]["answers"]["status"]) == {"not shown"}


def test_a_network_that_cannot_be_there_is_one_sentence(tmp_path):
    with pytest.raises(NotebookError, match="unknown encoder 'minilmm'; did you mean 'minilm'"):
        notebook.run(NAME, "check", encoder="minilmm")
    fake_records.write(
        tmp_path / "smol", dict([fake_records.scored(grid.Point.of("pocket-dream", "pocket_gsm8k", "full"), [1.0])])
    )
    fake_records.write(
        tmp_path, dict([fake_records.scored(grid.Point.of("pocket-dream", "pocket_gsm8k", "full"), [1.0])])
    )
    with pytest.raises(UserError, match="no recorded runs of model 'smol-dream'"):
        run(tmp_path)


# --- the criteria: each can be seen, not seen and undecided -------------------------------------------------


def around(value: float, wide: float) -> list[float]:
    return [value, value - wide, value + wide]


def status_of(space, name: str, speed: dict | None = None, gap: dict | None = None) -> str:
    """A criterion's status, were these the speedups and differences (value and half-width) of runs."""
    keep = {key: space[key] for key in ("speeds", "gaps")}
    try:
        for key, given in (("speeds", speed), ("gaps", gap)):
            space[key] = space[key].copy()
            for place, at in (given or {}).items():
                space[key].loc[place, ["value", "low", "high"]] = around(*at)
        return space["decided"]().set_index("id").loc[name, "status"]
    finally:
        space |= keep


HIGH = [f"argmax@{tau}" for tau in (30, 60, 90, 120, 150)]
ORDER = {f"{policy}@{tau}": (20 - i, 0.1) for policy in ("argmax", "draw")
         for i, tau in enumerate(("1.5", "3", "10", "30", "60", "90", "120", "150"))}  # fmt: skip
DRAWN = [name for name in ORDER if name.startswith("draw")]


def fluency(name: str, rep: tuple, dist: tuple = (0.0, 0.001)) -> dict:
    return {(name, "rep4"): rep, (name, "dist2"): dist}


def likely(name: str, ratio: float, wide: float) -> dict:
    return {(name, "nats"): (np.log(ratio), wide)}


def worth(fast: float, wide: float, **lost) -> tuple[dict, dict]:
    gaps = {}
    for name in DRAWN:
        gaps |= fluency(name, lost.get("rep", (0.0, 0.001)))
    return {name: (fast, wide) for name in DRAWN}, gaps


CASES = {
    "smol-speed": [
        (dict.fromkeys(HIGH, (1.05, 0.02)), {}), (dict.fromkeys(HIGH, (1.05, 0.02)) | {"argmax@30": (1.3, 0.1)}, {}),
        (dict.fromkeys(HIGH, (1.05, 0.02)) | {"argmax@30": (1.14, 0.03)}, {}),
    ],
    "smol-order": [
        (ORDER, {}), (ORDER | {"draw@60": (30, 0.1)}, {}), (ORDER | {"draw@60": (ORDER["draw@30"][0] + 0.05, 0.1)}, {}),
    ],
    "smol-kept": [
        ({}, fluency("argmax@90", (0.0, 0.005))), ({}, fluency("argmax@90", (0.1, 0.005))),
        ({}, fluency("argmax@90", (0.008, 0.005))),
    ],
    "smol-kept-fast": [
        ({}, fluency("argmax@3", (0.0, 0.005))), ({}, fluency("argmax@3", (0.0, 0.005), (-0.1, 0.01))),
        ({}, fluency("argmax@3", (0.0, 0.005), (-0.02, 0.01))),
    ],
    "smol-likelier": [
        ({}, likely("argmax@3", 0.8, 0.05) | fluency("argmax@3", (0.1, 0.01))),
        ({}, likely("argmax@3", 1.3, 0.05) | fluency("argmax@3", (0.1, 0.01))),
        ({}, likely("argmax@3", 0.8, 0.05) | fluency("argmax@3", (0.001, 0.01))),
    ],
    "smol-policy": [
        ({}, likely("argmax@3", 0.8, 0.02) | likely("draw@3", 1.1, 0.02) | fluency("draw@3", (0.0, 0.005))),
        ({}, likely("argmax@3", 0.9, 0.02) | likely("draw@3", 0.8, 0.02) | fluency("draw@3", (0.0, 0.005))),
        ({}, likely("argmax@3", 0.8, 0.02) | likely("draw@3", 1.1, 0.02) | fluency("draw@3", (0.01, 0.005))),
    ],
    "smol-mauve": [
        ({}, {("argmax@3", "mauve"): (0.0, 0.03)}), ({}, {("argmax@3", "mauve"): (-0.2, 0.03)}),
        ({}, {("argmax@3", "mauve"): (-0.04, 0.03)}),
    ],
    "smol-worth": [worth(2.0, 0.1), worth(2.0, 0.1, rep=(0.1, 0.01)), worth(1.55, 0.1)],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_criterion_can_fall_either_way(ran, name):
    plan = criteria.plan()
    assert set(CASES) == set(plan["id"][plan["section"] == "A pretrained network"])
    found = [status_of(ran[0], name, *case) for case in CASES[name]]
    assert found == ["seen", "not seen", "undecided"]


def test_odd_cases_of_two_criteria(ran):
    """Both halves met decide nothing; where no threshold saves so much, none is worth it."""
    likelihoods = likely("argmax@3", 0.8, 0.02) | likely("draw@3", 0.95, 0.02) | fluency("draw@3", (0.0, 0.005))
    assert status_of(ran[0], "smol-policy", {}, likelihoods) == "undecided"
    assert status_of(ran[0], "smol-worth", *worth(1.2, 0.1)) == "not seen"
