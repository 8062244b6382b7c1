"""Feature networks for generative scores; importing this package registers them."""

from unbraid.metrics.generative.features import classifier, efficientnet, inception
from unbraid.metrics.generative.features.base import (
    FeatureNetwork,
    feature_network,
    feature_pair,
    image_features,
    pieces,
)
from unbraid.metrics.generative.features.feature_sets import FeatureSets, compare, feature_sets

__all__ = [
    "FeatureNetwork",
    "FeatureSets",
    "classifier",
    "compare",
    "efficientnet",
    "feature_network",
    "feature_pair",
    "feature_sets",
    "image_features",
    "inception",
    "pieces",
]
