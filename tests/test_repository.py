"""Rules of the repository: its top folder, docstrings of modules, and what users may use."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tree_figures import Tree

ROOT = Path(__file__).parents[1]
PACKAGES = [
    ROOT / "protocol" / "triomq_protocol",
    ROOT / "sdk" / "triomq",
    ROOT / "sdk" / "triomq_command",
    ROOT / "sdk" / "triomq_dashboard",
    ROOT / "sdk" / "pyspark_rocketmq",
    ROOT / "sdk" / "triomq_adapters",
    ROOT / "server" / "triomq_server",
    ROOT / "server" / "triomq_testing",
    ROOT / "benchmarks" / "triomq_benchmarks",
]
TOP = {"sdk", "server", "protocol", "benchmarks", "tests", "docs", "pyproject.toml", "tox.ini", "README.md", "LICENSE"}


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted(package.rglob("*.py"))


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT)


def test_every_definition_has_a_reader(tree: Tree) -> None:
    unread = [str(each) for each in tree.unread_definitions()]
    assert unread == [], "nothing in the packages reads these; what only tests call belongs into tests/"


def test_every_package_has_a_contract(tree: Tree) -> None:
    assert tree.without_contract() == [], "list its modules in an exhaustive contract of pyproject.toml"


def test_the_protocol_has_at_least_as_much_test_code_as_code(tree: Tree) -> None:
    """It needs neither an event loop nor a disk, so nothing in it is hard to test."""
    assert tree.test_lines_of("triomq_protocol") >= tree.lines_of("triomq_protocol")


def test_the_search_for_unread_definitions_finds_one(tmp_path: Path) -> None:
    package = tmp_path / "protocol" / "triomq_protocol"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    (package / "__init__.py").write_text("")
    (package / "codec.py").write_text(
        "LIMIT = 3\nUNREAD = 4\n\ndef cut():\n    return LIMIT\n\ndef recurse():\n    return recurse()\n\n"
        "class Cutter:\n    def run(self):\n        return cut()\n    def stop(self):\n        pass\n\nCutter().run()\n"
    )
    assert [each.name for each in Tree(tmp_path).unread_definitions()] == ["stop", "UNREAD", "recurse"]


def test_top_level_is_what_users_expect() -> None:
    top = {name.split("/")[0] for name in tracked()}
    assert {name for name in top if not name.startswith(".")} == TOP


@pytest.mark.parametrize("path", list(modules()), ids=lambda path: str(path.relative_to(ROOT)))
def test_each_module_has_a_docstring(path: Path) -> None:
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring, "a module starts with a docstring that says what it is for"


def missing_modules(package: Path) -> list[str]:
    """What docstrings of modules call a module of their package, as `name.py` or `folder.name`, and is none."""
    files = [path.relative_to(package) for path in package.rglob("*") if path.suffix in (".py", ".pyx", ".java")]
    folders = {path.name for path in package.rglob("*") if (path / "__init__.py").is_file()}
    names = {str(path.with_suffix("")).removesuffix("/__init__") for path in files}
    found = []
    for path in sorted(package.rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        for text in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.[a-z_]+)`", docstring):
            if text.endswith(".py"):
                is_there = any(f"/{each}".endswith(f"/{text}") for each in files)
            else:
                place = text.replace(".", "/")
                is_there = text.split(".")[0] not in folders or any(f"/{each}".endswith(f"/{place}") for each in names)
            if not is_there:
                found.append(f"{path.relative_to(package)}: {text}")
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_docstrings_name_modules_that_are_there(package: Path) -> None:
    assert missing_modules(package) == []


def test_helpers_of_tests_have_names_of_their_own() -> None:
    """Their folders are all on one search path, where the first of two is used."""
    paths = [Path(name) for name in tracked() if name.startswith("tests/") and name.endswith(".py")]
    helpers = [path.name for path in paths if not path.name.startswith("test_") and path.name != "conftest.py"]
    assert sorted(helpers) == sorted(set(helpers))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_packages_are_typed(package: Path) -> None:
    assert (package / "py.typed").is_file()


def test_the_wheel_has_what_is_no_python() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for package in PACKAGES:
        wanted = patterns["*"] + patterns.get(package.name, [])
        packed = {path for pattern in wanted for path in package.glob(pattern)}
        inside = {ROOT / name for name in tracked() if not name.endswith(".py")}
        assert {path for path in inside if package in path.parents} - packed == set()


def test_names_of_modules_describe_their_contents() -> None:
    vague = re.compile(r"(^|/)(utils?|common|helpers?|misc|manager|base)(\.py|/)")
    assert [name for name in tracked() if vague.search(name)] == []


def test_fragments_of_the_changelog_have_names_that_towncrier_takes() -> None:
    kinds = [
        kind["directory"] for kind in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    ]
    legal = re.compile(rf"\+[a-z0-9-]+\.({'|'.join(kinds)})\.md")
    fragments = [path.name for path in (ROOT / "docs" / "newsfragments").iterdir() if not path.name.startswith(".")]
    assert [name for name in fragments if not legal.fullmatch(name)] == []


TESTED_FROM_OUTSIDE = {
    "sdk/admin",
    "server/cluster",
}
"""Packages without a folder of tests, as the architecture page says."""


def test_folders_of_tests_are_named_after_packages() -> None:
    suites = dict(
        zip(
            PACKAGES,
            ("protocol", "sdk", "", "dashboard", "pyspark_rocketmq", "adapters", "server", "testing", "benchmarks"),
            strict=True,
        )
    )
    packages = {
        "/".join([suite, *(part.lstrip("_") for part in path.parent.relative_to(package).parts)])
        for package, suite in suites.items()
        if suite
        for path in package.rglob("__init__.py")
        if path.parent != package
    }
    folders = {
        name.removeprefix("tests/").rpartition("/")[0]
        for name in tracked()
        if name.startswith(tuple(f"tests/{suite}/" for suite in suites.values() if suite)) and "/test_" in name
    }
    assert folders - packages - set(suites.values()) == set(), "no package has this name"
    assert packages - folders == TESTED_FROM_OUTSIDE


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def test_readme_examples_compile() -> None:
    blocks = python_blocks("README.md")
    assert len(blocks) >= 2
    for block in blocks:
        compile(block, "README.md", "exec")
        assert block.count("\n") <= 20, "the README promises short examples"
