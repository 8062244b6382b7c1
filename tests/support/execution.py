"""How tests insist on a compiled or captured step."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from unbraid.training import execution


@contextmanager
def no_fallback() -> Iterator[None]:
    """Raise where a step that cannot be compiled or captured would warn and run plainly."""

    def refuse(message: str, **_: Any) -> None:
        raise AssertionError(message)

    with mock.patch.object(execution, "warnings", mock.Mock(wraps=warnings, warn=refuse)):
        yield
