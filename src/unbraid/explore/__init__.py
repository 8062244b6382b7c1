"""The explorer: one HTML file that holds a run's networks and runs them in the browser."""

from unbraid.explore.demo import is_demo, open_demo
from unbraid.explore.page_file import ExplorerPage
from unbraid.explore.run_page import AUTO, render_run_page, write_run_page
from unbraid.explore.sweep_page import MemberPage, write_sweep_page
from unbraid.explore.weights import Precision

__all__ = [
    "AUTO",
    "ExplorerPage",
    "MemberPage",
    "Precision",
    "is_demo",
    "open_demo",
    "render_run_page",
    "write_run_page",
    "write_sweep_page",
]
