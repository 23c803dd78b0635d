"""Checks the types of callers' arguments: text, lists of texts, mappings, functions, objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from triomq._arguments.async_functions import is_async
from triomq._error_text import shown
from triomq.errors import InvalidCall

SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half a character, such as of an argument that is not UTF-8; encoded for a server it becomes a `?`, as in Java."""


def check_text(name: str, value: object) -> None:
    """Raise :class:`InvalidCall` unless an argument is text that UTF-8 can hold."""
    if not isinstance(value, str):
        raise InvalidCall(f"{name} is {type(value).__name__}, not text")
    if not value.isascii() and (found := SURROGATE.search(value)):
        # Without the text, which may be a secret.
        raise InvalidCall(
            f"{name} has the lone surrogate {shown(found[0])}, half a character, which UTF-8 cannot hold; give text that "
            "text.encode() takes"
        )


def check_texts(name: str, value: object) -> None:
    """Raise :class:`InvalidCall` unless an argument is a list of texts; one text would count as its characters."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidCall(f"{name} is {type(value).__name__}, not a list of texts")
    for each in value:
        check_text(f"one of {name}", each)


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise :class:`InvalidCall` unless an argument is an object of a class of this package."""
    if not isinstance(value, kind):
        raise InvalidCall(f"{name} is {type(value).__name__}, not triomq.{kind.__name__}")


def check_mapping(name: str, value: object) -> None:
    """Raise :class:`InvalidCall` unless an argument is a mapping."""
    if not isinstance(value, Mapping):
        raise InvalidCall(f"{name} is {type(value).__name__}, not a mapping")


def check_methods(name: str, value: object, *methods: str, asynchronous: bool = False) -> None:
    """Raise :class:`InvalidCall` unless an argument is an object with these methods, which a class is not.

    Args:
        name: the argument's name.
        value: its value.
        methods: the methods that it must have.
        asynchronous: whether they are async, for the error's text.
    """
    if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in methods):
        kind = f"{'async ' if asynchronous else ''}method{'s' if len(methods) > 1 else ''}"
        raise InvalidCall(f"{name} is no object with the {kind} {' and '.join(methods)}: {shown(value)}")


def check_callback(name: str, callback: object, *, plain: bool = False) -> None:
    """Raise InvalidCall for an object that cannot be called, and for an async function that would not be awaited."""
    if callback is None:
        return
    if not callable(callback):
        raise InvalidCall(f"{name} is {type(callback).__name__}; give a function")
    if plain and is_async(callback):
        raise InvalidCall(f"{name} is an async function, which nobody would await; give a plain one")
