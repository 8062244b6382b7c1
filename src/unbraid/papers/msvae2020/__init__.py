"""msvae2020: Improving the Reconstruction of Disentangled Representation Learners via Multi-Stage Modelling."""

from unbraid.papers.msvae2020 import (
    ablations as ablations,
    conditional_gan as conditional_gan,
    conditioning as conditioning,
    flow as flow,
    identity as identity,
    pendulum as pendulum,
    pictures as pictures,
    separation as separation,
    trade_off as trade_off,
    widths as widths,
)
