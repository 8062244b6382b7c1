"""UDR: a slow version by the paper's formula, closed forms, uninformative latents, peers, bad input."""

import json
import statistics

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import Lasso

from tests.support.evaluations import fixed_evaluation, full_grid
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import evaluate, metric
from unbraid.metrics.unsupervised.elbo import compute_latent_kl
from unbraid.metrics.unsupervised.udr import fit_lasso, udr

BOTH = pytest.mark.parametrize("correlation", ["spearman", "lasso"])


def models(count=4, rows=200, seed=0):
    """Models of different width that found some of the same latents, more or less clearly."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((rows, 4))
    codes = []
    for m in range(count):
        width = 3 + m % 3
        mixing = rng.standard_normal((4, width)) * (rng.random((4, width)) < 0.5)
        codes.append(np.tanh(truth @ mixing) + 0.2 * rng.standard_normal((rows, width)))
    kl = [np.where(rng.random(code.shape[1]) < 0.3, 0.005, 1.5) for code in codes]
    for one in kl:
        one[0] = 1.0
    return codes, kl


def slow_similarity(codes, other, correlation):
    """R(a, b) >= 0 of the other model's latents a and this model's latents b."""
    if correlation == "spearman":
        return [[abs(spearmanr(a, b).statistic) for b in codes.T] for a in other.T]
    standard = [(one - one.mean(0)) / one.std(0) for one in (other, codes)]
    fits = [Lasso(alpha=0.1, tol=1e-13, max_iter=100_000).fit(standard[0], b).coef_ for b in standard[1].T]
    return [[abs(fit[a]) for fit in fits] for a in range(other.shape[1])]


def slow_udr(codes, kl, correlation):
    """duan2020, equations 2 and 3, in loops, over the informative latents of each model."""
    kept = [one[:, [j for j in range(one.shape[1]) if own[j] > 0.01]] for one, own in zip(codes, kl, strict=True)]
    scores = []
    for i, mine in enumerate(kept):
        pairs = []
        for j, other in enumerate(kept):
            if i == j:
                continue
            R = slow_similarity(mine, other, correlation)
            terms = [max(row) ** 2 / sum(row) if sum(row) else 0.0 for row in R]
            terms += [max(c) ** 2 / sum(c) if sum(c) else 0.0 for c in zip(*R, strict=True)]
            pairs.append(sum(terms) / len(terms))
        scores.append(statistics.median(pairs))
    return scores


@BOTH
def test_agrees_with_a_slow_version(correlation):
    codes, kl = models()
    found = udr(codes, kl, correlation=correlation)
    expected = slow_udr(codes, kl, correlation)
    assert [score.value for score in found] == pytest.approx(expected, abs=1e-8)
    assert [score.name for score in found] == [f"udr/{correlation}"] * 4
    assert found[1].details["informative"] == [j for j, own in enumerate(kl[1]) if own > 0.01]


@BOTH
def test_without_kl_every_latent_counts_that_varies(correlation):
    codes, _ = models()
    wider = [np.hstack([one, np.full((len(one), 1), 0.1)]) for one in codes]
    expected = slow_udr(codes, [np.ones(one.shape[1]) for one in codes], correlation)
    assert [score.value for score in udr(wider, correlation=correlation)] == pytest.approx(expected, abs=1e-8)


@BOTH
def test_equal_models_of_independent_latents_reach_the_ceiling(correlation):
    """In any order and of any sign; the lasso's penalty .1 leaves .9."""
    grid = full_grid((4, 5, 6)).astype(float)
    codes = [grid, -grid[:, [2, 0, 1]], grid[:, [1, 2, 0]] * [1, -3, 1]]
    ceiling = 1.0 if correlation == "spearman" else 0.9
    for score in udr(codes, correlation=correlation):
        assert score.value == pytest.approx(ceiling, abs=1e-9)
    free = udr(codes, correlation="lasso", penalty=0.0)
    assert [score.value for score in free] == pytest.approx([1.0] * 3, abs=1e-8)


@BOTH
def test_rotated_models_agree_less(correlation):
    rng = np.random.default_rng(0)
    truth = rng.uniform(-1, 1, (2_000, 5))
    aligned = [truth[:, rng.permutation(5)] * rng.choice([-1, 1], 5) for _ in range(4)]
    turned = [truth @ np.linalg.qr(rng.standard_normal((5, 5)))[0] for _ in range(4)]
    alike, unlike = udr(aligned, correlation=correlation), udr(turned, correlation=correlation)
    assert max(score.value for score in unlike) < 0.5 < 0.8 < min(score.value for score in alike)


@BOTH
def test_order_sign_scale_and_offset_of_latents_do_not_matter(correlation):
    codes, kl = models()
    changed = [5 - 3 * one[:, ::-1] for one in codes]
    found = udr(changed, [one[::-1] for one in kl], correlation=correlation)
    for one, other in zip(udr(codes, kl, correlation=correlation), found, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-7)


def test_a_model_without_informative_latents_scores_zero():
    codes, kl = models()
    kl[2] = np.zeros_like(kl[2])
    scores = udr(codes, kl)
    assert scores[2].value == 0
    assert set(scores[2].details["pairs"].values()) == {0}
    assert [score.value for score in udr(codes, [np.zeros_like(one) for one in kl])] == [0] * 4


def test_a_constant_latent_that_claims_information_counts_as_nothing_found():
    grid = full_grid((4, 5)).astype(float)
    wider = np.hstack([grid, np.full((20, 1), 0.1)])
    score = udr([grid, wider], [[1, 1], [1, 1, 1]])[0]
    assert score.value == pytest.approx(4 / 5)  # two found on either side of 2 + 3


def test_lasso_weights_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 100, 4)) @ rng.standard_normal((4, 4))
    x[1, :, 3] = 0
    x = x - x.mean(1, keepdims=True)
    y = rng.standard_normal((100, 3)) + x[0, :, :3]
    y = y - y.mean(0)
    gram, cross = x.transpose(0, 2, 1) @ x / 100, x.transpose(0, 2, 1) @ y / 100
    found = fit_lasso(gram, cross, 0.1)
    for m in range(2):
        expected = Lasso(alpha=0.1, tol=1e-14, max_iter=100_000, fit_intercept=False).fit(x[m], y).coef_.T
        np.testing.assert_allclose(found[m], expected, atol=1e-7)


def test_twin_latents_in_a_model_do_no_harm():
    codes, _ = models()
    twins = [np.hstack([one, one]) for one in codes]
    for correlation in ("spearman", "lasso"):
        assert all(0 < score.value < 1 for score in udr(twins, correlation=correlation))


def test_intervals_need_six_partners():
    codes, kl = models()
    assert udr(codes[:3], kl[:3])[0].interval is None
    again = [one + 0.3 * np.random.default_rng(s).standard_normal(one.shape) for s, one in enumerate(codes * 3)]
    many = udr(again[:8], first=1)[0]
    pairs = sorted(many.details["pairs"].values())
    assert many.interval == (pairs[0], pairs[-1])  # in 98% of cases the median of their distribution lies between
    score = udr(codes, kl)[0]
    assert score == udr([torch.from_numpy(one) for one in codes], kl)[0]
    json.dumps(score.as_record())


def evaluation_of(seed=0, rows=None):
    """A model that found three factors, in an order and with signs of its own, and an unused latent."""
    grid = full_grid((4, 5, 6))
    rng = np.random.default_rng(seed)
    order = rng.permutation(3)
    means = ((grid - grid.mean(0)) / grid.std(0))[:, order] * rng.choice([-1, 1], 3)
    means, stds = np.hstack([means, np.zeros((len(grid), 1))]), np.full((len(grid), 4), 0.1)
    stds[:, 3] = 1
    return fixed_evaluation(means, stds, grid, rows=rows)


@BOTH
def test_of_an_evaluation_with_peers(correlation):
    evaluation = evaluation_of()
    evaluation.peers = tuple(evaluation_of(seed) for seed in (1, 2, 3))
    (score,) = evaluate(evaluation, [f"udr/{correlation}"])
    assert score.value == pytest.approx(1 if correlation == "spearman" else 0.9, abs=1e-4)
    assert score.details["informative"] == [0, 1, 2]
    assert list(score.details["pairs"]) == ["peer 1", "peer 2", "peer 3"]
    assert compute_latent_kl(evaluation)[3] < 0.01
    assert "peers" in metric[f"udr/{correlation}"].facts.needs


def test_an_evaluation_without_peers_or_on_other_rows():
    evaluation = evaluation_of()
    with pytest.raises(UsageError, match=naming("unbraid evaluate RUN RUN", "--metric udr")):
        evaluate(evaluation, ["udr"])
    evaluation.peers = (evaluation_of(1, rows=torch.arange(60)),)
    with pytest.raises(UsageError, match=naming("udr", "rows")):
        evaluate(evaluation, ["udr/spearman"])


@pytest.mark.parametrize(
    ("change", "error", "facts"),
    [
        ({"codes": [np.zeros((5, 2))]}, UsageError, ["2"]),
        ({"codes": [np.zeros((5, 2)), np.zeros((6, 2))]}, UsageError, [5, 6]),
        ({"codes": [np.zeros((1, 2)), np.zeros((1, 2))]}, DataError, ["rows", 2]),
        ({"codes": [np.zeros((5, 2)), np.full((5, 2), np.nan)]}, DataError, ["codes", "model 1", "NaN"]),
        ({"kl": [np.ones(2)]}, UsageError, [2, 1]),
        ({"kl": [np.ones(2), np.ones(3)]}, UsageError, ["kl", "model 1"]),
        ({"kl": [np.ones(2), np.array([1, np.nan])]}, DataError, ["kl", "model 1", "NaN"]),
        ({"names": ["one"]}, UsageError, [2, 1]),
        ({"penalty": -1.0, "correlation": "lasso"}, UsageError, ["penalty"]),
    ],
)
def test_bad_input_is_refused(change, error, facts):
    rng = np.random.default_rng(0)
    with pytest.raises(error, match=naming(*facts)):
        udr(**{"codes": [rng.random((5, 2)), rng.random((5, 2))], **change})
