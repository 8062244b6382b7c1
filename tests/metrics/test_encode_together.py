"""Models of one structure that are encoded in one pass score as they would alone."""

import pytest
import torch

import unbraid
from unbraid import scoring
from unbraid.config import Choice
from unbraid.data import load
from unbraid.metrics import Evaluation, encode_together, evaluate, model_encoders
from unbraid.models import build
from unbraid.run import score_runs
from unbraid.training import configure
from unbraid.training.group import Group


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


def build_evaluation(device="cpu", precision="tf32"):
    data = load("sprites-small")
    settings = {"network": "conv-small", "encoder.width": 4, "encoder.hidden": 16, "z": 3}
    model = build(configure("vae", Choice("sprites-small"), data, settings), data.shape)
    return Evaluation(model.to(device), data.to(torch.device(device)), precision=precision)


def test_kernels_encode_one_model_as_torch_does(monkeypatch):
    """On a CPU the program of one model has torch's convolutions, too; the rest is as on a GPU."""
    plain, other = build_evaluation(), build_evaluation()
    other.model.load_state_dict(plain.model.state_dict())
    monkeypatch.setattr(model_encoders, "MIN_ROWS_FOR_KERNELS", 100)
    monkeypatch.setattr(model_encoders, "_is_faster_by_kernels", lambda *given: True)
    shapes, apply = [], Group.apply
    monkeypatch.setattr(
        Group, "apply", lambda self, path, x: shapes.append(tuple(x.x["x"].shape[:2])) or apply(self, path, x)
    )
    few = other.encode_means(torch.arange(50))  # by the same program as all others: codes depend on no other row
    whole = other.encode_means(torch.arange(len(other)))
    assert set(shapes) == {(1, other.batch)}  # kernels are compiled for a shape
    monkeypatch.undo()
    expected = plain.encode_means(torch.arange(len(plain)))
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(few, expected[:50], rtol=1e-5, atol=1e-6)
    assert type(next(m for m in other.model.modules() if isinstance(m, torch.nn.Conv2d))) is torch.nn.Conv2d


def test_small_evaluations_are_encoded_by_the_model_itself(monkeypatch):
    monkeypatch.setattr(model_encoders, "_is_faster_by_kernels", lambda *given: True)
    evaluation = build_evaluation()
    assert len(evaluation) < model_encoders.MIN_ROWS_FOR_KERNELS
    monkeypatch.setattr(model_encoders, "stack_encoders", lambda *given: pytest.fail("kernels were prepared"))
    evaluation.encode_means(torch.arange(len(evaluation)))


def test_kernels_are_for_convolutions_in_tf32_on_a_gpu(monkeypatch):
    monkeypatch.setattr(model_encoders, "TRITON", True)
    model, cuda = build_evaluation().model, torch.device("cuda")
    assert model_encoders._is_faster_by_kernels(model, cuda, tf32=True)
    assert not model_encoders._is_faster_by_kernels(model, cuda, tf32=False)
    assert not model_encoders._is_faster_by_kernels(model, torch.device("cpu"), tf32=True)
    assert not model_encoders._is_faster_by_kernels(torch.nn.Sequential(torch.nn.Linear(2, 2)), cuda, tf32=True)


@pytest.mark.gpu
def test_kernels_encode_as_torch_does_in_full_precision(monkeypatch):
    full, fast = build_evaluation("cuda", "f32"), build_evaluation("cuda", "tf32")
    fast.model.load_state_dict(full.model.state_dict())
    monkeypatch.setattr(model_encoders, "MIN_ROWS_FOR_KERNELS", 100)
    built, stack = [], model_encoders.stack_encoders
    monkeypatch.setattr(model_encoders, "stack_encoders", lambda *given: built.append(given) or stack(*given))
    rows = torch.arange(len(full), device="cuda")
    expected, found = full.encode_means(rows), fast.encode_means(rows)
    assert (found - expected).abs().max() < 5e-3 * expected.abs().max()
    assert len(built) == 1


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
