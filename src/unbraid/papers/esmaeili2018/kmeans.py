"""k-means on pixels, a baseline without a model for discrete latents."""

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

MAX_TRAIN_ROWS, STARTS = 10_000, 10
MATCHES: tuple[Match, ...] = ("hungarian", "majority")


def cluster_pixels(name: str, settings: Mapping[str, Any]) -> list[Member]:
    """Return a member per seed: fit centres to training rows, best of ten starts, and score the held-out rows.

    `settings` are those of a sweep on the same data. There are as many centres as the first factor has values.
    """
    data = settings["data"]
    options = {key[5:]: value for key, value in settings.items() if key.startswith("data.")}
    dataset = load(data.instead if isinstance(data, StandIn) else data, options)
    parts = split(dataset, settings.get("split", "default"))
    test = parts.train if parts.held_out is None else parts.held_out
    labels = dataset.values_of(test)[:, 0]
    pixels = dataset.images(test).flatten(1).numpy()
    members = []
    for seed in settings["seed"]:
        order = torch.randperm(len(parts.train), generator=torch.Generator().manual_seed(seed))[:MAX_TRAIN_ROWS]
        kmeans = KMeans(dataset.sizes[0], n_init=STARTS, random_state=seed)
        kmeans.fit(dataset.images(parts.train[order]).flatten(1).numpy())
        assigned = kmeans.predict(pixels)
        scores: dict[str, Score] = {s.name: s for s in (clusters(assigned, labels, match=m) for m in MATCHES)}
        members.append(Member(f"{name}/{seed}", {"recipe": name, "seed": seed}, "finished", "", scores))
    return members
