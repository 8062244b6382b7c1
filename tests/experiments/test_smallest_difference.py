"""The claim that a difference is above 0 has two edges, and further looks at it have a price.

At a difference of 0 it may hold in one of twenty cases, and at the smallest difference that counts it may be refuted in
one of twenty.
"""

import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import norm

from tests.support.simulated_runs import betas, draw, make_run
from unbraid.experiments import Claim, Results, claims, judge, statistics
from unbraid.experiments.evidence import combine, compare_means, compare_on_average
from unbraid.experiments.judging import count_needed_seeds

A = "a/b"


def shifted(names, settings=({},), above=(), seeds=10, skewed=False):
    """Make runs of series, some of which are higher by the smallest difference that counts, and some have more seeds.

    The difference of two series at one of k settings has the deviation sqrt(2), so that of their means over all
    settings, with one seed each, sqrt(2 / k). Of two exponential numbers of scale 1, one that is higher by ln 1.5 is
    larger in 1 - exp(-ln 1.5) / 2, two of three cases.
    """
    by = math.log(1.5) if skewed else float(norm.ppf(claims.MIN_CHANCE)) * math.sqrt(2 / len(settings))

    def make(rng):
        counts = dict(zip(names, seeds if isinstance(seeds, tuple) else (seeds,) * len(names), strict=True))
        if skewed:
            drawn = {n: rng.exponential(size=counts[n]) + (by if n in above else 0.0) for n in names}
            return [make_run(n, seed, {A: value}) for n in names for seed, value in enumerate(drawn[n])]
        return [m for n in names for m in draw(rng, n, [A], settings, counts[n], by if n in above else 0.0)]

    return make


ABOVE_X = Claim("", compare_means("x", "y", A, low=0.0))
MEANS_ABOVE_X = Claim("", compare_on_average("x", "y", "beta", A, low=0.0))
ABOVE_ALL = Claim("", combine(*(compare_means(name, "y", A, low=0.0) for name in "abcd")))
SMALLEST = {
    "5 seeds": (ABOVE_X, "xy", {"seeds": 5}),
    "10 seeds": (ABOVE_X, "xy", {}),
    "40 seeds": (ABOVE_X, "xy", {"seeds": 40}),
    "10 and 40 seeds": (ABOVE_X, "xy", {"seeds": (10, 40)}),
    "40 and 10 skewed seeds": (ABOVE_X, "xy", {"seeds": (40, 10), "skewed": True}),
    "20 skewed seeds": (ABOVE_X, "xy", {"seeds": 20, "skewed": True}),
    "mean over settings": (MEANS_ABOVE_X, "xy", {"settings": tuple(betas(1, 2, 3))}),
    "four differences": (ABOVE_ALL, "abcdy", {"seeds": 20}),
}


def count_verdicts(claim, make, count):
    rng = np.random.default_rng(0)
    return Counter(judge(claim, Results(tuple(make(rng)))).verdict for _ in range(count))


def check_smallest(name, count, slack):
    claim, names, how = SMALLEST[name]
    at_edge = count_verdicts(claim, shifted(names, above="y", **how), count)
    assert at_edge["does not hold"] / count <= 0.05 + slack
    at_zero = count_verdicts(claim, shifted(names, **how), count)
    if "skewed" not in how:  # intervals of means are Student's
        assert at_zero["holds"] / count <= 0.05 + slack
    return at_zero


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_difference_that_counts_is_rarely_refuted_and_none_rarely_holds(name):
    check_smallest(name, count=80, slack=0.049)  # two standard errors of 80 draws


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_difference_that_counts_is_refuted_in_a_twentieth_at_most(name):
    check_smallest(name, count=500, slack=0.02)


@pytest.mark.usefixtures("few_resamples")
def test_a_claim_that_is_false_is_refuted_when_there_are_enough_seeds():
    """Without a smallest difference, no number of seeds refutes the claim that one of two equal series is higher."""
    assert check_smallest("40 seeds", count=60, slack=0.06)["does not hold"] > 30


@pytest.mark.usefixtures("few_resamples")
def test_a_large_difference_holds_and_a_small_one_does_not_however_many_seeds_there_are():
    rng = np.random.default_rng(0)

    def verdict(by, seeds):
        runs = draw(rng, "x", [A], seeds=seeds) + draw(rng, "y", [A], seeds=seeds, centre=by)
        return judge(ABOVE_X, Results(tuple(runs)))

    assert verdict(2.0, 10).verdict == "holds"
    small = verdict(0.25, 1000)
    assert small.evidence[0].estimate.low > 0
    assert small.verdict == "does not hold"
    assert "58% of all choices have this sign, 60% at most; two of three should" in small.why


@pytest.mark.slow
@pytest.mark.parametrize(("above", "wrong"), [("", "holds"), ("y", "does not hold")])
def test_seeds_that_are_added_settle_few_claims_wrongly(above, wrong):
    """A second look that the first one asked for, with 90% intervals, would be wrong in another 3%."""
    rng, count = np.random.default_rng(0), Counter()
    for _ in range(600):
        runs = shifted("xy", above=above)(rng)
        first = judge(ABOVE_X, Results(tuple(runs)))
        needed = count_needed_seeds(first.evidence, 10) if first.verdict == "inconclusive" else math.inf
        if needed <= 100:
            more = shifted("xy", above=above, seeds=int(needed) - 10)(rng)
            count[judge(ABOVE_X, Results((*runs, *more), looks={ABOVE_X.text: 2})).verdict] += 1
    assert count[wrong] / 600 < 0.025 + 0.013  # and two standard errors
    assert count.total() - count["inconclusive"] > 60  # it is worth a look


@pytest.mark.slow
@pytest.mark.parametrize(("looks", "share"), [((10, 36), 1 / 8), ((10, 30, 60, 125), 1 / 6)])
def test_zero_lies_outside_of_some_look_as_often_as_the_docs_say(looks, share):
    """docs/reproducing.md: seeds are added until a look excludes a difference of zero, which is the truth."""
    rng, missed = np.random.default_rng(1), 0
    for _ in range(600):
        x, y = rng.standard_normal((2, looks[-1], 1))
        for k, seeds in enumerate(looks, start=1):
            found = statistics.estimate(
                {"x": x[:seeds], "y": y[:seeds]}, lambda c: statistics.mean_difference(c, "x", "y")
            )
            wide = statistics.widen_for(k, found, max_freedom=math.inf)
            if wide.low > 0 or wide.high < 0:
                missed += 1
                break
    assert missed / 600 == pytest.approx(share, abs=0.03)  # two standard errors
