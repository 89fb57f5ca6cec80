"""Long canvases: the notebook's cells on made-up worksheets whose answers are known, against sums, resamples and fifths
that are written out here; the plan's criteria in both directions; parts of a store and of the parameters."""

from __future__ import annotations

import itertools
import re
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache

import cells
import fake_records
import numpy as np
import pandas as pd
import pytest
from scipy import stats as st

from jot import tasks
from jot.errors import UserError
from jot.paper import draw, show
from jot.records import take
from jot.records.pack import pack
from jot.runs import grid
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError

NOTEBOOK = "11_long_canvases"
DREAM, LLADA = MODELS = ("pocket-long-dream", "pocket-long-llada")
LENGTHS, TAUS = (256, 512, 1024, 2048), (10, 30, 90, 300)
N = {256: 8, 512: 7, 1024: 6, 2048: 5}  # worksheets of each length
DEFAULT = {DREAM: 90, LLADA: 30}
DUAL = {DREAM: {"cache": "dual", "block_length": 32, "temperature": 0.0, "ranking": "confidence"},
        LLADA: {"cache": "dual", "block_length": 32}}  # fmt: skip
BAN = {"suppress_tokens": "358"}
FULL, JOT, BANNED = "Full decoding", "JoT (default)", "JoT, end of text banned"
Wrong = Callable[[int, int, int], bool]  # of the number of a worksheet, a place on it, and its problems


# --- made-up runs -------------------------------------------------------------------------------------------


def task_of(length: int) -> str:
    return f"pocket_worksheet_{length}"


def at(model: str, length: int, method: str = "jot", split: str = "test", **own: object) -> Point:
    return Point.of(model, task_of(length), method, split, **own)


@cache
def documents(length: int, split: str = "test") -> list[dict]:
    task = tasks.get(task_of(length))
    return list(itertools.islice(tasks.read_jsonl(tasks.split_file(task, split, None)[1]), N[length]))


def begins(doc: dict, place: int, missed: bool) -> str | None:
    """The number that a line begins with: its own, another problem's, none of the sheet's, or there is no line."""
    firsts = re.findall(r"has (\d+)", doc["question"])
    return (firsts[place], firsts[place - 1], "0", None)[place % 4 if missed else 0]


def run(point: Point, wrong: Wrong, steps: Callable[[int], int], dtype: str = "bfloat16") -> tuple:
    """A run: where its answers are wrong, by another number or by none, and the forwards of each worksheet."""
    docs, length = documents(int(point.task.rsplit("_", 1)[1]), point.split), tasks.get(point.task).length
    given, score, texts = [], [], []
    for i, doc in enumerate(docs):
        finals = doc["finals"]
        bad = [wrong(i, place, len(finals)) for place in range(len(finals))]
        given.append(
            " ".join(("-", "1" + f)[k % 2] if no else f for k, (f, no) in enumerate(zip(finals, bad, strict=True)))
        )
        score.append(1 - sum(bad) / len(bad))
        begun = [begins(doc, place, no) for place, no in enumerate(bad)]
        texts.append("".join(f"{place}: {number} + 1 = 2.\n" for place, number in enumerate(begun, 1) if number))
    taken = [steps(i) for i in range(len(docs))]
    rows = pd.DataFrame({
        "doc_id": [doc["id"] for doc in docs], "prompt_hash": "p", "prompt_tokens": 50, "text": texts, "answer": given,
        "score": score, "configured_steps": length, "steps": taken, "forwards_full": taken, "forwards_suffix": 0,
        "forwards_block": 0, "seconds": 0.01, "slots": 1, "empty": False, "generated": [[1]] * len(docs),
        "tokens_non_eos": [length * 3 // 4 + i for i in range(len(docs))],
    })  # fmt: skip
    return fake_records.of(point, rows, dtype)


def planned(model: str) -> list[Point]:
    """What the notebook shows in half precision."""
    found = [at(model, length, m) for length in LENGTHS for m in ("full", "jot", "fastdllm", "klass")
             if (m, length) != ("klass", 2048)]  # fmt: skip
    found += [at(model, length, m, **DUAL[model]) for length in LENGTHS for m in ("full", "jot")]
    found += [at(model, 512, m, **BAN) for m in ("full", "jot")]
    found += [at(model, length, tau_max=tau) for length in (256, 512) for tau in TAUS if tau != DEFAULT[model]]
    return [*found, at(model, 256, "full", "dev"), *(at(model, 256, split="dev", tau_max=tau) for tau in TAUS)]


SINGLE = [at(model, 256, method) for model in MODELS for method in ("full", "jot")]


def drawn(point: Point, dtype: str = "bfloat16") -> tuple:
    """A run whose errors and forwards are drawn: full decoding errs least and takes every step."""
    rng = np.random.default_rng(zlib.crc32(repr((point, dtype)).encode()))
    rate = {"full": 0.1, "jot": 0.2}.get(point.method, 0.3)
    hard = np.random.default_rng(1).random((9, 120)) < 0.1  # the same problems for all
    bad = hard | (rng.random((9, 120)) < rate)
    length = tasks.get(point.task).length
    taken = rng.integers(length // 8, length // 2, 9)
    return run(
        point, lambda i, k, m: bool(bad[i, k]), lambda i: length if point.method == "full" else int(taken[i]), dtype
    )


@pytest.fixture(scope="module")
def records() -> dict:
    return dict([drawn(point) for model in MODELS for point in planned(model)]
                + [drawn(point, "float32") for point in SINGLE])  # fmt: skip


@pytest.fixture(scope="module")
def store(records, tmp_path_factory):
    return fake_records.write(tmp_path_factory.mktemp("store") / "long", records).parent


@pytest.fixture(scope="module")
def shown(store):
    """The namespace of the notebook, and what its cells gave."""
    return cells.run(NOTEBOOK, store=str(store), out=str(store.parent))


@pytest.fixture
def quick(monkeypatch):
    """Without writing figures."""
    monkeypatch.setattr(draw, "save", lambda *_: None)
    monkeypatch.setattr(draw, "show", lambda figure, alt: figure)


@pytest.fixture
def page(quick, tmp_path):
    """Runs the notebook on made-up runs."""
    numbers = itertools.count()

    def page(made: dict, **parameters: object) -> tuple:
        place = fake_records.write(tmp_path / str(next(numbers)) / "long", made).parent
        return cells.run(NOTEBOOK, store=str(place), out=str(tmp_path), **parameters)

    return page


def test_how_problems_are_missed(shown, records):
    ways = shown[0]["ways"]
    for point in (at(MODELS[0], 256, "full"), at(MODELS[1], 2048)):
        docs = {doc["id"]: doc for doc in documents(int(point.task.rsplit("_", 1)[1]))}
        expected = Counter()
        for row, right in sheets(records, point):
            doc = docs[row.name]
            firsts = re.findall(r"has (\d+)", doc["question"])
            for place in (place for place, good in enumerate(right) if not good):
                number = begins(doc, place, True)
                own = number == firsts[place]
                expected["No line" if not number else "Its own work" if own else "Another's work" if number in firsts
                         else "Neither"] += 1  # fmt: skip
        assert len(expected) == 4 and ways.loc[drawn(point)[0]].sum().to_dict() == expected


# --- the same by other means --------------------------------------------------------------------------------


def sheets(records: dict, point: Point) -> list[tuple[dict, list[bool]]]:
    """Each worksheet's row and which of its problems are right, in the order of their names as text."""
    frame = dict(records)[drawn(point)[0]].frame.set_index("doc_id")
    docs = {doc["id"]: doc["finals"] for doc in documents(int(point.task.rsplit("_", 1)[1]), point.split)}
    return [
        (frame.loc[name], [a == b for a, b in zip(frame.loc[name, "answer"].split(), docs[name], strict=True)])
        for name in sorted(frame.index)
    ]


def resampled(num: list, den: list, num2: list | None = None, den2: list | None = None) -> list[float]:
    """A ratio of sums, or the difference of two, and percentile limits over 10,000 resamples."""
    num, den = np.array(num, float), np.array(den, float)
    index = np.random.default_rng(0).integers(len(num), size=(10_000, len(num)))
    draws, value = num[index].sum(1) / den[index].sum(1), num.sum() / den.sum()
    if num2 is not None:
        num2, den2 = np.array(num2, float), np.array(den2, float)
        draws, value = draws - num2[index].sum(1) / den2[index].sum(1), value - num2.sum() / den2.sum()
    return [value, *np.quantile(draws, [0.025, 0.975])]


def compared(records: dict, point: Point, base: Point) -> tuple[list[float], list[float]]:
    """The difference of the shares solved and the breaks, in points, with limits."""
    pairs = [(a, b) for (_, a), (_, b) in zip(sheets(records, point), sheets(records, base), strict=True)]
    sizes = [len(a) for a, _ in pairs]
    gain = [sum(a) - sum(b) for a, b in pairs]
    breaks = [sum(y and not x for x, y in zip(a, b, strict=True)) for a, b in pairs]
    return tuple([100 * x for x in resampled(top, sizes)] for top in (gain, breaks))


def spelled(value: float, low: float, high: float, digits: int = 1, sign: str = "") -> str:
    return show.interval(value, low, high, digits, sign)


# --- numbers ------------------------------------------------------------------------------------------------


def test_a_live_notebook_decodes_what_it_shows(shown):
    grids = cells.ROOT / "notebooks" / "grids"
    listed = {run(point, lambda *_: False, lambda _: 1)[0] for point in grid.read(grids / "long.yaml")}
    single = {
        run(point, lambda *_: False, lambda _: 1, "float32")[0] for point in grid.read(grids / "long_float32.yaml")
    }
    assert set(shown[0]["found"]["cell"]) == listed == {drawn(point)[0] for m in MODELS for point in planned(m)}
    assert set(shown[0]["single"]["cell"]) == single == {drawn(point, "float32")[0] for point in SINGLE}
    assert len(shown[0]["found"]) == 2 * (15 + 8 + 2 + 6 + 5)


def test_shares_solved_and_tokens_a_forward(records, shown):
    found = shown[0]["found"].set_index("cell")
    for point in itertools.chain.from_iterable(map(planned, MODELS)):
        row, known = found.loc[drawn(point)[0]], sheets(records, point)
        score = resampled([sum(right) for _, right in known], [len(right) for _, right in known])
        parallel = resampled([one["configured_steps"] for one, _ in known], [one["steps"] for one, _ in known])
        assert list(row[["score", "score_low", "score_high"]]) == pytest.approx([100 * x for x in score])
        assert list(row[["parallel", "parallel_low", "parallel_high"]]) == pytest.approx(parallel)
        whole = [all(right) for _, right in known]
        low, high = st.binomtest(sum(whole), len(whole)).proportion_ci(method="wilson")
        found_whole = list(row[["whole", "whole_low", "whole_high"]])
        assert found_whole == pytest.approx([100 * np.mean(whole), 100 * low, 100 * high], abs=1e-9)
        for name in ("score", "parallel", "whole"):
            assert row[f"{name}_low"] - 1e-9 <= row[name] <= row[f"{name}_high"] + 1e-9
        length = tasks.get(point.task).length
        assert row["filled"] == pytest.approx(np.mean([length * 3 // 4 + i for i in range(len(known))]) / length)


def test_the_table_and_its_order(records, shown):
    space, gave = shown
    frame, caption = gave["table"][-1].frame, gave["table"][-1].caption
    assert len(frame) == 2 * (6 + 8 + 6 + 5) and "bfloat16" in caption
    assert "Embedded tier, 1.2 M parameters; n = 8 pocket_worksheet_256, 7 pocket_worksheet_512, 6" in caption
    assert frame["Generated"].tolist() == (["256"] * 6 + ["512"] * 8 + ["1,024"] * 6 + ["2,048"] * 5) * 2
    assert frame["Method"].tolist()[:6] == [FULL, JOT, "KLASS", "Fast-dLLM, dual cache", "Full decoding, dual cache",
                                            "JoT, dual cache"]  # fmt: skip
    row = frame[(frame["Model"] == LLADA) & (frame["Generated"] == "2,048") & (frame["Method"] == JOT)].iloc[0]
    known = sheets(records, at(LLADA, 2048))
    score = resampled([sum(right) for _, right in known], [len(right) for _, right in known])
    assert row["Problems solved, %"] == spelled(*(100 * x for x in score))
    assert row["Order, cache, temperature"] == "confidence order, blocks of 32, no cache, T = 0" and row["n"] == "5"
    assert frame["Order, cache, temperature"].iloc[0] == "entropy order, whole canvas, no cache, T = 0.1"
    assert set(frame.loc[frame["Method"] == FULL, "Tokens a forward"]) == {"1.00\n[1.00, 1.00]"}


def test_paired_differences_and_breaks(records, shown):
    pairs = shown[0]["pairs"].set_index(["model", "length", "name"])
    assert len(pairs) == 2 * (4 + 3 + 4 + 4)
    for model, length in itertools.product(MODELS, LENGTHS):
        full, dual = at(model, length, "full"), at(model, length, "full", **DUAL[model])
        each = {JOT: (at(model, length), full), "KLASS": (at(model, length, "klass"), full),
                "JoT, dual cache": (at(model, length, **DUAL[model]), dual),
                "Fast-dLLM, dual cache": (at(model, length, "fastdllm"), dual)}  # fmt: skip
        for name, two in each.items():
            if (name, length) == ("KLASS", 2048):
                assert (model, length, name) not in pairs.index
                continue
            gain, breaks = compared(records, *two)
            row = pairs.loc[(model, length, name)]
            assert list(row[["difference", "low", "high"]]) == pytest.approx(gain)
            assert list(row[["breaks", "breaks_low", "breaks_high"]]) == pytest.approx(breaks)
            assert breaks[0] > 0 and breaks[1] <= breaks[0] <= breaks[2] and gain[1] <= gain[0] <= gain[2]
    table = shown[1]["paired-table"][-1]
    gain, breaks = compared(records, at(DREAM, 256), at(DREAM, 256, "full"))
    assert table.frame["Difference, points"].iloc[0] == spelled(*gain, sign="+")
    assert table.frame["Breaks, % of problems"].iloc[0] == spelled(*breaks, 2)
    assert "KLASS ranks Dream's positions by confidence" in table.caption


def test_fifths_of_the_worksheet(records, shown):
    late = shown[0]["late"].set_index(["model", "length", "name"])
    assert len(late) == 2 * 4 * 2
    for (model, length, name), row in late.iterrows():
        missed, size = np.zeros((2, N[length], 5))
        for i, (_, right) in enumerate(sheets(records, at(model, length, "full" if name == FULL else "jot"))):
            m = len(right)
            for k, j in itertools.product(range(5), range(m)):
                if k * m <= 5 * j < (k + 1) * m:
                    missed[i, k] += not right[j]
                    size[i, k] += 1
            assert size[i].sum() == m and np.ptp(size[i]) <= 1
        assert row["shares"] == [f"{100 * x:.1f}" for x in missed.sum(0) / size.sum(0)]
        gap = resampled(missed[:, 4], size[:, 4], missed[:, 0], size[:, 0])
        assert list(row[["gap", "gap_low", "gap_high"]]) == pytest.approx([100 * x for x in gap])
        assert row["gap_low"] <= row["gap"] <= row["gap_high"]


def test_thresholds_by_length(records, shown):
    space, gave = shown
    tries = space["tries"].set_index(["model", "split", "length", "tau"])
    assert len(tries) == 2 * (4 + 4 + 4 + 2)  # at 1,024 and 2,048 the default alone
    for (model, split, length, tau), row in tries.iterrows():
        gain, breaks = compared(
            records, at(model, length, split=split, tau_max=int(tau)), at(model, length, "full", split)
        )
        assert list(row[["difference", "low", "high"]]) == pytest.approx(gain)
        assert list(row[["breaks", "breaks_low", "breaks_high"]]) == pytest.approx(breaks)
    assert space["chosen"] == dict.fromkeys(MODELS) and not tries["chosen"].any()
    caption = gave["threshold-table"][-1].caption
    assert "pocket-long-dream: none passes; pocket-long-llada: none passes" in caption
    assert "test: Embedded tier, 1.2 M parameters; n = 8 pocket_worksheet_256, 7" in caption


def test_the_ban(records, shown):
    bans = shown[0]["bans"].set_index("model")
    for model in MODELS:
        free, banned = ([one["steps"] for one, _ in sheets(records, at(model, 512, **own))] for own in ({}, BAN))
        row, (gain, _) = bans.loc[model], compared(records, at(model, 512, **BAN), at(model, 512))
        speedups = [sum([512] * 7) / sum(steps) for steps in (free, banned)]
        assert list(row[["free", "banned"]]) == pytest.approx(speedups)
        assert row["more"] == pytest.approx(speedups[0] / speedups[1])
        assert list(row[["more", "more_low", "more_high"]]) == pytest.approx(resampled(banned, free))
        assert list(row[["difference", "low", "high"]]) == pytest.approx(gain) and row["length"] == 512


def test_longer_over_shorter(records, shown):
    """Worksheets of two lengths are resampled apart."""
    rng = [np.random.default_rng(seed) for seed in (0, 1)]
    for row in shown[0]["grown"].to_dict("records"):
        steps = [np.array([one["steps"] for one, _ in sheets(records, at(row["model"], x))]) for x in (2048, 256)]
        value = 2048 * 5 / steps[0].sum() / (256 * 8 / steps[1].sum())
        assert row["more"] == pytest.approx(value) and row["more_low"] <= row["more"] <= row["more_high"]
        draws = [x[r.integers(len(x), size=(40_000, len(x)))].mean(1) for x, r in zip(steps, rng, strict=True)]
        assert [row["more_low"], row["more_high"]] == pytest.approx(
            np.quantile(2048 / draws[0] / (256 / draws[1]), [0.025, 0.975]), rel=0.02
        )


def test_equal_numbers_of_worksheets_are_resampled_apart_too(shown):
    one = shown[0]["by_cell"][drawn(at(DREAM, 256))[0]]
    found = shown[0]["apart"](one, one)
    assert found["more"] == 1 and found["more_low"] < 0.9 < 1.1 < found["more_high"]


def test_float32_beside_the_half_precision(records, shown):
    table = shown[1]["exact"][-1]
    assert len(table.frame) == 4 and "n = 8 pocket_worksheet_256" in table.caption
    for i, point in enumerate(SINGLE):
        one, two = (records[drawn(point, dtype)[0]].frame for dtype in ("float32", "bfloat16"))
        row = table.frame.iloc[i]
        assert (row["Model"], row["Equal answers"]) == (point.model, str((one["answer"] == two["answer"]).sum()))
        assert row["Score in float32, %"] == f"{100 * one['score'].mean():.1f}"
        assert row["In bfloat16, %"] == f"{100 * two['score'].mean():.1f}"


def test_the_figure(shown):
    figure = shown[0]["figure"]
    assert [axis.get_title(loc="left") for axis in figure.axes[:2]] == [f"{m}, n = 8; 7; 6; 5" for m in MODELS]
    assert [text.get_text() for text in figure.axes[2].get_xticklabels()] == ["256", "512", "1,024", "2,048"]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == [FULL, JOT, "KLASS", "Fast-dLLM, dual cache", "JoT, dual cache"]
    assert "1.2 M parameters" in figure.get_suptitle()
    line = figure.axes[1].containers[1].lines[0]  # JoT on LLaDA
    assert line.get_ydata().tolist() == shown[0]["table"].query("model == @LLADA and name == @JOT")["score"].tolist()
    assert line.get_xdata() == pytest.approx(LENGTHS, rel=0.06)
    assert len(figure.axes[0].containers[2].lines[0].get_xdata()) == 3  # KLASS ends before the longest


def test_checks(shown):
    held = shown[1]["checks"][-1].frame.set_index("Statement")
    assert (held[""] == "holds").sum() == 6  # of made-up runs only the number of worksheets is not the plan's
    assert held.loc["Every run on test has the planned number of worksheets", ""] == "**does not hold**"


def test_checks_can_fail(page):
    fine = dict([drawn(at(DREAM, 256, method)) for method in ("full", "jot")])
    name, (meta, frame) = drawn(at(DREAM, 256, "full"))
    short = frame["answer"].str.rsplit(" ", n=1).str[0]
    frame = frame.assign(answer=short, steps=255, configured_steps=257, score=0.5, tokens_non_eos=100)
    held = page({**fine, name: (meta, frame)}, models=DREAM, tasks=task_of(256))[1]["checks"][-1].frame
    assert (held[""] == "**does not hold**").tolist() == [True, True, True, True, True, False, True]


def test_by_hand(records, tmp_path, quick, capsys):
    few = dict([drawn(at(DREAM, 256, method)) for method in ("full", "jot")])
    pack(fake_records.write(tmp_path / "live", few), tmp_path / "packed" / "long")
    cells.run(NOTEBOOK, store=str(tmp_path / "packed"), out=str(tmp_path))
    known = [right for _, right in sheets(records, at(DREAM, 256))]
    assert f"{sum(map(sum, known))} of {sum(map(len, known))}: " in capsys.readouterr().out


# --- the choice of the threshold ----------------------------------------------------------------------------


def never(i: int, place: int, m: int) -> bool:
    return False


def last(i: int, place: int, m: int) -> bool:
    return place == m - 1


def first(i: int, place: int, m: int) -> bool:
    return place == 0


def tenth(i: int, place: int, m: int) -> bool:
    return place % 10 == 1  # one of ten, on every worksheet


def one_sheet(i: int, place: int, m: int) -> bool:
    return i == 0


def dev(model: str, wrong: dict[int, Wrong], full: Wrong = never) -> dict:
    made = [run(at(model, 256, "full", "dev"), full, lambda _: 256)]
    made += [run(at(model, 256, split="dev", tau_max=tau), bad, lambda _: 64) for tau, bad in wrong.items()]
    return dict(made)


def once(i: int, place: int, m: int) -> bool:
    return i == 1 and place == 2  # about 1 % of the problems; on no, one or several worksheets of a resample


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ([never, never, never, never], 10),
        ([tenth, once, never, never], 90),
        ([tenth, one_sheet, never, tenth], 90),
        ([never, tenth, tenth, tenth], 10),  # the smallest that passes, not the first of a run
        ([tenth, one_sheet, once, tenth], None),
    ],
)
def test_the_smallest_threshold_whose_upper_limit_passes(page, wrong, expected):
    made = dev(DREAM, dict(zip(TAUS, wrong, strict=True)))
    space, gave = page(made, until="threshold-table")
    tries = space["tries"].set_index("tau")
    for tau, bad in zip(TAUS, wrong, strict=True):
        finals = [doc["finals"] for doc in sorted(documents(256, "dev"), key=lambda doc: doc["id"])]
        place = {doc["id"]: i for i, doc in enumerate(documents(256, "dev"))}
        order = [place[name] for name in sorted(place)]
        breaks = [sum(bad(i, k, len(f)) for k in range(len(f))) for i, f in zip(order, finals, strict=True)]
        limit = 100 * resampled(breaks, list(map(len, finals)))[2]
        assert tries.loc[tau, "breaks_high"] == pytest.approx(limit) and (limit <= 3) == (bad is never)
    assert space["chosen"] == {DREAM: expected}
    table = gave["threshold-table"][-1]
    assert [x for x in table.frame["τ"] if "**" in x] == ([f"**{expected}**"] if expected else [])
    assert f"({DREAM}: {expected or 'none passes'})" in table.caption and "test: Not recorded" in table.caption


def test_errors_that_full_decoding_makes_too_are_no_breaks(page):
    made = dev(LLADA, dict.fromkeys(TAUS, tenth), tenth)
    space, _ = page(made, until="threshold-table")
    assert space["chosen"] == {LLADA: 10} and (space["tries"]["breaks"] == 0).all()


def test_without_every_threshold_on_dev_none_is_chosen(page):
    made = dev(DREAM, dict.fromkeys((30, 90, 300), never))
    space, gave = page(made, until="threshold-table")
    assert space["chosen"] == {} and f"{DREAM}: not all recorded" in gave["threshold-table"][-1].caption
    assert not space["tries"]["chosen"].any()


def test_the_choice_is_made_at_256_alone(page):
    made = [run(at(DREAM, 512, "full", "dev"), never, lambda _: 512)]
    made += [run(at(DREAM, 512, split="dev", tau_max=tau), tenth, lambda _: 64) for tau in TAUS]
    space, _ = page(dict(made), until="threshold-table")
    assert space["chosen"] == {} and len(space["tries"]) == 4
    space, _ = page(dev(DREAM, dict.fromkeys(TAUS, never)) | dict(made), until="threshold-table")
    assert space["chosen"] == {DREAM: 10} and len(space["tries"]) == 8


# --- criteria of the plan -----------------------------------------------------------------------------------

IDS = ["long-kept", "long-parallel", "long-threshold", "long-late", "long-ban"]


def sound(changed: dict[Point, tuple] | None = None) -> dict[Point, tuple]:
    """Runs on which all five are seen: each error in the last place, JoT's the same as full decoding's."""
    made = {}
    for model in MODELS:
        for length in LENGTHS:
            made[at(model, length, "full")] = last, lambda _, length=length: length
            made[at(model, length)] = last, {256: lambda _: 128, 2048: lambda _: 512}.get(length, lambda _: 200)
        made[at(model, 512, **BAN)] = last, lambda _: 210
        made[at(model, 2048, tau_max=10)] = last, lambda _: 400
        made[at(model, 256, "full", "dev")] = never, lambda _: 256
        made |= {at(model, 256, split="dev", tau_max=tau): (never, lambda _: 64) for tau in TAUS}
    return made | (changed or {})


def words(page, made: dict[Point, tuple], **parameters: object) -> dict[str, str]:
    """What came out of each criterion, which the table and the verdict both show."""
    space, gave = page(dict([run(point, *how) for point, how in made.items()]), **parameters)
    assert list(space["judged"]["id"]) == IDS
    told = repr(gave["verdict"][-1])
    for row in space["judged"].itertuples():
        assert f"({row.id}): {row.status} ({row.detail})" in told
    caption = gave["judged"][-1].caption
    assert "1.2 M" in caption and "5 M" not in caption and "Tango" not in caption
    return dict(zip(space["judged"]["id"], space["judged"]["status"], strict=True))


def long_steps(i: int) -> int:
    return (256, 2048)[i % 2]


SEEN = dict.fromkeys(IDS, "seen")
CHANGES = {
    "long-kept": {"not seen": {at(LLADA, 512): (lambda *of: last(*of) or tenth(*of), lambda _: 200)},
                  "undecided": {at(DREAM, 1024): (lambda *of: last(*of) or one_sheet(*of), lambda _: 200)}},
    "long-parallel": {"not seen": {at(DREAM, 2048): (last, lambda _: 2048)},
                      "undecided": {at(LLADA, 2048): (last, long_steps)}},
    "long-threshold": {"not seen": {at(LLADA, 2048, tau_max=10): (tenth, lambda _: 400)},
                       "undecided": {at(DREAM, 2048, tau_max=10): (one_sheet, lambda _: 400)}},
    "long-late": {"not seen": {at(DREAM, 2048, "full"): (first, lambda _: 2048)},
                  "undecided": {at(LLADA, 2048, "full"): (never, lambda _: 2048)}},
    "long-ban": {"not seen": {at(LLADA, 512, **BAN): (last, lambda _: 401)},
                 "undecided": {at(DREAM, 512, **BAN): (last, lambda i: (200, 500)[i % 2])}},
}  # fmt: skip


def test_criteria_are_seen(page):
    assert words(page, sound()) == SEEN


@pytest.mark.parametrize("word", ["not seen", "undecided"])
@pytest.mark.parametrize("name", IDS)
def test_each_criterion_by_itself(page, name, word):
    """One run is changed, and one answer with it; one model is enough for "not seen"."""
    assert words(page, sound(CHANGES[name][word])) == SEEN | {name: word}


def test_the_ban_may_also_be_faster(page):
    assert words(page, sound({at(DREAM, 512, **BAN): (last, lambda _: 120)}))["long-ban"] == "not seen"


def test_a_threshold_that_none_could_be_chosen(page):
    changed = {at(LLADA, 256, split="dev", tau_max=tau): (tenth, lambda _: 64) for tau in TAUS}
    space, _ = page(dict([run(point, *how) for point, how in sound(changed).items()]))
    row = space["judged"].set_index("id").loc["long-threshold"]
    assert row["status"] == "not seen" and row["detail"].endswith("none passes for pocket-long-llada")


@pytest.mark.parametrize(
    ("gone", "names"),
    [
        ([at(DREAM, 1024)], ["long-kept"]),
        ([at(LLADA, 256)], ["long-kept", "long-parallel"]),
        ([at(LLADA, 2048)], ["long-kept", "long-parallel"]),
        ([at(DREAM, 2048, "full")], ["long-kept", "long-threshold", "long-late"]),
        ([at(LLADA, 512, **BAN)], ["long-ban"]),
        ([at(LLADA, 2048, tau_max=10)], ["long-threshold"]),
        ([at(DREAM, 256, "full", "dev")], ["long-threshold"]),
        ([at(DREAM, 256, split="dev", tau_max=300)], ["long-threshold"]),
    ],
)
def test_criteria_that_lack_a_run_are_not_shown(page, gone, names):
    made = {point: how for point, how in sound().items() if point not in gone}
    assert words(page, made) == SEEN | dict.fromkeys(names, "not shown")


def test_one_model_is_not_enough(page):
    """Also where it alone would settle a criterion: no threshold passes on the one that is there."""
    changed = {at(DREAM, 256, split="dev", tau_max=tau): (tenth, lambda _: 64) for tau in TAUS}
    made = {point: how for point, how in sound(changed).items() if point.model == DREAM}
    assert words(page, made) == dict.fromkeys(IDS, "not shown")


# --- parts --------------------------------------------------------------------------------------------------


def subset(store, **parameters: object) -> tuple:
    return cells.run(NOTEBOOK, store=str(store), out=str(store.parent), **parameters)


def test_one_model_and_one_task(store, quick):
    space, gave = subset(store, models=LLADA, tasks=task_of(512))
    assert set(space["found"]["model"]) == {LLADA} and set(space["found"]["length"]) == {512}
    assert len(gave["table"][-1].frame) == 8 and "KLASS ranks" not in gave["paired-table"][-1].caption
    assert "not all recorded" in gave["threshold-table"][-1].caption  # dev is decoded at 256
    assert gave["exact"][-1].frame.empty and "Not recorded" in gave["exact"][-1].caption
    assert set(space["judged"]["status"]) == {"not shown"}
    assert [axis.get_title(loc="left") for axis in space["figure"].axes] == [f"{LLADA}, n = 7", ""]
    assert [text.get_text() for text in space["figure"].axes[1].get_xticklabels()] == ["512"]


def test_one_family(store, quick):
    space, gave = subset(store, families="dream", tasks=f"{task_of(2048)},{task_of(256)}")
    assert set(space["found"]["model"]) == {DREAM} and len(space["figure"].axes) == 2
    assert gave["table"][-1].frame["Generated"].tolist() == ["256"] * 6 + ["2,048"] * 5
    assert len(gave["exact"][-1].frame) == 2 and set(space["judged"]["status"]) == {"not shown"}


def test_the_order_that_is_asked_for(store, quick):
    space, gave = subset(store, models=f"{LLADA},{DREAM}", tasks=task_of(256), until="threshold-table")
    for name in ("table", "paired-table", "late-table", "threshold-table"):
        assert list(dict.fromkeys(gave[name][-1].frame["Model"])) == [LLADA, DREAM], name


def test_a_limit(records, store, quick):
    space, gave = subset(store, limit=3)
    assert "n = 3 pocket_worksheet_256, 3 pocket_worksheet_512" in gave["table"][-1].caption
    ids = [doc["id"] for doc in documents(256)]
    kept = [right for one, right in sheets(records, at(DREAM, 256)) if one.name in take(ids, 3)]
    row = space["table"].set_index(["model", "length", "name"]).loc[(DREAM, 256, JOT)]
    assert row["score"] == pytest.approx(100 * sum(map(sum, kept)) / sum(map(len, kept))) and row["n"] == 3
    assert "only a part" in repr(gave["judged"][-1]) and "Verdict" in repr(gave["verdict"][-1])
    assert set(gave["exact"][-1].frame["n"]) == {"3"}


def test_a_partial_store(records, page):
    """Without 1,024, dev, JoT at 2,048 and the float32 runs; KLASS on one model alone."""
    gone = {
        drawn(point)[0]
        for model in MODELS
        for point in planned(model)
        if point.task == task_of(1024) or point.split == "dev" or (point.model, point.method) == (DREAM, "klass")
    }
    gone |= {drawn(at(model, 2048))[0] for model in MODELS} | {drawn(point, "float32")[0] for point in SINGLE}
    space, gave = page({name: made for name, made in records.items() if name not in gone})
    assert sorted(set(space["table"]["length"])) == [256, 512, 2048]
    assert [text.get_text() for text in space["figure"].axes[2].get_xticklabels()] == ["256", "512", "2,048"]
    assert "KLASS" in [text.get_text() for text in space["figure"].legends[0].get_texts()]
    assert "KLASS ranks" not in gave["paired-table"][-1].caption
    caption = gave["threshold-table"][-1].caption
    assert "dev: Not recorded" in caption and f"{DREAM}: not all recorded; {LLADA}: not all recorded" in caption
    word = space["judged"].set_index("id")["status"]
    assert word.drop(["long-late", "long-ban"]).tolist() == ["not shown"] * 3
    assert not {"not shown"} & set(word[["long-late", "long-ban"]])  # these have all of their runs
    assert "Not recorded" in gave["exact"][-1].caption


def test_only_dev(page):
    space, gave = page(dev(DREAM, dict.fromkeys(TAUS, never)))
    assert space["table"].empty and space["chosen"] == {DREAM: 10}
    assert "dev: Embedded tier" in gave["threshold-table"][-1].caption and "Not recorded" in gave["table"][-1].caption


@pytest.mark.parametrize("parameters", [{}, {"models": DREAM}, {"limit": 2}, {"tasks": task_of(2048)}])
def test_a_store_without_these_runs_says_so(page, parameters, capsys):
    other = dict([fake_records.scored(Point.of("pocket-dream", "pocket_mmlu", "full"), [1.0])])
    space, gave = page(other, **parameters)
    for name in ("table", "paired-table", "late-table", "threshold-table", "ban", "exact"):
        assert "ot recorded" in gave[name][-1].caption and gave[name][-1].frame.empty, name
    for name in ("figure", "judged", "verdict"):
        assert "ot recorded" in repr(gave[name][-1]), name
    assert "1.2 M" not in repr(gave) and capsys.readouterr().out == "not recorded\n"


def test_float32_alone(store, quick):
    space, gave = subset(store, dtype="float32")
    assert set(space["table"]["name"]) == {FULL, JOT} and "float32" in gave["table"][-1].caption
    assert "shown above is in float32" in repr(gave["exact"][-1])


def test_what_is_refused_is_one_sentence(store, tmp_path):
    with pytest.raises(NotebookError, match="pocket_gsm8k holds no worksheets"):
        subset(store, tasks="pocket_worksheet_256,pocket_gsm8k", until="check")
    with pytest.raises(UserError, match="limit=9 is above the 8 recorded documents of pocket_worksheet_256"):
        subset(store, tasks=task_of(256), limit=9, until="load")
    with pytest.raises(UserError, match="there are no records of worksheets"):
        (tmp_path / "empty").mkdir()
        subset(tmp_path / "empty", until="load")
