"""What code and pages refer to is in the repository: pages, numbered sections, links, and the files that the pages
about architecture and contributing name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from citations import PAGES, Citations, headings, without_fences

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

LINK = re.compile(r"\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]+)?\)")

try:
    CITATIONS = Citations(ROOT)
except NotADirectoryError as error:
    pytest.skip(str(error), allow_module_level=True)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def slug(heading: str) -> str:
    """The anchor that GitHub and MyST give a heading."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", CITATIONS.code(), ids=name)
def test_citations_in_code_open(path: Path) -> None:
    assert list(CITATIONS.unopened(path, path.read_text())) == []


@pytest.mark.parametrize("path", CITATIONS.tracked(*PAGES), ids=name)
def test_citations_in_pages_open(path: Path) -> None:
    assert list(CITATIONS.unopened(path, without_fences(path.read_text()))) == []


@pytest.mark.parametrize("path", CITATIONS.tracked(*PAGES), ids=name)
def test_links_in_pages_open(path: Path) -> None:
    closed = []
    for match in LINK.finditer(without_fences(path.read_text())):
        target, anchor = match["target"], match["anchor"]
        if re.match(r"[a-z]+:", target):
            continue
        page = path.parent / target if target else path
        if not page.exists():
            closed.append(target)
        elif anchor and page.suffix == ".md" and anchor not in {slug(heading) for heading in headings(page)}:
            closed.append(target + anchor)
    assert closed == []


@pytest.mark.parametrize(
    "text",
    [
        "docs/protocol/nowhere.md",
        "docs/protocol/store.md §99",
        "docs/protocol/store.md §1 and §99",
        "docs/protocol/store.md §1, §2-§99",
        "docs/protocol/store.md\n    §99",
        "store.md §1",
        "as §1 says",
        "docs/protocol/store.md section 1",
    ],
)
def test_a_citation_that_leads_nowhere_is_found(text: str) -> None:
    assert list(CITATIONS.unopened(ROOT / "sdk" / "module.py", text)) != []


@pytest.mark.parametrize(
    "text",
    [
        "docs/protocol/store.md",
        "docs/protocol/store.md §3.1",
        "docs/protocol/store.md §1, §2 and\n    # §4-§6",
        "README.md",
    ],
)
def test_a_citation_that_opens_is_let_through(text: str) -> None:
    assert list(CITATIONS.unopened(ROOT / "sdk" / "module.py", text)) == []


# -- the architecture page

ARCHITECTURE = DOCS / "explanation" / "architecture.md"


def blocks_of(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def tree_of(block: str) -> list[str]:
    """The folders of an indented tree, from the root."""
    parents: list[tuple[int, str]] = []
    folders = []
    for line in block.splitlines():
        found = re.match(r"(?P<indent> *)(?P<name>[\w/]+/) ", line)
        assert found, f"not a folder and what it is: {line!r}"
        indent = len(found["indent"])
        parents = [(width, folder) for width, folder in parents if width < indent]
        folder = (parents[-1][1] if parents else "") + found["name"]
        parents.append((indent, folder))
        folders.append(folder)
    return folders


@pytest.mark.parametrize(
    ("page", "least"), [(ARCHITECTURE, 40), (DOCS / "contributing.md", 25)], ids=["architecture", "contributing"]
)
def test_pages_name_files_that_exist(page: Path, least: int) -> None:
    named = re.findall(r"`((?:protocol|sdk|server|benchmarks|tests|docs)/[\w./-]*)`", page.read_text())
    assert len(named) > least
    assert [path for path in named if not (ROOT / path).exists()] == []


def names_without_home(row: str) -> list[str]:
    """The functions and classes that a row of the table names, and none of its files defines."""
    quoted = re.findall(r"`([^`]+)`", row)
    files = [ROOT / text for text in quoted if "/" in text]
    modules = [path for file in files for path in ([file] if file.is_file() else file.glob("*.py"))]
    defined = "".join(path.read_text() for path in modules)
    names = [part for text in quoted if re.fullmatch(r"\w+(\.\w+)?", text) for part in text.split(".")]
    return [name for name in names if not re.search(rf"(?:def|class|self\.) *{name}\b", defined)]


def test_the_architecture_page_names_functions_that_exist() -> None:
    rows = [line for line in ARCHITECTURE.read_text().splitlines() if line.startswith("| ")]
    assert len(rows) > 10
    assert [name for row in rows for name in names_without_home(row)] == []
    assert names_without_home("`Recovery.steps` and `gone` in `server/triomq_server/store/recovery/recovery.py`") == [
        "gone"
    ]


def test_the_architecture_page_shows_every_package_and_suite() -> None:
    shown = {folder.rstrip("/") for folder in tree_of(blocks_of(ARCHITECTURE, "text")[0])}
    there = {
        name(path.parent)
        for path in CITATIONS.tracked(".py")
        if path.name == "__init__.py" and "tests" not in path.relative_to(ROOT).parts
    }
    suites = {
        "/".join(path.relative_to(ROOT).parts[:2])
        for path in CITATIONS.tracked(".py", ".json")
        if ROOT / "tests" in path.parents
    }
    assert {"docs", "tests"} | there | {folder for folder in suites if (ROOT / folder).is_dir()} == shown


def test_the_architecture_page_states_the_import_rules() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rules = {}
    for contract in contracts:
        if contract["type"] == "layers":
            (container,) = contract.get("containers", ["packages"])
            rules[container.rsplit(".", 1)[-1]] = " > ".join(contract["layers"])
    stated = dict(line.split(maxsplit=1) for line in blocks_of(ARCHITECTURE, "text")[1].splitlines())
    assert stated == {container: rules[container] for container in stated}
    assert stated.keys() >= {
        "packages",
        "triomq_protocol",
        "triomq",
        "triomq_server",
        "broker",
        "store",
        "triomq_benchmarks",
    }
