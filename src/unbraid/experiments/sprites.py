"""Sprites as several papers' experiments use them."""

from typing import Any

STAND_IN = "Rendered sprites stand for dSprites at all scales but `paper`: the same factors, drawn anew."

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
"""Data and networks that train within seconds, for scale smoke."""
