"""A folder in which hostile commands run, and the four promises that every one of them must keep.

0 tracebacks: exit code 0, 1 or 2; a failure prints one sentence, and the last-resort handler is not reached.
0 files outside: nothing appears or changes outside the folder of the runs and of the case itself.
0 losses: every file that existed before a failed command has the bytes that it had.
0 leftovers: a request that is refused (exit code 2) leaves no new file.
"""

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import warnings
from pathlib import Path

import pytest

from unbraid.cli import main

TINY = ["data=sprites-small", "steps=20", "batch=16", "z=4", "encoder=mlp", "decoder=mlp"]
TINY += ["encoder.hidden=[8]", "decoder.hidden=[8]"]
"""The smallest training; most hostile commands fail long before it."""

CPU = ["--device", "cpu"]
MAY_CHANGE = re.compile(r"(^|/)(lock|scores\.jsonl|left-out\.json)$|(^|/)\.[^/]+\.lock$")
"""Files that a command may create or extend even if it fails."""

NOT_THE_SENTENCE = re.compile(
    r"^(note: |Usage: |Try '|\d+ of \d+ groups|\d[\d,]* members? |group \S+ failed: |warning: )"
)
"""Lines on stderr beside the sentence: progress of a sweep, notes, warnings, and the usage lines of click."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Arena:
    """A folder with a finished run (`run`), a victim file that nothing may touch, and a folder for the case."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.home = folder
        self.folder = folder / "case"
        self.victim = folder / "outside" / "victim.txt"
        self.folder.mkdir(parents=True)
        self.victim.parent.mkdir()
        self.victim.write_bytes(b"precious\n")
        self.template = template

    @property
    def run(self) -> Path:
        """A copy of the finished run, made when it is first needed."""
        path = self.folder / "runs" / "finished"
        if not path.exists():
            shutil.copytree(self.template, path)
        return path

    def write(self, name: str, content: bytes | str) -> Path:
        """Write a file of the case, and return its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        return path

    def attack(self, *arguments: object, succeeds: bool | None = False, **environment: str | None) -> str:
        """Run a command in this process, check the promises, and return what it printed on stderr.

        `succeeds` is None if both an error and success are right.
        """
        before = read_tree(self.home)
        code, out, err = run_command([str(part) for part in arguments], self.folder, environment)
        what = f"unbraid {' '.join(map(repr, map(str, arguments)))}\nexit {code}\n{out[-2000:]}\n{err[-3000:]}"
        assert "Traceback" not in err + out, what
        assert "unexpected error" not in err, what
        assert code in ((0, 1, 2) if succeeds is None else (0,) if succeeds else (1, 2)), what
        assert not CONTROL.search(err + out), what
        if code and not (code == 1 and arguments[0] == "check" and " is damaged: " in out):  # its findings are printed
            lines = [line for line in err.splitlines() if line.strip() and not NOT_THE_SENTENCE.match(line)]
            assert len(lines) == 1, what
            assert re.match(r"[Ee]rror: .{9,}", lines[0]), what
        self._check_files(before, code, what)
        return err

    def _check_files(self, before: dict[str, bytes | str], code: int, what: str) -> None:
        after = read_tree(self.home)
        lost = [name for name, content in before.items() if after.get(name) != content and not _may_change(name, code)]
        assert not lost, f"{what}\nlost or changed: {lost}"
        new = [name for name in after if name not in before]
        outside = [name for name in new if not name.startswith("case/")]
        assert not outside, f"{what}\noutside: {outside}"
        leftovers = [name for name in new if code == 2 and not MAY_CHANGE.search(name)]
        leftovers += [name for name in new if name.endswith(".part")]
        assert not leftovers, f"{what}\nleft behind: {leftovers}"


def _may_change(name: str, code: int) -> bool:
    inside = name.startswith("case/")
    return inside and (code == 0 or MAY_CHANGE.search(name) is not None)


def read_tree(folder: Path) -> dict[str, bytes | str]:
    """Return the content of every file below a folder, and the target of every link."""
    found: dict[str, bytes | str] = {}
    for base, folders, files in os.walk(folder):
        for name in (*files, *(each for each in folders if Path(base, each).is_symlink())):
            path = Path(base, name)
            key = path.relative_to(folder).as_posix()
            with contextlib.suppress(OSError):
                found[key] = _read_entry(path)
    return found


def _read_entry(path: Path) -> bytes | str:
    if path.is_symlink():
        return str(path.readlink())
    return path.read_bytes() if path.is_file() else "not a plain file"  # reading a pipe would wait for ever


@contextlib.contextmanager
def time_limit(seconds: int = 20, waited: int = 120):
    """Fail if the block computes or waits for long: a hostile command is refused, or its work is tiny.

    What it computes is measured in processor time, so that a busy machine is not taken for a hanging command.
    """

    def fail(*_):
        raise SystemExit("it hangs")

    before = {number: signal.signal(number, fail) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(waited)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def run_command(arguments: list[str], folder: Path, environment: dict[str, str | None]) -> tuple[int, str, str]:
    """Run a command as its entry point does, and return its exit code and what it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["unbraid", *arguments])
        patch.chdir(folder)
        for name, value in {"UNBRAID_QUIET": "1", **environment}.items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        with warnings.catch_warnings(), time_limit():
            warnings.simplefilter("ignore", UserWarning)
            try:
                main()
                code = 0
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else 0 if left.code is None else -1
    return code, *(stream.buffer.getvalue().decode() for stream in (out, err))


def some_quick(count: int, every: int) -> list:
    """Return parameters 0 … count - 1: one in `every` is quick, and `make test-all` runs the others."""
    return [number if number % every == 0 else pytest.param(number, marks=pytest.mark.slow) for number in range(count)]
