"""Judge how much lower MS-VAE's pixel errors are, from the committed tables of msvae2020's figures 34 and 35.

python benchmarks/judge_pixels.py results

The runs themselves are not stored. The interval of a share 1 - a / b is bounded by the ends of those of a and b, which
is wider than a bootstrap of the runs would give. The claim was once that L1 falls by a smaller share than the Frechet
distance does, which says nothing about "slightly".
"""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from unbraid.experiments import experiment, judge
from unbraid.experiments.claims import Claim, Evidence
from unbraid.experiments.results import Results
from unbraid.experiments.statistics import Estimate
from unbraid.papers.msvae2020 import cars
from unbraid.papers.msvae2020.trade_off import SLIGHTLY

SCORES = {"msvae2020/fig34": cars.L1, "msvae2020/fig35": cars.L2}


def bound_fall(table: Path, score: str) -> Evidence:
    """Return the share by which a score falls from beta-TCVAE to MS-VAE, mean over beta, between its bounds."""
    with table.open(newline="") as handle:
        rows = {(row["series"], row["beta"]): row for row in csv.DictReader(handle)}
    falls = []
    for beta in [beta for series, beta in rows if series == cars.MS]:
        first, second = (
            [float(rows[name, beta][f"{score}{end}"]) for end in ("", " low", " high")] for name in (cars.BASE, cars.MS)
        )
        falls.append([1 - second[0] / first[0], 1 - second[2] / first[1], 1 - second[1] / first[2]])
    found = Estimate(*np.mean(falls, axis=0).tolist())
    return Evidence(f"share by which {score} falls from {cars.BASE} to {cars.MS}, mean over beta", found, high=SLIGHTLY)


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    for name, score in SCORES.items():
        folder = root / name
        stored = json.loads((folder / "verdicts.json").read_text("utf-8"))
        evidence = bound_fall(folder / "table.csv", score)
        text = experiment[name].facts.claims[1].text
        claim = Claim(text, lambda _, evidence=evidence: [evidence], trained=False)
        verdict = judge(claim, replace(_three_seeds(), scale=stored["scale"]))
        old = stored["verdicts"][1]
        stored["verdicts"][1] = verdict.as_record()
        (folder / "verdicts.json").write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
        page = (folder / "README.md").read_text("utf-8")
        row = f"| {old['claim']} | **{old['verdict']}** | {old['why']} |"
        page = page.replace(row, f"| {verdict.claim} | **{verdict.verdict}** | {verdict.why} |")
        (folder / "README.md").write_text(page, encoding="utf-8")
        print(f"{name}: {verdict.verdict}: {verdict.why}")


def _three_seeds() -> Results:
    """Return the number of seeds of the stored runs, which a verdict asks for."""
    from unbraid.report.tables import Member

    return Results(tuple(Member(str(k), {"recipe": cars.MS, "seed": k}, "finished", "", {}) for k in range(3)))


if __name__ == "__main__":
    main()
