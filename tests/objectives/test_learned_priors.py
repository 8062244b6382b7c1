"""Learned priors in the decomposition, in training and in scores, and the weights of grouped latents."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import distributions

from tests import contracts
from tests.methods.helpers import made_context, made_output
from tests.support.messages import naming
from tests.support.priors import made_space, random, with_learned
from unbraid import api
from unbraid.density import batch_aggregate
from unbraid.errors import UsageError
from unbraid.latents import LEARNED_PRIOR, Concrete, CorrelatedNormal, FlowPrior, Normal, Space
from unbraid.methods import objective
from unbraid.objectives import bind, closed_form_kl, divergences
from unbraid.types import Output

ROWS = 6
TREE = ((0, 2), (1, 3), (4,))
MIXED = {"z": Normal(size=3), "c": Concrete(classes=3), "d": Concrete(classes=2)}


def learned_output(space, members=2):
    out, batch = made_output(space, members, ROWS)
    return out._replace(prior=with_learned(space, (members,), scale=0.6) | out.prior), batch


@pytest.mark.parametrize("kind", ["covariance", "conditional", "flow"])
def test_terms_add_up_to_the_kl_to_the_prior_at_every_draw(kind):
    space = made_space(kind, MIXED, TREE)
    out, _ = learned_output(space)
    aggregate = batch_aggregate(space, out.posterior, out.sample, "stratified", ROWS)
    values = divergences(out, space, aggregate)
    assert list(values) == ["mi", "tc_between", "tc_within", "dimension"]
    own = space.log_density(out.posterior, out.sample).sum(-1)
    learned = space.learned
    covered = learned.joint_density(out.prior, out.sample, range(len(learned.leaves)))
    apart = learned.leaf_densities(out.prior, out.sample)
    rest = apart[..., [leaf for leaf in range(5) if leaf not in learned.leaves]].sum(-1)
    torch.testing.assert_close(sum(values.values()), (own - covered - rest).mean(-1))
    plain = divergences(out._replace(prior=space.prior_of(out.posterior)), Space(MIXED, TREE), aggregate)
    if kind == "flow":  # factorised: only the marginals differ
        torch.testing.assert_close(values["tc_between"], plain["tc_between"])
    else:  # z0 and z2 are one group, so are z1 and c; c and d are apart
        assert not torch.allclose(values["tc_between"], plain["tc_between"])
    assert torch.equal(values["mi"], plain["mi"])


def test_term_a_is_measured_against_the_priors_own_correlation():
    """With torch's Gaussians: between groups log p(z) / prod_g p(z_g), within them log p(z_g) / prod_d p(z_d)."""
    blocks, groups = {"z": Normal(size=4)}, ([0, 3], [1, 2])
    space = made_space("covariance", blocks, groups)
    out, _ = learned_output(space)
    aggregate = batch_aggregate(space, out.posterior, out.sample, "stratified", ROWS)
    made, plain = divergences(out, space, aggregate), divergences(out, Space(blocks, groups), aggregate)
    covariance = space.learned.covariance(out.prior)[:, None]

    def log_p(group):
        family = distributions.MultivariateNormal(
            torch.zeros(len(group)).double(), covariance[..., group, :][..., group]
        )
        return family.log_prob(out.sample["z"][..., group]).mean(-1)

    parts = log_p(groups[0]) + log_p(groups[1])
    alone = sum(log_p([d]) for d in range(4))
    torch.testing.assert_close(made["tc_between"], plain["tc_between"] - (log_p([0, 1, 2, 3]) - parts))
    torch.testing.assert_close(made["tc_within"], plain["tc_within"] - (parts - alone))


@pytest.mark.parametrize("block", [Normal(size=2), CorrelatedNormal(size=2, correlation=0.8)])
@pytest.mark.parametrize("kind", ["standard", "covariance"])
def test_expected_terms_add_up_to_the_closed_form(block, kind):
    """Gauss-Hermite nodes take the place of the noise, so the expectation is exact and not sampled."""
    space = Space({"z": block}) if kind == "standard" else made_space(kind, {"z": block})
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    noise = torch.tensor(list(itertools.product(nodes, nodes)))[:, None].expand(-1, 5, -1)
    weight = torch.tensor(np.outer(weights, weights).reshape(-1)) / (2 * math.pi)
    posterior = {"z": (random(5, 4, seed=3) * torch.tensor([1.0, 1.0, 0.3, 0.3])).expand(len(noise), -1, -1)}
    prior = space.prior(random(1)) if kind == "standard" else with_learned(space, scale=0.5)
    out = Output(posterior, prior, space.sample(posterior, {"z": noise}), {})
    values = divergences(out, space, batch_aggregate(space, out.posterior, out.sample, "stratified", 5))
    assert float(sum(values.values()) @ weight) == pytest.approx(float(closed_form_kl(out, space)[0]), abs=1e-5)


def test_info_vae_draws_from_the_learned_prior_and_dip_refuses_what_it_cannot_see():
    space = made_space("covariance", {"z": Normal(size=3)})
    out, batch = learned_output(space)
    target = bind("info-vae", objective["info-vae"].resolve({}))
    wide = out._replace(prior={**out.prior, LEARNED_PRIOR: out.prior[LEARNED_PRIOR] + 3 * torch.eye(3).flatten()})
    one, other = (target.terms(each, batch, made_context(space, target))["mmd"].value for each in (out, wide))
    assert not torch.allclose(one, other)
    correlated = Space({"z": CorrelatedNormal(size=3)})
    out, batch = made_output(correlated)
    with pytest.raises(UsageError, match="dip-vae-i"):
        bind("dip-vae-ii", {"lambda_od": 1.0, "lambda_d": 1.0}).terms(out, batch, made_context(correlated))


def test_draws_of_a_planar_flow_move_with_its_parameters_as_differences_say():
    """Bisection alone has no derivative: that of z with f(z; w) = e is -(df/dw) / (df/dz)."""
    space = Space({"z": Normal(size=2)}, learned=FlowPrior({"z": Normal(size=2)}, depth=3))
    learned = space.learned
    start = 0.7 * random(18).double()
    base = random(5, 2).double()

    def drawn(parameters, base):
        return learned.from_base({LEARNED_PRIOR: parameters}, base)

    assert torch.autograd.gradcheck(drawn, (start.requires_grad_(), base.requires_grad_()), atol=1e-5)


@pytest.mark.parametrize("name", ["zhao2017", "information-dropout", "beta-tcvae"])
def test_a_weight_on_tc_weighs_every_level_of_groups(name):
    blocks = {"z": Normal(size=4)}
    flat, grouped = Space(blocks), Space(blocks, (((0, 3), 1), (2,)))
    out, batch = made_output(flat)
    settings = objective[name].resolve({"kl": "sampled"})
    terms = [bind(name, settings).terms(out, batch, made_context(space)) for space in (flat, grouped)]
    torch.testing.assert_close(terms[0].loss, terms[1].loss)
    assert "tc_3/stratified" in terms[1]


CASES = {
    "beta-tcvae": {"prior": "flow", "prior_depth": 3, "z": 3},
    "hfvae": {"prior": "covariance", "z": 3},
    "beta-vae": {"prior": "conditional", "latents": "concrete:3+concrete:4"},
    "vae": {"latents": "correlated-normal:3", "latents.z.correlation": 0.5},
}


@pytest.mark.parametrize("name", list(CASES))
def test_contracts_hold_with_a_learned_prior(name, monkeypatch):
    small = {key: value for key, value in contracts.SMALL_RUN.items() if key != "z"}
    monkeypatch.setattr(contracts, "SMALL_RUN", {**small, **CASES[name]})
    run = contracts.trained.__wrapped__(name)
    for check in (contracts._check_gradients, contracts._check_resumes, contracts._check_members):
        check(name, run)
    contracts._check_reloads(run)
    prior = [key for key, _ in run.model.named_parameters() if key.startswith("prior.")]
    assert len(prior) == {"beta-tcvae": 3, "hfvae": 1, "beta-vae": 2, "vae": 0}[name]
    assert run.sample(4).isfinite().all()
    assert run.traverse(base=-1).width > 0
    names = ["kl", "elbo/sampled", "mi/exact", "tc/exact", "dimension-kl/exact", "latent-mi"]
    scores = {score.name: score.value for score in run.score(*names, rows=300)}
    assert all(math.isfinite(value) for value in scores.values())
    assert ("kl/closed-form" in scores) == run.model.space.closed_form
    if name in ("beta-tcvae", "vae"):  # a factorised prior: the terms add up at every draw
        total = scores["mi/exact"] + scores["tc/exact"] + scores["dimension-kl/exact"]
        assert total == pytest.approx(scores["kl/sampled"], abs=1e-3)
    if name == "hfvae":
        run.report()


def test_what_no_prior_can_do_is_refused():
    small = {"data": "sprites-small", "device": "cpu", "steps": 1}
    for given, facts in (
        ({"prior": "flaw"}, ["flaw", "flow"]),
        ({"prior_depth": 3}, ["prior="]),
        ({"prior": "covariance", "latents": "concrete:3"}, ["prior", 1, "Normal"]),
        ({"prior": "conditional"}, ["prior", 2, "Concrete"]),
        ({"prior": "flow", "prior_depth": 0}, ["layer", 1]),
    ):
        with pytest.raises(UsageError, match=naming(*facts)):
            api.train("vae", **small, **given)


def test_the_best_covariance_is_that_of_the_codes():
    """The KL's gradient for the prior vanishes where C = E[z z^T] over rows and noise."""
    space = made_space("covariance", {"z": Normal(size=3)})
    posterior = {"z": random(7, 6)}
    mean, log_variance = posterior["z"].chunk(2, -1)
    second = mean.T @ mean / 7 + log_variance.exp().mean(0).diag()
    factor = torch.linalg.cholesky(second)
    best = (factor.tril(-1) + factor.diagonal().log().diag()).flatten().requires_grad_()
    kl = space.joint_kl(posterior, {**space.prior(mean), LEARNED_PRIOR: best}, {"z": mean}).mean()
    (gradient,) = torch.autograd.grad(kl, best)
    assert float(gradient.abs().max()) < 1e-9
