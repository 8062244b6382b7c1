"""Make `results` a part of the documentation: its pages are copied to `docs/results`, and links lead there."""

import re
import shutil
from pathlib import Path
from typing import Any

COPIED = (".md", ".png", ".svg")
START = "results/README"


def copy_results(app: Any) -> None:
    """Copy pages and pictures of the repository's results."""
    source, target = Path(app.srcdir).parent / "results", Path(app.srcdir) / "results"
    shutil.rmtree(target, ignore_errors=True)
    for path in source.rglob("*"):
        if path.suffix in COPIED and path.name != "table.md":  # the page of an experiment holds its table
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def lead_links_there(app: Any, name: str, content: list[str]) -> None:
    """Let links to the repository's files lead to their copies, and take the links from files that are not copied."""
    text = re.sub(r"\]\((?:\.\./)+results/", "](/results/", content[0])
    if name.startswith("results/"):
        text = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#]*)(#[^)]*)?\)", _keep_known(app, name), text)
        if name != START:
            text = f"---\norphan: true\n---\n{text}"  # other pages link to it, but the menu has only the start page
    content[0] = text


def _keep_known(app: Any, name: str) -> Any:
    """Return a replacement that keeps a link if its target is part of the documentation."""

    def replace(match: re.Match[str]) -> str:
        base = Path(app.srcdir) if match[2].startswith("/") else (Path(app.srcdir) / name).parent
        return match[0] if (base / match[2].lstrip("/")).is_file() else match[1]

    return replace


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", copy_results)
    app.connect("source-read", lead_links_there)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
