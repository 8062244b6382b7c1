"""Distance and spread of images that are made from another modality, for models whose answer is known."""

import pytest
import torch

from tests.support.messages import naming
from unbraid import train
from unbraid.errors import DataError
from unbraid.metrics.multimodal import cross_distance

SETTINGS = {"samples": 24, "draws": 4, "steps": 5}
DATA = {
    "data": "sprites-pairs",
    "data_size": 16,
    "data_scales": 2,
    "data_orientations": 2,
    "data_positions": 3,
    "data_flip": 0.0,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("cross")
    network = {"network": "mlp", "encoder_hidden": (8,), "decoder_hidden": (8,)}
    return train("partitioned-mvae", root=place, device="cpu", steps=2, batch=8, c=2, s=2, **DATA, **network)


def test_a_decoder_that_copies_the_data_has_no_distance_and_draws_have_no_spread(run, monkeypatch):
    evaluation = run.evaluation
    rows = evaluation.choose(SETTINGS["samples"])

    def copy(model, name, c, seeds, step):
        images = run.dataset.modalities[name].expected(evaluation.rows[rows])
        return images.repeat_interleave(len(c) // len(images), 0)

    monkeypatch.setattr(cross_distance, "decode_modality", copy)
    evaluation.forget()
    assert cross_distance.cross_frechet(evaluation, **SETTINGS).value == pytest.approx(0.0, abs=1e-6)
    assert cross_distance.cross_spread(evaluation, **SETTINGS).value == pytest.approx(0.0, abs=1e-9)
    evaluation.forget()


def test_draws_of_the_same_class_have_its_spread(run, monkeypatch):
    evaluation = run.evaluation
    shapes = evaluation.factors[:, run.dataset.factor_position("shape")]
    generator = torch.Generator().manual_seed(0)
    rows = evaluation.choose(SETTINGS["samples"])

    def draw(model, name, c, seeds, step):
        chosen = []
        for shape in shapes[rows]:
            same = (shapes == shape).nonzero().squeeze(-1)
            chosen.append(same[torch.randint(len(same), (len(c) // len(rows),), generator=generator)])
        return run.dataset.modalities[name].expected(evaluation.rows[torch.cat(chosen)])

    monkeypatch.setattr(cross_distance, "decode_modality", draw)
    evaluation.forget()
    spread = cross_distance.cross_spread(evaluation, **SETTINGS)
    assert spread.value == pytest.approx(1.0, abs=0.35)
    assert set(spread.details["pairs"]) == {"m1 to m2", "m2 to m1"}
    evaluation.forget()


def test_rows_without_a_pair_of_one_class_are_refused(run):
    with pytest.raises(DataError, match=naming("samples")):
        cross_distance._frequent(torch.tensor([0, 1, 2]))
