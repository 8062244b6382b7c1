"""Settings of small runs, and the form of an error, for the tests of commands."""

SMALL = ["data=sprites-small", "network=mlp", "encoder.hidden=[16]", "z=3", "batch=32", "steps=30"]
VAE = ["train", "vae", "data=sprites-small"]
TINY = ["data=sprites-small", "data.positions=4", "network=mlp", "steps=3"]
NARROW = ["encoder.hidden=[16]", "decoder.hidden=[16]", "z=3", "batch=16"]


def is_one_error(printed):
    return printed.startswith("error: ") and len(printed.strip().splitlines()) == 1
