"""Configuration of the documentation; `make docs` builds it."""

from importlib.metadata import version as installed_version

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
exclude_patterns = ["_build"]
default_role = "literal"

nb_execution_mode = "off"
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"unbraid {release}"
