"""Golden bytes: one test per case of a vector file, and a word at the end of how many were compared.

A test marked `@pytest.mark.vectors("remoting_json.json", "cases")` gets each case of that list as its argument `case`
and compares with the fixture `equal`, which counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("TRIOMQ_VECTORS", Path(__file__).parents[1] / "vectors"))
compared_cases: Counter[str] = Counter()
collected_cases: Counter[str] = Counter()
comparisons: Counter[str] = Counter()


@cache
def document(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vectors(file, *lists, kind=None): one test per case of these lists")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("vectors")
    if marker is None:
        return
    name, *lists = marker.args
    kinds = marker.kwargs.get("kinds")
    cases = [(part, case) for part in lists for case in document(name)[part]]
    cases = [(part, case) for part, case in cases if kinds is None or case["kind"] in kinds]
    assert cases, f"{name} has no case for {metafunc.function.__name__}"
    ids = [f"{part}-{case.get('name', number)}" for number, (part, case) in enumerate(cases)]
    metafunc.parametrize("case", [case for _, case in cases], ids=ids)


@pytest.fixture
def vector_folder() -> Path:
    """Where the vector files are, for what stands beside their cases."""
    return FOLDER


@pytest.fixture
def equal(request: pytest.FixtureRequest) -> Callable[[object, object], None]:
    """Compare with what Java made; each call counts as one comparison of the test's vector file."""
    marker = request.node.get_closest_marker("vectors")
    name = marker.args[0]

    def check(got: object, want: object) -> None:
        comparisons[name] += 1
        assert got == want

    return check


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        marker = item.get_closest_marker("vectors")
        if marker is not None and "case" in getattr(item, "fixturenames", ()):
            collected_cases[f"{marker.args[0]} {item.originalname}"] += 1


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    outcome = yield
    marker = item.get_closest_marker("vectors")
    if marker is not None and outcome.get_result().when == "call" and outcome.get_result().passed:
        compared_cases[f"{marker.args[0]} {item.originalname}"] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not collected_cases:
        return
    terminalreporter.section("golden vectors")
    for name in sorted({key.split()[0] for key in collected_cases}):
        tests = sorted(key for key in collected_cases if key.split()[0] == name)
        parts = ", ".join(f"{key.split()[1][5:]} {compared_cases[key]} of {collected_cases[key]}" for key in tests)
        terminalreporter.write_line(f"{name}: {comparisons[name]} comparisons; cases: {parts}")
