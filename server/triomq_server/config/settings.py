"""Reads the keys of a RocketMQ configuration file into settings classes, and writes them back as text.

A settings class is an attrs class whose attributes are called like the keys, in snake case and with the keys' own
units. As in RocketMQ an unusable value leaves the default in force and never prevents a start; unlike there it gives a
warning.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import attrs

T = TypeVar("T")
_KEY = "triomq.key"
_LEAST = "triomq.least"
_MOST = "triomq.most"
_ONE_OF = "triomq.one_of"
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_INT64 = 1 << 63


class ConfigError(ValueError):
    """The settings contradict each other; the program must not start with them. The text says which and what to do."""


def setting(
    default: T | None = None,
    *,
    key: str | None = None,
    factory: Callable[[], T] | None = None,
    least: int | None = None,
    most: int | None = None,
    one_of: tuple[str, ...] | None = None,
) -> T:
    """An attribute whose key is not its name in camel case, or whose value has bounds.

    Args:
        default: the value without configuration; its type decides how text is read.
        key: the key in files, when ``camel_case(attribute)`` is not it.
        factory: computes the default; the value then is text, or a number with ``least``.
        least: smallest accepted number.
        most: largest accepted number.
        one_of: the accepted texts.
    """
    metadata = {_KEY: key, _LEAST: least, _MOST: most, _ONE_OF: one_of}
    if factory is not None:
        return attrs.field(factory=factory, metadata=metadata)
    return cast("T", attrs.field(default=default, metadata=metadata))


def camel_case(attribute: str) -> str:
    """``slave_read_enable`` -> ``slaveReadEnable``."""
    first, *rest = attribute.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def keys_of(cls: type) -> dict[str, attrs.Attribute[Any]]:
    """The keys of a settings class, in the order of declaration; attributes that hold no single value are left out."""
    return {
        field.metadata.get(_KEY) or camel_case(field.name): field
        for field in attrs.fields(cls)
        if not field.metadata.get("triomq.skip")
    }


def default_of(field: attrs.Attribute[Any]) -> object:
    """The value of an attribute that no configuration changes."""
    factory = getattr(field.default, "factory", None)
    return field.default if factory is None else factory()


# Renamed in 4.5.2; older files still carry the first spelling. The other three kept the misspelling to this day.
_OTHER_SPELLINGS = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
    "mapedFileSizeConsumeQueueExt": "mappedFileSizeConsumeQueueExt",
    "destroyMappedFileIntervalForcibly": "destroyMapedFileIntervalForcibly",
    "warmMappedFileEnable": "warmMapedFileEnable",
    "flushLeastPagesWhenWarmMappedFile": "flushLeastPagesWhenWarmMapedFile",
}


def respell(values: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Replace the other spelling of the ``maped``/``mapped`` keys by the right one, which wins when both are there."""
    result = dict(values)
    warnings: list[str] = []
    for other, right in _OTHER_SPELLINGS.items():
        if other not in result:
            continue
        value = result.pop(other)
        if right in result:
            warnings.append(f"{other}={value} is ignored because {right} is set too")
        else:
            result[right] = value
            warnings.append(f"{other} is read as {right}, its name in RocketMQ 4.9; please rename it")
    return result, warnings


def apply(target: object, values: Mapping[str, str]) -> tuple[set[str], list[str]]:
    """Set every attribute of ``target`` whose key is in ``values``.

    Returns:
        The keys that ``target`` knows, and a warning for each value that was not usable and therefore changed nothing.
    """
    known: set[str] = set()
    warnings: list[str] = []
    for key, field in keys_of(type(target)).items():
        if key not in values:
            continue
        known.add(key)
        text = values[key].strip()
        value, complaint = _read(field, getattr(target, field.name), text)
        if complaint is not None:
            warnings.append(f"{key}={text} is ignored: {complaint}")
        else:
            setattr(target, field.name, value)
            if isinstance(value, bool) and text.lower() not in ("true", "false"):
                warnings.append(f"{key}={text} means false: only the word true is true")
    return known, warnings


def unknown_key_warnings(keys: Iterable[str]) -> list[str]:
    """One line for each key that no settings class knows."""
    return [f"unknown key {key} is ignored" for key in keys]


def to_text(target: object) -> dict[str, str]:
    """All keys with a value, as a file would state them; what is unset is left out, as RocketMQ leaves out nulls."""
    result: dict[str, str] = {}
    for key, field in keys_of(type(target)).items():
        value = getattr(target, field.name)
        if value is not None:
            result[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return result


def _read(field: attrs.Attribute[Any], current: object, text: str) -> tuple[object, str | None]:
    """The value that ``text`` means for this attribute, or why it means none."""
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
            return float(text), None
        except ValueError:
            return None, "not a number"
    if isinstance(default, int):
        return _read_integer(field, text)
    accepted = field.metadata.get(_ONE_OF)
    if accepted is not None and text not in accepted:
        return None, f"must be {' or '.join(accepted)}, written exactly so"
    return text, None


def _read_integer(field: attrs.Attribute[Any], text: str) -> tuple[object, str | None]:
    if not _INTEGER.match(text) or not -_INT64 <= int(text) < _INT64:
        return None, "not a whole number"
    value = int(text)
    least, most = field.metadata.get(_LEAST), field.metadata.get(_MOST)
    if (least is not None and value < least) or (most is not None and value > most):
        return None, f"must lie between {least} and {most}" if most is not None else f"must be at least {least}"
    return value, None
