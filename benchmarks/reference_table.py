"""The table of a sweep over seeds: every MIG protocol with and without the factor shape, and the gap of each factor.

    unbraid sweep beta-tcvae seed=0:3 beta=6 data=sprites network=mlp-chen batch=2048 steps=18000 precision=bf16 \
      --name reference --metric mig --metric elbo --metric tc/exact
    python benchmarks/reference_table.py runs/reference > results/reference/table.md

Reads settings and scores only, so it also works where weights were not kept.
"""

import argparse
from pathlib import Path

from unbraid.metrics import Score, restricted
from unbraid.report.tables import Member
from unbraid.sweeps import Sweep

WITHOUT_SHAPE = ("scale", "orientation", "posX", "posY")


def rows_of(member: Member) -> dict[str, str]:
    """Return one column of the table, by row."""
    rows = {"run": member.run, "status": member.state}
    for name, score in member.scores.items():
        rows[name] = f"{score.value:.4f}"
        if score.metric == "mig":
            rows[f"{name} without shape"] = f"{restricted(score, WITHOUT_SHAPE).value:.4f}"
    for score in member.scores.values():
        rows |= gaps_of(score)
    return rows


def gaps_of(score: Score) -> dict[str, str]:
    """Return the gap of each factor, if the score has gaps."""
    gaps = score.details.get("gaps", {})
    return {f"{score.name}, gap of {factor}": f"{gap:.4f}" for factor, gap in gaps.items()}


def table(columns: dict[str, dict[str, str]]) -> str:
    names = list(dict.fromkeys(name for rows in columns.values() for name in rows))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    return "\n".join(
        lines + [f"| {n} | " + " | ".join(rows.get(n, "") for rows in columns.values()) + " |" for n in names]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sweep", type=Path, help="folder of a sweep over seeds alone")
    members = Sweep(parser.parse_args().sweep).members
    print(table({f"seed {member.settings['seed']}": rows_of(member) for member in members}))


if __name__ == "__main__":
    main()
