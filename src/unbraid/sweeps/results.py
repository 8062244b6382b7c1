"""The results of a sweep: runs, tables, a report, and one page that explores several runs."""

import difflib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unbraid.errors import UsageError
from unbraid.explore import AUTO, ExplorerPage, Precision, write_sweep_page
from unbraid.extras import import_extra
from unbraid.metrics.base import Score
from unbraid.metrics.comparison import Comparison, compare_seeds
from unbraid.printable import shorten
from unbraid.report import EXPLORER
from unbraid.report.sweep_page import write_sweep_report
from unbraid.report.tables import (
    Member,
    build_member_rows,
    build_summary_rows,
    find_varying_settings,
    format_setting,
    has_score,
    list_scores,
    select_finished,
    write_csv,
    write_parquet,
)
from unbraid.run import Run
from unbraid.scoring import read_left_out
from unbraid.store import RunFolder
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.matching import Side, format_settings, match_sides
from unbraid.training.origins import say_changed_code

FILES = {"table": "table.csv", "parquet": "table.parquet", "summary": "summary.csv", "report": "report.html"}


class Sweep:
    """A sweep on disk: its runs, tables and report."""

    def __init__(self, path: str | Path) -> None:
        self.folder = SweepFolder.open(path)
        self.notes: list[str] = []

    def __repr__(self) -> str:
        return f"Sweep({str(self.path)!r})"

    def __len__(self) -> int:
        return len(self.folder.members)

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def members(self) -> list[Member]:
        """Every member with its settings, state and newest scores."""
        return [read_member(self.folder, run, settings) for run, settings in self.folder.members.items()]

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row per member: settings that vary, run, status, scores."""
        return build_member_rows(self.members)

    @property
    def summary(self) -> list[dict[str, Any]]:
        """One row per setting and score, over seeds: count, median, mean with its 90% interval, extremes."""
        return build_summary_rows(self.members)

    def to_pandas(self) -> Any:
        """Return `table` as a DataFrame, indexed by run."""
        pandas = import_extra("pandas", "pandas", "Sweep.to_pandas", "; without it use Sweep.table")
        return pandas.DataFrame(self.table).set_index("run")

    @property
    def files(self) -> dict[str, str]:
        """The paths of the tables and the report that exist."""
        return {key: str(self.path / name) for key, name in FILES.items() if (self.path / name).exists()}

    @property
    def runs(self) -> list[Run]:
        finished = [member.run for member in self.members if member.state == "finished"]
        folders = [RunFolder.open(self.folder.run_folder(run).path) for run in finished]
        for folder in folders:
            say_changed_code(folder)
        return [Run(folder) for folder in folders]

    def best(self, score: str, *, lowest: bool = False) -> Run:
        """Return the finished run with the highest value of a score, as `mig/exact`, or the lowest.

        Scores count if they have default settings and all rows. One seed may win by luck: `summary` has medians.
        """
        known = [member for member in self.members if has_score(member, score)]
        if not known:
            names = ", ".join(list_scores(select_finished(self.members)))
            raise UsageError(f"No finished run of {self.path} has the score {score}; they have {names or 'none'}.")
        found = (min if lowest else max)(known, key=lambda member: member.scores[score].value)
        return Run(RunFolder.open(self.folder.run_folder(found.run).path))

    def write_tables(self) -> list[Member]:
        """Write table.csv, summary.csv and, if pyarrow is installed, table.parquet; return the members in them."""
        members = self.members
        rows = build_member_rows(members)
        write_csv(self.path / "table.csv", rows)
        write_parquet(self.path / "table.parquet", rows)
        write_csv(self.path / "summary.csv", build_summary_rows(members))
        return members

    def as_record(self) -> dict[str, Any]:
        """Return counts and paths for `--json`."""
        states = [member.state for member in self.members]
        counts = {"members": len(states), **{state: states.count(state) for state in ("finished", "diverged")}}
        return {"sweep": str(self.path), **counts, **self.files, "notes": self.notes}

    def left_out(self) -> dict[str, dict[str, str]]:
        """Return the metrics that each finished run does not allow, with the reasons, by run id."""
        runs = {run: self.folder.run_folder(run) for run in self.folder.members}
        return {run: read_left_out(folder) for run, folder in runs.items() if folder.finished}

    def report(self, output: str | Path | None = None) -> Path:
        """Write report.html and the tables, or only the page, to `output`."""
        if output is not None:
            return write_sweep_report(self.path, self.folder.plan.to_yaml(), self.members, Path(output))
        return write_sweep_report(self.path, self.folder.plan.to_yaml(), self.write_tables())

    def compare(
        self,
        first: Mapping[str, Any],
        second: Mapping[str, Any],
        *names: str,
        other: "Sweep | None" = None,
    ) -> list[Comparison]:
        """Return the differences second - first of scores between two settings, with 95% intervals over seeds.

        `first` and `second` are settings, as `{"beta": 1}` and `{"beta": 6, "lr": 1e-3}`; runs that have them are
        compared by their newest scores with default settings. `second` may be a setting of another sweep. If other
        settings than the seed vary as well, each combination of theirs that both sides have is a comparison of its own,
        with its values in `Comparison.settings`; `notes` name combinations that one side lacks. Names are metrics
        (`mig`), protocols (`mig/exact`) or scores; without names, every score that both have is compared.
        """
        where = self if other is None else other  # an empty sweep is false
        sides = Side(self.path, first, _select(self, first)), Side(where.path, second, _select(where, second))
        for sweep, side in zip((self, where), sides, strict=True):
            if not side.members:
                _refuse_unknown_settings(sweep, side.settings)
        matches, notes = match_sides(*sides)
        chosen = _choose_scores(list_scores(sides[0].members), list_scores(sides[1].members), names)
        found = []
        for match, name in itertools.product(matches, chosen):
            a, b = ([m.scores[name].value for m in side if has_score(m, name)] for side in (match.first, match.second))
            if a and b:
                found.append(compare_seeds(name, a, b, match.settings))
            else:
                notes.append(f"No run of one side has {name}{_format_place(match.settings)}: left out.")
        if not found:
            raise UsageError(f"Both settings need a run with the score {', '.join(chosen)}; score them first.")
        self.notes += notes
        return found

    def explore(
        self, output: str | Path | None = None, *, weights: Precision = AUTO, open: bool = True
    ) -> ExplorerPage:
        """Write one HTML file with a table of the finished runs and an explorer of each, explore.html in this folder.

        See `Run.explore`; weights get fewer bits if the file would exceed 20 MB.
        """
        path = self.path / EXPLORER if output is None else output
        options = {"weights": weights, "open": open, "title": self.path.name, "members": self.members}
        return explore_runs(self.runs, path, **options)


def _select(sweep: Sweep, settings: Mapping[str, Any]) -> list[Member]:
    """Return the finished members that have these settings."""
    wanted = {key: format_setting(value) for key, value in settings.items()}
    return [
        member
        for member in select_finished(sweep.members)
        if all(format_setting(member.settings.get(key)) == value for key, value in wanted.items())
    ]


def _refuse_unknown_settings(sweep: Sweep, settings: Mapping[str, Any]) -> None:
    """Raise if the finished runs lack a setting, with the known ones, or a value of it, with its values."""
    missing = f"No finished run of {sweep.path} has {format_settings(settings)}"
    members = select_finished(sweep.members)
    known = list(dict.fromkeys(key for member in members for key in member.settings))
    for key in settings if known else ():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise UsageError(f"{missing}.{hint} The sweep has {', '.join(known)}.")
        values = dict.fromkeys(format_setting(member.settings.get(key)) for member in members)
        if format_setting(settings[key]) not in values:
            raise UsageError(f"{missing}; {key} is {shorten(', '.join(map(str, values)))}.")


def _choose_scores(first: Sequence[str], second: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the scores that both sides have, those named if there are names."""
    shared = [name for name in first if name in second]
    chosen = [n for n in shared if not names or any(f"{n}/".startswith(f"{asked}/") for asked in names)]
    if not shared:
        raise UsageError("The runs share no score; unbraid evaluate SWEEP measures scores of all runs.")
    if not chosen:
        raise UsageError(f"The runs share no score named {', '.join(names)}; they share {', '.join(shared)}.")
    return chosen


def _format_place(settings: Mapping[str, Any]) -> str:
    return f" at {format_settings(settings)}" if settings else ""


def read_member(folder: SweepFolder, run: str, settings: Mapping[str, Any]) -> Member:
    """Return a member with its settings, its state and the newest of its comparable scores.

    A score is comparable if it has default settings and all rows.
    """
    run_folder = folder.run_folder(run)
    status = run_folder.status
    trouble = f"{status.get('term')} at step {status.get('step')}" if status["state"] == "diverged" else ""
    scores = map(Score.from_record, run_folder.read_lines("scores"))
    newest = {score.name: score for score in scores if score.has_default_settings}
    return Member(run, settings, status["state"], trouble, newest)


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
    explored = [run.as_explored(settings.get(run.path.name)) for run in runs]
    path = Path("explore-runs.html") if output is None else Path(output)
    page = ExplorerPage(write_sweep_page(path, title, explored, weights))
    if open:
        page.open()
    return page
