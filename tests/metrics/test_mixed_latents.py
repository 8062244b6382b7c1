"""Scores of a model with Normal and Concrete latents: each is a number or a sentence, and each sees whole variables."""

import functools
import math
import tempfile

import pytest
import torch

from unbraid import api
from unbraid.errors import UnbraidError
from unbraid.metrics import Evaluation, evaluate, metric


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
QUICK = [n for n in metric if not NEEDS & set(metric[n].facts.get("needs", ())) and not n.startswith(SKIPPED)]


@pytest.mark.parametrize("name", QUICK)
def test_every_metric_scores_or_says_why_not(name):
    try:
        scores = evaluate(evaluation(), [name], **metric[name].facts.get("trial", {}))
    except UnbraidError as error:
        assert "Normal" in str(error) or "closed form" in str(error)
        return
    assert all(math.isfinite(score.value) for score in scores)


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
