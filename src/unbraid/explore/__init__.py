"""The explorer: one HTML file that holds a run's networks and runs them in the browser."""

from unbraid.explore.demo import is_demo as is_demo, open_demo as open_demo
from unbraid.explore.page_file import ExplorerPage as ExplorerPage
from unbraid.explore.run_page import (
    AUTO as AUTO,
    MAX_KB as MAX_KB,
    ExploredRun as ExploredRun,
    render_run_page as render_run_page,
    write_run_page as write_run_page,
)
from unbraid.explore.sweep_page import write_sweep_page as write_sweep_page
from unbraid.explore.weights import Precision as Precision
