"""Configuration of the documentation; `make docs` builds it."""

import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

LIVE = Path(__file__).parent / "_live"
"""Folder of pages that are written by the program when the documentation is built."""

project = "unbraid"
author = "the unbraid authors"
copyright = "2026, the unbraid authors"
version = release = installed_version("unbraid")

extensions = [
    "mathml",
    "myst_nb",
    "option_tables",
    "results_pages",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "_live"]
html_math_renderer = "mathml"
highlight_language = "shell"
copybutton_exclude = ".linenos, .gp, .go"
default_role = "literal"

nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"unbraid {release}"
html_extra_path = ["_live"]


def write_live_pages(app: object) -> None:
    """Write the demo's explorer, which the documentation links to as a page of its own."""
    import unbraid

    unbraid.load("demo", device="cpu").explore(LIVE / "demo-explorer.html", open=False)


def escape_stars(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Keep shapes such as [n, *shape] from being read as emphasis."""
    lines[:] = [re.sub(r"\*(?=\w)", r"\\*", line) for line in lines]


def setup(app: object) -> None:
    LIVE.mkdir(exist_ok=True)
    app.connect("builder-inited", write_live_pages)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", escape_stars)  # type: ignore[attr-defined]
