"""The names of the package of settings, some of which are imported on first use."""

from __future__ import annotations

import pytest

from triomq_server import config


def test_all_names_of_the_package_exist() -> None:
    assert [name for name in config.__all__ if not hasattr(config, name)] == []


def test_a_name_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttributeError, match=r"module 'triomq_server.config' has no attribute 'JavaConfig'"):
        config.JavaConfig  # noqa: B018
