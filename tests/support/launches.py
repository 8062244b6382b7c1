"""What a module of kernels launches."""

import importlib

import pytest


def note_launches(monkeypatch, name):
    """Return a module, or skip the test without Triton; its `launched` lists the kernels and constants of launches."""
    pytest.importorskip("triton")
    module = importlib.import_module(name)
    module.launched, real = [], module.launch

    def note(kernel, *arguments, **constants):
        module.launched.append((kernel.__name__, constants))
        real(kernel, *arguments, **constants)

    monkeypatch.setattr(module, "launch", note)
    return module
