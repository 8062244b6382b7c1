import json
import sys

import pytest
import torch

import unbraid as ub
from tests.support.hub_server import serve_hub
from tests.support.messages import naming
from unbraid.errors import MissingExtraError, RunError, UsageError


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with serve_hub() as (hub, address):
        for name, value in {"HF_ENDPOINT": address, "HF_TOKEN": "hf_test", "UNBRAID_DATA": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub


def test_a_pushed_run_comes_back_as_it_was(hub, run, tmp_path):
    run.score("kl")
    address = run.push("someone/sprites")
    assert address.endswith("/someone/sprites")
    files = hub.repositories["someone/sprites"]
    assert {"README.md", "config.yaml", "model.safetensors", "scores.jsonl"} <= files.keys()
    assert "lock" not in files
    card = files["README.md"].decode()
    assert "library_name: unbraid" in card and "beta-vae" in card and "kl/closed-form" in card
    pulled = ub.pull("someone/sprites", root=tmp_path / "pulled", device="cpu")
    codes = torch.randn(4, 3)
    assert torch.equal(pulled.decode(codes), run.decode(codes))
    assert pulled.config == run.config and pulled.history == run.history
    assert ub.pull("someone/sprites", root=tmp_path / "pulled", device="cpu").path == pulled.path


def test_load_opens_an_address_and_keeps_it_for_later(hub, run, monkeypatch):
    run.push("someone/sprites")
    opened = ub.load("hf://someone/sprites", device="cpu")
    assert opened.config.run_id == run.config.run_id
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert ub.load("hf://someone/sprites", device="cpu").path == opened.path


def test_a_stranger_s_repository_gives_only_text_and_weights_of_its_top_folder(hub, run, tmp_path):
    run.push("someone/sprites")
    hostile = {"model.pkl": b"x", "../escaped.json": b"{}", "sub/more.json": b"{}", ".hidden.json": b"{}", "a.py": b""}
    hub.repositories["someone/sprites"] |= hostile
    pulled = ub.pull("someone/sprites", root=tmp_path / "pulled", device="cpu")
    assert all(path.suffix in (".yaml", ".json", ".jsonl", ".safetensors", ".md") for path in pulled.path.iterdir())
    assert [path.name for path in (tmp_path / "pulled").iterdir()] == ["sprites"]
    assert not any("escaped" in request or ".pkl" in request for request in hub.requests)


def test_changed_weights_are_refused(hub, run, tmp_path):
    run.push("someone/sprites")
    files = hub.repositories["someone/sprites"]
    files["status.json"] = json.dumps({**json.loads(files["status.json"]), "content": "0" * 64}).encode()
    with pytest.raises(RunError, match=naming("changed")):
        ub.pull("someone/sprites", root=tmp_path / "pulled")
    assert not (tmp_path / "pulled" / "sprites").exists()


def test_errors_say_what_to_do(hub, run, tmp_path, monkeypatch):
    with pytest.raises(RunError, match=naming("someone/none")):
        ub.pull("someone/none", root=tmp_path)
    with pytest.raises(UsageError, match=naming("owner/name")):
        run.push("sprites")
    hub.repositories["someone/empty"] = {"README.md": b"# nothing"}
    with pytest.raises(RunError, match=naming("config.yaml")):
        ub.pull("someone/empty", root=tmp_path)
    (tmp_path / "sprites").mkdir()
    run.push("someone/sprites")
    with pytest.raises(UsageError, match=naming("exists")):
        ub.pull("someone/sprites", root=tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=naming("unbraid[hub]")):
        ub.load("hf://someone/sprites")
