"""Damaged files, by hypothesis: each is read, or refused in one sentence; nothing is written or changed."""

import io
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from PIL import Image

import unbraid as ub
from tests.hostile import mutations
from tests.hostile.arena import read_tree, run_command, time_limit
from unbraid import folder_check
from unbraid.data import fetch, from_csv, from_folder, storage
from unbraid.data.find import find_data
from unbraid.data.images import from_npy
from unbraid.data.tables import from_table
from unbraid.errors import UnbraidError
from unbraid.store import RunFolder
from unbraid.sweeps import Sweep
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.plan import SweepPlan

COUNTS = pytest.mark.parametrize("count", [15, pytest.param(200, marks=pytest.mark.slow)], ids=["quick", "many"])
FOLDER_COUNTS = pytest.mark.parametrize("count", [3, pytest.param(200, marks=pytest.mark.slow)], ids=["quick", "many"])
"""Fewer examples of folders in the quick form: each is copied, and read in eight ways."""

NOISE = np.random.default_rng(0).integers(0, 256, (4, 8, 8), dtype=np.uint8)


@pytest.fixture(scope="module")
def swept(template, tmp_path_factory):
    """A sweep of one finished member, with the group that a killed sweep leaves."""
    sweep, run = SweepFolder(tmp_path_factory.mktemp("swept") / "sweep"), RunFolder.open(template).config.run_id
    sweep.add(SweepPlan({"recipe": ["beta-vae"], "seed": [0]}, ["units"]), {run: {"recipe": "beta-vae", "seed": 0}})
    copytree(template, sweep.run_folder(run).path)
    sweep.add_group([run])
    return sweep.path


@contextmanager
def only_ours():
    """Let a block succeed or raise one sentence of ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UnbraidError as error:
        assert len(str(error).splitlines()) == 1, error


def read_all(*readers):
    """Call each reader; a failure of one does not keep the others from being tried."""
    for reader in readers:
        with only_ours():
            reader()


def list_runs(folder):
    """Print the table of the runs of a folder, which shows a damaged one as such."""
    code, out, err = run_command(["runs", str(folder)], folder, {})
    assert code == 0 and "Traceback" not in out + err, err


def read_run(path):
    read_all(
        lambda: RunFolder.open(path).status,
        lambda: RunFolder.open(path).latest_checkpoint(),
        lambda: ub.load(path, device="cpu").history,
        lambda: ub.load(path, device="cpu").scores,
        lambda: ub.load(path, device="cpu").columns,
        lambda: ub.load(path, device="cpu").model,
        lambda: folder_check.check(path),
        lambda: list_runs(path),
    )


def read_sweep(path):
    sweep = SweepFolder(path)
    read_all(
        lambda: sweep.plan,
        lambda: [sweep.check_id(run) for run in sweep.members],
        lambda: [(sweep.list_runs(group), sweep.read_cadence(group)) for group in sweep.list_groups()],
        lambda: (Sweep(path).table, Sweep(path).summary, Sweep(path).as_record()),
        lambda: folder_check.check(path),
        lambda: list_runs(path),
    )


def try_damage(record, template, name, strategy, count, read):
    """Read copies of a folder whose file `name` is damaged; nothing in them may change."""

    def attempt(content):
        with tempfile.TemporaryDirectory() as place, time_limit():
            copy = copytree(template, Path(place) / "copy")
            (copy / name).parent.mkdir(exist_ok=True)
            (copy / name).write_bytes(content)
            before = read_tree(Path(place))
            read(copy)
            assert read_tree(Path(place)) == before

    mutations.try_examples(strategy, count, attempt, record)


STRATEGIES = {"json": mutations.damaged_json, "jsonl": mutations.damaged_lines, "yaml": mutations.damaged_yaml}
STRATEGIES |= {"safetensors": mutations.damaged_tensors}


def damage(path):
    return STRATEGIES[path.suffix[1:]](path.read_bytes())


RUN_FILES = ["status.json", "data.json", "environment.json", "config.yaml", "history.jsonl", "scores.jsonl"]


@FOLDER_COUNTS
@pytest.mark.parametrize("name", RUN_FILES)
def test_files_of_a_run(template, record_property, name, count):
    try_damage(record_property, template, name, damage(template / name), count, read_run)


@FOLDER_COUNTS
@pytest.mark.parametrize("name", ["model.safetensors", "checkpoints/step-000000010.safetensors"])
def test_tensors_of_a_run_without_a_hash(template, tmp_path, record_property, name, count):
    bare = copytree(template, tmp_path / "bare")
    (bare / "status.json").write_text('{"format": 1, "state": "finished", "step": 20}')
    strategy = damage(template / "model.safetensors")
    try_damage(record_property, bare, name, strategy, count, read_run)


@FOLDER_COUNTS
@pytest.mark.parametrize("name", ["sweep.yaml", "members.json", "group.json"])
def test_files_of_a_sweep(swept, record_property, name, count):
    path = next(swept.rglob(name))
    try_damage(record_property, swept, path.relative_to(swept), damage(path), count, read_sweep)


def try_file(record, name, strategy, count, *readers, beside=None):
    """Read a damaged file in a folder with other files; nothing in the folder may change."""

    def attempt(content):
        with tempfile.TemporaryDirectory() as place, time_limit():
            for other, whole in (beside or {}).items():
                (Path(place) / other).write_bytes(whole)
            path = Path(place) / name
            path.write_bytes(content)
            before = read_tree(Path(place))
            read_all(*(lambda reader=reader: reader(path) for reader in readers))
            assert read_tree(Path(place)) == before

    mutations.try_examples(strategy, count, attempt, record)


def encode_picture(kind):
    stream = io.BytesIO()
    Image.fromarray(NOISE[0]).save(stream, kind)
    return stream.getvalue()


CELLS = st.sampled_from(
    ["", "1", "-2.5", "nan", "inf", "1e400", "9" * 400, "a", "[1 2]", "a.png", "../a.png", "/", '"', "\0", "=1", "½"]
)
TABLE = b"size,kind,m1:x\n1.5,red,3\n2.5,blue,4\n3.5,red,5\n4.5,blue,6\n"
PAIRS = b"image,caption,kind\na.png,1,red\na.png,2,blue\n,3,red\na.png,,blue\n"


def tables(valid):
    made = st.lists(st.lists(CELLS, max_size=4).map(",".join), max_size=5).map("\n".join)
    return st.one_of(mutations.damaged_bytes(valid), made.map(str.encode))


@COUNTS
@pytest.mark.parametrize("valid", [TABLE, PAIRS], ids=["table", "pairs"])
def test_tables(record_property, valid, count):
    readers = [from_csv, from_table, lambda path: find_data(str(path), {}, torch.device("cpu"), None)]
    beside = {"a.png": encode_picture("PNG")}
    try_file(record_property, "table.csv", tables(valid), count, *readers, beside=beside)


@COUNTS
def test_codes_and_arrays(template, record_property, count):
    run = ub.load(template, device="cpu")
    stream = io.BytesIO()
    np.save(stream, NOISE)
    readers = [from_npy, from_table, run.encode, lambda path: find_data(str(path), {}, torch.device("cpu"), None)]
    try_file(record_property, "rows.npy", mutations.damaged_bytes(stream.getvalue()), count, *readers)


@COUNTS
def test_archives(record_property, count):
    stream = io.BytesIO()
    np.savez(stream, imgs=NOISE, latents_classes=np.zeros((4, 6), int), images=NOISE)
    readers = [lambda path: fetch("dsprites", path), lambda path: fetch("cars3d", path)]
    try_file(record_property, "rows.npz", mutations.damaged_bytes(stream.getvalue()), count, *readers)


@COUNTS
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
def test_pictures(template, record_property, kind, count):
    run, valid = ub.load(template, device="cpu"), encode_picture(kind)
    name = f"damaged.{kind.lower()}"
    readers = [lambda path: from_folder(path.parent), lambda path: from_folder(path.parent, size=8), run.encode]
    beside = {"a.png": encode_picture("PNG")}
    try_file(record_property, name, mutations.damaged_bytes(valid), count, *readers, beside=beside)


@COUNTS
def test_stored_data(tmp_path, record_property, count):
    path = tmp_path / "stored.safetensors"
    storage.save(path, from_folder_of_pictures(tmp_path))
    try_file(record_property, "stored.safetensors", damage(path), count, storage.read)


def from_folder_of_pictures(folder):
    (folder / "a.png").write_bytes(encode_picture("PNG"))
    return from_folder(folder)
