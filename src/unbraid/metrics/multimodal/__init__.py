"""Scores of multimodal models; importing this package registers them."""

from unbraid.metrics.multimodal import (
    block_dependence as block_dependence,
    coherence as coherence,
    cross_distance as cross_distance,
    diversity as diversity,
)
from unbraid.metrics.multimodal.probe import probe as probe
