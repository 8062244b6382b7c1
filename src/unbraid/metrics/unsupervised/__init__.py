"""Scores that need no labels."""
