"""Every relative link of the documents leads to a file that exists, and every anchor to a heading."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "results/**/*.md")
    for path in ROOT.glob(pattern)
    if not path.is_relative_to(ROOT / "docs/results") and not path.is_relative_to(ROOT / "docs/_build")
)
GENERATED = {"docs/options.md", "docs/demo-explorer.html"}
"""Pages that are written when the documentation is built."""

CODE = re.compile(r"^(`{3,}|~{3,})(?!\{).*?^\1 *$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|(?:href|src)=\"([^\"]+)\"")
MENU = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def read(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub and MyST make from a document's headings."""
    text = re.sub(r"^(`{3,}).*?^\1 *$", "", read(path), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        repeats = sum(each == name or re.fullmatch(rf"{re.escape(name)}-\d+", each) is not None for each in found)
        found.add(f"{name}-{repeats}" if repeats else name)
    return found


def find_dead_links(document: str) -> list[str]:
    """Return the relative links of a document whose file or heading does not exist."""
    path, dead = ROOT / document, []
    for match in LINK.finditer(CODE.sub("", read(path))):
        link = match[1] or match[2]
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if ROOT in target.parents and target.relative_to(ROOT).as_posix() in GENERATED:
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    assert find_dead_links(document) == []


def test_dead_links_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_links.ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# A title: `code`\n## Again\n## Again\n")
    (tmp_path / "page.md").write_text(
        "[a](other.md) [b](other.md#a-title-code) [c](other.md#again-1) [d](https://example.org) `[e](none.md)`\n"
        '```text\n[f](none.md)\n```\n[g](none.md) ![h](none.png) [i](other.md#none) [j](#none) <a href="none.html">\n'
    )
    assert find_dead_links("page.md") == ["none.md", "none.png", "other.md#none", "#none", "none.html"]


def test_menu_names_every_page():
    """Sphinx warns about a page that no menu names; this says so without a build."""
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages |= {f"notebooks/{path.stem}" for path in (ROOT / "docs/notebooks").glob("*.ipynb")}
    pages = {page for page in pages if not page.startswith(("results/", "_build/"))} | {"options", "results/README"}
    named = {"index"}
    for page in pages:
        path = ROOT / f"docs/{page}.md"
        for menu in MENU.findall(read(path)) if path.exists() else ():
            entries = [line.strip() for line in menu.splitlines() if line.strip() and not line.startswith(":")]
            named |= {(Path(page).parent / re.sub(r".*<(.+)>", r"\1", entry)).as_posix() for entry in entries}
    assert named == pages
