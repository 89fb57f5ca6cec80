"""Properties of the loop over random prompts, thresholds and schedules, on the tiny random checkpoints."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_runs import make_step
from hypothesis import given, settings
from hypothesis import strategies as st

import jot
from jot.sampler import proposals
from jot.sampler.config import DecodeConfig
from jot.sampler.kernels import top2
from jot.sampler.output import EXITED, SCHEDULED
from jot.sampler.proposals import PROPOSALS, KeyedDraws, nucleus, sample_key
from jot.sampler.schedules import SCHEDULES, highest

CHECKPOINTS = Path(__file__).parent / "golden" / "checkpoints"
MODELS = {name: jot.load(CHECKPOINTS / f"tiny-{name}", device="cpu") for name in ("llada", "dream")}
LENGTH = 16

prompts = st.lists(st.integers(0, 299), min_size=1, max_size=12)
families = st.sampled_from(["llada", "dream"])
thresholds = st.sampled_from([1.0, 1.5, 3.0, 10.0, 30.0, 90.0, 1e6])
combines = st.sampled_from(["or", "after_exit"])
temperatures = st.sampled_from([0.0, 0.1, 1.0])
rankings = st.sampled_from(["confidence", "margin", "entropy", "random"])
quick = settings(max_examples=30, deadline=None)


def run(family, prompt, method=None, *, block=None, **kwargs):
    kwargs = {"length": LENGTH, "trace": True, **kwargs}
    return jot.decode(MODELS[family], prompt, method, block_length=block, **kwargs)


def blocks_of(family):
    return 4 if family == "llada" else None


@quick
@given(families, prompts, temperatures, rankings, st.sampled_from(["llada", "precomputed", "dream"]), combines)
def test_infinite_threshold_is_full_decoding(family, prompt, temperature, ranking, schedule, combine):
    shared = dict(block=blocks_of(family), temperature=temperature, ranking=ranking, schedule=schedule)
    full = run(family, prompt, None, **shared)
    never = run(family, prompt, jot.JoT(tau_max=math.inf, combine=combine), **shared)
    assert never.tokens == full.tokens
    assert never.steps == full.steps
    assert (never.trace.rule == SCHEDULED).all()


@quick
@given(families, prompts, thresholds, combines, temperatures)
def test_commits_are_final_and_complete(family, prompt, tau, combine, temperature):
    """Prompt untouched, no mask left, every position committed once, at least one a forward, steps within bounds."""
    block = blocks_of(family)
    out = run(family, prompt, jot.JoT(tau_max=tau, combine=combine), block=block, temperature=temperature)
    assert out.tokens[: len(prompt)] == prompt
    assert MODELS[family].mask_id not in out.tokens
    assert len(out.generated) == LENGTH
    assert set(out.trace.step) == set(range(out.steps))
    least = LENGTH // block if block else 1
    assert least <= out.steps <= LENGTH
    assert out.forwards["full"] == out.steps
    exited = out.trace.rule & EXITED > 0
    assert (out.trace.margin[exited] >= out.trace.threshold[exited] - 1e-6).all()


@quick
@given(families, prompts, st.sampled_from(list(SCHEDULES)), st.sampled_from([None, 4]), st.sampled_from([16, 48, 128]),
       st.sampled_from(["plain", "stop_early", "keep_steps"]))  # fmt: skip
def test_full_decoding_saves_no_step(family, prompt, schedule, block, steps, end):
    """A schedule cannot have more counts than masks: steps that never exist are not reported as saved."""
    chosen = {
        "schedule": schedule,
        "steps": steps,
        "stop_early": end != "stop_early",
        "keep_steps": end == "keep_steps",
    }
    config = DecodeConfig(length=LENGTH, block_length=block, **chosen).resolve(MODELS[family])
    assert config.existing_steps == run(family, prompt, block=block, **chosen).steps


@quick
@given(families, prompts, thresholds, st.sampled_from([2, 4, 8, 16]))
def test_fewer_steps_still_fill_the_canvas(family, prompt, tau, steps):
    out = run(family, prompt, jot.JoT(tau_max=tau), steps=steps, block=8 if family == "llada" else None)
    assert MODELS[family].mask_id not in out.tokens
    assert out.steps <= steps


@quick
@given(families, prompts, thresholds, combines, temperatures, st.booleans(), st.sampled_from([4, 8]))
def test_exits_anywhere_on_the_canvas(family, prompt, tau, combine, temperature, keep, block):
    """Every position is committed once; a kept block takes what was planned from its masks, while the canvas has any.

    With one block there is no elsewhere: then the rule is the usual one.
    """
    shared = dict(temperature=temperature, schedule="precomputed")
    method = jot.JoT(tau_max=tau, combine=combine, canvas=True)
    out = run(family, prompt, method, block=block, keep_steps=keep, **shared)
    step, rule, masked = out.trace.step, out.trace.rule, out.trace.masked
    assert MODELS[family].mask_id not in out.tokens and out.tokens[: len(prompt)] == prompt
    assert (rule > 0).all() and min(masked) > 0 and out.steps == len(masked) == step.max() + 1
    begin = 0
    for first in range(0, LENGTH, block):
        here = step[first : first + block]
        assert (here[rule[first : first + block] & SCHEDULED > 0] >= begin).all()
        planned = int((here >= begin).sum())  # one token a step
        if keep:
            begin = min(begin + planned, out.steps)
        else:
            begin = max(begin, int(here.max()) + 1)
    assert out.steps == begin
    alone = dict(block=None, keep_steps=keep, **shared)
    usual = run(family, prompt, jot.JoT(tau_max=tau, combine=combine), block=None, **shared)
    assert run(family, prompt, method, **alone).trace.step.tolist() == usual.trace.step.tolist()


@quick
@given(
    families, prompts, thresholds, combines, temperatures, st.integers(1, 5), st.sampled_from([4, 8, 16]),
    st.sampled_from(["llada", "precomputed", "dream"]), st.sampled_from([None, "prefix", "dual"]), st.booleans(),
)  # fmt: skip
def test_at_most_so_many_commits_a_step(family, prompt, tau, combine, temperature, most, steps, schedule, cache, wide):
    """The limit holds at every step and no mask remains, also where the schedule has fewer steps than that takes."""
    shared = dict(block=8, temperature=temperature, steps=steps, schedule=schedule, cache=cache)
    wide = wide and cache is None
    shared["keep_steps"] = wide
    out = run(family, prompt, jot.JoT(tau, combine=combine, canvas=wide, max_commits=most), **shared)
    assert MODELS[family].mask_id not in out.tokens and out.tokens[: len(prompt)] == prompt
    assert max(np.unique(out.trace.step, return_counts=True)[1]) <= most
    free = run(family, prompt, jot.JoT(tau, combine=combine, canvas=wide), **shared)
    loose = run(family, prompt, jot.JoT(tau, combine=combine, canvas=wide, max_commits=LENGTH), **shared)
    assert (loose.tokens, loose.forwards, loose.trace.masked) == (free.tokens, free.forwards, free.trace.masked)
    for name in ("step", "rule", "margin", "threshold"):
        np.testing.assert_array_equal(getattr(loose.trace, name), getattr(free.trace, name), err_msg=name)


@quick
@given(families, prompts, st.sampled_from([None, 4]), st.integers(1, 3))
def test_what_the_limit_keeps_has_the_largest_margins(family, prompt, block, most):
    """Where everything may exit, a step commits the masks of the largest margins: decoding in the order of margins."""
    net = MODELS[family]
    order = jot.JoT(tau_max=1.0, spatial=False, max_commits=most)
    out = run(family, prompt, order, block=block, temperature=0.0)
    canvas, step = torch.tensor(prompt + [net.mask_id] * LENGTH), -1
    for start in range(len(prompt), len(canvas), block or LENGTH):
        while (here := (canvas[start : start + (block or LENGTH)] == net.mask_id).nonzero()[:, 0] + start).numel():
            logits = net.predict(canvas[None], None, torch.zeros_like(here), here).index_fill(
                1, torch.tensor([net.mask_id]), -torch.inf
            )
            top = top2(logits)
            kept = top.gap.argsort(descending=True, stable=True)[:most]
            canvas[here[kept]], step = top.index[kept], step + 1
            assert set(np.flatnonzero(out.trace.step == step)) == set((here[kept] - len(prompt)).tolist())
    assert canvas.tolist() == out.tokens and out.steps == step + 1


def literally(net, prompt, length, block, steps, tau, gamma, window, banned, late):
    """The public rule on LLaDA at temperature 0, as it is described: canvas and forwards, float64 arithmetic."""
    canvas, forwards = torch.tensor(prompt + [net.mask_id] * length), 0
    size = len(canvas)
    apart = (torch.arange(size)[:, None] - torch.arange(size)).abs()
    kernel = torch.where((apart > 0) & (apart <= window), gamma ** apart.double(), 0.0)
    full = 2 * sum(gamma**d for d in range(1, window + 1))
    for start in range(len(prompt), size, block):
        here = (torch.arange(size) >= start) & (torch.arange(size) < start + block)
        begun = int((here & (canvas == net.mask_id)).sum())
        for quota in SCHEDULES["precomputed"](begun, -(-steps // -(-length // block))):
            masks = canvas == net.mask_id
            if not masks.any():
                return canvas.tolist(), forwards
            with torch.no_grad():
                logits = net(canvas[None]).logits[0].double()
            forwards += 1
            logits[:, [net.mask_id, *banned]] = -torch.inf
            token = logits.argmax(-1)
            logits[:, list(late)] = -torch.inf
            probs = logits.softmax(-1)
            first, second = logits.topk(2).values.T
            phi = (kernel @ (~masks).double() / full).clamp(max=1)
            exits = masks & (first - second >= (tau - (tau - 1) * phi).clamp(min=1).log())
            sure = probs[torch.arange(size), token]
            order = sorted((masks & here).nonzero()[:, 0].tolist(), key=lambda i: (-float(sure[i]), i))
            commit = exits.nonzero()[:, 0].tolist() + order[:quota]
            canvas[commit] = token[commit]
    return canvas.tolist(), forwards


@quick
@given(
    prompts, st.sampled_from([7, 16, 20]), st.sampled_from([4, 6, 16]), st.sampled_from([0.4, 1.0, 2.0]),
    st.sampled_from([2.0, 10.0, 90.0]), st.sampled_from([(0.5, 8), (0.8, 2)]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_public_rule_as_it_is_described(prompt, length, block, share, tau, kernel, ban, late):
    net, (gamma, window), steps = MODELS["llada"], kernel, max(1, int(share * length))
    banned, demoted = (net.eos_id,) if ban else (), (111, 88) if late else ()
    method = jot.JoT(tau_max=tau, gamma=gamma, window=window, canvas=True, sample=True, skip_demoted=True)
    out = jot.decode(
        net, prompt, method, length=length, block_length=block, steps=steps, ragged=True, keep_steps=True,
        schedule="precomputed", suppress_tokens=banned, begin_suppress_tokens=demoted, head_dtype="float64",
    )  # fmt: skip
    want = literally(net, prompt, length, block, steps, tau, gamma, window, banned, demoted)
    assert (out.tokens, out.steps) == want


def test_the_margin_without_the_demoted_tokens():
    """The public rule reads the margin where the tokens that rank last are gone; by default they count."""
    logits = torch.tensor([[9.0, 1.0, 0.5], [0.0, 9.0, 1.0], [0.2, 0.1, 0.0]])
    step, late = make_step(logits), make_step(logits)
    late.demoted = torch.tensor([0])
    rule = jot.JoT(tau_max=math.exp(4.0), spatial=False, skip_demoted=True)
    assert rule(step)[0].tolist() == [True, True, False]
    assert rule(late)[0].tolist() == [False, True, False]
    prompt, seen = [3, 4, 5], {}
    ban = tuple(set(run("llada", prompt).generated))[:1]
    for skip in (False, True):
        method = jot.JoT(tau_max=3.0, skip_demoted=skip)
        seen[skip] = run("llada", prompt, method, begin_suppress_tokens=ban, block=4).trace
        usual = run("llada", prompt, jot.JoT(tau_max=3.0), block=4).tokens
        assert run("llada", prompt, method, block=4).tokens == usual
    assert seen[True].margin.tolist() != seen[False].margin.tolist()
    exited = seen[True].rule & EXITED > 0
    assert exited.any() and (seen[True].margin[exited] >= seen[True].threshold[exited] - 1e-6).all()


@quick
@given(families, prompts, st.sampled_from([1.5, 3.0, 30.0]))
def test_first_exit_set_ignores_temperature(family, prompt, tau):
    """What exits at a given canvas is the same at every temperature; later canvases differ by the draws."""
    method = jot.JoT(tau_max=tau)
    first = [
        np.flatnonzero((out.trace.step == 0) & (out.trace.rule & EXITED > 0)).tolist()
        for out in (run(family, prompt, method, temperature=t, seed=3) for t in (0.0, 0.1, 1.0))
    ]
    assert first[0] == first[1] == first[2]


@quick
@given(
    families, st.lists(prompts, min_size=2, max_size=6), thresholds, st.integers(1, 4),
    st.sampled_from([0.0, 0.7]),
)  # fmt: skip
def test_a_sample_in_a_batch_equals_its_solo_run(family, batch, tau, slots, temperature):
    shared = dict(length=LENGTH, block_length=blocks_of(family), temperature=temperature, trace=True)
    method = jot.JoT(tau_max=tau)
    outs = dict(jot.decode_stream(MODELS[family], list(enumerate(batch)), method, slots=slots, **shared))
    for i, prompt in enumerate(batch):
        solo = jot.decode(MODELS[family], prompt, method, sample_id=i, **shared)
        if outs[i].tokens != solo.tokens:
            one, two = outs[i].trace, solo.trace
            apart = (one.step != two.step) | (np.array(outs[i].generated) != solo.generated)
            step = np.minimum(one.step, two.step)[apart].min()
            commits = [
                trace.margin[here] - bar
                for trace in (one, two)
                for here in [apart & (trace.step == step)]
                for bar in (trace.threshold[here], 0.0)
            ]  # it may have left or stayed, or two tokens tie
            edge = np.nanmin(np.abs(np.concatenate(commits)))
            print(f"sample {i} departs at step {step}, a decision {edge:.2e} from its edge")
            assert edge < 1e-4
        else:
            assert outs[i].steps == solo.steps


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("guidance", [0.0, 1.0])
def test_batch_with_guidance_and_lengths(family, guidance):
    batch = [[5, 6, 7], [8] * 9, [1]]
    shared = dict(length=LENGTH, block_length=blocks_of(family), guidance=guidance)
    outs = jot.decode(MODELS[family], batch, jot.JoT(tau_max=3.0), **shared)
    for out, prompt in zip(outs, batch, strict=True):
        assert out.tokens == jot.decode(MODELS[family], prompt, jot.JoT(tau_max=3.0), **shared).tokens


@pytest.mark.parametrize("family", MODELS)
def test_banned_tokens_never_appear(family):
    model = MODELS[family]
    free = run(family, [3, 4, 5])
    ban = tuple(set(free.generated))
    assert not set(ban) & set(run(family, [3, 4, 5], jot.JoT(tau_max=2.0), suppress_tokens=ban).generated)
    late = run(family, [3, 4, 5], begin_suppress_tokens=(free.generated[0],))
    assert model.mask_id not in late.tokens


@pytest.mark.parametrize("proposal", ["llada", "dream"])
@pytest.mark.parametrize("ranking", ["confidence", "entropy", "margin"])
@pytest.mark.parametrize("top_p", [None, 0.3])
def test_demoted_tokens_come_last(proposal, ranking, top_p):
    """What may be proposed but ranks last is below everything else in every ranking, even as the only survivor."""
    logits = torch.tensor([[9.0, 1.0, 0.0], [0.1, 0.0, 0.2], [2.0, 0.0, 5.0], [0.0, 7.0, 6.9]])
    config = DecodeConfig(temperature=0.0, top_p=top_p, ranking=ranking, begin_suppress_tokens=(0, 1))
    token, rank, likely = PROPOSALS[proposal](make_step(logits), config, KeyedDraws())
    assert token.tolist() == [0, 2, 2, 1]
    assert not rank.isnan().any() and not likely.isnan().any()
    assert max(rank[0], rank[3]) < min(rank[1], rank[2])
    assert likely[0] == likely[3] == 0 < min(likely[1], likely[2])


@pytest.mark.parametrize("fast", ["0", "1"])
def test_logits_that_are_not_numbers_are_refused(fast, monkeypatch):
    monkeypatch.setenv("JOT_FAST", fast)
    model = jot.load(CHECKPOINTS / "tiny-llada", device="cpu")
    model.head.mul_(float("nan"))
    with pytest.raises(jot.UserError, match="ff_out.weight of .* holds values that are not numbers; fetch the weights"):
        jot.decode(model, [1, 2, 3], length=4)


def test_no_exit_rule_ever_moves_the_draws():
    """Exits elsewhere leave the random numbers of a position alone: they are keyed by step and position."""
    draws = KeyedDraws()

    def step(positions):
        return make_step(torch.zeros(len(positions), 3), torch.tensor(positions), sample_key(1, "a"))

    full, part = draws.uniform(step(range(50)), 0), draws.uniform(step([3, 40]), 0)
    assert torch.equal(full[[3, 40]], part)
    assert not torch.equal(full, draws.uniform(step(range(50)), 1))
    many = draws.uniform(step(range(20000)), 0)
    assert 0 < many.min() and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01 and abs(many.var() - 1 / 12) < 0.003


def test_categorical_inverts_the_distribution():
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2]).repeat(40000, 1)
    rows = torch.arange(40000)
    step = make_step(probs, rows, 7)
    drawn = KeyedDraws().categorical(probs, step, rows > -1)
    share = torch.bincount(drawn, minlength=4) / 40000
    torch.testing.assert_close(share, probs[0], atol=0.01, rtol=0)
    assert share[1] == 0


@given(st.integers(0, 2**32), st.integers(2, 40), st.floats(0.05, 0.999))
@settings(max_examples=50, deadline=None)
def test_nucleus_keeps_the_smallest_covering_set(seed, width, top_p):
    logits = torch.randn(5, width, generator=torch.Generator().manual_seed(seed)) * 3
    kept = nucleus(logits, top_p)
    for row, out in zip(logits.double(), kept, strict=True):
        order = row.argsort(descending=True, stable=True)
        before = row.softmax(-1)[order].cumsum(-1) - row.softmax(-1)[order]
        expect = order[: int(max(1, (before <= top_p + 1e-6).sum()))]
        surely = order[: int(max(1, (before <= top_p - 1e-6).sum()))]
        mine = set(out.isfinite().nonzero()[:, 0].tolist())
        assert set(surely.tolist()) <= mine <= set(expect.tolist())


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 3.0]), st.floats(0.05, 0.999), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_nucleus_among_the_leaders_is_that_of_the_whole_row(seed, scale, top_p, ties):
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(seed)) * scale
    logits = logits.round() if ties else logits
    with pytest.MonkeyPatch.context() as patch:
        whole = nucleus(logits, top_p)
        patch.setattr(proposals, "MANY", 10)
        patch.setattr(proposals, "LEADERS", 8)
        few = nucleus(logits, top_p)
    odd = whole != few
    assert logits.double().softmax(-1).masked_fill(~odd, 0).sum(-1).max() < 1e-6 or _at_the_edge(logits, top_p)


def _at_the_edge(logits, top_p):
    """Whether some cumulative probability lies within rounding of ``top_p``."""
    sums = logits.double().sort(dim=-1, descending=True).values.softmax(-1).cumsum(-1)
    return bool(((sums - top_p).abs() < 1e-6).any())


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=30))
def test_highest_breaks_ties_to_the_lowest_position(rows):
    rows = sorted(rows, key=lambda r: r[0])
    slot, score = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
    quota = torch.tensor([0, 1, 2, 3])
    chosen = highest(score, slot, quota, torch.ones(len(rows), dtype=torch.bool))
    for s in range(4):
        at = (slot == s).nonzero()[:, 0].tolist()
        expect = sorted(at, key=lambda i: (-float(score[i]), i))[: int(quota[s])]
        assert sorted(i for i in at if chosen[i]) == sorted(expect)


def test_top2_against_a_sort():
    logits = torch.randn(64, 100, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    top = top2(logits)
    value, order = logits.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(top.first, value[:, 0]) and torch.equal(top.second, value[:, 1])
    assert torch.equal(top.index, order[:, 0])
    torch.testing.assert_close(top.normalizer.double(), logits.double().logsumexp(-1), rtol=1e-6, atol=1e-6)


@given(st.integers(1, 300), st.integers(1, 300))
def test_schedules_reveal_every_mask(masks, steps):
    assert SCHEDULES["llada"](masks, steps).sum() == masks
    counts = SCHEDULES["precomputed"](masks, steps)
    assert counts.sum() == masks and (counts > 0).all() and len(counts) <= steps


def test_dream_schedule_stalls_behind_an_exit_rule():
    """Why the precomputed schedule is Dream's default: the stock shares reveal nothing once exits shrink the canvas."""
    method, prompt = jot.JoT(tau_max=30.0, spatial=False), [163, 260, 250, 55, 154, 282, 149, 63]
    shared = dict(length=32, temperature=0.0)
    stock = run("dream", prompt, method, schedule="dream", **shared)
    fixed = run("dream", prompt, method, schedule="precomputed", **shared)
    assert stock.steps == 32 and fixed.steps < 16


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (dict(length=0), "length=0"),
        (dict(steps=0), "steps=0"),
        (dict(length=10, block_length=4), "does not divide"),
        (dict(length=16, steps=10, block_length=4), "steps=10"),
        (dict(temperature=-1.0), "temperature"),
        (dict(temperature=math.nan), "must be a number"),
        (dict(top_p=0.0), "top_p"),
        (dict(ranking="best"), "ranking=.* one of"),
        (dict(schedule="fast"), "schedule=.* one of"),
        (dict(schedule="single", length=10, block_length=8, ragged=True), "needs steps of at least 15"),
        (dict(schedule="single", length=8, steps=4), "needs steps of at least 8"),
        (dict(ranking="origin"), "origin"),
        (dict(cache="tri"), "cache"),
        (dict(keep_steps=1), "true or false"),
        (dict(keep_steps=True, stop_early=False), "give one of them"),
        (dict(keep_steps=True, cache="dual", block_length=8), "use cache=None"),
        (dict(method=jot.JoT(canvas=True), cache="prefix", block_length=8), "use cache=None"),
        (dict(speed=3), "unknown decoding parameter"),
        (dict(slots=0), "slots"),
        (dict(length=400), "positions"),
    ],
)
def test_bad_parameters_are_one_sentence(kwargs, words):
    with pytest.raises(jot.UserError, match=words) as error:
        jot.decode(MODELS["llada"], [1, 2, 3], **kwargs)
    assert "\n" not in str(error.value)


def test_the_least_steps_of_a_ragged_canvas_fill_it():
    shared = dict(length=10, block_length=8, ragged=True, schedule="single")
    for net in MODELS.values():
        assert net.mask_id not in jot.decode(net, [1, 2, 3], steps=15, **shared).tokens


def test_a_shifted_model_needs_a_step_beside_the_one_that_opens_a_block():
    shared = dict(length=8, block_length=4, cache="dual", schedule="dream", temperature=0.0)
    with pytest.raises(jot.UserError, match="needs two steps a block"):
        jot.decode(MODELS["dream"], [1, 2, 3], steps=2, **shared)
    assert MODELS["dream"].mask_id not in jot.decode(MODELS["dream"], [1, 2, 3], steps=4, **shared).tokens
    assert MODELS["llada"].mask_id not in jot.decode(MODELS["llada"], [1, 2, 3], steps=2, **shared).tokens


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (dict(tau_max=0.5), "tau_max"), (dict(tau_max=3, tau_min=5), "must not exceed"), (dict(gamma=0.0), "gamma"),
        (dict(gamma=1.0), "gamma"), (dict(window=0), "window"), (dict(tau_max="ninety"), "must be a number"),
        (dict(max_commits=0), "max_commits"), (dict(max_commits=True), "whole number"),
        (dict(combine="and"), "combine"), (dict(tau_min=0.0), "tau_min"), (dict(tau_max=math.nan), "must be a number"),
    ],
)  # fmt: skip
def test_bad_thresholds_are_one_sentence(kwargs, words):
    with pytest.raises(jot.UserError, match=words):
        jot.JoT(**kwargs)


@pytest.mark.parametrize(
    ("prompt", "words"), [([], "empty"), ([310], "mask id"), ([999], "outside"), ([-1], "outside")]
)
def test_bad_prompts_are_one_sentence(prompt, words):
    with pytest.raises(jot.UserError, match=words):
        jot.decode(MODELS["llada"], prompt)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([1.7, 2.9], "holds 1.7"), (torch.tensor([1.7]), "not a token id"), (torch.tensor([True]), "holds True"),
        ("hello", "must be token ids, not str"), (["hello"], "must be token ids"), ({"input_ids": [1]}, "input_ids"),
        (5, "not int"), (None, "not NoneType"), (torch.tensor(3), "not Tensor"), ([[1, 2], 3], "not int"),
        ([[[1]]], r"holds \[1\]"), ([math.nan], "holds nan"),
    ],
)  # fmt: skip
def test_prompts_of_other_types_are_one_sentence(prompt, words):
    with pytest.raises(jot.UserError, match=words) as error:
        jot.decode(MODELS["llada"], prompt)
    assert "\n" not in str(error.value)


def test_prompts_of_whole_numbers_of_any_kind():
    want = jot.decode(MODELS["llada"], [1, 2, 3], length=4).tokens
    for prompt in ((1, 2, 3), np.array([1, 2, 3]), torch.tensor([1, 2, 3]), iter([1, 2, 3])):
        assert jot.decode(MODELS["llada"], prompt, length=4).tokens == want
    assert [out.tokens for out in jot.decode(MODELS["llada"], torch.tensor([[1, 2, 3]] * 2), length=4)] == [want] * 2


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (dict(method="jot"), "such as jot.JoT"), (dict(method=jot.JoT), "such as jot.JoT"),
        (dict(stop_early="no"), "true or false"), (dict(ragged=1), "true or false"), (dict(length=None), "length=None"),
        (dict(steps=10**12), "steps=.* number, at most"), (dict(schedule=["llada"]), "schedule=.* one of"),
        (dict(ranking={}), "ranking=.* one of"), (dict(suppress_tokens=5), "list of whole numbers"),
        (dict(suppress_tokens="ab"), "list of whole numbers"), (dict(constraints=[1, 2]), "pairs"),
        (dict(constraints=[(1, 2, 3)]), "pairs"), (dict(constraints="1:2"), "pairs"), (dict(constraints=5), "pairs"),
        (dict(temperature=10**400), "number, at most"), (dict(suppress_tokens=range(320)), "bans every token"),
        (dict(constraints={0: 1.5}), "whole numbers"),
    ],
)  # fmt: skip
def test_arguments_of_other_types_are_one_sentence(kwargs, words):
    with pytest.raises(jot.UserError, match=words) as error:
        jot.decode(MODELS["llada"], [1, 2, 3], **kwargs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("samples", [None, [[1, 2, 3]], [(0.5, [1])], [(None, [1])]])
def test_samples_are_pairs(samples):
    with pytest.raises(jot.UserError, match="key"):
        next(jot.decode_stream(MODELS["llada"], samples))
    with pytest.raises(jot.UserError, match="jot.load"):
        jot.decode("pocket-llada", [1, 2, 3])


@pytest.mark.parametrize(
    ("rule", "kwargs", "words"),
    [
        (jot.JoT, dict(window=10**10), "window=.* number, at most"), (jot.JoT, dict(spatial="no"), "true or false"),
        (jot.JoT, dict(tau_max=10**400), "number, at most"), (jot.KLASS, dict(history=10**11), "history=.* at most"),
        (jot.KLASS, dict(inclusive=1), "true or false"), (jot.Prophet, dict(answer_start=True), "whole number"),
        (jot.Prophet, dict(answer_start=10**20), "at most"),
    ],
)  # fmt: skip
def test_rules_refuse_what_they_cannot_use(rule, kwargs, words):
    with pytest.raises(jot.UserError, match=words):
        rule(**kwargs)
