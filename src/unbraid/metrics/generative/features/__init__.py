"""Feature networks for generative scores; importing this package registers them."""

from unbraid.metrics.generative.features import classifier, efficientnet, inception

__all__ = ["classifier", "efficientnet", "inception"]
