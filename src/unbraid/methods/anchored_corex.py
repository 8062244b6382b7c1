r"""AnchorVAE, anchored correlation explanation (gao2018): some variables are rewarded for their information about x.

    loss = -E[log p(x|z)] + KL(q(z|x) || p(z)) - lambda_anchor sum_a I(x; z_a)
    I(x; z_a) = E[log q(z_a|x) - log q(z_a)]

The sum is over the variables that `anchors` names; log q(z_a) is estimated from the batch. The bound charges one nat
for each nat of information about x. An anchored variable gets a part of it back, all of it at lambda_anchor = 1, and so
learns what explains most of the data.
"""

from unbraid.errors import UsageError
from unbraid.objectives.base import Context, objective
from unbraid.objectives.decomposition import Estimator, elbo_terms, leaf_information
from unbraid.types import Batch, Output, Terms, Weight


@objective("anchored-corex", reference="gao2018")
def anchored_corex(
    out: Output,
    batch: Batch,
    context: Context,
    *,
    anchors: tuple[int, ...] = (0, 1),
    lambda_anchor: Weight = 1.0,
    estimator: Estimator = "stratified",
) -> Terms:
    """AnchorVAE: E[log p(x|z)] - KL(q(z|x) || p(z)) + lambda_anchor sum_a I(x; z_a) over the variables in `anchors`."""
    space, leaves = context.space, range(context.space.leaves)
    if not anchors or len(set(anchors)) < len(anchors) or not set(anchors) <= set(leaves):
        raise UsageError(f"anchors must name some of the latent variables 0 to {leaves[-1]}, each once, not {anchors}.")
    information, names = leaf_information(out, space, estimator, context.size), space.leaf_names()
    rewards = {f"mi_{names[a]}/{estimator}": (information[..., a], -lambda_anchor) for a in anchors}
    return elbo_terms(out, batch, context) | Terms(rewards)
