"""A config whose run id is pinned."""

from unbraid.config import Choice, Config, Training


def make_config(**training):
    return Config(
        objective=Choice("beta-tcvae", {"alpha": 1.0, "beta": 6.0, "estimator": "stratified"}),
        model="vae",
        data=Choice("sprites", {"size": 64}),
        encoder=Choice("mlp", {"hidden": (256, 256)}),
        decoder=Choice("broadcast-pixel", {"channels": 64}),
        likelihood=Choice("bernoulli", {}),
        latents={"z": {"kind": "normal", "size": 10}},
        training=Training(**training),
    )
