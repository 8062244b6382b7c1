"""Scores of staged models."""
