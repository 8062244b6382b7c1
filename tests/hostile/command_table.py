"""Hostile arguments of the commands that read runs and data: a line of words for each case.

A word such as `{run}` stands for a path that `prepare` makes; every file below `input` and the files of a finished run
must keep their bytes, also if the command succeeds.
"""

import json
import os
import shutil
from pathlib import Path

from tests.hostile.arena import CPU, Arena
from tests.hostile.settings_table import BIDI, DEEP, DIGITS, ESCAPE, LONG, NINES, SURROGATE

NAMES = ["", " ", ".", "..", "~nobody", "-", "--", "[red]x[/red]", "[/]", "<b>x</b>", "a\nb", "%s%n{0}", "$(id)"]
NAMES += [ESCAPE, BIDI, SURROGATE, LONG, DEEP, "hf://", "hf://a", "file:///etc/passwd", "x=1", "=", "*", "\\", "½"]
COUNTS = ["", "-1", "0", "nan", "inf", "1e400", NINES, DIGITS, "1.5", "x", "0x10", "[1]", ESCAPE, SURROGATE, "--"]
ENDINGS = ["x.exe", "x", "x.csv.exe", ".", "", "x.", "a\nb.csv", f"{ESCAPE}.csv", f"{LONG}.csv", f"{SURROGATE}.png"]

BAD_RUNS = ["{missing}", "{folder}", "{empty}", "{binary}", "{unfinished}", "{cut_weights}", "{other_weights}"]
BAD_RUNS += ["{bad_config}", "{binary_config}", "{bad_status}", "{future}", "{linked}", "{no_data}", "{fifo}"]
BAD_FILES = ["{missing}", "{folder}", "{loop}", "{empty}", "{binary}", "{text}", "{fake_csv}", "{fake_npy}"]
BAD_FILES += ["{fake_png}", "{ragged}", "{object_npy}", "{nan_npy}", "{unreadable}", "{fifo}", "{empty_csv}"]
BAD_FILES += ["{header}", "{nul_csv}"]
BAD_FILES += ["{huge_csv}", "{markup_csv}", "{pictures}"]
BAD_OUTPUTS = ["{missing}/deeper/x.csv", "{folder}", "{input}", "{run}", "{run}/config.yaml", "{run}/status.json"]
BAD_OUTPUTS += [
    "{run}/model.safetensors",
    "{text}/x.csv",
    "{dangling}",
    "/dev/full",
    "{fifo}",
    "{run}/data.json",
    *ENDINGS,
]

READ_RUN = [["evaluate", "--metric", "units"], ["report"], ["encode"], ["sample", "-n", "2"], ["reconstruct"]]
READ_RUN += [["traverse"], ["export", "--torch"], ["explore", "--no-open"], ["check"], ["runs"]]
"""Commands with the path of a run as their last argument."""

WITH_DEVICE = ("evaluate", "report", "encode", "decode", "sample", "reconstruct", "traverse", "complete", "compare")
WITH_DEVICE += ("advise", "explore")


def list_cases() -> list[list[str]]:
    """Return the words of all cases, without the device."""
    cases = [[*command, run] for command in READ_RUN for run in (*BAD_RUNS, *NAMES)]
    cases += [["decode", run, "{codes}"] for run in (*BAD_RUNS, *NAMES)]
    cases += [["complete", run, "{table}"] for run in (*BAD_RUNS, *NAMES)]
    cases += [["compare", "{run}", run, "--metric", "units"] for run in (*BAD_RUNS, *NAMES)]
    for command in (["encode", "{run}"], ["reconstruct", "{run}"], ["decode", "{run}"], ["complete", "{run}"]):
        cases += [[*command, file] for file in (*BAD_FILES, *NAMES)]
    for command in (["advise"], ["data", "show"], ["data", "fetch"], ["data", "fetch", "cars3d", "--from"], ["check"]):
        cases += [[*command, file] for file in (*BAD_FILES, *NAMES)]
    for command in (["show"], ["list"]):
        cases += [[*command, name] for name in NAMES]
    cases += [["runs", file] for file in BAD_FILES]
    cases += [["--with", file, "list", "priors"] for file in (*BAD_FILES, *NAMES)]
    cases += list_counts() + list_outputs()
    return [[*words, *(CPU if words[0] in WITH_DEVICE and "--device" not in words else [])] for words in cases]


def list_counts() -> list[list[str]]:
    """Return the cases in which a number or a choice is hostile."""
    options = [["sample", "{run}", "-n"], ["sample", "{run}", "-n", "2", "--seed"], ["traverse", "{run}", "--row"]]
    options += [["traverse", "{run}", "--columns"], ["traverse", "{run}", "--span"], ["traverse", "{run}", "--by"]]
    options += [["traverse", "{run}", "--latent"], ["evaluate", "{run}", "--metric", "units", "--rows"]]
    options += [["evaluate", "{run}", "--metric"], ["explore", "{run}", "--no-open", "--max-kb"]]
    options += [["explore", "{run}", "--no-open", "--weights"], ["data", "show", "sprites-small", "--rows"]]
    options += [["compare", "{run}", "{run}", "--metric", "units", "--rows"]]
    options += [["compare", "{run}", "{run}", "--metric", "units", "--resamples"], ["compare", "{run}", "{run}"]]
    options += [["compare", "{run}", "{run}", "--metric"], ["data", "show", "sprites-small"], ["evaluate", "{run}"]]
    cases = [[*words, value] for words in options for value in COUNTS]
    cases += [[command, "{run}", "--device", value] for command in ("sample", "report") for value in COUNTS]
    return [*cases, ["sample", "{run}", "-n", "10000001"], ["traverse", "{run}", "--columns", "1000000"]]


def list_outputs() -> list[list[str]]:
    """Return the cases in which the file to write is hostile."""
    commands = [["encode", "{run}"], ["decode", "{run}", "{codes}"], ["sample", "{run}"], ["reconstruct", "{run}"]]
    commands += [["traverse", "{run}"], ["evaluate", "{run}", "--metric", "units"], ["complete", "{run}", "{table}"]]
    commands += [["explore", "{run}", "--no-open"], ["report", "{run}"]]
    cases = [
        [*words, "--output" if words[0] == "explore" else "--out", path] for words in commands for path in BAD_OUTPUTS
    ]
    cases += [["decode", "{run}", "{codes}", "--out", "{codes}"], ["complete", "{run}", "{table}", "--out", "{table}"]]
    cases += [["encode", "{run}", "{npy}", "--out", "{npy}"], ["reconstruct", "{run}", "{npy}", "--out", "{npy}"]]
    cases += [["encode", "{run}", "{input}", "--out", "{input}"]]
    cases += [["data", "show", "sprites-small", "--picture", path] for path in BAD_OUTPUTS]
    return cases + [["export", "{run}", "--torch", "--output", path] for path in ("{text}", "{text}/x", "{dangling}")]


def fill_words(arena: Arena, words: list[str]) -> list[str]:
    """Make the files that the words name, and return the words with their paths."""
    filled = []
    for word in words:
        start, brace, rest = word.partition("}")
        known = brace and start.startswith("{") and start[1:].isidentifier()
        filled.append(str(make_path(arena, start[1:])) + rest if known else word)
    return filled


def make_path(arena: Arena, name: str) -> Path:
    """Make a hostile file or run, and return its path."""
    place = arena.folder / "input"
    if name == "run":
        return arena.run
    if name in CONTENTS:
        file, content = CONTENTS[name]
        return arena.write(f"input/{file}", content)
    if name in DAMAGES:
        run = arena.folder / "input" / name
        if not run.exists():
            shutil.copytree(arena.template, run)
            DAMAGES[name](run)
        return run
    place.mkdir(exist_ok=True)
    path = place / name
    if name == "input":
        return place
    if name in ("folder", "pictures"):
        path.mkdir(exist_ok=True)
    if name == "pictures":
        (path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    if name == "loop" and not path.exists():
        path.mkdir()
        for part in ("a", "b"):  # walking through the links would take 2^40 steps
            (path / part).symlink_to(path)
    if name == "unreadable":
        path = arena.write("input/unreadable.csv", "a,b\n1,2\n3,4\n")
        path.chmod(0)
    if name == "fifo" and not path.exists():
        os.mkfifo(path)
    if name == "dangling" and not path.is_symlink():
        path.symlink_to(arena.victim.parent / "made.csv")
    return path


def _npy(kind: str, shape: str, body: bytes) -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


CONTENTS: dict[str, tuple[str, bytes | str]] = {
    "empty": ("empty", b""),
    "binary": ("binary", bytes(range(256)) * 8),
    "text": ("text.txt", "just words\n"),
    "fake_csv": ("fake.csv", bytes(range(256)) * 8),
    "fake_npy": ("fake.npy", b"\x93NUMPY\x01\x00\xff\xff"),
    "fake_png": ("fake.png", b"\x89PNG\r\n\x1a\n" + bytes(40)),
    "ragged": ("ragged.csv", "a,b\n1,2\n3\n4,5,6\n"),
    "object_npy": ("object.npy", _npy("|O", "(1,)", b"cos\nsystem\n(S'true'\ntR.")),
    "nan_npy": ("nan.npy", _npy("<f4", "(2, 4)", b"\x00\x00\xc0\x7f" * 8)),
    "empty_csv": ("empty.csv", b""),
    "header": ("header.csv", "a,b\n"),
    "nul_csv": ("nul.csv", "a,b\n1,\0\n2,3\n"),
    "huge_csv": ("huge.csv", f"a,b\n1e400,{NINES}\n{DIGITS},nan\n1,2\n"),
    "markup_csv": ("markup.csv", f"[red]a[/red],{ESCAPE}\n[/],{BIDI}\n<script>,=cmd\n"),
    "codes": ("codes.npy", _npy("<f4", "(2, 4)", bytes(32))),
    "npy": ("rows.npy", _npy("|u1", "(2, 64, 64)", bytes(8192))),
    "table": ("table.csv", "a,b\n1,2\n3,\n"),
}


def _edit(file: str, **changes: object):
    def damage(run: Path) -> None:
        content = json.loads((run / file).read_text())
        (run / file).write_text(json.dumps({**content, **changes}))

    return damage


def _cut(run: Path) -> None:
    weights = run / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])


def _flip(run: Path) -> None:
    weights = run / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _stop(run: Path) -> None:
    (run / "model.safetensors").unlink()
    (run / "scores.jsonl").unlink()
    (run / "status.json").write_text('{"format": 1, "state": "interrupted", "step": 10}')


def _link(run: Path) -> None:
    (run / "config.yaml").rename(run / "kept.yaml")
    (run / "config.yaml").symlink_to("kept.yaml")


DAMAGES = {
    "unfinished": _stop,
    "cut_weights": _cut,
    "other_weights": _flip,
    "bad_config": lambda run: (run / "config.yaml").write_text("objective: [" * 400),
    "binary_config": lambda run: (run / "config.yaml").write_bytes(bytes(range(256))),
    "bad_status": lambda run: (run / "status.json").write_text("[" * 50_000),
    "future": _edit("status.json", format=99),
    "linked": _link,
    "no_data": _edit("data.json", shape="x", content="zz"),
}
