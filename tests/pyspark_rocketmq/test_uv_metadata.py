"""What `pyproject.toml` tells uv about packages without wheels, so that it need not ask their archives."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
TOLD = {
    each["name"]: each["requires-dist"]
    for each in tomllib.loads(PROJECT.read_text())["tool"]["uv"]["dependency-metadata"]
}


@pytest.mark.parametrize("name", TOLD)
def test_it_is_what_the_installed_package_says(name: str) -> None:
    try:
        requirements = [Requirement(each) for each in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    said = {str(each) for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})}
    assert {str(Requirement(each)) for each in TOLD[name]} == said
