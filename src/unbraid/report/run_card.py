"""The HTML summary of a run for notebooks: its name, its newest scores and links to its pages."""

from html import escape

from unbraid.metrics.base import Score
from unbraid.store import RunFolder

EXPLORER = "explore.html"
"""Name of a run's explorer in its folder."""

PAGES = {"Report": "report.html", "Explorer": EXPLORER}
MAX_SCORES = 12


def run_card(folder: RunFolder) -> str:
    """Return a table of the run's newest scores, with links to the pages that were written."""
    config = folder.config
    newest = {score.name: score for score in map(Score.from_record, folder.read_lines("scores"))}
    rows = "".join(
        f"<tr><td style='text-align:left'>{escape(name)}</td><td>{score.value:.3f}</td></tr>"
        for name, score in list(newest.items())[-MAX_SCORES:]
    )
    pages = [
        f"<a href='{escape(str(folder.path / file))}'>{title}</a>"
        for title, file in PAGES.items()
        if (folder.path / file).exists()
    ]
    title = f"<b>{escape(config.objective.name)}</b> on {escape(config.data.name)}"
    steps = f"{config.training.steps:,} steps, seed {config.training.seed}"
    table = f"<table>{rows}</table>" if rows else "<p>Not scored yet: <code>run.score()</code></p>"
    return f"<div>{title}, {steps} · <code>{escape(str(folder.path))}</code>{table}{' · '.join(pages)}</div>"
