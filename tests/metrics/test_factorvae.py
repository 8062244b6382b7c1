"""FactorVAE score: known values, slow versions by the papers' words, what it cannot see, bad input."""

import json
import math
import random
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.support.evaluations import SPRITES, aligned_encoder, fixed_evaluation, full_grid
from tests.support.messages import names, naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import evaluate
from unbraid.metrics.arrays import to_tensor
from unbraid.metrics.intervention.factorvae import _assign, factorvae, find_winners
from unbraid.metrics.intervention.fixed_factor_batches import Population, read_fixable_factors

NAMES = tuple(SPRITES)
GRID = full_grid(SPRITES.values())
MEANS = aligned_encoder(GRID, 0.02)[0]
SMALL = {"train": 1_000, "test": 500, "resamples": 20}


def mixed_data(seed=0):
    """A complete grid, and codes that know its three factors to different degrees."""
    rng = np.random.default_rng(seed)
    factors = full_grid((3, 4, 5))
    codes = 0.4 * rng.standard_normal((len(factors), 4))
    codes[:, 0] += factors[:, 0]
    codes[:, 1] += 0.2 * factors[:, 1] + 0.3 * factors[:, 2]
    codes[:, 2] += 0.5 * factors[:, 2] * factors[:, 0]
    return codes, factors


def slow_score(codes, factors, batch, train, test, threshold, seed):
    """kim2018, section 4, in loops and with a random generator of its own."""
    draw = random.Random(seed)
    rows, latents = len(codes), len(codes[0])
    spread = [statistics.variance(row[j] for row in codes) for j in range(latents)]
    kept = [j for j in range(latents) if math.sqrt(spread[j]) >= threshold]

    def vote():
        k = draw.randrange(len(factors[0]))
        value = factors[draw.randrange(rows)][k]
        alike = [row for row in range(rows) if factors[row][k] == value]
        chosen = [codes[draw.choice(alike)] for _ in range(batch)]
        return min(kept, key=lambda j: statistics.variance([row[j] for row in chosen]) / spread[j]), k

    heard = {}
    for _ in range(train):
        latent, k = vote()
        heard.setdefault(latent, []).append(k)
    believed = {latent: max(set(said), key=said.count) for latent, said in heard.items()}
    return sum(believed.get(latent) == k for latent, k in (vote() for _ in range(test))) / test


def published_score(codes, sizes, batch, train, test, threshold, seed):
    """locatello2019's code by its words: factors are drawn, one is overwritten with that of the first, rows follow."""
    state = np.random.RandomState(seed)

    def sample(count):
        return np.stack([state.randint(size, size=count) for size in sizes], axis=1)

    def encode(factors):
        return codes[np.ravel_multi_index(factors.T, sizes)]

    spread = np.var(encode(sample(10_000)), axis=0, ddof=1)
    kept = np.sqrt(spread) >= threshold
    if not kept.any():
        return 0.0

    def table(count):
        votes = np.zeros((len(sizes), codes.shape[1]), dtype=int)
        for _ in range(count):
            k = state.randint(len(sizes))
            factors = sample(batch)
            factors[:, k] = factors[0, k]
            votes[k, np.argmin(np.var(encode(factors), axis=0, ddof=1)[kept] / spread[kept])] += 1
        return votes

    trained, tested = table(train), table(test)
    return tested[trained.argmax(0), np.arange(codes.shape[1])].sum() / tested.sum()


def rotated(codes, columns, degrees=45):
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turned = codes.copy()
    turned[:, columns] = codes[:, columns] @ np.array([[c, -s], [s, c]])
    return turned


@pytest.mark.parametrize("compat", [None, "disentanglement_lib"])
def test_scores_of_an_aligned_encoder(compat):
    """tests/oracles.md, row 3: pruned 1; unpruned 1/5; two factors rotated by 45 degrees .80."""
    pruned = factorvae(MEANS, GRID, names=NAMES, compat=compat)
    assert pruned.value == 1.0
    assert pruned.samples == len(GRID)
    assert pruned.details["active"] == ["z0", "z1", "z2", "z3", "z4"]
    assert list(pruned.details["stands_for"].values()) == list(NAMES)
    assert factorvae(MEANS, GRID, threshold=0.0, compat=compat).value == pytest.approx(1 / 5, abs=0.015)
    turned = factorvae(rotated(MEANS, [3, 4]), GRID, names=NAMES, compat=compat)
    assert turned.value == pytest.approx(0.8, abs=0.02)
    assert turned.details["accuracy"]["scale"] == 1
    assert turned.interval[0] < 0.8 < turned.interval[1]


def test_agrees_with_a_slow_version():
    codes, factors = mixed_data()
    few = {"batch": 6, "train": 3_000, "test": 3_000, "threshold": 0.05}
    slow = slow_score(codes.tolist(), factors.tolist(), **few, seed=5)
    score = factorvae(codes, factors, **few)
    assert 0.4 < slow < 0.95
    assert score.value == pytest.approx(slow, abs=0.04)  # 3 standard errors of both


def test_the_published_protocol_agrees_with_a_slow_version():
    codes, factors = mixed_data()
    few = {"batch": 6, "train": 3_000, "test": 3_000, "threshold": 0.5}
    slow = published_score(codes, (3, 4, 5), **few, seed=5)
    score = factorvae(codes, factors, **few, compat="disentanglement_lib")
    assert score.protocol == "disentanglement_lib"
    assert len(score.details["active"]) == 3
    assert score.value == pytest.approx(slow, abs=0.04)
    assert published_score(0 * codes, (3, 4, 5), **few, seed=0) == 0
    assert factorvae(0 * codes, factors, **few, compat="disentanglement_lib").value == 0


def test_each_vote_goes_to_the_latent_of_least_relative_variance():
    codes, factors = mixed_data()
    drawn = Population(read_fixable_factors(factors, len(codes))).draw_batches(np.random.default_rng(0), 300, 7)
    spread = codes.var(0, ddof=1)
    expected = [np.argmin(codes[rows].var(0, ddof=1) / spread) for rows in drawn.rows]
    found = find_winners(to_tensor("codes", codes), torch.from_numpy(spread), drawn)
    assert found.tolist() == expected
    offset = find_winners(to_tensor("codes", codes + 1e6), torch.from_numpy(spread), drawn)
    assert offset.tolist() == expected


def test_a_latent_without_training_votes():
    votes = np.array([[5, 0, 1], [2, 0, 4]])
    assert _assign(votes, winners_only=True).tolist() == [0, -1, 1]
    assert _assign(votes, winners_only=False).tolist() == [0, 0, 1]  # it stands for the first factor


@pytest.mark.parametrize("compat", [None, "disentanglement_lib"])
def test_with_all_latents_pruned_the_score_is_zero(compat):
    codes, factors = mixed_data()
    score = factorvae(1e-3 * codes, factors, compat=compat)
    assert score.value == 0
    assert set(score.details) == {"active", "why"}
    assert score.details["active"] == []
    assert names(score.details["why"], 0.05)


def test_noise_scores_chance():
    factors = mixed_data()[1]
    noise = np.random.default_rng(0).standard_normal((len(factors), 5))
    assert factorvae(noise, factors, train=20_000).value == pytest.approx(1 / 3, abs=0.12)
    many = np.tile(factors, (50, 1))
    noise = np.random.default_rng(0).standard_normal((len(many), 5))
    assert factorvae(noise, many).value == pytest.approx(1 / 3, abs=0.03)


def test_the_interval_is_as_wide_as_votes_make_it():
    codes, factors = mixed_data()
    scores = [factorvae(codes, factors, batch=6, train=2_000, test=500, seed=s) for s in range(20)]
    spread = np.std([score.value for score in scores])
    widths = [(score.interval[1] - score.interval[0]) / 2 / 1.96 for score in scores]
    assert np.mean(widths) == pytest.approx(spread, rel=0.5)
    perfect = factorvae(factors.astype(float), factors, train=100, test=100)
    assert perfect.value == perfect.interval[1] == 1
    assert perfect.interval[0] == pytest.approx(0.963, abs=1e-3)  # wilson1927, 100 of 100


def test_a_factor_that_two_latents_share_costs_nothing():
    """What the score cannot see: MIG of this code is 0."""
    codes = full_grid((4, 4, 4))[:, [0, 1, 2, 0, 1, 2]].astype(float)
    assert factorvae(codes, full_grid((4, 4, 4)), **SMALL).value == 1


def test_any_table_of_any_labels_will_do():
    grid = full_grid((3, 4, 5))
    rows = np.random.default_rng(0).integers(0, len(grid), 400) ** 2 % len(grid)  # unbalanced, incomplete
    words = np.array(["red", "green", "blue", "white", "black"])[grid[rows]]
    assert factorvae(grid[rows].astype(np.float32), words, **SMALL).value == 1


def test_torch_and_numpy_agree_and_a_seed_repeats():
    codes, factors = mixed_data()
    one = factorvae(codes, factors, **SMALL)
    again = factorvae(torch.from_numpy(codes).requires_grad_(), torch.from_numpy(factors), **SMALL)
    assert one == again
    assert factorvae(codes, factors, **SMALL, seed=1).details["votes"] != one.details["votes"]
    json.dumps(one.as_record())


@settings(max_examples=10)
@given(st.permutations(range(4)), st.lists(st.sampled_from([-1, 1]), min_size=4, max_size=4))
def test_order_and_sign_of_latents_do_not_matter(order, signs):
    codes, factors = mixed_data()
    few = {"train": 200, "test": 100, "resamples": 0}
    changed = factorvae((codes * signs)[:, order], factors, **few)
    assert changed.value == factorvae(codes, factors, **few).value


@pytest.mark.parametrize("name", ["factorvae/majority-vote", "factorvae/disentanglement_lib"])
def test_of_an_evaluation(name):
    codes, factors = mixed_data()
    whole = fixed_evaluation(codes, np.ones_like(codes), factors, names=["a", "b", "c"])
    (score,) = evaluate(whole, [name], train=500, test=300)
    assert score.name == name
    assert score.samples == 60
    assert list(score.details["votes"]) == ["a", "b", "c"]
    (fewer,) = evaluate(whole, [name], train=500, test=300, samples=40, factors=("a", "c"))
    assert fewer.samples == 40
    assert list(fewer.details["votes"]) == ["a", "c"]
    half = fixed_evaluation(codes, np.ones_like(codes), factors, rows=torch.arange(0, 60, 2))
    assert evaluate(half, [name], train=500, test=300)[0].samples == 30


@pytest.mark.parametrize(
    ("change", "error", "facts"),
    [
        ({"codes": np.full((60, 2), np.nan)}, DataError, ["NaN"]),
        ({"codes": np.zeros(60)}, UsageError, ["shape"]),
        ({"codes": np.zeros((59, 2))}, UsageError, [59]),
        ({"factors": np.zeros((60, 2), int)}, DataError, ["v0"]),
        ({"factors": full_grid((3, 4, 5))[:, :1]}, UsageError, ["factors", 2]),
        ({"factors": np.random.default_rng(0).random((60, 2))}, UsageError, ["v0", "factor_bins"]),
        ({"batch": 1}, UsageError, ["batch", 2]),
        ({"test": 0}, UsageError, ["test", 1]),
        ({"pool": 1}, UsageError, ["pool", 2]),
        ({"threshold": -1.0}, UsageError, ["threshold", 0]),
        ({"latents": ["one"]}, UsageError, ["latents", 4, 1]),
    ],
)
def test_bad_input_is_refused(change, error, facts):
    codes, factors = mixed_data()
    with pytest.raises(error, match=naming(*facts)):
        factorvae(**{"codes": codes, "factors": factors, **SMALL, **change})


def test_one_latent_is_chance():
    codes, factors = mixed_data()
    assert factorvae(codes[:, :1], factors, **SMALL).value == pytest.approx(1 / 3, abs=0.08)


@pytest.mark.gpu
def test_on_a_gpu_the_same_rows_give_the_same_votes():
    codes, factors = mixed_data()
    on_gpu = factorvae(torch.from_numpy(codes).cuda(), torch.from_numpy(factors).cuda(), **SMALL)
    assert on_gpu == factorvae(codes, factors, **SMALL)
