"""A small sweep that tests train, and what they ask of it."""

import unbraid as ub
from unbraid.store import load_tensors
from unbraid.sweeps import worker

SMALL = {
    "data": "sprites-small",
    "data_positions": 4,
    "network": "mlp",
    "encoder_hidden": (16,),
    "decoder_hidden": (16,),
    "z": 3,
    "batch": 32,
    "steps": 6,
    "device": "cpu",
    "metrics": ("elbo/closed-form",),
}


WORDS = [
    "data=sprites-small",
    "data.positions=4",
    "network=mlp",
    "encoder.hidden=[16]",
    "decoder.hidden=[16]",
    "z=3",
    "batch=32",
    "steps=6",
]


def sweep(root, recipe="beta-tcvae", **settings):
    """Train four members; a test that reads the report asks for it."""
    usual = {**SMALL, "beta": [1, 4], "seed": range(2), "root": root, "name": "one", "report": False}
    if "data" in settings:
        usual.pop("data_positions")
    return ub.sweep(recipe, **{**usual, **settings})


def weights(swept):
    return {run.path.name: load_tensors(run.folder.model_path)[0] for run in swept.runs}


def fail_at_batch_16(monkeypatch, error):
    """Let the training of groups of that batch raise an error."""
    trained = worker.train_group

    def failing(group, *others):
        if group.runs[0].config.training.batch == 16:
            raise error
        return trained(group, *others)

    monkeypatch.setattr(worker, "train_group", failing)
