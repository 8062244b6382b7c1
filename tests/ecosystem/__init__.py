"""Tests of what connects runs with other programs."""
