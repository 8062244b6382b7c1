"""The model card of a run: a README.md for people who find the run on a hub."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from unbraid._version import __version__
from unbraid.metrics.score import Score
from unbraid.store import RunFolder

MAX_SCORES = 12


def write_model_card(folder: RunFolder, repository: str, scores: Sequence[Score]) -> str:
    """Return the text of a card: what was trained on what, how it scored, how to use it, every setting."""
    config, data, status = folder.config, folder.read_json("data"), folder.read_json("status")
    front = {"library_name": "unbraid", "tags": ["unbraid", "disentanglement", config.objective.name]}
    newest = list({score.name: score for score in scores}.values())[:MAX_SCORES]
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {repository.partition('/')[2]}",
        f"`{config.objective.name}` on `{config.data.name}`, {status.get('step', 0):,} steps of batch "
        f"{config.training.batch}, trained with [unbraid](https://pypi.org/project/unbraid/) {__version__}.",
        f'```python\nimport unbraid as ub\n\nrun = ub.load("hf://{repository}")\ncodes = run.encode(images)\n'
        "pictures = run.decode(codes)\n```",
        _describe_data(data),
        "## Scores\n\n" + _list_scores(newest),
        f"## Settings\n\n```yaml\n{config.to_yaml()}```",
    ]
    return "\n\n".join(parts) + "\n"


def _describe_data(data: Mapping[str, Any]) -> str:
    factors = ", ".join(f"{name} ({size})" for name, size in data.get("factors", {}).items())
    rows = f"{data.get('images', 0):,} rows of shape {data.get('shape')}"
    held_out = data.get("held_out", 0)
    kept = f"{held_out:,} rows were held out." if held_out else "No row was held out."
    return f"## Data\n\n{rows}, content `{data.get('content', '')[:12]}`. {kept}" + (
        f" Factors: {factors}." if factors else ""
    )


def _list_scores(scores: Sequence[Score]) -> str:
    if not scores:
        return "Not scored yet."
    lines = ["| score | value | 95% interval | samples |", "|---|---|---|---|"]
    for score in scores:
        interval = "" if score.interval is None else f"{score.interval[0]:.4g} .. {score.interval[1]:.4g}"
        lines.append(f"| {score.name} | {score.value:.4g} | {interval} | {score.samples:,} |")
    return "\n".join(lines)
