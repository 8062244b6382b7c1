"""The page of results/coverage: a table of coverages, and which of them miss their range."""

from collections.abc import Mapping
from typing import Any

from scipy.stats import binomtest

CASES = ("clear", "tied", "weak", "heavy", "mixed")
RECIPES = {"beta-tcvae": {"beta": 6}, "beta-vae": {"beta": 4}}
RANGE = (0.92, 0.98)
NOT_MEASURED = {
    "means over rows, as elbo and reconstruction": "kept, strokes/reconstruction, density, coherence, diversity, "
    "log-likelihood, kl-blocks/sampled, generated/purity",
    "the same procedures on rows drawn with repetition": "every disentanglement_lib",
    "as mig/histogram-mean": "mig-of",
    "as a rank correlation of halves": "unseen",
    "costly or without weights here": "mig/chen2018, frechet, kid and precision-recall of other networks",
}


def lies_outside(found: dict[str, Any]) -> bool:
    """Return whether the binomial interval of a coverage excludes all of the range."""
    hits = round(found["coverage"] * found["repetitions"])
    low, high = binomtest(hits, found["repetitions"]).proportion_ci(method="exact")
    return low > RANGE[1] or high < RANGE[0]


def describe(record: dict[str, Any], missing: Mapping[str, float]) -> str:
    """Return the page of the table; `missing` has the minutes that other cells would take."""
    columns: dict[str, None] = {}
    rows: dict[str, dict[str, str]] = {}
    outside, near, total = [], [], 0
    for key, cell in record["cells"].items():
        _, case, count = key.rsplit(", ", 2)
        column = f"{case}, {int(count):,}"
        columns[column] = None
        for name, found in cell["scores"].items():
            of = rows.setdefault(name, {"promise": found["promise"].partition(" at ")[0]})
            if "coverage" in found:
                of["promise"] = found["promise"].partition(" at ")[0]
                of[column] = f"{found['coverage']:.3f}, {found['repetitions']}".removeprefix("0")
                if lies_outside(found):
                    of[column] = f"**{of[column]}**"
                    outside.append(f"{name} ({column})")
                elif not RANGE[0] <= found["coverage"] <= RANGE[1]:
                    near.append(f"{name} ({column})")
                total += 1
            else:
                of[column] = "constant" if "note" in found else "none"
    reasons = dict.fromkeys(
        found["promise"]
        for cell in record["cells"].values()
        for found in cell["scores"].values()
        if found["promise"].startswith("none")
    )
    seconds = sum(cell["seconds"] for cell in record["cells"].values())
    lines = [PAGE.format(low=RANGE[0], high=RANGE[1], minutes=seconds / 60)]
    for title, chosen in (("Synthetic codes", CASES), ("Trained runs", tuple(RECIPES))):
        shown = [column for column in columns if column.split(",")[0] in chosen]
        lines += [f"## {title}\n", f"| score | promise | {' | '.join(shown)} |", "|---|---" + "|---" * len(shown) + "|"]
        for name, of in rows.items():
            if any(column in of for column in shown):
                lines.append(
                    f"| `{name}` | {of['promise'].partition(':')[0]} | {' | '.join(of.get(c, '') for c in shown)} |"
                )
        lines.append("")
    lines += ["## Without an interval\n", *(f"- {reason.partition(': ')[2]}" for reason in reasons), ""]
    lines += ["## Not measured here\n", *(f"- {why}: {names}" for why, names in NOT_MEASURED.items()), ""]
    if missing:
        lines += ["## Not measured yet, and minutes of processor time that it would take\n"]
        lines += [*(f"- {key}: {minutes:.1f}" for key, minutes in missing.items()), ""]
    lines.append(
        f"Of {total} entries, {len(outside)} lie outside {RANGE[0]} to {RANGE[1]} with their whole 95% interval"
    )
    lines.append(f"(bold): {', '.join(outside) or 'none'}.\n")
    lines.append(
        f"{len(near)} more lie outside with their value, though not with their interval: {', '.join(near) or 'none'}."
    )
    return "\n".join([*lines, NOTES])


PAGE = """# Coverage of 95% intervals

    python benchmarks/coverage.py

How often an interval contains what its score promises in `covers` ([scores](../../docs/scores.md)); 95% intervals
should do so in {low} to {high} of the cases. Behind it the number of repetitions R, fewer for scores that take long.
For a true coverage of .95, 95% of measurements with R = 100 lie in .90 to .99, with R = 200 in .92 to .98, with R = 400
in .93 to .97, with R = 1000 in .936 to .963. Bold: the exact binomial interval of a coverage
(clopper1934) has nothing in common with {low} to {high}. *none*: the score prints no interval there and says why.
*constant*: every repetition has the same value, which the interval contains. Empty: not measured yet; the command
continues where it stopped. The script's docstring describes the procedure, that of `coverage_cells.py` the codes;
`coverage.json` has the numbers. It took {minutes:.0f} minutes of processor time.
"""

NOTES = """
## What to know about these numbers

- **Few widths.** Where an interval is costly, 10 to 200 repetitions measure it (`widths` in the JSON). The binomial
  interval leaves out that these widths vary; with ten of them that adds an error of .01 to .02 (an estimate).
- **Chosen after a look.** On these cases `sap` had .893 (tied) and .910 (weak, 1,000 rows), modularity by
  `infomec/histogram` .996 (clear) and .982 (weak), its explicitness .896 (heavy). Then they were derived anew: a
  half of the rows weighs the penalty as all rows do, quarters show how fast a variance falls, shuffled factors measure
  chance, and codes with heavy tails get no interval for explicitness. Later `tc/gaussian` had .983 to .988 for
  independent latents, since its width came from its value; compactness of tied latents had .986 by `infomec/knn` and
  .983 by `infomec/histogram` (10,000 rows, R = 1000), since the draws kept the gap by which chance puts one of two
  equal latents ahead, and since pairs of halves were taken for all degrees of freedom. So the four cases no longer
  test these scores independently. No formula was chosen by `mixed`.
- **More repetitions after a look.** Some entries lay outside with R = 100 to 400. All entries of their groups then
  got more: R = 1000 for `tc/gaussian`, `infomec` and the corrected scores; with 10,000 rows 400 for `dci`, 300 for
  `infomec/knn`; 600 for `sap` on trained runs, with 100 widths (with 20 it had .907). Later seven lay outside with
  their value, though not with their interval: with 10,000 rows precision (clear) .896, recall (tied) .905 and (heavy)
  .910 (R = 300, 8 widths), `kid` (heavy) .988 (R = 400), `downstream` with 100 labels (clear) .917 and with 1,000
  (weak) .981 (R = 200, 8 widths); with 1,000 rows `factorvae` (weak) .985 (R = 200). Every cell of these groups then
  got R = 1000, with 200 widths where intervals are costly; this was fixed before anything new was measured, and holds
  for cells with fewer or none, too, as soon as they are measured again (`--again`). The first repetitions are the same
  ones as before.
- **Precision and recall** were not too narrow: 16 other widths of the interval that had .896 to .910 covered .949 to
  .956 there. Eight widths with ten degrees of freedom each do not tell. The interval was derived anew nevertheless: it
  has about 30 degrees of freedom and takes a third of the time.
- **`kid` of heavy codes** has no value over all rows that an interval could contain: the kernel is cubic, and third
  moments of Student's t distribution with 3 degrees of freedom are infinite. The quartiles of its values over draws are
  .07 apart with 1,000 rows, .05 with 10,000 and .08 with 100,000 (clear: .025, .006 and .002). It prints no interval
  now; the entries had .978 and .988. The rule was tried on Normal, skewed, Laplace and t features, and on these cases.
  The values over all rows of `kid` come from moments of a million rows.
- **One table, several commits.** A cell is measured again if its interval changes. Newer cells note their command and
  commit. Other edits since should not matter: smaller blocks of pairs (rounding), an own random generator for
  explicitness.
"""
