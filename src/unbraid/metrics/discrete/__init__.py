"""Scores of discrete latents."""
