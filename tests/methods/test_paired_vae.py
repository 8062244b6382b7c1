"""Pairs and few labels: who is a partner, how posteriors are averaged, which rows a label reaches, what is refused."""

import numpy as np
import pytest
import torch

from tests.methods.helpers import made_context, made_output, normal_space
from tests.support.messages import naming
from unbraid import noise
from unbraid.config import Choice
from unbraid.data import Factor, FactorDataset, Pixels, load
from unbraid.errors import UsageError
from unbraid.methods.paired_vae import average_pairs, below_middle, draw_partners
from unbraid.methods.s2_beta_vae import cross_entropy
from unbraid.objectives import bind
from unbraid.training.configure import configure
from unbraid.training.prepare import prepare
from unbraid.types import Batch

NAMES = ("ada-gvae", "ada-ml-vae", "gvae", "ml-vae")
SETTINGS = {"gvae": {"shared": 1}, "ml-vae": {"shared": 1}}
SIZES = (2, 3, 1, 4)


def grid(sizes=SIZES, table=None):
    factors = tuple(Factor(f"f{k}", size) for k, size in enumerate(sizes))
    count = int(np.prod(sizes)) if table is None else len(table)
    return FactorDataset("grid", Pixels(torch.rand(count, 6), (6,)), factors, table)


def drawing(step=0, members=2):
    return lambda name, shape: noise.uniform(noise.seed_tensor(*range(members)), step, name, shape)


def drawn_partners(differing, factors=(), batch=6000):
    data = grid()
    index = torch.randint(len(data), (2, batch))
    other = draw_partners(index, data, drawing(), differing, factors)
    return data.values_of(index), data.values_of(other)


@pytest.mark.parametrize("differing", [1, 2])
def test_partners_differ_in_as_many_random_factors_as_asked(differing):
    own, other = drawn_partners(differing)
    apart = (own != other).float()
    assert apart.sum(-1).max() == differing
    chance = differing / 3  # of three factors that vary
    expected = [chance * (1 - 1 / size) for size in SIZES]  # redrawn, and not by chance the same
    np.testing.assert_allclose(apart.mean((0, 1)), expected, atol=0.02)
    values = torch.bincount(other[..., 3].flatten(), minlength=4) / other[..., 3].numel()
    np.testing.assert_allclose(values, 0.25, atol=0.02)


def test_partners_differ_in_one_to_all_but_one_factors_where_none_is_said():
    own, other = drawn_partners(None)
    apart = (own != other).float()
    assert apart.sum(-1).max() == 2
    np.testing.assert_allclose(apart.mean((0, 1)), [0.5 * (1 - 1 / size) for size in SIZES], atol=0.02)


def test_partners_share_the_factors_that_are_named():
    own, other = drawn_partners(1, ("f1",))
    assert torch.equal(own[..., 1], other[..., 1])
    np.testing.assert_allclose((own != other).float().mean((0, 1)), [1 / 2, 0, 0, 3 / 4], atol=0.02)


def test_a_row_stands_beside_its_partner():
    index = torch.randint(len(grid()), (2, 5))
    rows = bind("ada-gvae", {}).choose_rows(index, grid(), drawing())
    assert torch.equal(rows[:, ::2], index)
    assert torch.equal(rows[:, 1::2], draw_partners(index, grid(), drawing(), 1))


def by_hand(mean, variance, average, shared):
    """Averaged means and variances [pair, 2, d], one number at a time."""
    mean, variance = mean.copy(), variance.copy()
    for pair in range(len(mean)):
        (m, n), (s, t) = mean[pair].copy(), variance[pair].copy()
        delta = 0.5 * (s / t + (m - n) ** 2 / t - 1 + np.log(t / s))
        tau = (delta.max() + delta.min()) / 2
        for d in range(len(delta)):
            if d < shared if shared is not None else delta[d] < tau:
                total = 1 / s[d] + 1 / t[d]
                new = (m[d] / s[d] + n[d] / t[d]) / total, (2 if average == "geometric" else 1) / total
                mean[pair, :, d], variance[pair, :, d] = (
                    ((m[d] + n[d]) / 2, (s[d] + t[d]) / 2) if average == "mean" else new
                )
    return mean, variance


@pytest.mark.parametrize("average", ["mean", "product", "geometric"])
@pytest.mark.parametrize("shared", [None, 2])
def test_posteriors_are_averaged_as_by_hand(average, shared):
    flat = torch.randn(10, 8, dtype=torch.float64)
    mean, log_variance = (part.reshape(5, 2, 4).numpy() for part in flat.chunk(2, -1))
    expected = by_hand(mean, np.exp(log_variance), average, shared)
    made = average_pairs({"z": flat}, normal_space(4), average, shared)["z"].reshape(5, 2, 8).chunk(2, -1)
    np.testing.assert_allclose(made[0], expected[0], rtol=1e-10)
    np.testing.assert_allclose(made[1].exp(), expected[1], rtol=1e-10)


def test_equal_images_share_nothing_and_stay_as_they_are():
    flat = torch.randn(1, 8).expand(2, 8)
    assert not below_middle(torch.zeros(3, 4)).any()
    for average in ("mean", "product", "geometric"):
        assert torch.equal(average_pairs({"z": flat}, normal_space(4), average, None)["z"], flat)


def trained_state(name, steps=2, **settings):
    small = {"z": 4, "batch": 4, "steps": 4, "network": "mlp", "encoder.hidden": (8,), "decoder.hidden": (8,)}
    data = grid()
    config = configure(name, Choice("given"), data, {**small, **SETTINGS.get(name, {}), **settings})
    state = prepare(config, data)
    for _ in range(steps):
        state.advance()
    return state


@pytest.mark.parametrize("name", NAMES)
def test_codes_do_not_depend_on_a_neighbour(name):
    model = trained_state(name).model
    x = torch.rand(3, 6)
    together, alone = model.encode(x)["z"], torch.cat([model.encode(row[None])["z"] for row in x])
    torch.testing.assert_close(together, alone)


def test_the_kl_of_what_a_pair_shares_counts_once_per_pair():
    space = normal_space(4)
    out, batch = made_output(space, rows=6)
    posterior = average_pairs(out.posterior, space, "mean", 3)
    out = out._replace(posterior=posterior)
    terms = bind("gvae", {"shared": 3, "beta": 2.0}).terms(out, batch, made_context(space))
    mean, log_variance = posterior["z"].chunk(2, -1)
    kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance)  # [member, row, latent]
    pair = kl[:, ::2, :3].sum(-1) + kl[..., 3:].sum(-1).unflatten(1, (3, 2)).sum(-1)
    total = sum(terms[name].value * terms[name].weight for name in ("kl_shared", "kl_private"))
    torch.testing.assert_close(total, 2.0 * pair.mean(-1) / 2)


REFUSED = [
    ("ada-gvae", {"differing": 3}, ["differing", 1, 2]),
    ("ada-gvae", {"differing": 0}, ["differing", 1, 2]),
    ("ada-gvae", {"latents": "normal+concrete:3"}, ["normal"]),
    ("ada-gvae", {"split": 0.5}, ["split=none"]),
    ("gvae", {"shared": 4}, ["shared", 1, 3]),
    ("gvae", {"factors": ("colour",)}, ["colour"]),
    ("gvae", {"factors": ("f0", "f1", "f3")}, ["factors"]),
    ("s2-beta-vae", {"z": 2}, ["latent"]),
    ("s2-beta-vae", {"labels": 0.0}, ["labels"]),
    ("s2-beta-vae", {"labels": 25.0}, ["labels"]),
]


@pytest.mark.parametrize(("name", "settings", "facts"), REFUSED)
def test_what_cannot_be_learned_is_refused(name, settings, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        trained_state(name, **settings)


def test_data_without_a_grid_are_refused():
    data = grid((2, 3), table=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(UsageError, match="grid"):
        bind("ada-gvae", {}).check(data, normal_space(4))


# few labels


def labelled_terms(objective, posterior, factors):
    space = normal_space(4)
    out, batch = made_output(space, rows=factors.shape[1], posterior={"z": posterior})
    batch = Batch(batch.x, batch.index, factors=factors)
    return objective.terms(out, batch, made_context(space, rows=factors.shape[1]))


def test_labels_reach_their_rows_and_no_others():
    data, rows = grid(), torch.arange(24)
    objective = bind("s2-beta-vae", {"labels": 3.0})
    objective.begin(data, rows)
    assert int(objective.is_labelled.sum()) == 3
    factors = data.values_of(rows).expand(2, -1, -1).clone()
    first = int(objective.is_labelled.nonzero()[0])
    factors[:, first, 3] = -1
    posterior = torch.randn(2, 24, 8, dtype=torch.float64, requires_grad=True)
    value = labelled_terms(objective, posterior, factors)["supervised"].value
    expected = 0.0
    for row in objective.is_labelled.nonzero()[:, 0].tolist():
        for latent, k in enumerate((0, 1, 3)):  # the third factor has one value only
            if (row, k) != (first, 3):
                p, v = posterior[:, row, latent].sigmoid(), factors[0, row, k] / (SIZES[k] - 1)
                expected = expected - (v * p.log() + (1 - v) * (1 - p).log()) / 3
    torch.testing.assert_close(value, expected)
    gradient = torch.autograd.grad(value.sum(), posterior)[0]
    assert (gradient[:, ~objective.is_labelled] == 0).all()
    assert (gradient[:, first, 2] == 0).all()
    assert (gradient[:, first, :2] != 0).all()


def test_labels_are_the_same_rows_in_every_run_and_lie_in_those_trained_on():
    data, rows = load("sprites-small"), torch.arange(100, 1100)
    masks = []
    for share in (0.1, 0.1, 0.2):
        objective = bind("s2-beta-vae", {"labels": share})
        objective.begin(data, rows)
        masks.append(objective.is_labelled)
    assert torch.equal(masks[0], masks[1])
    assert int(masks[0].sum()) == 100
    assert (masks[0] <= masks[2]).all()
    assert not masks[2][:100].any()


def test_a_batch_without_labels_has_no_cross_entropy():
    made = cross_entropy(torch.randn(2, 5, 3), torch.rand(2, 5, 3), torch.zeros(2, 5, 3, dtype=torch.bool))
    assert torch.equal(made, torch.zeros(2))
