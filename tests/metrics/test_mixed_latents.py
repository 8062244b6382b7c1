"""Scores of a model with Normal and Concrete latents: each is a number or a sentence, and each sees whole variables."""

import functools
import math
import tempfile

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit, log_expit
from torch import nn

from tests.support.evaluations import Fixed
from unbraid import api
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.errors import SettingError, UnbraidError
from unbraid.latents import Bernoulli, Space
from unbraid.metrics import Evaluation, evaluate, metric
from unbraid.models import VAE
from unbraid.networks import make_likelihood


@functools.cache
def evaluation() -> Evaluation:
    """A moving temperature, so that the step travels with the noise."""
    run = api.train(
        "hfvae",
        data="sprites-small",
        root=tempfile.mkdtemp(prefix="unbraid-mixed-"),
        device="cpu",
        network="mlp",
        encoder_hidden=(16,),
        decoder_hidden=(16,),
        latents="normal:3+concrete:4",
        steps=30,
        batch=32,
        **{"latents.c.temperature": 1.0, "latents.c.final": 0.5, "latents.c.anneal": 20},
    )
    return Evaluation(run.model, run.dataset)


SKIPPED = ("dci", "frechet", "kid", "precision-recall", "attributes", "downstream")
"""Families that look at codes or pictures alone, whatever the latents are."""

NEEDS = {"weights", "peers", "images", "staged", "density", "modalities"}
QUICK = [n for n in metric if not NEEDS & set(metric[n].facts.needs) and not n.startswith(SKIPPED)]


@pytest.mark.parametrize("name", QUICK)
def test_every_metric_scores_or_says_why_not(name):
    few = {key: 300 for key in ("train", "test") if key in metric[name].settings}
    try:
        scores = evaluate(evaluation(), [name], **few | dict(metric[name].facts.trial))
    except UnbraidError as error:
        assert "Normal" in str(error) or "sampled" in str(error)
        return
    assert all(math.isfinite(score.value) for score in scores)


@pytest.mark.parametrize("name", ["mig/exact", "mig/histogram-mean", "clusters/majority"])
def test_an_unknown_factor_is_named_before_what_the_latents_do_not_allow(name):
    setting = {"factor": "posZ"} if "factor" in metric[name].settings else {"factors": ("posZ",)}
    with pytest.raises(SettingError, match="posZ"):
        evaluate(evaluation(), [name], **setting)


def test_a_discrete_variable_is_one_variable():
    space = evaluation().space
    assert space.leaf_columns() == [[0], [1], [2], [3, 4, 5, 6]]
    assert space.leaf_names() == ["z0", "z1", "z2", "c"]
    codes = evaluation().samples
    torch.testing.assert_close(codes[:, 3:].sum(1), torch.ones(len(codes)))


def test_the_sampled_bound_agrees_with_the_closed_form_where_there_is_one(tmp_path):
    run = api.train("vae", data="sprites-small", root=tmp_path, device="cpu", network="mlp", steps=30, batch=32, z=3)
    closed, sampled = evaluate(Evaluation(run.model, run.dataset), ["elbo/closed-form", "elbo/sampled"])
    assert sampled.interval[0] - 0.5 < closed.value < sampled.interval[1] + 0.5
    closed, sampled = evaluate(Evaluation(run.model, run.dataset), ["kl/closed-form", "kl/sampled"])
    assert sampled.value == pytest.approx(closed.value, abs=4 * (sampled.interval[1] - sampled.value) + 1e-4)


@pytest.mark.parametrize("straight_through", [False, True])
@pytest.mark.parametrize(("temperature", "logit"), [(0.66, 12.0), (0.3, 8.0), (0.1, 5.0)])
def test_terms_of_a_sure_binary_latent_agree_with_integrals(temperature, logit, straight_through):
    """Where a code is 0 or 1 to the last digit, or by rule, its density is still that of the draw behind it."""
    rows = 4_000
    pixels = Pixels(torch.arange(rows)[:, None] / rows, (1,))
    data = FactorDataset("made", pixels, (Factor("v", 2),), torch.arange(rows)[:, None] % 2)
    space = Space({"b": Bernoulli(size=1, temperature=temperature, straight_through=straight_through)})
    logits = torch.where(torch.arange(rows) % 2 == 0, logit, -logit)[:, None]
    model = VAE(space, (1,), Fixed(logits), nn.Linear(1, 1), make_likelihood("gaussian", {}))

    def density(x, a):
        return temperature * expit(a - temperature * x) * expit(temperature * x - a)

    def ratio(x):  # of log densities, which do not underflow
        own, prior = (log_expit(a - temperature * x) + log_expit(temperature * x - a) for a in (logit, 0.0))
        return own - prior

    middle, width = logit / temperature, 40 / temperature
    divergence = quad(lambda x: density(x, logit) * ratio(x), middle - width, middle + width, limit=500)[0]
    both = quad(
        lambda x: density(x, logit) * np.log((density(x, logit) + density(x, -logit)) / 2 / density(x, logit)),
        middle - width,
        middle + width,
        limit=500,
    )[0]
    scores = {s.name: s for s in evaluate(Evaluation(model, data), ["kl/sampled", "mi/exact"], samples=rows)}
    for name, wanted in (("kl/sampled", divergence), ("mi/exact", -both)):
        score = scores[name]
        assert score.value == pytest.approx(wanted, abs=2.5 * (score.interval[1] - score.value) + 1e-3)
