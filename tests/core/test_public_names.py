"""The stub of the package names what the package offers."""

import ast
from pathlib import Path

import unbraid

STUB = Path(unbraid.__file__).with_suffix(".pyi")


def test_the_stub_has_every_public_name_from_where_the_package_takes_it():
    lines = ast.parse(STUB.read_text("utf-8")).body
    assert all(isinstance(line, ast.ImportFrom) for line in lines)
    named = {alias.asname: f"{line.module}.{alias.name}" for line in lines for alias in line.names}
    expected = {name: f"{module}.{name}" for name, module in unbraid._MODULE_OF_NAME.items()}
    expected |= {name: f"unbraid.{name}" for name in unbraid._MODULES}
    assert named == expected | {"__version__": "unbraid._version.__version__"}
    assert set(named) == set(unbraid.__all__)


def test_every_public_name_can_be_had():
    assert all(getattr(unbraid, name) is not None for name in unbraid.__all__)
