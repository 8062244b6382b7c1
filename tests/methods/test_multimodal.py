"""Bounds of several modalities against loops over rows and subsets, and against linear models known exactly."""

import itertools
import math
from collections import Counter
from statistics import NormalDist

import pytest
import torch

from tests.methods.linear_modalities import expert, kl, linear, log_evidence, log_p, noise_of, posterior, terms
from tests.support.messages import naming
from unbraid.errors import UsageError
from unbraid.latents.fusion import subsets as table
from unbraid.methods import objective
from unbraid.models.generation import log_likelihoods
from unbraid.models.multimodal import draw_proper_subsets, draw_subsets
from unbraid.objectives import Context, bind
from unbraid.types import Batch, Inputs

A, B = (2.5, -1.5, 1.0), (0.5, 1.0, 0.75)
NAMES = ("m1", "m2", "m3")
EXPERTS = [([0.3, -0.5], [-0.4, 0.3]), ([-0.8, 0.2], [0.5, -1.0]), ([0.5, 0.9], [-1.2, 0.1])]


def rows(count=5, seed=0):
    made = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {name: made[:, m : m + 1] for m, name in enumerate(NAMES)}


MISSING = {
    "m1": torch.tensor([True, True, False, False, True]),
    "m2": torch.tensor([True, False, True, False, True]),
    "m3": torch.tensor([True, True, True, True, False]),
}


class Row:
    """One row of a step, and what a loop makes of it."""

    def __init__(self, made, x, present, number, drawn, masks):
        self.made, self.number, self.drawn, self.masks = made, number, drawn, masks[0, number]
        self.there = [name for name in NAMES if present is None or bool(present[name][number])]
        self.x = {name: x[name][number] for name in NAMES}

    def subset(self, path):
        return [name for m, name in enumerate(NAMES) if self.masks[path, m]]

    def shared(self, path, subset, prior_expert=True):
        mean, variance = posterior(self.made, self.x, subset, prior_expert)
        return mean + math.sqrt(variance) * float(self.drawn["c"][self.number, path, 0])

    def own(self, name):
        mean, variance = expert(self.made, name, self.x[name])[1]
        return mean + math.sqrt(variance) * float(self.drawn[f"s_{name}"][self.number, 0])

    def loss(self, name, c):
        return -log_p(self.made, name, self.x, c, self.own(name))

    def own_kl(self, name):
        return kl(*expert(self.made, name, self.x[name])[1])

    def shared_kl(self, subset):
        return kl(*posterior(self.made, self.x, subset))


def partitioned(row):
    total = row.shared_kl(row.there)
    for m, name in enumerate(NAMES):
        if name in row.there:
            other = row.subset(1 + m)
            assert set(other) <= set(row.there)
            assert (name not in other and other) or row.there == [name] == other
            total += 0.5 * row.loss(name, row.shared(0, row.there)) + 0.5 * row.loss(name, row.shared(1 + m, other))
            total += row.own_kl(name)
    return total


def mvae(row):
    total = 0.0
    for path, subset in enumerate([row.there, *([n] if n in row.there else [] for n in NAMES), row.subset(4)]):
        assert subset == row.subset(path)
        assert path < 4 or (1 < len(subset) < len(row.there)) or (len(row.there) < 3 and not subset)
        total += row.shared_kl(subset)
        total += sum(row.loss(name, row.shared(path, subset)) + row.own_kl(name) for name in subset)
    return total


def dmvae(row):
    total = 0.0
    for path, subset in enumerate([row.there, *([n] for n in NAMES)]):
        if set(subset) <= set(row.there):
            total += row.shared_kl(subset)
            total += sum(row.loss(name, row.shared(path, subset)) + row.own_kl(name) for name in row.there)
    return total


def mopoe(row):
    bounds = []
    for path, chosen in enumerate(table(3).tolist()):
        subset = [name for name, one in zip(NAMES, chosen, strict=True) if one]
        if set(subset) <= set(row.there):
            losses = sum(row.loss(name, row.shared(path, subset)) for name in row.there)
            bounds.append(losses + row.shared_kl(subset))
    assert len(bounds) == 2 ** len(row.there) - 1
    return sum(bounds) / len(bounds) + sum(row.own_kl(name) for name in row.there)


def mmvae(row, samples=1):
    """Stratified over experts; with one sample it is the ELBO, with more IWAE."""
    total, experts = 0.0, {n: expert(row.made, n, row.x[n])[0] for n in row.there}
    for m, name in enumerate(NAMES):
        if name in row.there:
            logs = []
            for k in range(samples):
                c = row.shared(m * samples + k, [name], prior_expert=False)
                each = [NormalDist(mu, math.sqrt(v)).pdf(c) for mu, v in experts.values()]
                prior = math.log(NormalDist().pdf(c))
                logs.append(sum(-row.loss(n, c) for n in row.there) + prior - math.log(sum(each) / len(each)))
            total -= math.log(sum(map(math.exp, logs)) / len(logs)) / len(row.there)
    return total + sum(row.own_kl(name) for name in row.there)


@pytest.mark.parametrize("present", [None, MISSING], ids=["all", "missing"])
@pytest.mark.parametrize(
    ("recipe", "by_hand", "settings"),
    [
        ("partitioned-mvae", partitioned, {}),
        ("mvae", mvae, {}),
        ("dmvae", dmvae, {}),
        ("mopoe", mopoe, {}),
        ("mmvae", mmvae, {}),
        ("mmvae", lambda row: mmvae(row, 4), {"samples": 4}),
        ("mmvae", lambda row: mmvae(row, 4), {"samples": 4, "gradient": "dreg"}),
    ],
)
def test_the_loss_is_that_of_a_loop_over_rows_and_subsets(recipe, by_hand, settings, present):
    made, bound = linear(recipe, A, B, EXPERTS, **settings)
    x = rows()
    found, out, drawn = terms(made, bound, x, present)
    losses = [by_hand(Row(made, x, present, number, drawn, out.extra.masks)) for number in range(5)]
    assert float(found.loss.detach()) == pytest.approx(sum(losses) / 5, rel=1e-9)


@pytest.mark.parametrize("held", [1e6, math.nan, math.inf])
@pytest.mark.parametrize("recipe", ["partitioned-mvae", "mvae", "dmvae", "mopoe", "mmvae"])
def test_what_is_missing_has_no_influence_in_value_or_gradient(recipe, held):
    made, bound = linear(recipe, A, B, EXPERTS)
    x = rows()
    garbage = {n: torch.where(MISSING[n][:, None], v, torch.full_like(v, held)).requires_grad_() for n, v in x.items()}
    zeros = {n: torch.where(MISSING[n][:, None], v, torch.zeros_like(v)) for n, v in x.items()}
    batch_of = {n: torch.where(MISSING[n][:, None], g, torch.zeros_like(g)) for n, g in garbage.items()}
    seen, expected = terms(made, bound, garbage, MISSING)[0].loss, terms(made, bound, zeros, MISSING)[0].loss
    assert torch.equal(seen, expected)
    grads = torch.autograd.grad(seen, [*garbage.values(), *made.parameters()], retain_graph=True)
    clean = torch.autograd.grad(expected, list(made.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(grads[len(garbage) :], clean, strict=True))
    for name, grad in zip(garbage, grads[: len(garbage)], strict=True):
        assert bool((grad[~MISSING[name]] == 0).all())
        assert bool((grad[MISSING[name]] != 0).all())
    nobody = {**MISSING, "m3": torch.zeros(5, dtype=torch.bool)}
    nobody = {n: v if n == "m3" else torch.ones_like(v) for n, v in nobody.items()}
    loss = terms(made, bound, batch_of, nobody)[0].loss
    own = [*made.encoder["m3"].parameters(), *made.decoder["m3"].parameters()]
    for grad in torch.autograd.grad(loss.sum(), own, allow_unused=True, materialize_grads=True):
        assert bool((grad == 0).all())


def test_mvae_of_all_modalities_alone_is_the_joint_bound():
    made, bound = linear("mvae", A, B, EXPERTS, unimodal=False, subsets=0)
    x = rows()
    found, out, drawn = terms(made, bound, x)
    row = [Row(made, x, None, n, drawn, out.extra.masks) for n in range(5)]
    losses = [r.shared_kl(NAMES) + sum(r.loss(n, r.shared(0, NAMES)) + r.own_kl(n) for n in NAMES) for r in row]
    assert float(found.loss.detach()) == pytest.approx(sum(losses) / 5, rel=1e-9)


def test_with_true_posteriors_the_bounds_of_mvae_are_the_evidence_of_each_subset():
    made, bound = linear("mvae", A, subsets=0)
    one = rows(1)
    many = {name: value.expand(20_000, 1) for name, value in one.items()}
    found = terms(made, bound, many)[0]
    exact = log_evidence(one, A) + sum(log_evidence({n: v}, A) for n, v in one.items())
    assert float(found.loss.detach()) == pytest.approx(-float(exact), abs=0.05)


def test_importance_sampling_finds_the_evidence_of_every_subset():
    for given in (each for n in (1, 2, 3) for each in itertools.combinations(NAMES, n)):
        x = {name: value for name, value in rows().items() if name in given}
        exact, _ = linear("mvae", A)  # the true posterior of every subset: one draw is enough
        torch.testing.assert_close(log_likelihoods(exact, Inputs(x), given, 1, 0), log_evidence(x, A))
    for recipe in ("mopoe", "mmvae"):  # of m1 alone, which proposes c for both, and of both
        made, _ = linear(recipe, A, B, [([s[0] / 2, s[1]], v) for s, v in EXPERTS])
        x = {name: value for name, value in rows(3).items() if name != "m2"}
        for given in (("m1",), ("m1", "m3")):
            torch.testing.assert_close(
                log_likelihoods(made, Inputs(x), given, 5_000, 1), log_evidence(x, A, B), atol=0.1, rtol=0
            )


@torch.no_grad()
def test_mopoe_proposes_by_the_mixture_and_draws_given_what_is_given():
    made, bound = linear("mopoe", A, B, EXPERTS, draws=2)
    x = rows()
    posteriors = made.encode_each(Inputs(x, torch.stack([MISSING[name] for name in NAMES], -1)))
    at = torch.linspace(-2, 2, 7, dtype=torch.float64)[None, :, None].expand(5, 7, 1)
    mixture, single = made.proposal(posteriors).repeat(7).log_density(at), made.log_posterior(posteriors, at)
    _, out, drawn = terms(made, bound, x, MISSING)
    for number in range(5):
        row = Row(made, x, MISSING, number, drawn, out.extra.masks)
        parts = [s for n in (1, 2, 3) for s in itertools.combinations(row.there, n)]
        for place in range(7):
            laws = [NormalDist(mean, math.sqrt(v)) for mean, v in (posterior(made, row.x, part) for part in parts)]
            densities = [law.pdf(float(at[number, place, 0])) for law in laws]
            assert float(mixture[number, place].exp()) == pytest.approx(sum(densities) / len(parts))
            assert float(single[number, place].exp()) == pytest.approx(densities[-1])  # of all that is there
        assert float(out.sample["c"][0, number, 0]) == pytest.approx(row.shared(0, row.there))


@torch.no_grad()
def test_a_draw_of_mmvae_has_the_moments_of_its_mixture():
    made, bound = linear("mmvae", A, B, EXPERTS)
    x = {n: v[1:2].expand(20_000, 1) for n, v in rows().items()}
    there = {n: v[1:2].expand(20_000) for n, v in MISSING.items()}
    out = terms(made, bound, x, there)[1]
    experts = [expert(made, n, x[n][0])[0] for n in ("m1", "m3")]
    mean = sum(mu for mu, _ in experts) / 2
    variance = sum(v + (mu - mean) ** 2 for mu, v in experts) / 2
    assert float(out.sample["c"].mean()) == pytest.approx(mean, abs=0.03)
    assert float(out.sample["c"].var()) == pytest.approx(variance, rel=0.03)


def test_a_penalty_on_dependence_looks_at_rows_that_have_the_modality():
    """Codes of the others change nothing, and c is permuted among those that count."""
    made, bound = linear("partitioned-mvae", A, B, EXPERTS, penalty="ratio")
    x, seen = {n: v.repeat(4, 1) for n, v in rows().items()}, {}
    present = {n: v.repeat(4) for n, v in MISSING.items()}

    def apply(name, codes):
        seen[name] = codes
        return torch.stack([codes.prod(-1), codes.sum(-1)], -1)

    found, out, _ = terms(made, bound, x, present, apply=apply)
    for name, there in present.items():
        c, s = out.sample["c"][0, there, 0], out.sample[f"s_{name}"][0, there, 0]
        torch.testing.assert_close(found[f"tc_s_{name}/ratio"].value[0], (c * s - c - s).mean())
    context = Context(made.space, made.likelihoods, 100, 0, noise_of(bound, made, 20), apply)
    losses = bound.discriminator_terms(
        out, Batch({}, torch.arange(20)[None], torch.stack(list(present.values()), -1)[None]), context
    )
    for name, there in present.items():
        codes = seen[f"discriminator_s_{name}"][0]
        first, second = codes[:10][there[:10]], codes[10:][there[10:]]
        own = out.sample["c"][0, 10:, 0][there[10:]]
        assert torch.equal(second[:, 0].sort().values, own.sort().values) and not torch.equal(second[:, 0], own)
        joint, apart = (torch.stack([z.prod(-1), z.sum(-1)], -1).log_softmax(-1) for z in (first, second))
        by_hand = -0.5 * (joint[:, 0].mean() + apart[:, 1].mean())
        torch.testing.assert_close(losses[f"cross_entropy_s_{name}"].value[0], by_hand)


def test_a_frozen_pass_leaves_no_trace_in_running_statistics():
    made, bound = linear("mmvae", A, B, EXPERTS, gradient="dreg")
    for name, layer in made.decoder.items():
        made.decoder[name] = torch.nn.Sequential(layer, torch.nn.BatchNorm1d(1).double())
    terms(made, bound, rows())
    assert [int(network[1].num_batches_tracked) for network in made.decoder.values()] == [1, 1, 1]


def test_iwae_rises_to_the_evidence_and_meets_it_with_the_true_posterior():
    x, names = {"m1": rows(400)["m1"]}, ("m1",)
    exact = float(log_evidence(x, A).mean())
    loose = [([0.2], [0.5])]
    bounds = [
        -float(terms(*linear("mmvae", A[:1], experts=loose, samples=k), x)[0].loss.detach()) for k in (1, 10, 200)
    ]
    assert bounds[0] < bounds[1] < bounds[2] < exact + 0.01
    assert bounds[2] == pytest.approx(exact, abs=0.03)
    mean, variance = posterior(linear("mvae", A[:1])[0], {"m1": torch.ones(1).double()}, names)
    true = [([mean], [math.log(variance)])]
    for gradient in ("reparameterised", "dreg"):
        made, bound = linear("mmvae", A[:1], experts=true, samples=3, gradient=gradient)
        loss = terms(made, bound, x)[0].loss
        assert float(loss.detach()) == pytest.approx(-exact, rel=1e-9)
        grads = torch.autograd.grad(loss.sum(), list(made.encoder.parameters()))
        zero = all(float(grad.abs().max()) < 1e-12 for grad in grads)
        assert zero == (gradient == "dreg")  # log w does not depend on the draw, so its encoder has nothing to learn


def test_doubly_reparameterised_gradients_are_right_on_average():
    """Those of IWAE and these differ by noise alone: compared over batches of the same row, in standard errors."""
    x, experts = {n: v[:1].expand(1000, 1) for n, v in rows().items()}, [([s[0]], [v[0]]) for s, v in EXPERTS]
    found = {"reparameterised": [], "dreg": []}
    for gradient, grads in found.items():
        made, bound = linear("mmvae", A, experts=experts, samples=4, gradient=gradient, beta_c=1.5)
        weights = [made.decoder["m1"].weight, *made.encoder.parameters()]
        for seed in range(8):
            loss = terms(made, bound, x, seed=seed)[0].loss.sum()
            grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)]))
    plain, double = (torch.stack(grads) for grads in found.values())
    torch.testing.assert_close(double[:, 0], plain[:, 0])  # the decoder's is the same
    error = (plain - double)[:, 1:]
    assert bool((error.mean(0).abs() < 4 * error.std(0) / 8**0.5).all())
    assert float(double[:, 1:].var(0).sum()) < 0.8 * float(plain[:, 1:].var(0).sum())


def test_random_subsets_are_all_as_likely():
    among = torch.tensor([[True, False, True, True], [False, False, False, False], [False, True, False, False]])
    grid = (torch.arange(700) + 0.5) / 700
    made = draw_subsets(among.expand(700, 3, 4), grid[:, None].expand(700, 3))
    counts = Counter(tuple(row) for row in made[:, 0].tolist())
    assert set(counts.values()) == {100}
    assert len(counts) == 7 and not any(row[1] for row in counts)
    assert not made[:, 1].any()
    assert torch.equal(made[:, 2], among[2].expand(700, 4))


def test_subsets_in_between_are_all_as_likely():
    there = torch.tensor([[True, True, True, True], [True, False, True, True], [False, True, True, False]])
    grid = ((torch.arange(600) + 0.5) / 600).expand(3, 600)
    every, three, two = draw_proper_subsets(there, grid).tolist()
    counts = Counter(map(tuple, every))
    assert len(counts) == 10 and set(counts.values()) == {60}  # 6 pairs, 4 triples
    assert {sum(row) for row in counts} == {2, 3}
    counts = Counter(map(tuple, three))
    assert len(counts) == 3 and set(counts.values()) == {200}
    assert all(sum(row) == 2 and not row[1] for row in counts)
    assert not any(map(any, two))


def test_weights_reach_their_modality():
    x = rows()
    plain = terms(*linear("partitioned-mvae", A, B, EXPERTS), x)[0]
    for settings in ({"alone": "m2", "beta_alone": 0.3}, {"betas": ("m2:0.3",)}):
        found = terms(*linear("partitioned-mvae", A, B, EXPERTS, **settings), x)[0]
        assert float((plain.loss - found.loss).detach()) == pytest.approx(0.7 * float(plain["kl_s_m2"].value.detach()))
    found = terms(*linear("partitioned-mvae", A, B, EXPERTS, weights=("m3:3",)), x)[0]
    more = 0.5 * (plain["reconstruction_m3"].value + plain["cross_m3"].value)
    assert float((found.loss - plain.loss).detach()) == pytest.approx(2 * float(more.detach()))
    for shares, expected in (("full", "reconstruction_m1"), ("subset", "cross_m1")):
        found = terms(*linear("partitioned-mvae", A, B, EXPERTS, reconstruct=shares), x)[0]
        assert found[expected].weight == 1.0
    for settings, facts in (
        ({"betas": ("m2",)}, ["betas=[m1:1,m2:0.3]", "m2"]),
        ({"betas": ("m1:1", "m1:2")}, ["betas", "m1"]),
        ({"beta_alone": 0.3}, ["alone=m2"]),
        ({"alone": "m2", "betas": ("m2:1",)}, ["KL(s_m2)"]),
    ):
        with pytest.raises(UsageError, match=naming(*facts)):
            linear("partitioned-mvae", A, B, EXPERTS, **settings)


@pytest.mark.parametrize("recipe", ["partitioned-mvae", "mvae", "dmvae", "mopoe", "mmvae"])
def test_annealed_weights_are_a_share_of_the_betas_until_they_are_the_betas(recipe):
    """The step of these terms is 0: after 1 of 4 steps a quarter of every KL counts, after 1 of 1 all of it."""
    x, quarter = rows(), {"beta_c": 0.25, "beta_m": 0.25}
    plain, less, rising, risen = (
        float(terms(*linear(recipe, A, B, EXPERTS, **settings), x)[0].loss.detach())
        for settings in ({}, quarter, {"anneal": 4}, {"anneal": 1})
    )
    assert rising == pytest.approx(less) and risen == pytest.approx(plain) and less != pytest.approx(plain)
    with pytest.raises(UsageError, match=naming("anneal", 0, -1)):
        linear(recipe, A, B, EXPERTS, anneal=-1)


@pytest.mark.parametrize("recipe", ["partitioned-mvae", "mvae", "dmvae", "mopoe", "mmvae"])
def test_with_annealed_c_the_kls_of_private_latents_count_from_the_start(recipe):
    """After 1 of 4 steps a quarter of the KL of c counts, and all of the others."""
    x = rows()
    rising, less, every = (
        float(terms(*linear(recipe, A, B, EXPERTS, **settings), x)[0].loss.detach())
        for settings in ({"anneal": 4, "annealed": "c"}, {"beta_c": 0.25}, {"anneal": 4})
    )
    assert rising == pytest.approx(less) != pytest.approx(every)
    with pytest.raises(UsageError, match=naming("annealed=c", "anneal=2000")):
        linear(recipe, A, B, EXPERTS, annealed="c")


def test_what_only_a_penalty_takes_is_refused_without_one():
    for given in ({"tc": 3.0}, {"width": 10}, {"depth": 2}):
        with pytest.raises(UsageError, match="penalty=ratio"):
            bind("partitioned-mvae", objective["partitioned-mvae"].resolve(given))
    with pytest.raises(UsageError, match=naming("layer", "width", 1)):
        bind("partitioned-mvae", objective["partitioned-mvae"].resolve({"penalty": "ratio", "width": 0}))
