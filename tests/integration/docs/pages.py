"""The Python blocks of the documentation's pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def blocks(page: str) -> list[str]:
    """Each Python block of a page, in its order."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def write_files(page: str, folder: Path, name_servers: str) -> list[str]:
    """Write the files whose names stand in the first lines of a page's blocks, as every block's must; return the names."""
    names = []
    for block in blocks(page):
        name = re.match(r"# ([\w/]+\.py)\n", block)
        assert name, f"{page}: a block begins without its file's name: {block[:40]!r}"
        path = folder / name[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.replace("127.0.0.1:9876", name_servers))
        names.append(name[1])
    return names
