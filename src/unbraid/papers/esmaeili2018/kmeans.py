"""k-means on pixels: what a clustering without a model makes of the labels, as a reference for discrete latents."""

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.cluster import KMeans

from unbraid.data import load
from unbraid.data.splits import split
from unbraid.experiments.base import StandIn
from unbraid.metrics import Score, clusters
from unbraid.metrics.discrete.cluster_accuracy import Match
from unbraid.report.tables import Member

ROWS, STARTS = 10_000, 10
MATCHES: tuple[Match, ...] = ("hungarian", "majority")


def kmeans_on_pixels(name: str, settings: Mapping[str, Any]) -> list[Member]:
    """A member per seed: centres from training rows, the best of ten starts, scored on held-out rows by the labels.

    `settings` are those of a sweep on the same data; there are as many centres as the first factor has values.
    """
    data = settings["data"]
    own = {key[5:]: value for key, value in settings.items() if key.startswith("data.")}
    dataset = load(data.instead if isinstance(data, StandIn) else data, own)
    parts = split(dataset, settings.get("split", "default"))
    test = parts.train if parts.held_out is None else parts.held_out
    labels = dataset.values_of(test)[:, 0]
    pixels = dataset.images(test).flatten(1).numpy()
    made = []
    for seed in settings["seed"]:
        order = torch.randperm(len(parts.train), generator=torch.Generator().manual_seed(seed))[:ROWS]
        fitted = KMeans(dataset.sizes[0], n_init=STARTS, random_state=seed)
        fitted.fit(dataset.images(parts.train[order]).flatten(1).numpy())
        found = fitted.predict(pixels)
        scores: dict[str, Score] = {s.name: s for s in (clusters(found, labels, match=m) for m in MATCHES)}
        made.append(Member(f"{name}/{seed}", {"recipe": name, "seed": seed}, "finished", "", scores))
    return made
