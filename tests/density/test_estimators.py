"""Estimators of log q(z) against exact answers (tests/oracles.md, row 1)."""

import itertools
import math

import pytest
import torch

from tests.support.messages import naming
from tests.support.posteriors import random_posterior, space_of
from unbraid.density import ESTIMATORS, batch_aggregate, chunks, exact_aggregate, weighting
from unbraid.errors import UsageError


def samples(posterior, seed=1):
    mean, log_variance = posterior.chunk(2, dim=-1)
    generator = torch.Generator().manual_seed(seed)
    return mean + (log_variance / 2).exp() * torch.randn(mean.shape, generator=generator, dtype=mean.dtype)


def weights_matrix(estimator, batch, size):
    own, after, other = weighting(estimator, batch, size)
    matrix = torch.full((batch, batch), other, dtype=torch.float64)
    for i in range(batch):
        matrix[i, (i + 1) % batch] = after
        matrix[i, i] = own
    return matrix


def misplaced_mss_matrix(batch, size):
    """The widely copied version: strides of M + 1 where M + 2 is meant, so column 0 is filled and not the diagonal."""
    others = batch - 1
    matrix = torch.full((batch, batch), 1 / others, dtype=torch.float64)
    matrix.view(-1)[:: others + 1] = 1 / size
    matrix.view(-1)[1 :: others + 1] = (size - others) / (size * others)
    matrix[others - 1, 0] = (size - others) / (size * others)
    return matrix.log()


def plain(posterior, z, log_weights):
    """log q(z) and log q(z_d) written out, without this library."""
    mean, log_variance = posterior.chunk(2, dim=-1)
    pairs = torch.distributions.Normal(mean[None], (log_variance[None] / 2).exp()).log_prob(z[:, None])
    joint = torch.logsumexp(pairs.sum(-1) + log_weights, dim=1)
    return joint, torch.logsumexp(pairs + log_weights[..., None], dim=1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("batch", "size", "width"), [(2, 2, 1), (2, 9, 3), (7, 7, 2), (16, 100, 5)])
def test_weights_stand_where_they_belong(estimator, batch, size, width):
    posterior = random_posterior(batch, width)
    z = samples(posterior)
    made = batch_aggregate(space_of(width), {"z": posterior}, {"z": z}, estimator, size)
    joint, leaves = plain(posterior, z, weights_matrix(estimator, batch, size))
    torch.testing.assert_close(made.joint, joint)
    torch.testing.assert_close(made.leaves, leaves)


def test_weights_sum_to_one_where_they_should():
    for estimator in ("mss", "stratified"):
        totals = weights_matrix(estimator, 8, 50).exp().sum(1)
        torch.testing.assert_close(totals, torch.ones(8, dtype=torch.float64))


def test_stratified_is_exact_on_the_whole_data_set_and_mss_is_not():
    posterior = random_posterior(40, 3)
    z, space = samples(posterior), space_of(3)
    exact = exact_aggregate(space, {"z": posterior}, {"z": z})
    full = batch_aggregate(space, {"z": posterior}, {"z": z}, "stratified", 40)
    torch.testing.assert_close(full.joint, exact.joint, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(full.leaves, exact.leaves, rtol=1e-12, atol=1e-12)
    mss = batch_aggregate(space, {"z": posterior}, {"z": z}, "mss", 40)
    assert (mss.joint - exact.joint).abs().max() > 1e-3


def enumerated_mean_of_q(size, batch, log_weights, replacement=False):
    """Mean of the estimated q(z_0) over every batch with data point 0 in its third row, over the exact q(z_0)."""
    posterior = random_posterior(size, 2)
    z = samples(posterior)
    others = (
        itertools.product(range(size), repeat=batch - 1)
        if replacement
        else itertools.permutations(range(1, size), batch - 1)
    )
    estimates = []
    for chosen in others:
        rows = [*chosen[:2], 0, *chosen[2:]]
        joint, _ = plain(posterior[rows], z[rows], log_weights)
        estimates.append(joint[2].exp())
    exact = exact_aggregate(space_of(2), {"z": posterior}, {"z": z}).joint[0].exp()
    return torch.stack(estimates).mean() / exact


@pytest.mark.parametrize("estimator", ["mss", "stratified"])
def test_q_is_unbiased_over_all_batches(estimator):
    ratio = enumerated_mean_of_q(7, 4, weights_matrix(estimator, 4, 7))
    assert float(ratio) == pytest.approx(1, abs=1e-12)


def test_misplaced_diagonal_and_repeated_indices_are_rejected():
    assert abs(float(enumerated_mean_of_q(7, 4, misplaced_mss_matrix(4, 7))) - 1) > 0.05
    assert abs(float(enumerated_mean_of_q(7, 4, weights_matrix("stratified", 4, 7), replacement=True)) - 1) > 0.05


@pytest.fixture(scope="module")
def oracle():
    """N = 20,000 independent latents, D = 10, sigma = .3."""
    generator = torch.Generator().manual_seed(0)
    n, width, sigma = 20_000, 10, 0.3
    mean = math.sqrt(1 - sigma**2) * torch.randn(n, width, generator=generator)
    posterior = torch.cat([mean, torch.full_like(mean, 2 * math.log(sigma))], dim=-1)
    return posterior, mean + sigma * torch.randn(n, width, generator=generator)


def oracle_terms(oracle, batch, batches, log_weights=None, estimator=None):
    posterior, z = oracle
    space, generator = space_of(10), torch.Generator().manual_seed(1)
    tc, mi = [], []
    for _ in range(batches):
        rows = torch.randperm(len(z), generator=generator)[:batch]
        values = {"z": z[rows]}
        if estimator is None:
            joint, leaves = plain(posterior[rows], z[rows], log_weights.float())
        else:
            made = batch_aggregate(space, {"z": posterior[rows]}, values, estimator, len(z))
            joint, leaves = made.joint, made.leaves
        own = space.log_density({"z": posterior[rows]}, values).sum(-1)
        tc.append(float((joint - leaves.sum(-1)).mean()))
        mi.append(float((own - joint).mean()))
    return sum(tc) / batches, sum(mi) / batches


@pytest.mark.parametrize(
    ("estimator", "batch", "batches", "tc", "mi"),
    [
        ("mss", 64, 200, 2.65, 9.86),
        ("stratified", 64, 200, 2.66, 9.86),
        pytest.param("mss", 1024, 24, 2.30, 9.73, marks=pytest.mark.slow),
        ("stratified", 1024, 8, 2.30, 9.75),
    ],
)
def test_row_1_minibatch_estimates(oracle, estimator, batch, batches, tc, mi):
    made_tc, made_mi = oracle_terms(oracle, batch, batches, estimator=estimator)
    assert made_tc == pytest.approx(tc, abs=0.1)
    assert made_mi == pytest.approx(mi, abs=0.05)


def test_row_1_weighted_sampling_is_no_total_correlation(oracle):
    assert oracle_terms(oracle, 64, 200, estimator="mws")[0] == pytest.approx(96.6, abs=0.3)
    assert oracle_terms(oracle, 1024, 10, estimator="mws")[0] == pytest.approx(94.3, abs=0.3)


def test_row_1_rejects_the_misplaced_diagonal(oracle):
    tc, mi = oracle_terms(oracle, 64, 200, log_weights=misplaced_mss_matrix(64, 20_000))
    assert (tc, mi) == (pytest.approx(7.4, abs=0.3), pytest.approx(4.23, abs=0.1))
    right_tc, right_mi = oracle_terms(oracle, 64, 200, estimator="mss")
    assert abs(right_tc - tc) > 4
    assert abs(right_mi - mi) > 5


def test_row_1_exact_values(oracle):
    posterior, z = oracle
    space, rows = space_of(10), slice(0, 1000)
    made = exact_aggregate(space, {"z": posterior}, {"z": z[rows]})
    own = space.log_density({"z": posterior[rows]}, {"z": z[rows]}).sum(-1)
    assert 2.4 < float((made.joint - made.leaves.sum(-1)).mean()) < 2.7
    assert 9.35 < float((own - made.joint).mean()) < 9.65


@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_chunks_change_nothing(monkeypatch, chunk):
    posterior = random_posterior(20, 3).requires_grad_()
    z, space = samples(posterior.detach()), space_of(3, ((0, 2), (1,)))
    whole = batch_aggregate(space, {"z": posterior}, {"z": z}, "stratified", 90)
    gradient = torch.autograd.grad(sum(level.sum() for level in whole.levels), posterior)
    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, "cpu", chunk * 20 * 3)
    pieces = batch_aggregate(space, {"z": posterior}, {"z": z}, "stratified", 90)
    again = torch.autograd.grad(sum(level.sum() for level in pieces.levels), posterior)
    for one, other in zip(whole.levels, pieces.levels, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, again, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("chunk", [10**9, 24])
def test_gradients_agree_with_finite_differences(monkeypatch, estimator, chunk):
    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, "cpu", chunk)
    space = space_of(2)
    posterior, noise = random_posterior(4, 2).requires_grad_(), torch.randn(4, 2, dtype=torch.float64)

    def terms(parameters):
        values = space.sample({"z": parameters}, {"z": noise})
        made = batch_aggregate(space, {"z": parameters}, values, estimator, 30)
        return made.joint, made.leaves

    assert torch.autograd.gradcheck(terms, (posterior,))


def test_unequal_sampling_weighs_the_mixture():
    posterior = random_posterior(5, 2)
    z = samples(posterior)
    log_p = torch.tensor([0.1, 0.4, 0.2, 0.2, 0.1], dtype=torch.float64).log()
    made = exact_aggregate(space_of(2), {"z": posterior}, {"z": z}, log_p)
    joint, leaves = plain(posterior, z, log_p[None].expand(5, 5))
    torch.testing.assert_close(made.joint, joint)
    torch.testing.assert_close(made.leaves, leaves)


def test_members_are_independent_rows_of_one_call():
    posterior = torch.stack([random_posterior(6, 2, seed) for seed in range(3)])
    z = samples(posterior)
    together = batch_aggregate(space_of(2), {"z": posterior}, {"z": z}, "mss", 20)
    for m in range(3):
        alone = batch_aggregate(space_of(2), {"z": posterior[m]}, {"z": z[m]}, "mss", 20)
        torch.testing.assert_close(together.joint[m], alone.joint)


@pytest.mark.parametrize("batch", [1, 11])
def test_impossible_batches_are_refused(batch):
    with pytest.raises(UsageError, match=naming("stratified", "batch", 2, 10, batch)):
        weighting("stratified", batch, 10)
