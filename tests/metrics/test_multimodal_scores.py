"""Scores of several modalities, against models built by hand whose every score is known."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import nn

from tests.methods.linear_modalities import linear, log_evidence
from tests.support.evaluations import fixed_evaluation, full_grid
from tests.support.messages import naming
from unbraid.data import ClassLabels, Modality, Pixels, load, multimodal
from unbraid.data.factors import Factor
from unbraid.errors import DataError, UsageError
from unbraid.latents import Normal, Space
from unbraid.metrics import Evaluation, evaluate, probe
from unbraid.metrics.generative import log_likelihood as evidence
from unbraid.metrics.multimodal.diversity import expected_entropy
from unbraid.metrics.multimodal.modality_classifiers import get_modality_classifier
from unbraid.models import model
from unbraid.networks import make_likelihood

SIZES = {"shape": 3, "left": 4, "right": 5}
ROWS = torch.as_tensor(np.tile(full_grid(tuple(SIZES.values())), (8, 1)))
SHAPES, LOW, HIGH = 3, -8.0, -12.0


def one_hot(values, size):
    return nn.functional.one_hot(values, size).float()


def things(present=None):
    """m1 shows shape and left, m2 shape and right, and the label m3 the shape alone."""
    shape, left, right = ROWS.T
    m1 = torch.cat([one_hot(shape, 3), one_hot(left, 4)], 1)
    m2 = torch.cat([one_hot(shape, 3), one_hot(right, 5)], 1)
    parts = [
        Modality("m1", "vector", Pixels(m1, (7,))),
        Modality("m2", "vector", Pixels(m2, (8,)), present),
        Modality("m3", "label", ClassLabels(shape, ("a", "b", "c"))),
    ]
    return multimodal("things", parts, tuple(Factor(*item) for item in SIZES.items()), ROWS)


class Told(nn.Module):
    """An expert that says which shape it sees, turned by some, as surely as it is told to; and s as its prior."""

    def __init__(self, turn, log_variance, own):
        super().__init__()
        self.turn, self.log_variance, self.own = turn, log_variance, own

    def forward(self, x):
        mean = 4 * x[:, :SHAPES].roll(self.turn, 1)
        c = torch.cat([mean, torch.full_like(mean, self.log_variance)], 1)
        return torch.cat([c, x.new_zeros(len(x), 2)], 1) if self.own else c


class Shown(nn.Module):
    """Decodes the shape with the largest c, or (`deaf`) always the first; `values` of s equally often, or one."""

    def __init__(self, values, deaf=False):
        super().__init__()
        self.values, self.deaf = values, deaf

    def forward(self, code):
        shape = torch.zeros_like(code[:, 0]).long() if self.deaf else code[:, :SHAPES].argmax(1)
        if self.values is None:
            return 20 * one_hot(shape, SHAPES)  # logits of a label
        size, varied = self.values
        place = (torch.special.ndtr(code[:, SHAPES]) * size).long().clamp(max=size - 1) if varied else shape * 0
        return torch.cat([one_hot(shape, SHAPES), one_hot(place, size)], 1)


def made(data, turns=(0, 0, 0), varied=(True, True), deaf=(), kind="multimodal-partitioned", **settings):
    """m3 has no latents of its own and is the surest."""
    names = list(data.modalities)
    space = Space({"c": Normal(size=3), "s_m1": Normal(size=1), "s_m2": Normal(size=1)})
    own = {"m1": (4, varied[0]), "m2": (5, varied[1]), "m3": None}
    sure = {"m1": LOW, "m2": LOW, "m3": HIGH}
    encoder = nn.ModuleDict({n: Told(t, sure[n], n != "m3") for n, t in zip(names, turns, strict=True)})
    decoder = nn.ModuleDict({n: Shown(own[n], n in deaf) for n in names})
    densities = nn.ModuleDict({n: make_likelihood("categorical" if n == "m3" else "gaussian", {}) for n in names})
    return Evaluation(model[kind].make(space, data.layout, encoder, decoder, densities), data, **settings)


def scored(evaluation, name, **settings):
    return {score.part: score for score in evaluate(evaluation, [name], **settings)}


# coherence


@pytest.mark.parametrize("turns", [(0, 0, 0), (0, 0, 1), (2, 1, 0)])
def test_coherence_of_every_subset_is_what_a_loop_over_subsets_finds(turns):
    """The surest of a subset decides about the shape; it is right if its expert does not turn it."""
    found = scored(made(things(), turns), "coherence/classifier", shared="mean", samples=len(ROWS))
    sure = {"m1": math.exp(-LOW), "m2": math.exp(-LOW), "m3": math.exp(-HIGH)}
    names, by_size = ["m1", "m2", "m3"], {1: [], 2: []}
    for size, target in itertools.product((1, 2), names):
        for given in itertools.combinations([n for n in names if n != target], size):
            right = []
            for shape in range(SHAPES):  # every shape is as frequent as the others
                pull = np.zeros(SHAPES)
                for name in given:
                    pull[(shape + turns[names.index(name)]) % SHAPES] += 4 * sure[name]
                best = np.flatnonzero(pull == pull.max())
                right.append(best[0] == shape)  # argmax takes the first of equals, as the decoder does
            share = found[f"given-{size}"].details["pairs"][f"{'+'.join(given)}-to-{target}"]
            assert share == pytest.approx(np.mean(right), abs=1e-12)
            by_size[size].append(share)
    for size, shares in by_size.items():
        assert found[f"given-{size}"].value == pytest.approx(np.mean(shares))
    singles = {f"{a}-to-{b}" for a, b in itertools.permutations(names, 2)}
    assert set(found) == {"given-1", "given-2", "joint"} | singles
    assert all(found["joint"].details["classifiers"][n]["accuracy"]["shape"] == 1 for n in names)


def test_coherence_of_what_agrees_of_what_does_not_listen_and_of_the_prior():
    whole = scored(made(things()), "coherence/classifier", samples=300)
    assert {whole[part].value for part in ("given-1", "given-2", "joint")} == {1.0}
    assert whole["joint"].details["apart"] == pytest.approx(1 / 9, abs=0.02)
    assert 0.98 < whole["given-1"].interval[0] < whole["given-1"].interval[1] == 1
    deaf = scored(made(things(), deaf=("m2",)), "coherence/classifier", samples=300)
    assert deaf["m1-to-m2"].value == pytest.approx(1 / 3, abs=0.09)
    assert deaf["m2-to-m1"].value == deaf["m1-to-m3"].value == 1
    low, high = deaf["joint"].interval
    assert low < 1 / 3 < high
    same = scored(made(things(), deaf=("m1", "m2", "m3")), "coherence/classifier", samples=300)
    assert same["joint"].value == same["joint"].details["apart"] == 1  # which is why `apart` is there


def test_a_classifier_of_noisy_data_reads_the_means_that_a_perfect_decoder_says():
    """One that was trained on the noisy rows themselves does not do better than chance on these."""
    data = load("sprites-pairs", {"size": 16, "scales": 3, "orientations": 8, "positions": 8, "flip": 0.1})
    space = Space({"c": Normal(size=1)})
    nothing = nn.ModuleDict({name: nn.Identity() for name in data.modalities})
    densities = nn.ModuleDict({name: make_likelihood("bernoulli", {}) for name in data.modalities})
    whole = Evaluation(model["multimodal-partitioned"].make(space, data.layout, nothing, nothing, densities), data)
    rows, own = torch.arange(0, len(data), 9), get_modality_classifier(whole, "m2", 100)
    seen = own.predict(data.modalities["m2"].expected(rows), ["shape"])[:, 0]
    assert (seen == data.values_of(rows)[:, 0]).float().mean() > 0.97
    assert own.accuracy["shape"] > 0.97


def test_rows_count_for_the_sets_that_they_have():
    there = torch.arange(len(ROWS)) % 4 == 0
    found = scored(made(things(there)), "coherence/classifier", samples=10_000)
    rows = {part: score.samples for part, score in found.items()}
    assert (rows["m1-to-m2"], rows["m2-to-m1"], rows["given-1"]) == (len(ROWS), int(there.sum()), len(ROWS))
    assert found["m2-to-m1"].value == 1


def test_a_mixture_of_experts_follows_one_of_them():
    """With two modalities that differ, half of the draws from both are right."""
    found = scored(made(things(), (0, 1, 0), kind="multimodal-experts"), "coherence/classifier", samples=480)
    pairs = found["given-2"].details["pairs"]
    assert pairs["m1+m3-to-m2"] == 1
    assert pairs["m1+m2-to-m3"] == pytest.approx(0.5, abs=0.08)


def test_held_out_rows_do_not_train_the_classifiers():
    held_out = torch.arange(0, len(ROWS), 5)
    (first, *_) = evaluate(made(things(), rows=held_out), ["coherence/classifier"], samples=50)
    told = first.details["classifiers"]["m1"]
    assert told["real_rows"] == len(held_out)
    assert told["training_rows"] <= len(ROWS) - len(held_out)
    assert told["accuracy"]["right"] < 0.5 < 0.99 < told["accuracy"]["left"]


# diversity


def test_diversity_is_the_entropy_of_what_s_decides():
    found = scored(made(things()), "diversity/entropy", samples=60, draws=100)
    assert set(found) == {"m1", "m1/left", "m2", "m2/right"}  # m3 has nothing of its own, shape is shared
    for part, size in (("m1/left", 4), ("m2/right", 5)):
        score = found[part]
        assert score.value == pytest.approx(expected_entropy(size, 100), abs=0.01)
        assert score.details["ceiling"] == math.log(size) == pytest.approx(score.details["real"], abs=0.05)
        assert score.details["coherent"] == 1
        assert score.samples == 120  # 60 rows, each given by two other modalities
    still = scored(made(things(), varied=(False, True)), "diversity/entropy", samples=20, draws=20, source="m3")
    assert still["m1"].value == still["m1"].interval[1] == 0
    assert still["m2"].value > 1.4
    (whole, right) = evaluate(made(things()), ["diversity/entropy"], target="m2", source="m1", samples=9, draws=9)
    assert (whole.part, right.part, whole.value) == ("m2", "m2/right", right.value)


def test_the_entropy_of_few_draws_is_that_of_all_their_outcomes():
    outcomes = itertools.product(range(3), repeat=4)
    entropies = [-sum(p * math.log(p) for p in np.bincount(o)[np.bincount(o) > 0] / 4) for o in outcomes]
    assert expected_entropy(3, 4) == pytest.approx(np.mean(entropies), abs=1e-12)


def test_diversity_needs_something_that_could_differ():
    with pytest.raises(DataError, match=naming("things", "shape")):
        evaluate(made(things()), ["diversity/entropy"], target="m3")
    with pytest.raises(UsageError, match=naming("diversity/entropy", "modality")):
        evaluate(made(things()), ["diversity/entropy"], target="m1", source="m1")
    with pytest.raises(UsageError, match="modality"):
        evaluate(made(things()), ["diversity/entropy"], target="m4")


# dependence


class Read(nn.Module):
    """c, shifted, and s are the two numbers of an observation, all of one variance; or s has its prior."""

    def __init__(self, log_variance, used=True, shift=0.0):
        super().__init__()
        self.log_variance, self.used, self.shift = log_variance, used, shift

    def forward(self, x):
        variance = torch.full_like(x, self.log_variance)
        s = torch.stack([x[:, 1], variance[:, 1]], 1) if self.used else torch.zeros_like(x)
        return torch.cat([x[:, :1] + self.shift, variance[:, :1], s], 1)


def normals(kind="multimodal-partitioned", rows=6_000, log_variance=-6.0, shifts=(0.0, 0.0, 0.0)):
    """s_m1 has a correlation of .9 with c, s_m2 none, and s_m3 knows nothing."""
    made = torch.Generator().manual_seed(0)
    c, e, own = torch.randn(3, rows, generator=made)
    parts = {"m1": 0.9 * c + math.sqrt(1 - 0.81) * e, "m2": own, "m3": c}
    data = [Modality(n, "vector", Pixels(torch.stack([c, s], 1), (2,))) for n, s in parts.items()]
    space = Space({"c": Normal(size=1), **{f"s_{n}": Normal(size=1) for n in parts}})
    encoder = nn.ModuleDict({n: Read(log_variance, n != "m3", by) for n, by in zip(parts, shifts, strict=True)})
    decoder = nn.ModuleDict({n: nn.Linear(2, 2) for n in parts})
    densities = nn.ModuleDict({n: make_likelihood("gaussian", {}) for n in parts})
    whole = multimodal("normals", data)
    return Evaluation(model[kind].make(space, whole.layout, encoder, decoder, densities), whole)


def test_total_correlation_of_c_and_s_with_the_kl_that_tells_collapse():
    found = scored(normals(), "tc-blocks/ratio", width=64, depth=2, steps=300)
    assert found["s_m1"].value == pytest.approx(-0.5 * math.log(1 - 0.81), abs=0.12)  # .83 nats
    assert abs(found["s_m2"].value) < 0.05
    assert abs(found["s_m3"].value) < 0.05
    assert found["s_m2"].details["kl"]["s_m2"] > 2
    assert found["s_m3"].details["kl"]["s_m3"] == 0  # independent of c, because it knows nothing


def test_kl_of_each_block_by_its_formula_and_at_draws():
    evaluation = normals(rows=2_000, log_variance=-1.0)
    closed, drawn = (scored(evaluation, f"kl-blocks/{how}") for how in ("closed-form", "sampled"))
    x = evaluation.dataset.observed(torch.arange(2_000))
    c, s = x["m1"].double().T
    v, w = math.exp(-1.0), 1 / (1 + 3 * math.e)  # of one expert, and of three of them with the prior's
    by_hand = {
        "c": 0.5 * ((3 * math.e * w * c) ** 2 + w - 1 - math.log(w)).mean(),
        "s_m1": 0.5 * (s**2 + v - 1 + 1).mean(),
        "s_m3": 0.0,
    }
    for block, value in by_hand.items():
        assert closed[block].value == pytest.approx(float(value), abs=1e-5)
    for block, score in drawn.items():
        assert score.value == pytest.approx(closed[block].value, abs=2 * (score.interval[1] - score.value) + 1e-6)


@pytest.mark.parametrize("name", ["elbo/closed-form", "elbo/sampled", "kl/closed-form", "kl/sampled", "mi/exact"])
def test_a_mixture_of_which_only_moments_are_known_has_no_bound(name):
    evaluation = normals("multimodal-experts", rows=40, log_variance=-1.0)
    with pytest.raises(UsageError, match=naming("log-likelihood/joint", "kl-blocks/sampled")):
        evaluate(evaluation, [name])


def test_kl_of_a_mixture_is_taken_at_draws():
    shifts = (0.0, 2.0, -1.0)
    evaluation = normals("multimodal-experts", rows=400, log_variance=-1.0, shifts=shifts)
    with pytest.raises(UsageError, match="kl-blocks/sampled"):
        evaluate(evaluation, ["kl-blocks/closed-form"])
    score = scored(evaluation, "kl-blocks/sampled")["c"]
    v = math.exp(-1.0)

    def kl(c):
        def density(z, mean, variance):
            return math.exp(-0.5 * (z - mean) ** 2 / variance) / math.sqrt(2 * math.pi * variance)

        def integrand(z):
            q = np.mean([density(z, c + shift, v) for shift in shifts])
            return q * math.log(q / density(z, 0.0, 1.0))

        return quad(integrand, c - 6, c + 7)[0]

    truth = np.mean([kl(c) for c in evaluation.dataset.observed(torch.arange(400))["m1"][:, 0].tolist()])
    assert score.value == pytest.approx(truth, abs=2 * (score.interval[1] - score.value))


# probes


def test_probes_find_each_factor_where_it_is():
    rng = np.random.default_rng(0)
    shape, left, _ = np.tile(ROWS.numpy(), (4, 1)).T
    c = np.eye(3)[shape] + 0.01 * rng.standard_normal((len(shape), 3))
    s = np.stack([left + 0.01 * rng.standard_normal(len(left)), rng.standard_normal(len(left))], 1)
    factors, names = np.stack([shape, left], 1), ("shape", "left")
    linear = {x.part: x for x in probe({"c": c, "s": s}, factors, names=names, train=1_200, test=600, C=1e4)}
    assert linear["c/shape"].value == linear["s/left"].value == 1
    assert linear["c/shape"].details["nats"] == pytest.approx(math.log(3), abs=0.01)
    for part in ("c/left", "s/shape"):
        score = linear[part]
        assert score.value == pytest.approx(score.details["chance"], abs=0.05)
        assert abs(score.details["nats"]) < 0.02
    known = {x.part: x for x in probe({"c": c, "s": s}, factors, names=names, protocol="knn")}
    assert known["s/left"].value == pytest.approx(math.log(4), abs=0.02)
    assert known["s/left"].details["latents"][1] < 0.03
    binary = math.log(3) - 2 / 3 * math.log(2)  # I(one of three bits; shape) = H(1/3)
    assert known["c/shape"].value == pytest.approx(binary, abs=0.05)
    assert max(known["c/left"].value, known["s/shape"].value) < 0.03
    block = {x.part: x.value for x in probe({"c": c, "s": s}, factors, names=names, protocol="knn-block", resamples=2)}
    assert block["c/shape"] == pytest.approx(math.log(3), abs=0.05)
    assert block["s/left"] == pytest.approx(math.log(4), abs=0.1)
    assert max(block["c/left"], block["s/shape"]) < 0.05
    with pytest.raises(UsageError, match=naming("linear", "knn", "forest")):
        probe({"c": c}, factors, protocol="forest")


def test_a_block_is_probed_on_rows_that_have_its_modality():
    there = torch.arange(len(ROWS)) % 3 > 0
    found = scored(made(things(there)), "probe/knn", resamples=2, codes="mean")
    assert found["s_m2/shape"].samples == int(there.sum())
    assert found["c/shape"].samples == len(ROWS)
    assert found["c/shape"].details["entropy"] == pytest.approx(math.log(3))
    assert found["s_m1/left"].value == 0  # posterior means that never vary


def test_a_collapsed_block_carries_nothing_whatever_its_means_say():
    """Means of c are .004 or 0, and its variance is the prior's but for a thousandth."""
    evaluation = made(things())
    for told in evaluation.model.encoder.values():
        told.log_variance = 8.0  # experts that hardly outvote the prior's
    means, drawn = (scored(evaluation, "probe/linear", factors=("shape",), codes=c) for c in ("mean", "sampled"))
    kl = scored(evaluation, "kl-blocks/closed-form")["c"].value
    assert kl < 1e-4
    assert means["c/shape"].value == 1
    assert means["c/shape"].details["nats"] > 1 > kl
    assert drawn["c/shape"].value == pytest.approx(1 / 3, abs=0.12)
    assert drawn["c/shape"].details["nats"] < 0.05


def test_log_likelihoods_of_a_linear_model_are_the_true_ones():
    """Its experts are the true posteriors of every subset, so that one draw gives log p exactly."""
    a = (1.0, -2.0, 0.5)
    exact, _ = linear("mvae", a)
    made = torch.Generator().manual_seed(0)
    x = {f"m{m + 1}": torch.randn(50, 1, generator=made) for m in range(len(a))}
    data = multimodal("normal", [Modality(name, "vector", Pixels(rows, (1,))) for name, rows in x.items()])
    found = {s.name: s.value for s in evaluate(Evaluation(exact.float(), data), ["log-likelihood"], draws=1)}
    x = {name: rows.double() for name, rows in x.items()}
    whole = log_evidence(x, a)
    truth = {"joint": whole}
    for name, rows in x.items():
        others = {other: value for other, value in x.items() if other != name}
        truth[f"marginal/{name}"] = log_evidence({name: rows}, a)
        truth[f"conditional/{name}"] = whole - log_evidence(others, a)
    known = {f"log-likelihood/{part}": float(values.mean()) for part, values in truth.items()}
    assert found == pytest.approx(known, abs=1e-5)


def test_no_part_of_the_rows_shares_its_draws_with_another_seed(monkeypatch):
    """Equal rows, one after the other: their estimates differ by draws alone."""
    monkeypatch.setattr(evidence, "MAX_DRAWS_IN_MEMORY", 1)
    loose, _ = linear("mvae", (1.0,), experts=[([0.2], [0.5])])
    data = multimodal("ones", [Modality("m1", "vector", Pixels(torch.ones(6, 1), (1,)))])
    found = [
        evidence._estimate(Evaluation(loose.float(), data, seed=seed), ("m1",), ("m1",), 1, 6) for seed in (0, 1, 2)
    ]
    assert len(torch.cat(found).unique()) == 18


def test_a_run_on_one_modality_is_refused():
    single = fixed_evaluation(np.zeros((60, 2)), np.ones((60, 2)), ROWS[:60].numpy())
    names = ["coherence/classifier", "diversity/entropy", "tc-blocks/ratio", "probe/linear", "probe/knn"]
    for name in [*names, "probe/knn-block", "kl-blocks/closed-form", "kl-blocks/sampled"]:
        with pytest.raises(UsageError, match="modalities"):
            evaluate(single, [name])
