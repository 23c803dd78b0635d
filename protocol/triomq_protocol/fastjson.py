"""The JSON dialect of the Java side (FastJSON 1.2.69; remoting.md section 13)."""

from collections.abc import Iterable


class ObjectKey(tuple[tuple[str, object], ...]):
    """A JSON object that stood as a map key: its members as (name, value) pairs sorted by name; hashable."""

    __slots__ = ()


def loads(data: bytes | str) -> object:
    """Parse a document: standard JSON, and all that section 13.2 lists.

    Object keys come back as `str` (quoted or identifier), `int` (unquoted number) or `ObjectKey` (an object).
    Raises BodyError.
    """
    raise LookupError


def dumps(value: object) -> bytes:
    """Write compactly: dict order is kept, int keys and ObjectKey keys stand raw, None members are the caller's."""
    raise LookupError


def dumps_pretty(value: object) -> bytes:
    """Write in the tab form of configuration files (store.md section 21)."""
    raise LookupError


def quote(text: str) -> str:
    """A JSON string as Java writes it, quotes included."""
    raise LookupError


def java_map_order(keys: Iterable[str]) -> list[str]:
    """Keys, given in insertion order, in the iteration order of a Java HashMap (section 13.4)."""
    raise LookupError
