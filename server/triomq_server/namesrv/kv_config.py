"""Key-value configuration of the name server: persistent namespaces of texts (docs/protocol/namesrv.md §5).

The best known namespace is ORDER_TOPIC_CONFIG. Every change rewrites the whole file; changes made during a write are
written together after it. The table is bounded, since any client may add to it.
"""

from __future__ import annotations

from collections.abc import Generator

import trio

from triomq_protocol.wire import fastjson
from triomq_protocol.wire.fastjson import java_map_order, java_map_order_in_slices
from triomq_server.disk.config_files import ConfigFile

MOST_PAIRS = 20_000
"""Values of all namespaces, and namespaces, which stay when they are empty."""
MOST_CHARACTERS = 4 << 20
"""Of namespaces, keys and values together; beyond that, nothing is added."""


class KvConfigFullError(Exception):
    """A value is not set, since the table holds as much as it may."""


class KvConfig:
    """The table and its file.

    Args:
        file: the table's file; a missing file is an empty table.

    Raises:
        ConfigFileDamaged: neither the file nor its backup can be parsed.
    """

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        self._table = _table_of(file.load())
        self._pairs = sum(map(len, self._table.values()))
        # A namespace counts once, and as long as it exists: it is never deleted.
        self._characters = sum(map(len, self._table)) + sum(
            len(key) + len(value) for pairs in self._table.values() for key, value in pairs.items()
        )
        self._changes = 0
        self._written = 0
        self._writing = trio.Lock()

    def get(self, namespace: str | None, key: str | None) -> str | None:
        """One value, or None."""
        return self._table.get(namespace or "", {}).get(key or "")

    def namespace(self, name: str | None) -> Generator[None, None, dict[str, str] | None]:
        """All pairs of a namespace in the order Java would list them; None if there never was one. In slices."""
        pairs = self._table.get(name or "")
        if pairs is None:
            return None
        keys = yield from java_map_order_in_slices(pairs)
        return {key: pairs[key] for key in keys if key in pairs}

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value; returns when it is on disk.

        Raises:
            OSError: it cannot be written; it is set all the same.
            KvConfigFullError: there are `MOST_PAIRS` or `MOST_CHARACTERS` already; nothing is set.
        """
        before = self._table.get(namespace, {}).get(key)
        pairs = self._pairs + (before is None)
        namespaces = len(self._table) + (namespace not in self._table)
        size = len(value) - len(before) if before is not None else len(key) + len(value)
        if namespace not in self._table:
            size += len(namespace)
        if pairs > MOST_PAIRS or namespaces > MOST_PAIRS or self._characters + max(size, 0) > MOST_CHARACTERS:
            raise KvConfigFullError(
                f"{self._pairs} values of {self._characters} characters are kept; {MOST_PAIRS} of {MOST_CHARACTERS} are "
                "possible"
            )
        self._pairs, self._characters = pairs, self._characters + size
        self._table.setdefault(namespace, {})[key] = value
        await self._persist()

    async def delete(self, namespace: str | None, key: str | None) -> None:
        """Remove one value if it exists; the namespace stays. Raises OSError when the file cannot be written."""
        value = self._table.get(namespace or "", {}).pop(key or "", None)
        if value is not None:
            self._pairs -= 1
            self._characters -= len(key or "") + len(value)
        await self._persist()

    async def _persist(self) -> None:
        self._changes += 1
        change = self._changes
        async with self._writing:
            if self._written >= change:
                return
            covered = self._changes
            table = {namespace: dict(pairs) for namespace, pairs in self._table.items()}
            try:
                await self._file.in_background(lambda: self._file.save(_content_of(table)))
            except OSError as error:
                self._file.log_failure(error)
                raise
            self._written = covered


def _content_of(table: dict[str, dict[str, str]]) -> bytes:
    """The content of the file that keeps a table."""
    ordered = {
        namespace: {key: table[namespace][key] for key in java_map_order(table[namespace])}
        for namespace in java_map_order(table)
    }
    return fastjson.dumps({"configTable": ordered})


def _table_of(document: object) -> dict[str, dict[str, str]]:
    """The tables of a file; whatever in it has another shape is left out."""
    tables = document.get("configTable") if isinstance(document, dict) else None
    if not isinstance(tables, dict):
        return {}
    return {
        str(namespace): {str(key): str(value) for key, value in pairs.items() if value is not None}
        for namespace, pairs in tables.items()
        if isinstance(pairs, dict)
    }
