"""Sprites in the experiments of several papers."""

from typing import Any

STAND_IN = "Rendered sprites replace dSprites at all scales except `paper`: they have the same factors."

TINY: dict[str, Any] = {
    "data": "sprites",
    "data.size": 16,
    "data.scales": 3,
    "data.orientations": 4,
    "data.positions": 4,
    "network": "mlp",
    "encoder.hidden": (16,),
    "decoder.hidden": (16,),
    "z": 3,
    "batch": 64,
}
"""Data and networks for scale smoke, which train within seconds."""
