"""Compute the tables, intervals and verdicts of committed results again, from the scores of their runs.

python benchmarks/judge_again.py daunhawer2019/fig3 RUNS…

RUNS are folders of sweeps, as `unbraid reproduce` leaves them in ROOT/PAPER, with or without weights. What says where
the runs come from stays as it was: command, commit, versions, device, minutes; so does a figure that shows models. For
a change of statistics, which needs no new runs. Of stages that another series is as large as, one must have its file of
weights, which is not opened.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from unbraid.experiments import running
from unbraid.experiments.base import experiment, judge
from unbraid.experiments.derived_series import Parents, RefinedSeries
from unbraid.experiments.writing import Provenance, find_commit, write_results
from unbraid.store import RunFolder
from unbraid.sweeps.folder import SweepFolder

KEPT = ("command", "scale", "commit", "versions", "device", "minutes", "runs")


class Before(Provenance):
    """Where results came from when they were made."""

    stored: Mapping[str, Any] = {}

    def as_record(self) -> dict[str, Any]:
        """As it was stored."""
        return {key: self.stored[key] for key in KEPT}


def stored_stages(
    parents: Parents, asked: Mapping[str, Any], metrics: Sequence[str], root: Path, device: Any, notes: list[str]
) -> RefinedSeries:
    """Stages that are there, told by their recipe, their steps and the run that they refine: nothing is trained."""
    folder, of = SweepFolder(root / "refined"), {run.path.name: member for member, run in parents}
    told = {}
    for path in sorted((folder.path / "runs").glob("*/config.yaml")):
        config = RunFolder(path.parent).config
        if (config.objective.name, config.training.steps) == (asked["recipe"], asked["steps"]):
            parent = Path(str(config.parent["run"])).name if config.parent else ""
            told |= {path.parent.name: dict(of[parent].settings)} if parent in of else {}
    return RefinedSeries(folder, told)


def main() -> None:
    """Write the results of one experiment anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    folder = given.out / given.name
    before = json.loads((folder / "verdicts.json").read_text("utf-8"))
    facts, figure = experiment[given.name].facts, folder / "figure.png"
    picture, page = figure.read_bytes(), (folder / "README.md").read_text("utf-8")
    if (given.runs[0] / "refined").exists():
        running.refine_series = stored_stages  # what refines a run would open its weights
        results, _, notes = running._run_experiment(facts, before["scale"], given.runs[0], "cpu", None)
    else:
        with tempfile.TemporaryDirectory() as place:
            for each in given.runs:
                sweeps = [each] if (each / "sweep.yaml").exists() else [p.parent for p in each.glob("*/sweep.yaml")]
                for sweep in sweeps:
                    (Path(place) / sweep.name).symlink_to(sweep.resolve())
            source = running._Source.open(Path(place))
            results, _, notes = running._run_experiment(facts, before["scale"], Path(place) / "none", "cpu", source)
    verdicts = tuple(judge(claim, results) for claim in facts.claims)
    where = Before(before["command"], before["scale"], before["minutes"], before["runs"], torch.device("cpu"))
    Before.stored = before
    origin = [line.removeprefix("- ") for line in page.splitlines() if line.startswith("- Runs ")]
    told = [note for note in notes if "taken from" not in note]
    now = f"Intervals and verdicts were computed again from the scores of these runs, by commit {find_commit()}."
    lacking = write_results(
        folder, experiment[given.name], results, verdicts, where, [*facts.notes, *told, *origin, now]
    )
    if lacking:
        figure.write_bytes(picture)
        made = (folder / "README.md").read_text("utf-8").replace("".join(f"- {each}\n" for each in lacking), "")
        made = (
            made if "figure.png" in made else made.replace("\n## Settings", "\n![figure](figure.png)\n\n## Settings", 1)
        )
        (folder / "README.md").write_text(made, encoding="utf-8")
    for old, new in zip(before["verdicts"], verdicts, strict=True):
        print(f"{given.name}: {old['verdict']} -> {new.verdict}: {new.claim}")


if __name__ == "__main__":
    main()
