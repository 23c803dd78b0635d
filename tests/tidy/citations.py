"""Finds references to pages and numbered sections that lead nowhere."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

CODE = (".py", ".java", ".go", ".toml", ".ini")
PAGES = (".md",)

NUMBER = r"\d+(?:\.\d+)*"
SECTION = rf"§{NUMBER}(?:[-–]§?{NUMBER})?"
"""`§7`, `§7.2`, `§7-§9`, `§7-9`."""

CITATION = re.compile(rf"(?P<page>[\w./-]+\.md)\b(?P<sections>,? {SECTION}(?:(?:, and |, | and | or ){SECTION})*)?")
"""`docs/protocol/store.md`, alone or with sections: `docs/protocol/store.md §4, §5 and §7-§9`."""


def without_fences(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def headings(page: Path) -> list[str]:
    """The headings of a page, in order."""
    return re.findall(r"^#{1,6} +(.+?) *$", without_fences(page.read_text()), flags=re.MULTILINE)


@cache
def section_numbers(page: Path) -> frozenset[str]:
    """The numbers of a page's numbered headings."""
    numbered = (re.match(rf"{NUMBER}(?=\.? )", heading) for heading in headings(page))
    return frozenset(match.group() for match in numbered if match)


def _flowing(text: str) -> str:
    """The text with its lines joined, so that a citation may be wrapped, in a comment too."""
    return re.sub(r"[ \t]*\n[ \t]*(?:#:? |\| )?", " ", text)


class Citations:
    """What the files of one checkout cite.

    Raises:
        NotADirectoryError: `root` is not a git checkout.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=False)
        if listed.returncode != 0:
            raise NotADirectoryError(f"{root} is not a git checkout: {listed.stderr.strip()}")
        self._names = listed.stdout.splitlines()

    def tracked(self, *suffixes: str) -> list[Path]:
        """The files of the checkout whose names end so."""
        paths = [self.root / name for name in self._names]
        return [path for path in paths if path.suffix in suffixes and path.is_file()]

    def code(self) -> list[Path]:
        """The files of code, without the two that cite as an example."""
        return [path for path in self.tracked(*CODE) if path.name not in ("citations.py", "test_citations.py")]

    def unopened(self, citing: Path, text: str) -> Iterator[str]:
        """Each reference in a text that leads nowhere."""
        if ".md" not in text and "§" not in text:
            return  # most files cite nothing
        flat = _flowing(text)
        is_page = citing.suffix in PAGES
        for match in CITATION.finditer(flat):
            cited, sections = match["page"], match["sections"] or ""
            if "://" in flat[max(0, match.start() - 8) : match.start() + 8]:
                continue
            page = self._page(cited, citing)
            if page is None and "/" not in cited and not sections and not is_page:
                # Code may name a page by its last part alone, as in `DOCS / "how-to" / "send.md"`.
                page = self._pages_by_name.get(cited)
            if page is None:
                yield f"{cited}: no such page"
                continue
            for number in re.findall(NUMBER, sections):
                if number not in section_numbers(page):
                    yield f"{cited} §{number}: no such section"
        alone = CITATION.sub("", flat)
        for number in re.findall(rf"§ ?({NUMBER})", alone):
            if not is_page:
                yield f"§{number}: of which page?"
            elif number not in section_numbers(citing):
                yield f"§{number}: no such section on this page"
        for words in re.findall(rf"\.md,? sections? {NUMBER}", flat):
            yield f"{words}: cite a section with §, so that it can be checked"

    def _page(self, cited: str, citing: Path) -> Path | None:
        """The file that a citation means: named from the root, or, in a page, from the page's own folder."""
        folders = [citing.parent, self.root] if citing.suffix in PAGES else [self.root]
        return next((folder / cited for folder in folders if (folder / cited).is_file()), None)

    @cached_property
    def _pages_by_name(self) -> dict[str, Path]:
        return {path.name: path for path in self.tracked(*PAGES)}

    def all_unopened(self) -> list[str]:
        """Each reference of the checkout that leads nowhere, with the file that makes it."""
        found = []
        for path in [*self.code(), *self.tracked(*PAGES)]:
            text = path.read_text()
            if path.suffix in PAGES:
                text = without_fences(text)
            found += [f"{path.relative_to(self.root)}: {each}" for each in self.unopened(path, text)]
        return found
