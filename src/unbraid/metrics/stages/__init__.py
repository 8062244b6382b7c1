"""Scores of models in stages."""
