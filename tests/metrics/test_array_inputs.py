"""What every score on arrays does with columns of every kind, and what holds for any codes at all."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from tests.support.messages import naming
from unbraid import metrics
from unbraid.errors import UnbraidError

QUICK = {
    "mig": lambda c, v: metrics.mig(c, v, resamples=0),
    "mig/disentanglement_lib": lambda c, v: metrics.mig(c, v, resamples=0, compat="disentanglement_lib"),
    "modularity": metrics.modularity,
    "sap": lambda c, v: metrics.sap(c, v, resamples=0),
    "factorvae": lambda c, v: metrics.factorvae(c, v, train=200, test=100, resamples=0),
    "irs": metrics.irs,
    "infomec/histogram": lambda c, v: metrics.infomec(c, v, protocol="histogram", resamples=0),
}
SLOWER = {
    "betavae": lambda c, v: metrics.betavae(c, v, train=200, test=100),
    "explicitness": metrics.explicitness,
    "infomec/knn": lambda c, v: metrics.infomec(c, v, protocol="knn", resamples=0),
    "dci/lasso": lambda c, v: metrics.dci(c, v, predictor="lasso"),
    "dci/booster": lambda c, v: metrics.dci(c, v, predictor="booster"),
    "dci/random-forest": lambda c, v: metrics.dci(c, v, predictor="random-forest"),
    "downstream": lambda c, v: metrics.downstream(c, v, labels=(50,)),
    "attributes": lambda c, v: metrics.attributes(c, v, steps=20),
}
ALL = {**QUICK, **SLOWER}
LASSO = pytest.param("dci/lasso", marks=pytest.mark.slow)  # quick in test_promises.py


def scores_of(name, codes, factors):
    made = ALL[name](codes, factors)
    return made if isinstance(made, list) else [made]


def example(rows=240, seed=0):
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.integers(0, 3, rows), rng.integers(0, 4, rows)], axis=1)
    return factors @ rng.standard_normal((2, 4)) + 0.3 * rng.standard_normal((rows, 4)), factors


@pytest.mark.parametrize("name", ALL)
def test_a_constant_and_a_doubled_latent_have_a_score(name):
    codes, factors = example()
    codes = np.concatenate([codes, np.full((len(codes), 1), 3.0), codes[:, :1]], axis=1)
    for score in scores_of(name, codes, factors):
        assert math.isfinite(score.value), score.name


@pytest.mark.parametrize("name", ALL)
def test_codes_that_are_all_constant_have_a_score_or_a_sentence(name):
    _, factors = example()
    try:
        made = scores_of(name, np.ones((len(factors), 3)), factors)
    except UnbraidError as error:
        assert len(str(error)) > 20
        return
    assert all(math.isfinite(score.value) for score in made)


@pytest.mark.parametrize("name", ALL)
def test_columns_that_cannot_be_scored_are_named(name):
    codes, factors = example()
    broken = codes.copy()
    broken[3, 1] = np.nan
    with pytest.raises(UnbraidError, match="NaN"):
        scores_of(name, broken, factors)
    with pytest.raises(UnbraidError, match="v1"):
        scores_of(name, codes, np.stack([factors[:, 0], np.zeros(len(codes), dtype=int)], axis=1))
    with pytest.raises(UnbraidError, match=naming("codes", 240, "factors", 239)):
        scores_of(name, codes, factors[:-1])
    with pytest.raises(UnbraidError):
        scores_of(name, codes[:, 0], factors)


@pytest.mark.parametrize("name", ALL)
def test_words_tensors_and_half_precision_are_taken(name):
    codes, factors = example()
    words = np.array(["ant", "bee", "cat", "dog"])[factors]
    for given_codes, given_factors in (
        (torch.tensor(codes, requires_grad=True), torch.tensor(factors)),
        (codes.astype(np.float16), words),
    ):
        assert all(math.isfinite(score.value) for score in scores_of(name, given_codes, given_factors))


matrices = arrays(
    np.float64,
    st.tuples(st.integers(30, 60), st.integers(2, 4)),
    elements=st.floats(-100, 100, width=32),
    fill=st.nothing(),
)


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=15)
@given(codes=matrices, seed=st.integers(0, 2**16))
def test_any_codes_score_between_0_and_1(name, codes, seed):
    rng = np.random.default_rng(seed)
    factors = np.stack([np.arange(len(codes)) % 2, rng.permutation(len(codes)) % 3], axis=1)
    low = -1.0 if name == "irs" else 0.0
    try:
        made = scores_of(name, codes, factors)
    except UnbraidError as error:
        assert "constant" in str(error) or "latent" in str(error)
        return
    for score in made:
        assert low <= score.value <= 1 + 1e-12, score.name


@pytest.mark.parametrize("name", ["mig", "modularity", "sap", "irs", "infomec/histogram", LASSO])
@settings(max_examples=8)
@given(seed=st.integers(0, 2**16), data=st.data())
def test_the_order_of_latents_does_not_matter(name, seed, data):
    codes, factors = example(120, seed)
    order = data.draw(st.permutations(range(4)))
    before, after = scores_of(name, codes, factors), scores_of(name, codes[:, order], factors)
    assert [s.value for s in after] == pytest.approx([s.value for s in before], abs=1e-6)
