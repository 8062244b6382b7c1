"""Terms of the bound against models whose terms can be written down."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.evaluations import fixed_evaluation
from tests.support.messages import naming
from unbraid.errors import UsageError
from unbraid.metrics import Evaluation, evaluate, metric

REPEATS = 400
MEANS = np.array([[-1.2, 0.3], [0.4, 1.1], [1.5, -0.8], [0.2, 0.2], [-0.5, -1.4]])
STDS = np.array([[0.4, 0.8], [0.6, 0.5], [0.3, 0.9], [0.7, 0.4], [0.5, 0.5]])
NO_FACTOR = np.zeros((len(MEANS) * REPEATS, 1), dtype=int)


def evaluation(**settings) -> Evaluation:
    """Five posteriors, each many times: q(z) is a mixture of five."""
    return fixed_evaluation(np.tile(MEANS, (REPEATS, 1)), np.tile(STDS, (REPEATS, 1)), NO_FACTOR, **settings)


def normal(x, mean, std):
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))


def integrated_terms():
    """MI, TC and dimension-wise KL by a sum over a fine two-dimensional grid."""
    axis, step = np.linspace(-7, 7, 1401, retstep=True)
    first = normal(axis, MEANS[:, :1], STDS[:, :1])  # [component, point]
    second = normal(axis, MEANS[:, 1:], STDS[:, 1:])
    joint = np.einsum("ni,nj->ij", first, second) / len(MEANS)
    marginals = first.mean(0), second.mean(0)
    prior = normal(axis, 0, 1)

    def integral(q, log_ratio):
        return float(np.sum(np.where(q > 1e-300, q * log_ratio, 0)) * step**q.ndim)

    with np.errstate(divide="ignore", invalid="ignore"):
        tc = integral(joint, np.log(joint / np.outer(*marginals)))
        dimension = sum(integral(q, np.log(q / prior)) for q in marginals)
        own = -0.5 * (np.log(2 * np.pi * STDS**2) + 1).sum(1).mean()  # E log q(z|x)
        mi = own - integral(joint, np.log(joint))
    return {"mi": mi, "tc": tc, "dimension-kl": dimension}


CLOSED_KL = float((0.5 * (STDS**2 + MEANS**2 - 1 - 2 * np.log(STDS))).sum(1).mean())


def test_the_integrals_themselves_add_up():
    assert sum(integrated_terms().values()) == pytest.approx(CLOSED_KL, abs=1e-6)


def test_exact_terms_agree_with_integrals():
    scores = evaluate(evaluation(), ["mi/exact", "tc/exact", "dimension-kl/exact"], samples=2000)
    expected = integrated_terms()
    for score in scores:
        assert score.samples == 2000
        low, high = score.interval
        assert high - low < 0.15
        assert abs(score.value - expected[score.metric]) < 0.8 * (high - low)  # three standard errors


def test_exact_terms_sum_to_the_closed_form():
    scores = {
        s.name: s for s in evaluate(evaluation(), ["mi/exact", "tc/exact", "dimension-kl/exact", "kl/closed-form"])
    }
    closed = scores.pop("kl/closed-form")
    assert closed.value == pytest.approx(CLOSED_KL, abs=1e-5)
    assert closed.interval == (closed.value, closed.value)
    assert sum(closed.details["latents"].values()) == pytest.approx(closed.value)
    error = max(s.interval[1] - s.value for s in scores.values())
    assert sum(s.value for s in scores.values()) == pytest.approx(CLOSED_KL, abs=2 * error)


def test_stratified_over_all_rows_is_exact():
    one = evaluate(evaluation(), ["mi/stratified", "tc/stratified"], batch=2000, batches=1)
    whole = evaluate(evaluation(), ["mi/exact", "tc/exact"], samples=2000)
    for batch, exact in zip(one, whole, strict=True):
        assert batch.value == pytest.approx(exact.value, abs=1e-4)
        assert batch.interval is None
        assert batch.samples == 2000


def test_stratified_batches_come_near():
    scores = evaluate(evaluation(), ["mi/stratified", "tc/stratified", "dimension-kl/stratified"], batch=250)
    for score in scores:
        assert score.samples == 2000
        assert score.value == pytest.approx(integrated_terms()[score.metric], abs=0.15)


def linear_decoder():
    decoder = nn.Linear(2, 2)
    with torch.no_grad():
        decoder.weight.copy_(torch.tensor([[0.5, -1.0], [0.3, 0.7]]))
        decoder.bias.copy_(torch.tensor([0.1, -0.2]))
    return decoder


def test_reconstruction_and_bound_of_a_linear_decoder():
    decoder = linear_decoder()
    made = evaluation(decoder=decoder)
    weight, bias = (p.detach().double().numpy() for p in (decoder.weight, decoder.bias))
    means, variances = np.tile(MEANS, (REPEATS, 1)), np.tile(STDS**2, (REPEATS, 1))
    x = made.dataset.images(made.rows).double().numpy()
    distance = ((x - means @ weight.T - bias) ** 2).sum(1) + variances @ (weight**2).sum(0)
    expected = float(0.5 * distance.mean() + math.log(2 * math.pi))
    scores = {s.name: s for s in evaluate(made, ["reconstruction", "elbo", "kl"])}
    loss = scores["reconstruction/nats"]
    assert loss.samples == len(x)
    assert loss.interval[0] < expected < loss.interval[1]
    assert loss.value == pytest.approx(expected, abs=0.05)
    bound = scores["elbo/closed-form"]
    assert bound.value == pytest.approx(-loss.value - CLOSED_KL, abs=1e-4)
    assert bound.interval[0] < bound.value < bound.interval[1]


def test_terms_are_computed_once(monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return original(*arguments)

    from unbraid.metrics.unsupervised import elbo as bound

    original = bound.exact_aggregate
    monkeypatch.setattr(bound, "exact_aggregate", counted)
    made = evaluation()
    evaluate(made, ["mi/exact"], samples=64)
    evaluate(made, ["tc/exact", "dimension-kl/exact"], samples=64)
    assert len(calls) == 1


def test_held_out_rows_have_their_own_aggregate_posterior():
    """One posterior among the held-out rows: nothing can be known about which row it was."""
    rows = torch.arange(0, len(MEANS) * REPEATS, len(MEANS))
    scores = evaluate(evaluation(rows=rows), ["mi/exact", "tc/exact"])
    assert [score.value for score in scores] == pytest.approx([0, 0], abs=1e-4)


def test_grouped_latents_split_the_total_correlation():
    means = np.tile(MEANS, (REPEATS, 2))[:, :3]
    stds = np.tile(STDS, (REPEATS, 2))[:, :3]
    made = fixed_evaluation(means, stds, NO_FACTOR, tree=((0, 1), (2,)))
    scores = {s.name: s.value for s in evaluate(made, ["tc/exact"], samples=500)}
    assert list(scores) == ["tc/exact", "tc-between/exact", "tc-within/exact"]
    assert scores["tc/exact"] == pytest.approx(scores["tc-between/exact"] + scores["tc-within/exact"], abs=1e-5)


def test_bad_settings_and_short_data():
    with pytest.raises(UsageError, match=naming("samples", 2)):
        evaluate(evaluation(), ["tc/exact"], samples=1)
    with pytest.raises(UsageError, match=naming("batch", 2)):
        evaluate(evaluation(), ["tc/stratified"], batch=1)
    short = fixed_evaluation(MEANS, STDS, NO_FACTOR[:5])
    (score,) = evaluate(short, ["tc/stratified"])
    assert score.samples == 5


def test_no_number_of_the_decomposition_lacks_its_estimator():
    names = {name for name in metric if name.split("/")[0] in ("mi", "tc", "dimension-kl")}
    assert {name.split("/")[1] for name in names} == {"exact", "stratified", "gaussian", "ratio"}


def test_only_the_rows_asked_for_are_encoded_and_each_only_once():
    evaluation = fixed_evaluation(
        np.random.default_rng(0).normal(size=(50, 3)), np.ones((50, 3)), np.arange(50)[:, None] % 2
    )
    encoded = []
    encode = evaluation.model.encode
    evaluation.model.encode = lambda inputs: encoded.append(len(inputs.x["x"])) or encode(inputs)
    some = evaluation.tabulate(8)
    assert encoded == [8]
    assert torch.equal(evaluation.tabulate(8).codes, some.codes)
    assert encoded == [8]
    sampled = evaluation.draw_codes(evaluation.choose(8))
    assert torch.equal(evaluation.samples[evaluation.choose(8)], sampled)
    assert torch.equal(evaluation.means[evaluation.choose(8)], some.codes)
    assert encoded == [8, 42]
