"""Configuration of the documentation; `make docs` builds it."""

from importlib.metadata import version as installed_version
from pathlib import Path

LIVE = Path(__file__).parent / "_live"
"""Folder of pages that are written by the program when the documentation is built."""

project = "unbraid"
author = "the unbraid authors"
copyright = "2026, the unbraid authors"
version = release = installed_version("unbraid")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "_live"]
default_role = "literal"

nb_execution_mode = "off"
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


def setup(app: object) -> None:
    LIVE.mkdir(exist_ok=True)
    app.connect("builder-inited", write_live_pages)  # type: ignore[attr-defined]
