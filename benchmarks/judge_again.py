"""Recompute tables, intervals and verdicts of committed results from the scores of their runs.

python benchmarks/judge_again.py daunhawer2019/fig3 RUNS…

RUNS are folders of sweeps, as `unbraid reproduce` leaves them in ROOT/PAPER, with or without weights. Use it after a
change of statistics, which needs no new runs. Command, commit, versions, device, minutes, and figures that show models
stay the same. If a series is as large as a stage, one run of that stage must have its file of weights, which is not
opened.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import unbraid.papers  # noqa: F401 (registers the experiments)
from unbraid.experiments import running
from unbraid.experiments.base import experiment, judge
from unbraid.experiments.derived_series import Parents, RefinedSeries
from unbraid.experiments.writing import Provenance, find_commit, write_results
from unbraid.store import RunFolder
from unbraid.sweeps.folder import SweepFolder

UNCHANGED_FACTS = ("command", "scale", "commit", "versions", "device", "minutes", "runs")


class Before(Provenance):
    """The stored provenance of results."""

    stored: Mapping[str, Any] = {}

    def as_record(self) -> dict[str, Any]:
        return {key: self.stored[key] for key in UNCHANGED_FACTS}


def stored_stages(
    parents: Parents,
    asked: Mapping[str, Any],
    metrics: Sequence[str],
    root: Path,
    device: Any,
    notes: list[str],
    cadence: Any = None,
) -> RefinedSeries:
    """Return the existing stages with the recipe, the steps and the first stages of a series; train nothing."""
    folder, of = SweepFolder(root / "refined"), {run.path.name: member for member, run in parents}
    settings = {}
    for path in sorted((folder.path / "runs").glob("*/config.yaml")):
        config = RunFolder(path.parent).config
        if (config.objective.name, config.training.steps) == (asked["recipe"], asked["steps"]):
            parent = Path(str(config.parent["run"])).name if config.parent else ""
            settings |= {path.parent.name: dict(of[parent].settings)} if parent in of else {}
    return RefinedSeries(folder, settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    folder = arguments.out / arguments.name
    before = json.loads((folder / "verdicts.json").read_text("utf-8"))
    facts, figure = experiment[arguments.name].facts, folder / "figure.png"
    picture, page = figure.read_bytes(), (folder / "README.md").read_text("utf-8")
    if (arguments.runs[0] / "refined").exists():
        running.refine_series = stored_stages  # what refines a run would open its weights
        results, _, notes = running._run_experiment(facts, before["scale"], arguments.runs[0], "cpu", None)
    else:
        with tempfile.TemporaryDirectory() as place:
            for each in arguments.runs:
                sweeps = [each] if (each / "sweep.yaml").exists() else [p.parent for p in each.glob("*/sweep.yaml")]
                for sweep in sweeps:
                    (Path(place) / sweep.name).symlink_to(sweep.resolve())
            source = running._Source.open(Path(place))
            results, _, notes = running._run_experiment(facts, before["scale"], Path(place) / "none", "cpu", source)
    verdicts = tuple(judge(claim, results) for claim in facts.claims)
    where = Before(before["command"], before["scale"], before["minutes"], before["runs"], torch.device("cpu"))
    Before.stored = before
    origin = [line.removeprefix("- ") for line in page.splitlines() if line.startswith("- Runs ")]
    notes_kept = [note for note in notes if "taken from" not in note]
    now = f"Intervals and verdicts were computed again from the scores of these runs, by commit {find_commit()}."
    lacking = write_results(
        folder, experiment[arguments.name], results, verdicts, where, [*facts.notes, *notes_kept, *origin, now]
    )
    if lacking:
        figure.write_bytes(picture)
        made = (folder / "README.md").read_text("utf-8").replace("".join(f"- {each}\n" for each in lacking), "")
        made = (
            made if "figure.png" in made else made.replace("\n## Settings", "\n![figure](figure.png)\n\n## Settings", 1)
        )
        (folder / "README.md").write_text(made, encoding="utf-8")
    for old, new in zip(before["verdicts"], verdicts, strict=True):
        print(f"{arguments.name}: {old['verdict']} -> {new.verdict}: {new.claim}")


if __name__ == "__main__":
    main()
