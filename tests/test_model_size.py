"""Notebook 10 on made-up records of ten models: comparisons, flips and slopes by hand; what decides its criteria."""

from __future__ import annotations

import itertools
import json

import cells as notebook
import fake_records
import numpy as np
import pandas as pd
import pytest
from pocket import true_text

import jot
from jot import stats
from jot.errors import UserError
from jot.paper import traces
from jot.runs import live
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError

NAME = "10_model_size"
SIZES = {"1m": 9e5, "2m": 2.4e6, "5m": 4.9e6, "10m": 1.02e7, "20m": 2e7}
TASKS = ("pocket_gsm8k", "pocket_humaneval")
EOS = 0


def exits(model: str, documents: int, flipped: int, rng: np.random.Generator) -> tuple[pd.DataFrame, dict]:
    """Thirty exits of a model, of which the first ones flip, with rows that no default threshold commits and EOS."""
    n = 30
    frame = pd.DataFrame({
        "document": np.sort(rng.integers(0, documents, n)), "position": np.arange(n), "first": 0, "last": 5, "step": 0,
        "reveals": 9, "flip": np.where(np.arange(n) < flipped, 2, -1), "leader": 7, "runner": 8, "truth": 7,
        "margin": rng.uniform(5, 9, n), "end": -3.0,
    })  # fmt: skip
    early = frame.head(4).assign(first=0, last=1, flip=1, margin=1.0)  # commits at 1.5 and 3 alone
    padding = frame.head(4).assign(leader=EOS, flip=1)
    frame = pd.concat([frame, early, padding], ignore_index=True)
    frame.loc[frame.index[:2], "truth"] = 9  # neither of the two: the bound does not speak of these
    meta = {"model": model, "task": "pocket_gsm8k", "eos": EOS, "documents": documents, "held": [2] * documents,
            "thresholds": list(true_text.THRESHOLDS), "fingerprint": model}  # fmt: skip
    return frame.astype(true_text.INTEGERS), meta


def run_of(name: str, family: str, task: str, method: str, split: str, *what: object) -> tuple:
    """A run of a model that is not there: one of the packaged model of its family, under another name."""
    _, made = fake_records.scored(Point.of(f"pocket-{family}", task, method, split), *what)
    return fake_records.changed(made, model=name, fingerprint=name)


def write(
    folder, n: int = 60, speeds=(4, 6, 8, 12, 16), flips=(9, 7, 5, 3, 1), gains=(0, 2, 4, 6, 8), lack=(), other=None,
    dev=30,
):  # fmt: skip
    """A store of two families at five sizes; ``gains`` repairs of JoT, a speedup and flips of each size.

    Both splits have the same of each; ``lack`` lists what of test is not there, ``dev`` is the documents of that split.
    """
    rng, made, known, followed = np.random.default_rng(0), {}, [], []
    for family in ("dream", "llada"):
        for i, (size, parameters) in enumerate(SIZES.items()):
            name = f"pocket-{family}-{size}"
            for task, (split, of) in itertools.product(TASKS, {"test": n, "dev": dev}.items()):
                if not of or (split == "test" and (name, task) in lack):
                    continue
                full = np.arange(of) % 3 == 0
                jot = full.copy()
                jot[np.flatnonzero(~full)[: gains[i] + (family == "dream")]] = True
                steps = rng.permutation([128 // speeds[i] - 1, 128 // speeds[i] + 1] * (of // 2)).tolist()
                made |= dict([
                    run_of(name, family, task, "full", split, full.tolist()),
                    run_of(name, family, task, "jot", split, jot.tolist(), steps),
                ])  # fmt: skip
            loss = dict.fromkeys(("loss_gsm8k", "loss_humaneval", "loss_prose"), 1e3 / parameters**0.5 + 0.01 * i)
            known.append({"model": name, "parameters": int(parameters), "steps": 5, **loss})
            frame, meta = exits(name, 20, flips[i] + (family == "llada"), rng)
            followed.append((frame, meta | ({"fingerprint": "of other weights"} if name == other else {})))
    fake_records.write(folder / "sizes", made)
    pd.DataFrame(known).to_csv(folder / "sizes" / "models.csv", index=False)
    true_text.write(followed, folder / "sizes" / "flip_bound", "true_text.parquet")
    return folder


def run(place, until="verdict-text", **how):
    return notebook.run(NAME, until, store=place, out=place / "figures", **how)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return run(write(tmp_path_factory.mktemp("sizes")), None)


def test_each_model_by_hand(ran):
    measured = ran[0]["measured"].set_index(["model", "task"])
    assert len(measured) == 20
    row = measured.loc[("pocket-llada-5m", "pocket_gsm8k")]
    assert row["full_score"] == pytest.approx(100 / 3) and (row["b"], row["c"]) == (4, 0)
    assert row["difference"] == pytest.approx(100 * 4 / 60) and row["speedup"] == 8
    assert (row["difference_low"], row["difference_high"]) == pytest.approx([100 * x for x in stats.tango(4, 0, 60)])
    assert row["millions"] == 4.9
    assert row["mean"] == pytest.approx((128 / 15 + 128 / 17) / 2) and row["longer"] == 0


def test_dev_stands_beside_test(ran):
    space, gave = ran
    assert len(space["dev"]) == 20 and set(space["dev"]["n"]) == {30}
    table = gave["dev-table"][-1].frame.set_index(["Model", "Task"])
    low, high = (100 * np.array([stats.tango(4, 0, n)[i] for n in (30, 60)]) for i in (0, 1))
    dev, test = 100 * 4 / 30, 100 * 4 / 60
    gap = dev - test
    limits = gap - np.hypot(dev - low[0], high[1] - test), gap + np.hypot(high[0] - dev, test - low[1])
    shown = f"{gap:+.1f}\n[{limits[0]:+.1f}, {limits[1]:+.1f}]"
    assert table.loc[("pocket-llada-5m", TASKS[0]), "difference, dev minus test"] == shown
    assert table.loc[("pocket-llada-5m", TASKS[0]), "speedup, dev over test"].startswith("1.000\n[")
    slopes = gave["dev-slopes"][-1].frame.set_index(["Outcome, a tenfold model", "Task"])
    assert slopes["Both alike"].tolist() == ["yes"] * 4
    found = space["slope"]("difference", space["dev"].query("task == 'pocket_gsm8k'").set_index("model"))
    assert slopes.loc[("JoT minus full, points", TASKS[0]), "Slope, dev"] == space["spelled"](found)
    assert "20 of 20 differences have the sign" in gave["verdict"][0].text
    wide = space["pair"].query("task == 'pocket_humaneval'")
    more = (wide["full_score"] > wide["full_score_test"]).sum()
    assert f"full decoding's score on humaneval is higher on dev in {more} of 10" in gave["dev-table"][-1].caption


def test_dev_decides_nothing(tmp_path):
    space, gave = run(write(tmp_path, dev=0), None)
    assert statuses(space) == ["seen"] * 3
    assert gave["dev-table"][-1].text == "No document of dev is recorded." and "too few" in gave["dev-slopes"][-1].text
    text = gave["verdict"][0].text
    assert "Not recorded: pocket-dream-1m on pocket_gsm8k, dev" in text and "Dev, which" not in text


def test_flips_are_of_exits_at_the_default_threshold(ran):
    flips = ran[0]["flips"]
    assert flips.loc["pocket-dream-1m", ["tau", "exits", "flips", "documents"]].tolist() == [90, 30, 9, 20]
    assert flips.loc["pocket-llada-20m", ["tau", "exits", "flips"]].tolist() == [30, 30, 2]
    assert flips.loc["pocket-llada-20m", "flip"] == pytest.approx(100 * 2 / 30)
    pairs = ran[0]["pairs"].loc["pocket-dream-1m", ["exits", "flips"]]
    assert pairs.tolist() == [28, 7]  # two flips are of exits whose true token is another
    frame = ran[0]["frame"].loc["pocket-dream-1m"]
    assert frame["flip_all"] == pytest.approx(100 * 13 / 34)  # four exits on the end of text, all overturned
    assert ran[0]["flip_rates"](tau=3.0).loc["pocket-dream-1m", "flips"] == 13  # and four that low thresholds commit


def test_each_family_has_its_own_line(ran):
    for axis in ran[0]["figure"].axes[1::2]:
        drawn = [np.array(line.get_xdata(), float) for line in axis.lines if len(line.get_xdata()) == 5]
        assert drawn and all(len(set(x.round(2))) == 5 and x.max() > 15 for x in drawn)  # five sizes of one family


def test_slopes_by_hand(ran):
    space = ran[0]
    frame = space["frame"]
    design = np.column_stack([np.ones(10), np.log10([SIZES[m.rpartition("-")[2]] for m in frame.index]),
                              [float("dream" in m) for m in frame.index]])  # fmt: skip
    for name in ("log_speedup", "difference", "flip"):
        found = space["slope"](name, frame)
        (_, beta, _), residual, *_ = np.linalg.lstsq(design, frame[name].to_numpy(), rcond=None)
        error = np.sqrt(residual[0] / 7 * np.linalg.inv(design.T @ design)[1, 1])
        assert found["value"] == pytest.approx(beta)
        assert found["high"] - found["low"] == pytest.approx(2 * 2.364624 * error, rel=1e-5)  # t with 7 degrees
        left = []
        for i in range(10):
            x, y = np.delete(design, i, 0), np.delete(frame[name].to_numpy(), i)
            (_, b, _), rest, *_ = np.linalg.lstsq(x, y, rcond=None)
            left.append((b, 2.446912 * np.sqrt(rest[0] / 6 * np.linalg.inv(x.T @ x)[1, 1])))  # t with 6 degrees
        assert (found["least"], found["most"]) == pytest.approx((min(left)[0], max(left)[0]))
        assert (found["apart"], found["of"]) == (sum(abs(b) > wide for b, wide in left), 10)
    assert space["slope"]("log_speedup", frame.head(3)) is None
    one = frame.assign(flip=frame["flip"].mask(frame.index == "pocket-llada-5m"))  # of a model nothing is known
    axis = space["Figure"]().subplots()
    space["fitted"](axis, "flip", one)
    assert space["slope"]("flip", one) is None and not axis.lines


def statuses(space) -> list[str]:
    return space["answers"]["status"].tolist()


def test_criteria_turn_with_the_slopes(ran, tmp_path):
    assert statuses(ran[0]) == ["seen", "seen", "seen"]
    turned = write(tmp_path, speeds=(16, 12, 8, 6, 4), flips=(1, 3, 5, 7, 9), gains=(8, 6, 4, 2, 0))
    space, gave = run(turned)
    assert statuses(space) == ["not seen", "not seen", "not seen"]
    assert gave["verdict"][0].text.count("**not seen**") == 3


def test_no_slope_is_undecided(tmp_path):
    flat = write(tmp_path, speeds=(8, 9, 7, 9, 8), flips=(3, 5, 2, 5, 3), gains=(4, 2, 6, 2, 4))
    assert statuses(run(flat)[0]) == ["undecided", "undecided", "undecided"]


def test_without_all_models_nothing_is_decided(tmp_path):
    space, gave = run(write(tmp_path, lack={("pocket-dream-20m", "pocket_gsm8k")}), None)
    assert statuses(space) == ["not shown"] * 3 and len(space["frame"]) == 9
    assert "pocket-dream-20m on pocket_gsm8k, test" in gave["verdict"][0].text
    assert set(gave["checks"][-1].frame[""]) == {"holds"}


def test_text_followed_with_other_weights_is_told(tmp_path):
    _, gave = run(write(tmp_path, other="pocket-llada-2m"), None)
    assert gave["checks"][-1].frame[""].tolist() == ["**does not hold**", *["holds"] * 3]


def test_a_part_is_shown_and_decides_nothing(ran, tmp_path):
    space, _ = run(write(tmp_path), limit=20)
    assert statuses(space) == ["not shown"] * 3 and set(space["measured"]["n"]) == {20}
    assert set(space["dev"]["n"]) == {20}
    space, _ = run(tmp_path, "measured", limit=40)  # above what dev has
    assert (set(space["measured"]["n"]), set(space["dev"]["n"])) == ({40}, {30})
    space, gave = run(tmp_path, families=["llada"], tasks=["pocket_gsm8k"])
    assert statuses(space) == ["not shown"] * 3 and set(space["measured"]["family"]) == {"llada"}
    assert gave["slopes-shown"][-1].frame["Models"].tolist()[:3] == [5, 5, 5]


def test_live_keeps_what_was_made_of_other_models(tmp_path, monkeypatch):
    place, weights = write(tmp_path / "store"), tmp_path / "pocket-dream-2m"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"")
    loss = {task: 0.5 for task in ("pocket_gsm8k", "pocket_humaneval", "pocket_prose")}
    about = {"parameters": 7, "curves": [{"step": 9, "loss": loss}]}
    (weights / "training.json").write_text(json.dumps(about))
    monkeypatch.setattr(live, "store", lambda p, *cells: place)
    monkeypatch.setattr(jot, "load", lambda name, **how: name)
    measured = exits("pocket-dream-2m", 20, 1, np.random.default_rng(1))
    monkeypatch.setattr(true_text, "measure", lambda *what: measured)
    run(place, "load", source="live", models=[str(weights)])
    cards = pd.read_csv(place / "sizes" / "models.csv").set_index("model")
    assert len(cards) == 10 and cards.loc["pocket-dream-2m", ["parameters", "steps"]].tolist() == [7, 9]
    assert cards.loc["pocket-dream-1m", "steps"] == 5
    path = place / "sizes" / "flip_bound" / "true_text.parquet"
    flips = {meta["model"]: (rows["flip"] == 2).sum() for rows, meta in traces.followed(path, list(cards.index), TASKS)}
    assert len(flips) == 10 and (flips["pocket-dream-2m"], flips["pocket-dream-1m"]) == (1, 9)


def test_what_is_not_there_is_one_sentence(tmp_path):
    fake_records.write(tmp_path, dict([fake_records.scored(Point.of("pocket-dream", TASKS[0], "full"), [1.0])]))
    with pytest.raises(NotebookError, match="no records of other sizes"):
        run(tmp_path)
    place = write(tmp_path / "some")
    table, text = place / "sizes" / "models.csv", place / "sizes" / "flip_bound" / "true_text.parquet"
    whole, bytes_ = table.read_text(), text.read_bytes()
    lines = whole.splitlines(True)
    for wrong in ("".join(lines[:-1]), "a,b\n1,2\n", whole + lines[-1], whole.replace(",5,", ",,")):
        table.write_text(wrong)
        with pytest.raises(NotebookError, match=r"models\.csv does not have what is known of .*pocket-llada-20m"):
            run(place)
    table.write_text(whole)
    text.write_bytes(bytes_[:100])
    with pytest.raises(NotebookError, match="cannot be read"):
        run(place)
    text.unlink()
    with pytest.raises(NotebookError, match="no exits on true text of pocket-dream-1m"):
        run(place)
    with pytest.raises(UserError, match="no recorded runs of model"):
        run(place, models=["pocket-dream-1m", "pocket-dream-3m"])
    space, _ = notebook.run(NAME, until="card")
    with pytest.raises(NotebookError, match="train it first"):
        space["card"](str(tmp_path / "nothing"))
