"""msvae2020: Improving the Reconstruction of Disentangled Representation Learners via Multi-Stage Modelling."""

from unbraid.papers.msvae2020 import (
    ablations,
    conditional_gan,
    conditioning,
    flow,
    identity,
    pendulum,
    pictures,
    separation,
    trade_off,
    widths,
)

__all__ = [
    "ablations",
    "conditional_gan",
    "conditioning",
    "flow",
    "identity",
    "pendulum",
    "pictures",
    "separation",
    "trade_off",
    "widths",
]
