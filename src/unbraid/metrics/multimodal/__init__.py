"""Scores of multimodal models; importing this package registers them."""

from unbraid.metrics.multimodal import block_dependence, coherence, diversity
from unbraid.metrics.multimodal.probe import probe

__all__ = ["block_dependence", "coherence", "diversity", "probe"]
