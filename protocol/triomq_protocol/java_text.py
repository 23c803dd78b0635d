"""Java's text rules: hash codes over UTF-16 units, UTF-8 of lone surrogates (docs/protocol/messages.md §6), integers."""

import re
from functools import lru_cache
from operator import mul

# h = sum(unit[i] * 31**(n-1-i)). The powers are kept as floats modulo 2**32: a product of one with a UTF-16 unit is
# below 2**48, so sums of up to 31 units stay exact below 2**53 (8191 units for Latin-1), and CPython multiplies and
# sums floats much faster than integers of two digits.
_BLOCK_LATIN = 4096
_BLOCK_WIDE = 31


def _power_table() -> list[float]:
    powers, power = [], 1
    for _ in range(_BLOCK_LATIN):
        powers.append(float(power))
        power = power * 31 & 0xFFFFFFFF
    return powers


_POWERS = _power_table()


def _descending(count: int) -> tuple[float, ...]:
    """The powers for a text of `count` units, highest first."""
    return tuple(reversed(_POWERS[:count]))


_SHORT_LIMIT = 256
_INT_POWERS = [int(power) for power in _POWERS[:_SHORT_LIMIT]]
_SHORT = [_descending(count) for count in range(_SHORT_LIMIT)]


def _unsigned_hash(text: str) -> int:
    try:
        data = text.encode("latin-1")
    except UnicodeEncodeError:
        return _wide_hash(text)
    if len(data) < _SHORT_LIMIT:
        return int(sum(map(mul, data, _SHORT[len(data)]), 0.0)) & 0xFFFFFFFF
    return _blocks(data, _BLOCK_LATIN)


def _wide_hash(text: str) -> int:
    return _blocks(memoryview(text.encode("utf-16", "surrogatepass")).cast("H")[1:], _BLOCK_WIDE)  # [0] is the BOM


def _blocks(units: bytes | memoryview, block: int) -> int:
    result = 0
    for start in range(0, len(units), block):
        part = units[start : start + block]
        count = len(part)
        total = int(sum(map(mul, part, _descending(count)), 0.0))
        result = (result * pow(31, count, 1 << 32) + total) & 0xFFFFFFFF
    return result


def java_hash(text: str) -> int:
    """`String.hashCode`: signed 32 bits over UTF-16 units."""
    unsigned = _unsigned_hash(text)
    return unsigned - 0x100000000 if unsigned > 0x7FFFFFFF else unsigned


@lru_cache(4096)
def _prefix_hash(prefix: str) -> int:
    return _unsigned_hash(prefix)


# The front of a unique id (32 or 56 characters), all but time and counter, is constant for its producer.
_UNIQUE_ID_LENGTHS = (32, 56)
_UNIQUE_ID_TAIL = 12


def java_hash_with_prefix(prefix: str, text: str) -> int:
    """`java_hash(prefix + text)`; the hash of the prefix is cached (index keys are `topic#key`)."""
    if len(text) in _UNIQUE_ID_LENGTHS:
        prefix += text[:-_UNIQUE_ID_TAIL]
        text = text[-_UNIQUE_ID_TAIL:]
    count = len(text)
    if count >= _SHORT_LIMIT or not text.isascii():
        return java_hash(prefix + text)
    own = int(sum(map(mul, text.encode(), _SHORT[count]), 0.0))
    unsigned = _prefix_hash(prefix) * _INT_POWERS[count] + own & 0xFFFFFFFF
    return unsigned - 0x100000000 if unsigned > 0x7FFFFFFF else unsigned


def index_key_hash(key: str) -> int:
    """Hash of an index key: absolute value of java_hash, 0 where Java's abs overflows (docs/protocol/store.md, index
    file)."""
    code = abs(java_hash(key))
    return 0 if code > 0x7FFFFFFF else code


def map_hash(key: str) -> int:
    """`HashMap.hash`, whose lowest bits choose the bucket of a key."""
    code = _unsigned_hash(key)
    return code ^ code >> 16


def map_capacity(count: int) -> int:
    """Buckets of a HashMap that has grown to this many keys."""
    capacity = 16
    while count > capacity * 3 // 4:
        capacity *= 2
    return capacity


def java_long_hash(value: int) -> int:
    """`Long.hashCode`: the two halves of the 64-bit value xor-ed, as signed int32."""
    value &= 0xFFFFFFFFFFFFFFFF
    folded = (value ^ value >> 32) & 0xFFFFFFFF
    return folded - 0x100000000 if folded > 0x7FFFFFFF else folded


def select_by_hash(hash_code: int, count: int) -> int:
    """Queue index for a selector's hash code: Java's remainder, made positive (upstream `SelectMessageQueueByHash`)."""
    return abs(hash_code) % count


_LONE = re.compile("[\ud800-\udfff]")


def join_pairs(text: str) -> str:
    """Join the two surrogates of a pair into one character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def join_surrogates(text: str) -> str:
    """Text as Java's UTF-8 encoder reads it: pairs joined, a lone surrogate read as `?`."""
    return _LONE.sub("?", join_pairs(text))


def utf8(text: str) -> bytes:
    """Text as UTF-8 the way Java writes it: a lone surrogate becomes `?`."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return join_surrogates(text).encode()


_DIGITS_MOST = 40
_INTEGER = re.compile(f"[+-]?[0-9]{{1,{_DIGITS_MOST}}}")
_LEADING_ZEROS = re.compile("(?<![0-9])0+(?=[0-9])")


def parse_integer(text: str, bits: int) -> int:
    """The number that `Integer.parseInt` and `Long.parseLong` read; `int` takes blanks and `1_0`, too. Raises ValueError."""
    if len(text) > _DIGITS_MOST:  # `int` refuses thousands of digits, of which Java reads zeros in front
        text = _LEADING_ZEROS.sub("", text)
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"not an integer of {bits} bits: {text[:100]!r}")
    return value


def natural_number(text: str, bits: int) -> int | None:
    """The number that `parse_integer` reads; None if there is none, or if it is negative."""
    try:
        value = parse_integer(text, bits)
    except ValueError:
        return None
    return value if value >= 0 else None
