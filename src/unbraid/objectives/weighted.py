r"""Further rows of HFVAE's table 1 (esmaeili2018): weights on the terms of the bound, and information that is rewarded.

| objective           | MI   | TC     | dimension | besides                     |
|---------------------|------|--------|-----------|-----------------------------|
| zhao2017            | 0    | lambda | lambda    |                             |
| information-dropout | beta | gamma  | 0         |                             |
| anchored-corex      | 1    | 1      | 1         | -lambda sum_a I(x; z_a)     |
"""

from torch import Tensor

from unbraid.density import batch_aggregate
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.objectives.base import Context, objective
from unbraid.objectives.decomposition import closed_form_kl, reconstruction
from unbraid.objectives.presets import Estimator, Weights, preset
from unbraid.types import Batch, Output, Terms, Weight


@preset("zhao2017", year=2017, reference="zhao2017")
def zhao2017(*, lambda_kl: Weight = 1.0) -> Weights:
    """InfoVAE's family without mutual information: E[log p(x|z)] - lambda_kl KL(q(z) || p(z)).

    KL(q(z) || p(z)) = TC + dimension: codes may tell everything about their observation, as long as all of them
    together look like draws from the prior. It is `info-vae` with alpha = 1, and with this divergence for the MMD.
    """
    return {"mi": 0.0, "tc": lambda_kl, "dimension": lambda_kl}


@preset("information-dropout", year=2018, reference="achille2018", untrained=("flow",))
def information_dropout(*, beta: Weight = 1.0, gamma: Weight = 1.0) -> Weights:
    """Information dropout: E[log p(x|z)] - beta I(x; z) - gamma TC(z), an information bottleneck with factors.

    With gamma = beta the two terms are beta E KL(q(z|x) || prod_d q(z_d)): the best factorised prior in place of a
    fixed one, so the dimension-wise KL has no weight. The scale of a code is then free (MI and TC do not change when a
    dimension is stretched), and draws from N(0, 1) are no draws from the model.
    """
    return {"mi": beta, "tc": gamma, "dimension": 0.0}


@objective("anchored-corex", year=2018, reference="gao2018")
def anchored_corex(
    out: Output,
    batch: Batch,
    context: Context,
    *,
    anchors: tuple[int, ...] = (0, 1),
    lambda_anchor: Weight = 1.0,
    estimator: Estimator = "stratified",
) -> Terms:
    """AnchorVAE: E[log p(x|z)] - KL(q(z|x) || p(z)) + lambda_anchor sum_a I(x; z_a) over the variables in `anchors`.

    I(x; z_a) = E[log q(z_a|x) - log q(z_a)]. The bound charges one nat for each nat that a code tells; an anchored
    variable gets a part of it back, all of it at lambda_anchor = 1, and so holds what explains most of the data.
    """
    space = context.space
    _refuse_unknown(anchors, space)
    information = leaf_information(out, space, estimator, context.size)
    names = space.leaf_names()
    rewards = {f"mi_{names[a]}/{estimator}": (information[..., a], -lambda_anchor) for a in anchors}
    terms = {
        "reconstruction": (reconstruction(out, batch, context), 1.0),
        "kl": (closed_form_kl(out, space), 1.0),
    }
    return Terms({**terms, **rewards})


def leaf_information(out: Output, space: Space, estimator: str, size: int) -> Tensor:
    """I(x; z_d) = E[log q(z_d|x) - log q(z_d)] of each variable [..., leaves], from a batch of `size` data points."""
    aggregate = batch_aggregate(space, out.posterior, out.sample, estimator, size)
    return (space.log_density(out.posterior, out.sample) - aggregate.leaves).mean(-2)


def _refuse_unknown(anchors: tuple[int, ...], space: Space) -> None:
    if not anchors or len(set(anchors)) < len(anchors) or not set(anchors) <= set(range(space.leaves)):
        raise UsageError(
            f"anchors must name some of the latent variables 0 to {space.leaves - 1}, each once, not {anchors}."
        )
