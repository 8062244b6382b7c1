"""The explorer: one HTML file that holds a run's networks and runs them in the browser."""

from unbraid.explore.run_page import render_run_page, write_run_page

__all__ = ["render_run_page", "write_run_page"]
