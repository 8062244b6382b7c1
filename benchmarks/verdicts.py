"""Every verdict of the committed results: five tables, one per paper, then reasons, and commands and hashes.

    python benchmarks/verdicts.py results > results/README.md

A verdict counts as it stands if the experiment has not changed since. `results/protocol.json` lists the others: those
*withdrawn*, whose experiment was wrong, and those of an *older* protocol, which is said beside them. It also has the
numbers that papers give, and reasons.
"""

import argparse
import csv
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unbraid.experiments import StandIn, experiment
from unbraid.experiments.claims import Evidence
from unbraid.experiments.combining import MIN_SEEDS, count_seeds, drop_unscored, find_settings, identify_setting
from unbraid.experiments.judging import MAX_SEEDS, count_needed_seeds
from unbraid.experiments.settling import DISAGREEMENT, IN_WORDS, WITH_TWICE
from unbraid.experiments.statistics import Chance, Estimate
from unbraid.experiments.writing import read_looks
from unbraid.papers import chen2018 as chen2018
from unbraid.printable import pluralise

WAITS = "for runs of twice the steps"
"""Words in the reason of a claim that waits for them."""

HEAD = """# Results

What five papers claim, what we measured, and the verdict; `python benchmarks/verdicts.py results` writes this page.
[docs/papers.md](../docs/papers.md) says on two screens what to believe now, and
[docs/reproducing.md](../docs/reproducing.md) has the rules. Where a paper gives numbers, they stand beside ours; else
the second column has the range by which we test the claim, and most bounds are ours. Of several estimates a row shows
the one that decides, with its 90% interval. Claims "(ours)" are not in the paper. *Older*: the experiment has changed
since. `mig/exact without shape` is MIG over all factors but the shape, as in chen2018.

See also [speed](benchmarks/README.md), [agreement between scores](disagreement/README.md), the
[study](chen2018/README.md) behind figures 2 and 4 of chen2018, the [reference run](reference/README.md), the
[effect of bf16](precision/README.md), the [coordinates of z](frame/README.md), the [demo](demo/README.md), a
[simulated cluster](scale/README.md).
"""
REASONS = """## Reasons

Why a claim is open or does not hold; *older* results say what has changed. Minutes are estimates for one H200
(`benchmarks/run_papers.py --plan`).
"""
NOT_RUN_HEAD = """## Not run yet

`unbraid reproduce PAPER/ID --scale budget`, with GPU minutes and the official files that they take; stand-ins for these
settle nothing. A verdict that rested on a wrong experiment is withdrawn and listed here, too.
"""
TITLES = {
    "chen2018": "Isolating sources of disentanglement (beta-TCVAE, MIG)",
    "esmaeili2018": "Structured disentangled representations (HFVAE)",
    "daunhawer2019": "Disentangled latent partitions (partitioned MVAE)",
    "split2020": "Split encoders",
    "msvae2020": "Multi-stage modelling (MS-VAE)",
}
NOT_RUN = "not run yet"
WORDS = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    NOT_RUN: ("has not been run yet", "have not been run yet"),
}
"""What is said of one claim, and of several."""


@dataclass(frozen=True)
class Row:
    """A claim with its place, what was measured, its verdict, and why it is open or refuted."""

    experiment: str
    number: int
    claim: str
    wanted: str
    measured: str
    verdict: str
    status: str
    reason: str
    seeds: float = math.nan
    """Seeds that would settle an open claim at the effect seen so far; not a number if something else is missing."""
    places: tuple[str, ...] = ()
    """Further experiments that make this claim with the same evidence, as two figures of one result do."""

    @property
    def settled(self) -> bool:
        """True if the verdict is definite and was measured as the experiment is now."""
        return self.status == "current" and self.verdict in ("holds", "does not hold")


def read_protocol(results: Path) -> dict[str, Any]:
    return json.loads((results / "protocol.json").read_text("utf-8"))


def read_rows(name: str, results: Path) -> list[Row]:
    """Return a row for each claim that an experiment makes now."""
    path, protocol, rows = results / name / "verdicts.json", read_protocol(results), []
    stored = json.loads(path.read_text("utf-8")) if path.exists() else {"verdicts": []}
    found, claims = {verdict["claim"]: verdict for verdict in stored["verdicts"]}, experiment[name].facts.claims
    looks = read_looks(stored, claims)
    for number, claim in enumerate(claims):
        verdict = found.get(claim.text)
        status, why = _classify(name, number, verdict, protocol)
        if status in ("absent", "withdrawn") or verdict is None:
            rows.append(Row(name, number, claim.text, "", "", NOT_RUN, status, why))
            continue
        piece = _choose_piece(verdict["evidence"])
        reason, needed = protocol["reasons"].get(f"{name}#{number}", ""), math.nan
        if verdict["verdict"] == "inconclusive":
            own, (reason, needed) = reason, _explain_open(verdict, name, piece, results, looks[claim.text])
            if own:  # it says why seeds would not settle the claim
                reason, needed = own, math.inf
        elif verdict["verdict"] == "does not hold" and not reason:
            raise SystemExit(f"{name}, claim {number} does not hold; results/protocol.json lacks a reason for it.")
        more = f" (and {len(verdict['evidence']) - 1} more)" if len(verdict["evidence"]) > 1 else ""
        wanted, measured = (piece["wanted"], _format(piece) + more) if piece else ("", "none")
        wanted = protocol["published"].get(f"{name}#{number}", wanted)
        reason = f"{reason} Older: {why}.".strip() if why else reason
        rows.append(Row(name, number, claim.text, wanted, measured, verdict["verdict"], status, reason, needed))
    if any(row.verdict == NOT_RUN for row in rows):  # the page cannot be judged again without the others
        first = f"{WAITS}, after its claims that have not been run"
        return [replace(row, reason=row.reason.replace(WAITS, first)) for row in rows]
    return rows


def join_equal_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows in which one claim with one result, which several figures of a paper show, is one row."""
    joined: dict[Any, Row] = {}
    for row in rows:
        key = (row.claim, row.wanted, row.measured, row.verdict) if row.measured else (row.experiment, row.number)
        first = joined.setdefault(key, row)
        if first is not row:
            joined[key] = replace(first, places=(*first.places, row.experiment))
    return list(joined.values())


def find_open_claims(name: str, results: Path) -> list[Row]:
    """Return the claims of an experiment that have no definite verdict as the experiment is now."""
    return [row for row in read_rows(name, results) if not row.settled]


def _classify(name: str, number: int, verdict: Any, protocol: Mapping[str, Any]) -> tuple[str, str]:
    """Return the status of a claim, and why it is not current."""
    keys = (f"{name}#{number}", name, name.partition("/")[0])
    for key in keys:
        if key in protocol["withdrawn"]:
            return "withdrawn", protocol["withdrawn"][key]
    if verdict is None:
        return "absent", ""
    for key in keys:
        if key in protocol["older"]:
            return "older", protocol["older"][key]
    return "current", ""


def _choose_piece(evidence: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the piece of evidence whose interval is farthest outside its range, or nearest to its end."""
    return min(evidence, key=_margin) if evidence else None


def _margin(piece: Mapping[str, Any]) -> float:
    if piece["value"] is None or piece["low"] is None or piece["high"] is None:
        return -math.inf
    return _read_evidence(piece).margin


def _read_evidence(piece: Mapping[str, Any]) -> Evidence:
    low, high = _read_range(piece["wanted"])
    known = {key: piece[key] for key in ("value", "low", "high", "freedom", "spread") if piece.get(key) is not None}
    chance = Chance(*piece["chance"]) if piece.get("chance") else None
    return Evidence(piece["what"], Estimate(**known, chance=chance), low, high)


def _read_range(wanted: str) -> tuple[float, float]:
    numbers = [float(text) for text in re.findall(r"-?\d[\d.e+-]*", wanted)]
    if wanted.startswith("below"):
        return -math.inf, numbers[0]
    return (numbers[0], math.inf) if wanted.startswith("above") else (numbers[0], numbers[1])


def _format(piece: Mapping[str, Any]) -> str:
    if piece["value"] is None:
        return f"{piece['what']}: none"
    ends = "" if piece["low"] is None else f" ({piece['low']:.3g}..{piece['high']:.3g})"
    return f"{piece['what']}: {piece['value']:.3g}{ends}"


def _count_seeds(name: str, verdict: Mapping[str, Any], results: Path) -> tuple[int, str]:
    """Return the fewest seeds of a setting that a claim reads, and the numbers of seeds in words.

    Without stored runs, these are the settings of the series that its evidence names, or of all if it names none.
    """
    from judge_again import read_results

    if (runs := results / name / "runs.csv").exists():
        found = next(each for each in experiment[name].facts.claims if each.text == verdict["claim"])
        stored = drop_unscored(found, read_results(runs, name, "budget"))
        read = find_settings(found, stored)
        own = [group.finished for group in stored.settings if not read or identify_setting(group.members[0]) in read]
        return count_seeds(found, stored), _describe_range(own)
    with (results / name / "table.csv").open(newline="") as handle:
        counts = [(row["series"], int(row["runs"].split(" ")[0])) for row in csv.DictReader(handle) if row.get("runs")]
    words = " ".join(piece["what"] for piece in verdict["evidence"])
    own = [n for series, n in counts if re.search(rf"(?<![\w-]){re.escape(series)}(?![\w-])", words)]
    own = own or [n for _, n in counts]
    return min(own, default=0), _describe_range(own)


def _describe_range(counts: Sequence[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low} to {high}"


def _explain_open(verdict: Mapping[str, Any], name: str, piece: Any, results: Path, looks: int) -> tuple[str, float]:
    """Return why a claim is open, with minutes, and the seeds that would settle it at the effect seen so far."""
    if "had not settled" in verdict["why"]:
        minutes = _count_minutes(round(estimate_minutes(name)))
        return f"The runs had not settled: about {minutes} with snapshots at `budget`.", math.nan
    if piece is None or piece["value"] is None or piece["low"] is None:
        return "The estimate is missing.", math.nan
    seeds, counted = _count_seeds(name, verdict, results)
    state = _describe_unsettled(piece, verdict["why"])
    pieces = verdict["evidence"]
    if seeds >= MIN_SEEDS and state:
        if any(f"{WITH_TWICE} {words}" in verdict["why"] for words in IN_WORDS.values()):
            return f"{state}, but runs of twice the steps do not confirm it.", math.nan
        minutes = max(1, round(_estimate_twice(name, verdict["claim"], results)))
        return f"{state}, but still moves: about {_count_minutes(minutes)} {WAITS}.", math.nan
    whole = all(math.isfinite(_margin(each)) for each in pieces)
    needed = count_needed_seeds([_read_evidence(each) for each in (pieces if whole else [piece])], seeds, looks)
    if math.isinf(needed):
        return f"The effect seen is next to the bound: more than {MAX_SEEDS:,} seeds.", math.inf
    minutes = max(1, round(_estimate_addition(name, verdict["claim"], int(needed), results)))
    problem = f"The interval crosses the bound with {counted} seeds"
    if _read_evidence(piece).lies_outside:
        problem = f"With {counted} seeds this interval lies outside; as one of {len(pieces)}, it would have to be wider"
    return f"{problem}: about {needed}, {_count_minutes(minutes)}.", needed


def _count_minutes(minutes: int) -> str:
    return pluralise(minutes, "GPU minute")


def _describe_unsettled(piece: Mapping[str, Any], why: str) -> str:
    """Return what an estimate shows that had not settled; nothing if it shows nothing."""
    moves = "would change the verdict" in why or DISAGREEMENT in why
    if _margin(piece) > 0:
        return "The interval lies in the range"
    if moves and _read_evidence(piece).lies_outside:
        return "The interval lies outside of the range"
    return "The difference is too small to be seen" if moves and "two of three should" in why else ""


def estimate_minutes(name: str) -> float:
    """Return the minutes of an experiment at `budget` on one H200."""
    from run_papers import build_task

    return build_task(name, "budget", [], set()).minutes()


def _estimate_twice(name: str, claim: str, results: Path) -> float:
    """Return the minutes of runs of twice the steps, of the series that a claim reads."""
    from run_papers import build_task, build_twice

    if not (results / name / "runs.csv").exists():
        return build_task(name, "budget", [], set(), twice=True).minutes()
    return build_twice(name, "budget", [claim], set(), results).minutes()


def _estimate_addition(name: str, claim: str, seeds: int, results: Path) -> float:
    """Return the minutes until a claim has as many seeds: of the series that it reads, or, without stored runs, all."""
    from run_papers import build_addition, build_task

    added = build_addition(name, "budget", [claim], set(), seeds, results)
    return (added or build_task(name, "budget", [], set(), seeds)).minutes()


def list_files(name: str) -> list[str]:
    """Return the data sets whose files an experiment needs at `budget`, without which it runs on a stand-in."""
    sweeps = experiment[name].facts.build_sweeps("budget").values()
    return list(dict.fromkeys(data.wanted for each in sweeps if isinstance(data := each.get("data"), StandIn)))


def escape(text: str) -> str:
    return text.replace("|", "\\|")


def name_places(row: Row) -> str:
    """Return the places of a claim in its paper, each linked to its results."""
    return ", ".join(
        f"[{experiment[name].reference.partition(', ')[2] or name.partition('/')[2]}]({name}/README.md)"
        for name in (row.experiment, *row.places)
    )


def print_table(paper: str, rows: Sequence[Row]) -> None:
    """Print the table of a paper."""
    print(f"## {paper}: {TITLES[paper]}\n")
    print("| claim | the paper says | we measured | verdict |\n| --- | --- | --- | --- |")
    for row in rows:
        if row.verdict != NOT_RUN:
            word = row.verdict + (", older" if row.status == "older" else "")
            says = f"{name_places(row)}: {row.wanted}"
            print(f"| {' | '.join(map(escape, (row.claim, says, row.measured, word)))} |")
    print()


def print_reasons(paper: str, rows: Sequence[Row]) -> None:
    """Print why claims of a paper are open or do not hold."""
    print(f"### {paper}\n")
    for row in rows:
        if row.verdict != NOT_RUN and row.reason:
            print(f"- {name_places(row)}, *{row.claim}*: {row.verdict}. {row.reason}")
    print()


def print_waiting(paper: str, rows: Sequence[Row], minutes: Mapping[str, float]) -> None:
    """Print what has not been run of a paper."""
    waiting = [row for row in rows if row.verdict == NOT_RUN]
    for name in dict.fromkeys(row.experiment for row in waiting):
        own = [row for row in waiting if row.experiment == name]
        why = "; ".join(dict.fromkeys(row.reason for row in own if row.reason))
        claims = pluralise(len(own), "claim")
        files = "".join(f", files of {data}" for data in list_files(name))
        time = pluralise(round(minutes[name]), "minute")
        print(f"- `{name}`: {claims}, {time}{files}" + (f" (withdrawn: {why})" if why else ""))


def print_commands(results: Path) -> None:
    """Print command, commit, scale, runs and minutes of each stored experiment."""
    print("## Commands and hashes\n")
    print(
        "Minutes are wall time. Older experiments shared one GPU, up to twelve at a time, and took about six times what"
    )
    print("their steps take. Intervals of older results that could not be computed again are plain percentiles.\n")
    print("| experiment | command | commit | runs | minutes | device |\n| --- | --- | --- | --- | --- | --- |")
    for path in sorted(results.glob("*/*/verdicts.json")):
        stored = json.loads(path.read_text("utf-8"))
        name = path.parent.relative_to(results).as_posix()
        facts = (
            f"`{stored['command']}`",
            stored["commit"],
            stored["runs"],
            f"{stored['minutes']:.1f}",
            stored["device"],
        )
        print(f"| [{name}]({name}/README.md) | {' | '.join(map(str, facts))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=Path("results"), help="default: results")
    results = parser.parse_args().results
    if not (results / "protocol.json").exists():
        parser.error(f"{results} has no protocol.json, so it is not a folder of committed results.")
    rows = {paper: [] for paper in TITLES}
    minutes = {}
    for name in experiment:
        rows[name.partition("/")[0]] += read_rows(name, results)
        minutes[name] = estimate_minutes(name)
    print(HEAD)
    rows = {paper: join_equal_rows(each) for paper, each in rows.items()}
    every = [row for each in rows.values() for row in each]
    counts = Counter((row.verdict, " (older)" if row.status == "older" else "") for row in every)
    words = [f"{n} {WORDS[verdict][n > 1]}{age}" for (verdict, age), n in sorted(counts.items())]
    print(f"Of {len(every)} claims, {', '.join(words)}.\n")
    for paper in TITLES:
        print_table(paper, rows[paper])
    print(REASONS)
    for paper in TITLES:
        print_reasons(paper, rows[paper])
    print(NOT_RUN_HEAD)
    for paper in TITLES:
        print_waiting(paper, rows[paper], minutes)
    print()
    print_commands(results)


if __name__ == "__main__":
    main()
