"""One page that explores several runs: the finished members of a sweep, or any runs."""

from collections.abc import Sequence
from pathlib import Path

from unbraid.explore import AUTO, ExplorerPage, MemberPage, Precision, write_sweep_page
from unbraid.report.tables import Member, find_varying_settings
from unbraid.run import Run


def explore_runs(
    runs: Sequence[Run],
    output: str | Path | None = None,
    *,
    weights: Precision = AUTO,
    open: bool = True,
    title: str = "Runs",
    members: Sequence[Member] | None = None,
) -> ExplorerPage:
    """Write a page of several runs, explore-runs.html here by default; `members` say which settings differ."""
    for run in runs[1:]:
        if run.folder.read_json("data").get("content") == runs[0].folder.read_json("data").get("content"):
            run.__dict__.setdefault("dataset", runs[0].dataset)  # equal data are in memory once
    keys = find_varying_settings(members) if members else []
    settings = {member.run: {key: member.settings.get(key) for key in keys} for member in members or ()}
    pages = [
        MemberPage(
            run.path.name,
            settings.get(run.path.name, {}),
            run.config,
            run.evaluation,
            list({score.name: score for score in run.scores}.values()),
        )
        for run in runs
    ]
    path = Path("explore-runs.html") if output is None else Path(output)
    page = ExplorerPage(write_sweep_page(path, title, pages, weights))
    if open:
        page.open()
    return page
