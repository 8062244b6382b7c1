"""Scores of how codes behave when one factor is held fixed."""
