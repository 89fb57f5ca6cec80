"""The frames of ``quality`` as captioned tables, sentences and the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from jot import stats
from jot.analysis import plots, quality, render
from jot.analysis.cells import family
from jot.analysis.continuations import MATCHED, NEXT, NOISE, PAIRS, PAPER_PAIR, POLICIES, Texts, policy_label
from jot.analysis.phenomena import fixed, opening
from jot.analysis.spelling import number, of
from jot.paper import encoders, mauve
from jot.paper.criteria import Judged
from jot.paper.show import Note, Table

BOOT = f"95 % percentile bootstrap over prompts, {stats.N_BOOT:,} resamples"
INFLUENCE = "of MAUVE and Dist-2 over the texts' jackknife influences"
PAPER = {"human": "Human reference", "full": "Full decoding, sampled", "jot": "JoT (argmax)"}
AXES = {"rep4": "Rep-4 (log): more repetition →", "dist2": "Dist-2: more diversity →"}
NAMES = {"mauve": "MAUVE", "rep4": "Rep-4", "dist2": "Dist-2"}
SHORT = {
    "full-sampled": "Full, sampled",
    "jot-argmax": "JoT, exits argmax",
    "jot-draw": "JoT, exits draw",
    "full-greedy": "Full, greedy",
    "jot-greedy": "JoT, greedy",
}


def label(name: str, seed: int = 0, about: str = "") -> str:
    """A text set in words."""
    if name == "human":
        return "Human reference"
    return f"Human, {about}" if name == "others" else policy_label(name, seed)


def tiers(sets: Sequence[Texts]) -> str:
    found = render.tiers(x.model for x in sets)
    sizes = sorted({x.n for x in sets})
    return f"{found[:1].upper()}{found[1:]}; n = {' to '.join(f'{n:,}' for n in sizes)} {sets[0].task}"


def interval(row: Mapping, key: str, digits: int, sign: str = "") -> str:
    value, low = row.get(key), row.get(f"{key}_low")
    if value is not None and not pd.isna(value) and (low is None or pd.isna(low)):
        return number(value, digits, sign)  # without an interval
    return of(row, key, digits, sign, comma=",\u00a0")


def policies(
    sets: Sequence[Texts], frame: pd.DataFrame, scores: pd.DataFrame, published: pd.DataFrame, seed: int = 0
) -> Table:
    """The paper's Table 9 beside ours: one row per policy, with the human reference and the paper's rows."""
    encoder = scores["encoder"].iloc[0]
    rows = []
    for found in sets:
        own = scores[(scores["model"] == found.model) & (scores["encoder"] == encoder)]
        own = own[own["n"] == found.n].set_index("set")
        for row in frame[frame["model"] == found.model].to_dict("records"):
            at = own.loc[row["set"]].to_dict() if row["set"] in own.index else {}
            at = {"mauve": at.get("mauve"), "mauve_low": at.get("low"), "mauve_high": at.get("high")}
            rows.append(
                {
                    "Model": found.model,
                    "Texts": label(row["set"], seed, found.about),
                    "MAUVE": interval(at, "mauve", 3),
                    "Rep-4": interval(row, "rep4", 4),
                    "Dist-2": interval(row, "dist2", 4),
                    "Dist-2 per text": interval(row, "dist2_text", 3),
                    "Tokens": f"{row['tokens']:.1f}",
                    "Steps": "" if pd.isna(row.get("steps")) else f"{row['steps']:.1f}",
                    "Speedup, ×": interval(row, "speedup", 3) if row["set"].startswith("jot") else "",
                    "Copied, %": "" if pd.isna(row.get("copied")) else f"{row['copied']:.2f}",
                }
            )
    for method, group in published.groupby("method", sort=False):
        at = {
            row["metric"]: f"**{row['value']:.4f}**" if row["mark"] == "bold" else f"{row['value']:.4f}"
            for row in group.to_dict("records")
        }
        paper = {"Model": f"{group['model'].iloc[0]} (published)", "Texts": PAPER.get(method, method)}
        rows.append(paper | {NAMES[key]: at[key] for key in quality.METRICS})
    caption = (
        f"Quality of continuations. {tiers(sets)}; end of text banned, so every text is equally long. "
        f"MAUVE against the human reference with the encoder {encoder} ({encoders.ENCODERS[encoder]}), mean over "
        f"{mauve.SEEDS} k-means starts. Rep-4: share of 4-grams that repeat within a text, mean over "
        "texts; Dist-2: distinct over all bigrams of the corpus, comparable at equal n alone; "
        f"{BOOT} ({INFLUENCE}). Copied: runs of eight words that stand verbatim "
        "in the training speeches. Speedup: configured over actual steps, ratio of sums. Published: the paper's "
        "values, Dream-7B on C4, 128 texts of 256 tokens, no interval and no encoder given, another tier; "
        "bold as printed there."
    )
    return Table(pd.DataFrame(rows).fillna(""), caption)


def comparisons(sets: Sequence[Texts], frame: pd.DataFrame, tests: pd.DataFrame) -> Table:
    """Method minus baseline by pair of policies."""
    if frame.empty:
        return Table(frame, f"No pair of policies is recorded. {tiers(sets)}.")
    encoder, rows = tests["encoder"].iloc[0], []
    for row in frame.to_dict("records"):
        at = tests[(tests["model"] == row["model"]) & (tests["encoder"] == encoder) & (tests["pair"] == row["pair"])]
        test = at[at["n"] == row["n"]].iloc[0]
        gap = {"mauve": test["difference"], "mauve_low": test["low"], "mauve_high": test["high"]}
        method, baseline = PAIRS[row["pair"]]
        rows.append(
            {
                "Model": row["model"],
                "Comparison": row["pair"],
                "Method − baseline": " − ".join(
                    SHORT[x.removesuffix(NEXT)] + (", next seed" if x.endswith(NEXT) else "")
                    for x in (method, baseline)
                ),
                "MAUVE": interval(gap, "mauve", 4, "+"),
                "p (label swap)": p_value(test),
                "Rep-4": interval(row, "rep4", 4, "+"),
                "Dist-2": interval(row, "dist2", 4, "+"),
                "Dist-2 per text": interval(row, "dist2_text", 4, "+"),
                "Same texts, %": f"{row['same_texts']:.1f}",
                "Same tokens, %": f"{row['same_tokens']:.1f}",
            }
        )
    caption = (
        f"Differences by pair of decoding policies, the same prompts. {tiers(sets)}. Only the matched rows and the "
        "noise row hold the policy fixed. MAUVE with the encoder "
        f"{encoder}; p: the texts of a prompt swapped at random, two-sided, {mauve.PERMUTATIONS:,} swaps, ± its Monte "
        f"Carlo error, not adjusted for the number of rows; {BOOT} ({INFLUENCE}). "
        "Whether MAUVE differs is read off the label swap; how far its interval can be trusted stands below. "
        "Exploratory."
    )
    return Table(pd.DataFrame(rows), caption)


def p_value(test: Mapping) -> str:
    return f"{test['p']:.4f}\n± {test['error']:.4f}"


def encoders_table(sets: Sequence[Texts], scores: pd.DataFrame, tests: pd.DataFrame, buckets: int) -> Table:
    """MAUVE by encoder and n: ceiling, policies of the pairs, their spread, and the tests."""
    shown = ("others", *POLICIES)
    rows = []
    for (model, encoder, n), group in scores.groupby(["model", "encoder", "n"], sort=False):
        at = group.set_index("set")
        row = {"Model": model, "Encoder": encoder, "n": f"{n:,}"}
        for name in shown:
            words = "Human ceiling" if name == "others" else SHORT[name]
            row[words] = "" if name not in at.index else _spread(at.loc[name])
        here = tests[(tests["model"] == model) & (tests["encoder"] == encoder) & (tests["n"] == n)].set_index("pair")
        for pair, words in ((PAPER_PAIR, "p, the paper's pair"), (MATCHED, "p, both sample")):
            row[words] = p_value(here.loc[pair]) if pair in here.index else ""
        rows.append(row)
    names = dict.fromkeys(scores["encoder"])
    caption = (
        f"MAUVE by encoder and n. {tiers(sets)}. The same {buckets} buckets for every row of a model and encoder; mean "
        f"over {mauve.SEEDS} k-means starts, in brackets their range; at n = {quality.SMALL} (the paper's n, the first "
        "prompts of the fixed order) below it the range over disjoint parts of so many prompts. Human ceiling: "
        f"other human text ({'; '.join(dict.fromkeys(x.about for x in sets))}) against the reference at equal n. "
        f"p: label swap within prompts, {mauve.PERMUTATIONS:,} swaps, ± Monte Carlo error. MAUVE is lower at smaller "
        "n, where few texts leave buckets empty: rows compare at equal n alone. Encoders: "
        f"{'; '.join(f'{name}: {encoders.ENCODERS[name]}' for name in names)}."
    )
    return Table(pd.DataFrame(rows), caption)


def _spread(row: pd.Series) -> str:
    text = f"{row['mauve']:.3f}" + ("" if row["texts"] == row["n"] else f" (n = {row['texts']})")
    text += f"\n[{row['seed_low']:.3f},\u00a0{row['seed_high']:.3f}]"
    if not pd.isna(row.get("parts", float("nan"))):
        text += f"\n{row['part_low']:.3f}\u00a0to\u00a0{row['part_high']:.3f}"
    return text


def limits(scores: pd.DataFrame) -> Note:
    """Per model and encoder, whether MAUVE can tell anything at this size."""
    lines = []
    for row in quality.blind(scores).to_dict("records"):
        place = f"{row['model']}, encoder {row['encoder']}: full decoding, sampled, {row['full']:.3f}"
        place += f" against a human ceiling of {row['ceiling']:.3f}."
        lines.append(
            f"- {place} "
            + (
                "Under half the ceiling: **MAUVE does not discriminate at this model size**, and equal values "
                "there say nothing about fluency."
                if row["blind"]
                else "Above half the ceiling."
            )
        )
    return Note("\n".join(lines) or "The human ceiling is not available: no other human text.")


def examples(sets: Sequence[Texts], letters: int = 220) -> Table:
    """The beginning of one continuation under every policy: the first prompt of the fixed order."""
    rows = [
        {
            "Model": found.model,
            "Texts": label(name, 0, found.about),
            "Continuation": strings[0].strip()[:letters] + " …",
        }
        for found in sets
        for name, strings in found.strings.items()
        if strings and not name.endswith(NEXT) and name != "others"
    ]
    return Table(pd.DataFrame(rows), f"The first prompt of the fixed order, continued. {tiers(sets)}.")


def verdict(
    sets: Sequence[Texts],
    judged: Mapping[str, Judged],
    pairs: pd.DataFrame,
    scores: pd.DataFrame,
    tests: pd.DataFrame,
    noise: pd.DataFrame,
    published: pd.DataFrame,
) -> Note:
    """What stands at the top of the notebook; whether MAUVE differs is said by the label swap, never by an interval."""
    lines = [f"**Verdict.** {tiers(sets)}. {opening(fixed(judged))}. Seen or not seen at this scale only.", ""]
    lines += [f"- Fluency is preserved (`{name}`): **{status}** ({text})" for name, (status, text) in judged.items()]
    for row in pairs[pairs["pair"] == MATCHED].to_dict("records"):
        gaps = ", ".join(f"{NAMES[k]} {interval(row, k, 4, '+')}" for k in ("rep4", "dist2")).replace("\n", " ")
        lines.append(f"- With both sides sampling, {row['model']}, JoT minus full decoding: {gaps}")
    encoder = scores["encoder"].iloc[0]
    gap = published.set_index(["method", "metric"])["value"]
    gap = gap["jot", "mauve"] - gap["full", "mauve"]
    for (model, n), group in tests[tests["encoder"] == encoder].groupby(["model", "n"], sort=False):
        at = group.set_index("pair")
        if PAPER_PAIR not in at.index:
            continue
        test = at.loc[PAPER_PAIR]
        place = f"MAUVE ({encoder}), {model}, n = {n:,}"
        place += " (the paper's n)" if n == quality.SMALL else ""
        text = f"- {place}: the paper's pair "
        text += f"{test['difference']:+.4f}, label swap p = {test['p']:.3f}"
        if NOISE in at.index:
            text += f"; full decoding under the next seed minus itself {at.loc[NOISE, 'difference']:+.4f}, "
            text += f"p = {at.loc[NOISE, 'p']:.3f}"
        here = noise[(noise["model"] == model) & (noise["encoder"] == encoder) & (noise["n"] == n)]
        for row in here.to_dict("records"):
            text += f"; without any difference of method 95 % of differences are within ±{row['spread']:.4f}"
        lines.append(text + (f"; the paper's {gap:+.4f} has no interval" if n == quality.SMALL else ""))
    for row in quality.blind(scores).to_dict("records"):
        if row["blind"]:
            lines.append(
                f"- MAUVE does not discriminate for {row['model']} with the encoder {row['encoder']}: full decoding "
                f"has {row['full']:.3f}, human text {row['ceiling']:.3f}"
            )
    return Note("\n".join(lines))


def checks(frame: pd.DataFrame) -> Table:
    return render.checks(frame)


# --- figure -------------------------------------------------------------------------------------------------


def figure(sets: Sequence[Texts], frame: pd.DataFrame, scores: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """MAUVE, Rep-4 and Dist-2 per policy with intervals and the human reference; the paper's values below."""
    encoder = scores["encoder"].iloc[0]
    heights = [len(POLICIES)] * len(sets) + [2.2]
    with plots.style():
        fig = Figure(figsize=(7.2, 1.0 + 1.5 * len(sets) + 0.95), layout="constrained")
        axes = fig.subplots(len(heights), 3, squeeze=False, gridspec_kw={"height_ratios": heights})
        for line, found in zip(axes, sets, strict=False):
            own = frame[frame["model"] == found.model].set_index("set")
            at = scores[(scores["model"] == found.model) & (scores["encoder"] == encoder) & (scores["n"] == found.n)]
            at = at.set_index("set").rename(columns={"low": "mauve_low", "high": "mauve_high"})
            names = [name for name in POLICIES if name in found.cells]
            color = plots.FAMILY_COLOR[family(next(iter(found.cells.values())).config)]
            for axis, key in zip(line, quality.METRICS, strict=True):
                table = at if key == "mauve" else own
                human = "others" if key == "mauve" else "human"
                rows = [(SHORT[name], name.startswith("full"), table.loc[name]) for name in names]
                _panel(axis, key, rows, table[key].get(human), color)
            line[0].set_title(f"{found.model}, n = {found.n:,}", loc="left")
        wide = published.pivot(index="method", columns="metric", values="value")
        paper = [("Full, sampled", True, wide.loc["full"]), ("JoT (argmax)", False, wide.loc["jot"])]
        for axis, key in zip(axes[-1], quality.METRICS, strict=True):
            _panel(axis, key, paper, wide.loc["human", key], plots.COLORS["gray"])
            axis.set_xlabel(f"MAUVE ({encoder}): closer →" if key == "mauve" else AXES[key])
        axes[-1][0].set_title(
            f"{published['model'].iloc[0]}, published (C4, n = {quality.SMALL}; MAUVE's encoder not named)", loc="left"
        )
        for column in axes[:-1].T:  # one scale for the models
            bounds = [axis.get_xlim() for axis in column]
            for axis in column:
                axis.set_xlim(min(b[0] for b in bounds), max(b[1] for b in bounds))
        tier = render.tiers(x.model for x in sets)
        words = f"Continuations: {tier}. Bars: 95 % bootstrap over prompts, where wider than the mark.\n"
        fig.suptitle(words + "Dashed: human text (for MAUVE other human text at equal n, the ceiling)", fontsize=8)
    return fig


def _panel(axis, key: str, rows: Sequence[tuple[str, bool, pd.Series]], human: float | None, color: str) -> None:
    """One metric of one model: a point with its interval per policy, from top to bottom."""
    for y, (_, full, row) in enumerate(rows):
        spread = plots._spread(row, key) if f"{key}_low" in row.index else None
        look = plots.LOOKS["full" if full else "jot"].points(color)
        axis.errorbar(row[key], y, xerr=spread, linestyle="", markersize=4.5, elinewidth=0.9, **look)
    if human is not None:
        axis.axvline(human, color=plots.COLORS["black"], linestyle="--", linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(rows)), [name for name, *_ in rows] if key == "mauve" else [""] * len(rows))
    axis.set_ylim(len(rows) - 0.5, -0.5)
    low = [x for *_, row in rows for x in (row[key], row.get(f"{key}_low", row[key])) if x > 0]
    if key == "rep4" and low:  # three orders of magnitude: a linear axis would hide the intervals of the low ones
        axis.set_xscale("log")
        low = max(min([human or 1, *low]) / 1.5, 1e-4)
        axis.set_xlim(low, 1.3)
        axis.xaxis.set_major_locator(FixedLocator([0.001, 0.01, 0.1, 1]))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        top = max([human or 0, *(row.get(f"{key}_high", row[key]) for *_, row in rows)]) or 1.0
        axis.set_xlim(-0.03 * top, 1.06 * top)
