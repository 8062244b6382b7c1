"""A small objective with two sides, for tests of what every objective with players gets for free."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from unbraid.methods import objective
from unbraid.objectives import Objective
from unbraid.objectives.decomposition import closed_form_kl, reconstruction
from unbraid.types import Player, Terms


class TwoPlayers(Objective):
    """A VAE whose codes a critic tries to tell from noise."""

    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = weight

    def networks(self, space):
        return {"critic": nn.Linear(space.width, 1)}

    def players(self):
        return [
            Player("model", ("model.",), self.model_loss),
            Player(
                "critic", ("objective.critic",), self.critic_loss, every=2, optimizer={"lr": 1e-2, "betas": (0.5, 0.9)}
            ),
        ]

    def model_loss(self, out, batch, context):
        fooled = context.apply("critic", out.sample["z"]).mean((-1, -2))
        return Terms(
            {
                "reconstruction": (reconstruction(out, batch, context), 1.0),
                "kl": (closed_form_kl(out, context.space), 1.0),
                "fooled": (fooled, self.weight),
            }
        )

    def critic_loss(self, out, batch, context):
        value = context.apply("critic", out.sample["z"].detach()).sigmoid().mean((-1, -2))
        return Terms({"caught": (value, 1.0)})


@contextmanager
def registered() -> Iterator[None]:
    """Let recipes name it for a while."""
    objective("two-players")(TwoPlayers)
    try:
        yield
    finally:
        objective.remove("two-players")
