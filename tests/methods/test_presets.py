"""Weights on the decomposition, and mutual information of single variables, against definitions on a small model."""

import math

import numpy as np
import pytest
import torch

from tests.methods.helpers import bound, made_context, made_output, normal_space
from tests.support.messages import naming
from unbraid.density import batch_aggregate
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.methods import objective
from unbraid.objectives import bind, divergences, leaf_information

ROWS = 6


def terms_of(name, given, space, out, batch, size=ROWS):
    settings = objective[name].resolve({k: v for k, v in given.items() if not isinstance(v, torch.Tensor)})
    return bind(name, {**settings, **given}).terms(out, batch, made_context(space, size=size))


@pytest.mark.parametrize("form", ["closed", "sampled"])
@pytest.mark.parametrize(
    ("name", "given", "weights"),
    [
        ("zhao2017", {"lambda_kl": 3.0}, (0.0, 3.0, 3.0)),
        ("zhao2017", {"lambda_kl": torch.tensor([1.0, 2.0])}, (0.0, [1.0, 2.0], [1.0, 2.0])),
        ("information-dropout", {"beta": 2.0, "gamma": 5.0}, (2.0, 5.0, 0.0)),
    ],
)
def test_losses_are_the_rows_of_the_table(name, given, weights, form):
    """On a batch that is the whole data set the estimate is exact; both forms then differ by the KL's own sampling."""
    space = normal_space(3)
    out, batch = made_output(space)
    terms = terms_of(name, {**given, "kl": form}, space, out, batch)
    values = divergences(out, space, batch_aggregate(space, out.posterior, out.sample, "stratified", ROWS))
    likelihood, kl = bound(out, batch)
    weights = [torch.tensor(weight, dtype=torch.float64) for weight in weights]
    expected = likelihood + sum(weight * value for weight, value in zip(weights, values.values(), strict=True))
    if form == "closed":
        expected = expected + weights[-1] * (kl - sum(values.values()))
    torch.testing.assert_close(terms.loss, expected)


def test_information_dropout_with_equal_weights_is_a_divergence_from_the_product_of_marginals():
    """MI + TC = E[log q(z|x) - sum_d log q(z_d)] (achille2018)."""
    space = normal_space(2)
    out, batch = made_output(space)
    terms = terms_of("information-dropout", {"beta": 2.0, "gamma": 2.0}, space, out, batch)
    marginals = batch_aggregate(space, out.posterior, out.sample, "stratified", ROWS).leaves.sum(-1)
    own = space.log_density(out.posterior, out.sample).sum(-1)
    torch.testing.assert_close(terms.loss, bound(out, batch)[0] + 2 * (own - marginals).mean(-1))


def information_by_quadrature(posterior):
    """I(x; z_d) of each variable as an integral on a fine grid, in numpy alone."""
    mean, log_variance = (part.numpy() for part in posterior.chunk(2, -1))
    grid = np.linspace(-25, 25, 20_001)
    deviation = np.exp(log_variance / 2)[..., None]
    density = np.exp(-0.5 * ((grid - mean[..., None]) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
    log_ratio = np.log(np.maximum(density, 1e-300)) - np.log(np.maximum(density.mean(0), 1e-300))
    return (density * log_ratio).sum(-1).mean(0) * (grid[1] - grid[0])


def test_information_of_each_variable_equals_its_integral():
    """A fine grid takes the place of the noise; the member axis holds its points."""
    space = normal_space(2)
    posterior = made_output(space, members=1)[0].posterior["z"]
    nodes = np.linspace(-9, 9, 1801)
    weights = np.exp(-0.5 * nodes**2)
    stacked = {"z": posterior.expand(len(nodes), -1, -1)}
    out, _ = made_output(space, members=len(nodes), posterior=stacked)
    noise = torch.tensor(nodes)[:, None, None].expand(-1, ROWS, 2)
    out = out._replace(sample=space.sample(stacked, {"z": noise}))
    made = torch.tensor(weights / weights.sum()) @ leaf_information(out, space, "stratified", ROWS)
    np.testing.assert_allclose(made, information_by_quadrature(posterior[0]), atol=1e-5)


def test_anchors_are_rewarded_and_the_others_are_not():
    space, weight = normal_space(3), torch.tensor([0.5, 2.0])
    out, batch = made_output(space)
    terms = terms_of("anchored-corex", {"anchors": (0, 2), "lambda_anchor": weight}, space, out, batch, size=50)
    likelihood, kl = bound(out, batch)
    information = leaf_information(out, space, "stratified", 50)
    assert list(terms) == ["reconstruction", "kl", "mi_z0/stratified", "mi_z2/stratified"]
    torch.testing.assert_close(terms["mi_z2/stratified"].value, information[:, 2])
    torch.testing.assert_close(terms.loss, likelihood + kl - weight * (information[:, 0] + information[:, 2]))


def test_only_anchored_variables_get_the_rewards_gradient():
    space = normal_space(3)
    posterior = made_output(space)[0].posterior["z"].requires_grad_()
    out, batch = made_output(space, posterior={"z": posterior})
    terms = terms_of("anchored-corex", {"anchors": (1,)}, space, out, batch)
    (gradient,) = torch.autograd.grad(terms["mi_z1/stratified"].value.sum(), posterior)
    moved = gradient.abs().sum((0, 1)) > 0
    assert moved.tolist() == [False, True, False] * 2


@pytest.mark.parametrize("anchors", [(), (3,), (-1,), (1, 1)])
def test_anchors_that_are_no_variables_are_refused(anchors):
    space = normal_space(3)
    out, batch = made_output(space)
    with pytest.raises(UsageError, match=naming("anchors", 0, 2)):
        terms_of("anchored-corex", {"anchors": anchors}, space, out, batch)


def grouped_space(latents, tree):
    plain = normal_space(latents)
    return Space(plain.blocks, tree)


def test_the_information_of_an_anchored_group_is_joint():
    """What two latents share counts once; the sum of both would count it twice."""
    space = grouped_space(3, ((0, 1), (2,)))
    out, batch = made_output(space)
    terms = terms_of("anchored-corex", {"anchors": (0,), "lambda_anchor": 1.0}, space, out, batch)
    aggregate = batch_aggregate(space, out.posterior, out.sample, "stratified", ROWS)
    density = space.log_density(out.posterior, out.sample)
    joint = (density[..., 0] + density[..., 1] - aggregate.levels[1][..., 0]).mean(-1)
    torch.testing.assert_close(terms["mi_z0+z1/stratified"].value, joint)
    leaves = leaf_information(out, space, "stratified", ROWS)
    assert not torch.allclose(joint, leaves[:, 0] + leaves[:, 1])
    assert (joint <= math.log(ROWS) + 1e-9).all(), "no group knows more than which row it is"
    with pytest.raises(UsageError, match=naming("anchors", "groups", 1)):
        terms_of("anchored-corex", {"anchors": (2,)}, space, out, batch)


def test_hfvae_weighs_every_level_of_a_deeper_tree():
    space = grouped_space(4, (((0, 1), 2), (3,)))
    out, batch = made_output(space)
    terms = terms_of("hfvae", {"alpha": 1.0, "beta": 4.0, "gamma": 3.0, "kl": "sampled"}, space, out, batch)
    values = divergences(out, space, batch_aggregate(space, out.posterior, out.sample, "stratified", ROWS))
    likelihood, _ = bound(out, batch)
    wanted = (
        likelihood + values["mi"] + 4 * values["tc_1"] + 3 * (values["tc_2"] + values["tc_3"]) + values["dimension"]
    )
    torch.testing.assert_close(terms.loss, wanted)
