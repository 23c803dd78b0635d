"""Golden bytes: one test per case of a vector file, and a word at the end of how many were compared.

A test marked `@pytest.mark.vectors("remoting_json.json", "cases")` gets each case of that list as its argument `case`
and compares with the fixture `equal`, which counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("TRIOMQ_VECTORS", Path(__file__).parents[1] / "vectors"))


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
    """The folder of the vector files, for data stored next to their cases."""
    return FOLDER


@pytest.fixture
def equal(request: pytest.FixtureRequest) -> Iterator[Callable[[object, object], None]]:
    """Compare with Java's results; each call counts as one comparison of the test's vector file."""
    marker = request.node.get_closest_marker("vectors")
    name = marker.args[0]
    test = request.node.originalname
    count = 0

    def check(got: object, want: object) -> None:
        nonlocal count
        count += 1
        assert got == want

    yield check
    request.node.user_properties.append(("vectors", [name, test, count]))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts from the reports, because with several workers nothing else reaches the printing process."""
    passed = {report.nodeid for report in terminalreporter.getreports("passed") if report.when == "call"}
    collected: Counter[tuple[str, str]] = Counter()
    compared: Counter[tuple[str, str]] = Counter()
    comparisons: Counter[str] = Counter()
    for report in (report for kind in terminalreporter.stats.values() for report in kind if hasattr(report, "when")):
        for key, value in report.user_properties if report.when == "teardown" else ():
            if key == "vectors":
                name, test, count = value
                collected[name, test] += 1
                compared[name, test] += report.nodeid in passed
                comparisons[name] += count
    if collected:
        terminalreporter.section("golden vectors")
    for name in sorted(comparisons):
        tests = sorted(key for key in collected if key[0] == name)
        parts = ", ".join(f"{key[1][5:]} {compared[key]} of {collected[key]}" for key in tests)
        terminalreporter.write_line(f"{name}: {comparisons[name]} comparisons; cases: {parts}")
