import pytest

from unbraid import api
from unbraid.training import Cadence


@pytest.fixture(scope="package")
def run(tmp_path_factory):
    """A small run with history and weights."""
    settings = {"network": "mlp", "encoder_hidden": (16,), "decoder_hidden": (16,), "z": 3, "batch": 16, "steps": 8}
    root = tmp_path_factory.mktemp("runs")
    cadence = Cadence(log_steps=4)
    data = {"data": "sprites-small", "data_positions": 4}
    return api.train("beta-vae", **data, **settings, device="cpu", root=root, name="small", cadence=cadence)
