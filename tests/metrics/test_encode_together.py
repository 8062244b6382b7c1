"""Models of one structure that are encoded in one pass score as they would alone."""

import pytest
import torch

import unbraid
from unbraid import scoring
from unbraid.config import Choice
from unbraid.data import load
from unbraid.metrics import Evaluation, encode_together, evaluate
from unbraid.models import build
from unbraid.run import score_runs
from unbraid.training import configure


def test_codes_and_scores_of_members_are_their_own():
    data = load("sprites-small")
    settings = {"network": "conv-small", "encoder.width": 4, "encoder.hidden": 16, "z": 3}
    configs = [configure("vae", Choice("sprites-small"), data, {**settings, "seed": seed}) for seed in range(3)]
    rows = torch.arange(0, len(data), 3)
    alone, together = ([Evaluation(build(c, data.shape), data, rows) for c in configs] for _ in range(2))
    encode_together(together)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(other.posterior, one.posterior, rtol=1e-5, atol=1e-6)
        assert evaluate(other, ["kl"])[0].value == pytest.approx(evaluate(one, ["kl"])[0].value, rel=1e-5)
        levels = [evaluate(each, ["mig/histogram-mean"], samples=300)[0] for each in (one, other)]
        assert levels[0].ceiling == levels[1].ceiling
        assert levels[0].chance == pytest.approx(
            levels[1].chance, abs=0.02
        )  # codes that differ by rounding change bins
    assert len({id(each.shared) for each in together}) == 1, "perfect codes and labels are of the rows, not of a model"


def test_runs_on_a_cpu_encode_only_the_rows_that_a_metric_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "encode_together", lambda evaluations: pytest.fail("all rows were encoded"))
    settings = {"data": "sprites-small", "network": "mlp", "z": 2, "steps": 2, "root": tmp_path}
    runs = [unbraid.load(unbraid.train("vae", **settings, seed=seed).path) for seed in range(2)]
    encoded, encode = [], Evaluation.encode_posterior
    monkeypatch.setattr(
        Evaluation, "encode_posterior", lambda self, rows: encoded.append(len(rows)) or encode(self, rows)
    )
    for _, (score,) in score_runs(runs, "mig/histogram-mean", samples=100):
        assert score.samples == 100
    assert encoded == [100, 100]
    assert runs[0].evaluation.shared is runs[1].evaluation.shared
