"""Scores of reconstructions, samples and likelihoods."""
