r"""AnchorVAE, anchored correlation explanation (gao2018): some variables are rewarded for their information about x.

    loss = -E[log p(x|z)] + KL(q(z|x) || p(z)) - lambda_anchor sum_a I(x; z_a)
    I(x; z_a) = E[log q(z_a|x) - log q(z_a)]

The sum is over the groups that `anchors` names; each variable is a group unless `groups` says otherwise. The
information of a group is that of its variables together, so what two of them share counts once: with
`groups=[[z0,z1],[z2],[z3]]` and `anchors=[0]` it is I(x; z0, z1). log q(z_a) is estimated from the batch. The bound
charges one nat for each nat of information about x. An anchor gets a part of it back, all of it at lambda_anchor = 1,
and so learns what explains most of the data.
"""

from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.objectives.base import Context, objective
from unbraid.objectives.decomposition import Estimator, elbo_terms, group_information
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
    """AnchorVAE: E[log p(x|z)] - KL(q(z|x) || p(z)) + lambda_anchor sum_a I(x; z_a) over the groups in `anchors`."""
    space = context.space
    groups = range(len(space.levels[1]))
    if not anchors or len(set(anchors)) < len(anchors) or not set(anchors) <= set(groups):
        what = "latent variables" if len(space.levels) == 2 else "groups of latents"
        raise UsageError(f"anchors must name some of the {what} 0 to {groups[-1]}, each once, not {anchors}.")
    information, names = group_information(out, space, estimator, context.size), _name_groups(space)
    rewards = {f"mi_{names[a]}/{estimator}": (information[..., a], -lambda_anchor) for a in anchors}
    return elbo_terms(out, batch, context) | Terms(rewards)


def _name_groups(space: Space) -> list[str]:
    """Return `z0` for a group of one variable, `z0+z1` for one of two."""
    names = space.leaf_names()
    return ["+".join(names[leaf] for leaf in group) for group in space.levels[1]]
