"""Experiments are registered when the papers are imported."""

import unbraid.papers  # noqa: F401
