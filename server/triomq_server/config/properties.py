"""Java's properties text, the form of RocketMQ's .conf and .properties files.

``java.util.Properties`` is the model (docs/protocol/broker-config.md §1): ``=``, ``:`` or blank separates, ``#`` and
``!`` begin a comment, a backslash at a line's end continues it. Two rules are more lenient than Java's: values are
trimmed, because a blank at the end of ``slaveReadEnable=true`` should not mean false, and the text is read as UTF-8 if
possible, with Latin-1, Java's encoding, as the fallback.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

MOST_SETTINGS_BYTES = 65_536
"""Maximum size of a request that changes settings; all keys together have about 8,000 bytes."""

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SEPARATORS = " \t\f"


class PropertiesError(ValueError):
    """The text is not in properties format: a ``\\u`` is not followed by four hex digits."""


def load_properties(text: str | bytes) -> dict[str, str]:
    """Read properties text into a dict; the last value of a repeated key counts, and values are trimmed.

    Args:
        text: the file's content. Bytes are read as UTF-8, or as Latin-1 if they are not valid UTF-8.

    Raises:
        PropertiesError: a ``\\uXXXX`` is malformed, the only error in Java too.
    """
    result: dict[str, str] = {}
    for line in _logical_lines(text if isinstance(text, str) else _decode(text)):
        key, value = _split(line)
        result[_unescape(key)] = _unescape(value).strip()
    return result


def dump_properties(values: Mapping[str, str]) -> str:
    """Write one ``key=value`` line per value, escaped so that ``load_properties`` and Java read the same values."""
    return "".join(f"{_escape(key, in_key=True)}={_escape(value, in_key=False)}\n" for key, value in values.items())


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank lines; continuation lines are joined without their indent."""
    held = ""
    continued = False
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = raw.lstrip(_SEPARATORS)
        if not continued and (not line or line[0] in "#!"):
            continue
        # With an odd number of backslashes at the end, the last one escapes the line's end.
        if (len(line) - len(line.rstrip("\\"))) % 2:
            held += line[:-1]
            continued = True
            continue
        yield held + line
        held, continued = "", False
    if held:
        yield held


def _split(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line):
        character = line[position]
        if character == "\\":
            position += 2
            continue
        if character in "=:" or character in _SEPARATORS:
            break
        position += 1
    rest = line[position:].lstrip(_SEPARATORS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_SEPARATORS)
    return line[:position], rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            out.append(character)
            continue
        character = text[position]
        position += 1
        if character == "u":
            digits = text[position : position + 4]
            try:
                out.append(chr(int(digits, 16)) if len(digits) == 4 else "")
            except ValueError:
                digits = ""
            if len(digits) != 4:
                raise PropertiesError("malformed \\uXXXX escape in properties text")
            position += 4
        else:
            out.append(_ESCAPES.get(character, character))
    # Java writes a character beyond the basic plane as two escapes.
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escape(text: str, *, in_key: bool) -> str:
    out: list[str] = []
    for position, character in enumerate(text):
        if character in "\\#!=:" and (in_key or character == "\\" or position == 0):
            out.append("\\" + character)
        elif character == " " and (in_key or position == 0):
            out.append("\\ ")
        elif character in "\t\n\r\f":
            out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[character])
        elif character > "~":
            out.extend(f"\\u{unit:04X}" for unit in _utf16_units(character))
        else:
            out.append(character)
    return "".join(out)


def _utf16_units(character: str) -> list[int]:
    data = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
