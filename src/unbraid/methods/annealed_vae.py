r"""AnnealedVAE (burgess2018): a VAE whose KL follows a rising target, its capacity.

    loss = -E[log p(x|z)] + gamma |KL(q(z|x) || p(z)) - C|

C rises in a straight line from 0 to `capacity` nats over the first `capacity_steps` steps, so that codes learn one
factor after another.
"""

from unbraid.objectives.base import Context, objective, ramp
from unbraid.objectives.decomposition import elbo_terms
from unbraid.types import Batch, Output, Terms, Weight


@objective("annealed-vae", reference="burgess2018")
def annealed_vae(
    out: Output,
    batch: Batch,
    context: Context,
    *,
    gamma: Weight = 1000.0,
    capacity: Weight = 25.0,
    capacity_steps: int = 100_000,
) -> Terms:
    """AnnealedVAE: E[log p(x|z)] - gamma |KL(q(z|x) || p(z)) - C|, C rising from 0 to `capacity` nats."""
    bound = elbo_terms(out, batch, context, beta=0.0)
    target = capacity * ramp(context.step, capacity_steps)
    return bound | Terms({"capacity_gap": ((bound["kl"].value - target).abs(), gamma)})
