"""Reads the keys of a RocketMQ configuration file into settings classes, and writes them back as text.

A settings class is an attrs class whose attributes are named like the keys, in snake case and with the keys' own units.
Types, ranges and whether a key may change at run time are declared with the attributes, and all values are checked
against them: files by `apply`, attributes set by a program by `out_of_range`. An unusable value in a file leaves the
default in effect; `findings` decides whether a server may start with it.
"""

from __future__ import annotations

import enum
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import attrs
import msgspec

T = TypeVar("T")
_KEY = "triomq.key"
_LEAST = "triomq.least"
_MOST = "triomq.most"
_ONE_OF = "triomq.one_of"
_FIXED = "triomq.fixed"
_AT_START = "triomq.at_start"
_CHECK = "triomq.check"
_IN_FORCE = "triomq.in_force"
_SECRET = "triomq.secret"
HIDDEN = "******"
"""What is shown in place of a secret."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_INT64 = 1 << 63
_TEXT_MOST = 4096
"""Maximum number of characters of a text value."""

_MOST_LINES = 5
"""Maximum number of values named in one error."""

DAY_MS = 86_400_000
INT32_MOST = (1 << 31) - 1


class ConfigError(ValueError):
    """The settings contradict each other or cannot be used; the program must not start. The text gives the cure."""


class Unusable(msgspec.Struct, frozen=True):
    """A value that cannot be used.

    Attributes:
        key: the key in files.
        text: the value, shortened and on one line.
        reason: the reason, and the possible values.
    """

    key: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}={self.text}: {self.reason}"


def setting(
    default: T | None = None,
    *,
    key: str | None = None,
    factory: Callable[[], T] | None = None,
    least: float | None = None,
    most: float | None = None,
    one_of: tuple[str, ...] | None = None,
    fixed: bool = False,
    at_start: bool = False,
    check: Callable[[str], str | None] | None = None,
    in_force: Callable[[int], int] | None = None,
    secret: bool = False,
) -> T:
    """Declare an attribute whose key is not its name in camel case, or whose value has bounds.

    Whole numbers without explicit bounds must be between 0 and 2**63 - 1; text has no control characters and at most
    4096 characters.

    Args:
        default: the value without configuration; its type determines how text is read.
        key: the key in files, if it is not ``camel_case(attribute)``.
        factory: computes the default; the value is then text, or a number if ``least`` is given.
        least: smallest accepted number.
        most: largest accepted number.
        one_of: the accepted texts.
        fixed: whether it takes effect only at startup, and cannot be changed in a running server.
        at_start: whether a change in a running server is kept, and takes effect at the next start.
        check: returns the reason why a text cannot be used; None if it can.
        in_force: computes the number that is used in place of an accepted one; tools are shown the result.
        secret: whether the value must not be shown: not in errors, and not in the text form of its class.
    """
    metadata = {
        _KEY: key, _LEAST: least, _MOST: most, _ONE_OF: one_of, _FIXED: fixed, _AT_START: at_start, _CHECK: check,
        _IN_FORCE: in_force, _SECRET: secret,
    }  # fmt: skip
    if factory is not None:
        return attrs.field(factory=factory, metadata=metadata, repr=not secret)
    return cast("T", attrs.field(default=default, metadata=metadata, repr=not secret))


def interval(
    default: int,
    *,
    least: int = 10,
    most: int = DAY_MS,
    at_start: bool = False,
    in_force: Callable[[int], int] | None = None,
) -> int:
    """Declare a time in ms between two passes of a task, or until one gives up. Bounded, so that no value makes a task
    spin, or sleep forever."""
    return setting(default, least=least, most=most, at_start=at_start, in_force=in_force)


def unusable_if_empty(text: str) -> str | None:
    """The reason why a text that must not be empty cannot be used; None if it can."""
    return None if text else "it is empty; leave the key out for its default"


def clamped(least: int, most: int) -> Callable[[int], int]:
    """Replace numbers outside these bounds by the nearer bound."""
    return lambda number: min(max(number, least), most)


@functools.cache
def camel_case(attribute: str) -> str:
    """``slave_read_enable`` -> ``slaveReadEnable``."""
    first, *rest = attribute.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def keys_of(cls: type) -> Mapping[str, attrs.Attribute[Any]]:
    """The keys of a settings class in the order of declaration; attributes that hold no single value are omitted."""
    return _keys_of(cls)


@functools.cache
def _keys_of(cls: type) -> Mapping[str, attrs.Attribute[Any]]:
    # Separate from `keys_of`: for mypy a class whose instances have no hash has none itself.
    return {
        field.metadata.get(_KEY) or camel_case(field.name): field
        for field in attrs.fields(cls)
        if not field.metadata.get("triomq.skip")
    }


def secrets_of(cls: type) -> frozenset[str]:
    """The keys of a settings class whose values must not be shown."""
    return frozenset(key for key, field in keys_of(cls).items() if field.metadata.get(_SECRET))


def default_of(field: attrs.Attribute[Any]) -> object:
    """An attribute's value without configuration."""
    factory = getattr(field.default, "factory", None)
    return field.default if factory is None else factory()


# Renamed in 4.5.2; older files still have the first spelling. The other three are still misspelt today.
_OTHER_SPELLINGS = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
    "mapedFileSizeConsumeQueueExt": "mappedFileSizeConsumeQueueExt",
    "destroyMappedFileIntervalForcibly": "destroyMapedFileIntervalForcibly",
    "warmMappedFileEnable": "warmMapedFileEnable",
    "flushLeastPagesWhenWarmMappedFile": "flushLeastPagesWhenWarmMapedFile",
}


def respell(values: Mapping[str, str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Replace the other spelling of ``maped``/``mapped`` keys by the right one, which wins if both are given.

    Returns:
        The values, and a pair of key and line for each replaced key.
    """
    result = dict(values)
    lines: list[tuple[str, str]] = []
    for other, right in _OTHER_SPELLINGS.items():
        if other not in result:
            continue
        value = result.pop(other)
        if right in result:
            lines.append((other, f"{other}={shown(value)} is ignored because {right} is set too"))
        else:
            result[right] = value
            lines.append((other, f"{other} is read as {right}, its name in RocketMQ 4.9; please rename it"))
    return result, lines


def apply(
    target: object, values: Mapping[str, str], *, running: bool = False
) -> tuple[set[str], list[Unusable], list[Unusable]]:
    """Set all attributes of ``target`` whose keys are in ``values``.

    Args:
        target: an object of a settings class.
        values: text by key.
        running: whether ``target`` is in use, so that settings fixed at startup cannot change.

    Returns:
        The keys that ``target`` has; each unusable value, which changed nothing; and each value that was read in a way
        its author may not expect.
    """
    known: set[str] = set()
    unusable: list[Unusable] = []
    misread: list[Unusable] = []
    for key, field in keys_of(type(target)).items():
        if key not in values:
            continue
        known.add(key)
        text = values[key].strip()
        current = getattr(target, field.name)
        value, complaint = _read(field, current, text)
        if (
            complaint is None
            and running
            and field.metadata.get(_FIXED)
            and _in_force(field, value) != _in_force(field, current)
        ):
            complaint = "it takes effect at the start; write it into the file and restart"
        no_switch = isinstance(value, bool) and text.lower() not in ("true", "false")
        if no_switch and running:
            complaint = "must be true or false"
        if complaint is not None:
            unusable.append(Unusable(key, _shown_value(field, text), complaint))
        else:
            setattr(target, field.name, value)
            if no_switch:
                misread.append(Unusable(key, shown(text), "it means false; only the word true is true"))
    return known, unusable, misread


def kept_for_the_start(target: object, changed: object) -> list[tuple[str, str]]:
    """Each key whose change takes effect at the next start, and the line about it; both have the same class."""
    return [
        (key, f"{key}={shown(str(getattr(changed, field.name)))} takes effect at the next start")
        for key, field in keys_of(type(target)).items()
        if field.metadata.get(_AT_START) and getattr(target, field.name) != getattr(changed, field.name)
    ]


def out_of_range(target: object) -> list[Unusable]:
    """Attributes that a program has set to values that no file could have set."""
    found = []
    for key, field in keys_of(type(target)).items():
        value = getattr(target, field.name)
        if value is None or isinstance(value, bool | enum.Enum):
            continue
        complaint = _why_unusable(field, value)
        if complaint is not None and value != default_of(field):
            found.append(Unusable(key, _shown_value(field, str(value)), complaint))
    return found


def refuse_out_of_range(*targets: object) -> None:
    """Raise ConfigError if a program has set an attribute to a value that no file could have set."""
    found = [each for target in targets for each in out_of_range(target)]
    if found:
        raise ConfigError("; ".join(map(str, found)))


def refuse_change(unusable: list[Unusable]) -> None:
    """Raise ConfigError if a change of a running configuration has unusable values."""
    if unusable:
        raise ConfigError("no setting has been changed: " + "; ".join(map(str, unusable[:_MOST_LINES])))


def to_text(target: object) -> dict[str, str]:
    """All keys with the values in force, as a file would state them; unset ones are omitted, as nulls in RocketMQ."""
    result: dict[str, str] = {}
    for key, field in keys_of(type(target)).items():
        value = _in_force(field, getattr(target, field.name))
        if value is not None:
            result[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return result


def _in_force(field: attrs.Attribute[Any], value: Any) -> Any:
    """The value that is used in place of a given one."""
    in_force = field.metadata.get(_IN_FORCE)
    return value if in_force is None else in_force(value)


def _read(field: attrs.Attribute[Any], current: object, text: str) -> tuple[object, str | None]:
    """The value of ``text`` for this attribute, or the reason why it cannot be used."""
    default = field.default if not isinstance(field.default, attrs.Factory) else current  # type: ignore[arg-type]
    if isinstance(default, bool):
        return text.lower() == "true", None
    if isinstance(default, enum.Enum):
        names = [str(member.value) for member in type(default)]
        if text in names:
            return type(default)(text), None
        return None, f"must be one of {', '.join(names)}, written exactly so"
    if isinstance(default, float):
        try:
            number = float(text)
        except ValueError:
            return None, "not a number"
        return number, _why_unusable(field, number)
    if isinstance(default, int):
        if not _INTEGER.match(text):
            return None, "not a whole number"
        return int(text), _why_unusable(field, int(text))
    return text, _why_unusable(field, text)


def _why_unusable(field: attrs.Attribute[Any], value: object) -> str | None:
    """The reason why this value, of the right type, cannot be used; None if it can."""
    if isinstance(value, int | float):
        least, most = field.metadata.get(_LEAST), field.metadata.get(_MOST)
        if isinstance(value, float) and not math.isfinite(value):
            return "not a finite number"
        if value < (0 if least is None else least) or value > (_INT64 - 1 if most is None else most):
            too_large = value > 0 and most is None and value >= _INT64
            if most is not None or too_large:
                return f"must lie between {least or 0} and {_INT64 - 1 if most is None else most}"
            return f"must be at least {least or 0}"
        return None
    text = str(value)
    accepted = field.metadata.get(_ONE_OF)
    if accepted is not None and text not in accepted:
        return f"must be {' or '.join(accepted)}, written exactly so"
    if len(text) > _TEXT_MOST:
        return f"{len(text)} characters; at most {_TEXT_MOST} are possible"
    if not text.isprintable():
        return "it has characters that cannot be printed, such as a line break"
    check = field.metadata.get(_CHECK)
    return None if check is None else check(text)


def shown(text: str) -> str:
    """A value as shown in a log line: shortened, and on one line."""
    return "".join(c if c.isprintable() else "?" for c in text[:200]) + ("…" if len(text) > 200 else "")


def _shown_value(field: attrs.Attribute[Any], text: str) -> str:
    """The value of an attribute as shown in a log line."""
    return HIDDEN if field.metadata.get(_SECRET) else shown(text)
