"""Feature networks for generative scores; importing this package registers them."""

from unbraid.metrics.generative.features import (
    classifier as classifier,
    efficientnet as efficientnet,
    inception as inception,
)
