"""Java string hashes, tag codes and tag subscriptions (messages.md section 6)."""

import attrs


def java_hash(text: str) -> int:
    """`String.hashCode`: signed 32 bits over UTF-16 units."""
    raise LookupError


def java_hash_with_prefix(prefix: str, text: str) -> int:
    """`java_hash(prefix + text)`; the prefix's share is remembered (index keys are `topic#key`)."""
    raise LookupError


def tags_code(tags: str | None) -> int:
    """The 64-bit tag field of a consume queue entry: the hash of the whole TAGS value, 0 if there is none."""
    raise LookupError


def index_key_hash(key: str) -> int:
    """Hash of an index key: absolute value of java_hash, 0 where Java's abs overflows (store.md)."""
    raise LookupError


@attrs.frozen(slots=True)
class TagFilter:
    """A parsed tag subscription.

    Attributes:
        expression: as it was given, `*` if it was empty.
        tags: the wanted tags; empty means all.
        codes: their hashes.
    """

    expression: str
    tags: tuple[str, ...]
    codes: frozenset[int]

    def matches_code(self, code: int) -> bool:
        """The broker's test: an entry's tags code (low 32 bits signed) is wanted."""
        raise LookupError

    def matches_tag(self, tag: str | None) -> bool:
        """The consumer's exact test."""
        raise LookupError


def parse_subscription(expression: str | None) -> TagFilter:
    """Parse `A || B`. None, empty and `*` mean all. Raises LocalProtocolError for an expression without any tag."""
    raise LookupError
