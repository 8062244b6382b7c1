"""Sprites in the experiments of several papers."""

from typing import Any

STAND_IN = "Rendered sprites replace dSprites at all scales except `paper`: they have the same factors."

SMALL_MLP: dict[str, Any] = {"network": "mlp", "encoder.hidden": (64, 64), "decoder.hidden": (64, 64)}
TINY_MLP: dict[str, Any] = {"network": "mlp", "encoder.hidden": (16,), "decoder.hidden": (16,), "z": 3, "batch": 64}
TINY_GRID: dict[str, Any] = {"data.size": 16, "data.scales": 3, "data.orientations": 4, "data.positions": 4}
TINY: dict[str, Any] = {"data": "sprites", **TINY_GRID, **TINY_MLP}
"""Data and networks for scale smoke, which train within seconds."""
