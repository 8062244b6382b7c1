"""msvae2020: Improving the Reconstruction of Disentangled Representation Learners via Multi-Stage Modelling."""

from unbraid.papers.msvae2020 import conditional_gan, flow, separation

__all__ = ["conditional_gan", "flow", "separation"]
