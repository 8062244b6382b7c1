"""Scores by predictors of the factors from codes."""
