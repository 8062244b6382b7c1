"""How tests insist on a compiled or captured step."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from unbraid.training import execution

METHODS = [
    ("hfvae", {"network": "mlp"}),
    ("hfvae", {"network": "mlp", "prior": "covariance"}),
    ("beta-tcvae", {"network": "mlp", "prior": "flow", "prior.depth": 4}),
    ("beta-tcvae", {"network": "mlp", "latents": "correlated-normal:3"}),
    ("beta-vae", {"network": "mlp", "latents": "concrete:3+concrete:4", "prior": "conditional"}),
    ("factor-vae", {"network": "mlp", "width": 32, "depth": 2}),
    ("info-gan", {"network": "mlp"}),
    ("ada-gvae", {"network": "mlp"}),
    ("s2-beta-vae", {"network": "mlp", "labels": 0.5}),
    ("qlae", {"network": "mlp"}),
]
"""Methods whose steps do something that the others do not."""


@contextmanager
def no_fallback() -> Iterator[None]:
    """Raise where a step that cannot be compiled or captured would warn and run plainly."""

    def refuse(message: str, **_: Any) -> None:
        raise AssertionError(message)

    with mock.patch.object(execution, "warnings", mock.Mock(wraps=warnings, warn=refuse)):
        yield
