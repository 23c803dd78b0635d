"""Key-value configuration of the name server: namespaces of texts that outlive it (docs/protocol/namesrv.md §5).

The best known namespace is ORDER_TOPIC_CONFIG. Every change rewrites the whole file; changes that come while it is
being written are written together after it.
"""

from __future__ import annotations

import trio

from triomq_protocol.wire import fastjson
from triomq_protocol.wire.fastjson import java_map_order
from triomq_server.store.files.config_files import ConfigFile

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of topic -> ``broker:queues;broker:queues``, which brokers receive when they register."""


class KvConfig:
    """The table and its file.

    Args:
        file: where it is kept; a missing file is an empty table.

    Raises:
        ConfigFileDamaged: neither the file nor its backup can be parsed.
    """

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        self._table = _table_of(file.load())
        self._changes = 0
        self._written = 0
        self._writing = trio.Lock()

    def get(self, namespace: str | None, key: str | None) -> str | None:
        """One value, or None."""
        return self._table.get(namespace or "", {}).get(key or "")

    def namespace(self, name: str | None) -> dict[str, str] | None:
        """All pairs of a namespace in the order Java would list them; None if there never was one."""
        pairs = self._table.get(name or "")
        return None if pairs is None else {key: pairs[key] for key in java_map_order(pairs)}

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value; returns when it is on disk. Raises OSError when it cannot be written; it is set all the
        same."""
        self._table.setdefault(namespace, {})[key] = value
        await self._persist()

    async def delete(self, namespace: str | None, key: str | None) -> None:
        """Remove one value if it is there; the namespace stays. Raises OSError when the file cannot be written."""
        self._table.get(namespace or "", {}).pop(key or "", None)
        await self._persist()

    def encode(self) -> bytes:
        """The file's content."""
        table = {
            namespace: {key: pairs[key] for key in java_map_order(pairs)}
            for namespace, pairs in ((name, self._table[name]) for name in java_map_order(self._table))
        }
        return fastjson.dumps({"configTable": table})

    async def _persist(self) -> None:
        self._changes += 1
        change = self._changes
        async with self._writing:
            if self._written >= change:
                return
            covered = self._changes
            await self._file.save_in_background(self.encode())
            self._written = covered


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
