"""Train and score a recipe on the full rendered sprites, seed by seed, and write one table.

    python benchmarks/reference_run.py --seeds 0 1 2 --out results/reference

Trains `beta-tcvae beta=6 network=mlp-chen data=sprites batch=2048 steps=18000` (chen2018's setting), scores each run by
all MIG protocols, with and without the factor shape, and by the exact terms of the bound.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

import unbraid as ub
from unbraid.errors import UnbraidError
from unbraid.metrics import restricted

WITHOUT_SHAPE = ("scale", "orientation", "posX", "posY")
SCORES = ("mig", "elbo", "reconstruction", "kl", "mi/exact", "tc/exact", "dimension-kl/exact")


def one(seed: int, arguments: argparse.Namespace) -> dict:
    """Train and score one seed."""
    start = time.perf_counter()
    run = ub.train(
        "beta-tcvae",
        data="sprites",
        network="mlp-chen",
        beta=6,
        batch=2048,
        steps=arguments.steps,
        precision=arguments.precision,
        seed=seed,
        root=arguments.root,
    )
    minutes = (time.perf_counter() - start) / 60
    scores = run.score(*SCORES)
    row = {"seed": seed, "run": run.config.run_id, "minutes": round(minutes, 2)}
    row["images_per_second"] = round(statistics.median(line["images_per_second"] for line in run.history))
    for score in scores:
        row[score.name] = round(score.value, 4)
        if score.metric == "mig":
            row[f"{score.name} without shape"] = round(restricted(score, WITHOUT_SHAPE).value, 4)
            row[f"{score.name} gaps"] = {k: round(v, 4) for k, v in score.details["gaps"].items()}
    run.traverse().save(arguments.out / f"traversal-s{seed}.png")
    return {**row, "environment": run.folder.read_json("environment")}


def outcome(finished: Future, seed: int) -> dict:
    """A seed's row; one that failed says so, and the others are kept."""
    try:
        return finished.result()
    except UnbraidError as error:
        return {"seed": seed, "failed": str(error)}


def table(rows: list[dict]) -> str:
    """The rows as Markdown, one column per seed."""
    names = list(dict.fromkeys(n for row in rows for n, value in row.items() if not isinstance(value, dict)))
    lines = ["| | " + " | ".join(f"seed {row['seed']}" for row in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(str(row.get(name, "")) for row in rows) + " |" for name in names[1:]]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=18_000)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("results/reference"))
    parser.add_argument("--parallel", type=int, default=1, help="seeds trained at a time, each in its own process")
    parser.add_argument("--commit", default="", help="commit of this checkout, stored beside the numbers")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    pool = ProcessPoolExecutor(arguments.parallel, mp_context=multiprocessing.get_context("spawn"))
    jobs = {pool.submit(one, seed, arguments): seed for seed in arguments.seeds}
    for finished in as_completed(jobs):
        rows = sorted([*rows, outcome(finished, jobs[finished])], key=lambda row: row["seed"])
        command = f"python benchmarks/reference_run.py --seeds {' '.join(map(str, arguments.seeds))}"
        command += f" --steps {arguments.steps} --precision {arguments.precision}"
        command += f" --parallel {arguments.parallel}"
        facts = {"command": command, "commit": arguments.commit, "rows": rows}
        (arguments.out / "table.json").write_text(json.dumps(facts, indent=2) + "\n")
        (arguments.out / "table.md").write_text(f"`{command}`, commit {arguments.commit}\n\n" + table(rows))
        print(table(rows), flush=True)


if __name__ == "__main__":
    main()
