"""Scores of models of several modalities; importing this package registers them."""

from unbraid.metrics.multimodal import blocks, coherence, diversity
from unbraid.metrics.multimodal.probe import probe

__all__ = ["blocks", "coherence", "diversity", "probe"]
