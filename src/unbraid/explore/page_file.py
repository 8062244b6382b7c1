"""A written explorer: where it is, how it is opened, and how a notebook shows it."""

import html
import os
import sys
import webbrowser
from pathlib import Path

HEIGHT = 900
"""Pixels of the page inside a notebook."""


class ExplorerPage(os.PathLike[str]):
    """The HTML file of an explorer; in a notebook it is shown where it is the result of a cell."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"ExplorerPage({str(self.path)!r})"

    def open(self) -> bool:
        """Open the page in a browser if there is a display; return whether it was opened."""
        return has_display() and webbrowser.open(self.path.resolve().as_uri())

    def _repr_html_(self) -> str:
        """Return a frame that holds the whole page, so that a saved notebook still shows it."""
        page = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
        style = f"width:100%;height:{HEIGHT}px;border:0"
        sandbox = "allow-scripts allow-downloads"
        return f'<iframe title="unbraid explorer" sandbox="{sandbox}" style="{style}" srcdoc="{page}"></iframe>'


def has_display() -> bool:
    """Return True if a browser window could be seen: not in a notebook, nor on a server."""
    if "ipykernel" in sys.modules:
        return False
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
