"""Checks of latents that several objectives make."""

from unbraid.data.label_codes import LabelCodes
from unbraid.errors import UsageError
from unbraid.latents import Normal, Space


def check_normal(space: Space, reason: str) -> None:
    """Raise a `UsageError` for latents that are not independent Normal variables."""
    for name, block in space.blocks.items():
        if not isinstance(block, Normal) or block.coupled:
            wanted = "every latent block must be normal with independent coordinates"
            raise UsageError(f"{reason}, so {wanted}, and {name!r} is not.")


def check_label_latents(space: Space, labels: LabelCodes) -> None:
    """Raise a `UsageError` unless the latents are one Normal variable for each coordinate of the labels."""
    check_normal(space, "A label is compared with a mean")
    if space.leaves != labels.width or len(space.blocks) > 1:
        raise UsageError(f"These labels are {labels.width} coordinates, not {space.leaves}: use z={labels.width}.")
