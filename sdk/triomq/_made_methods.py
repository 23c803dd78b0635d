"""Methods that are made from those of another class, with a type by which every type checker calls them.

An attribute of a class whose type is ``Callable`` is a method for some type checkers; others take it for a plain function,
which would get no ``self``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class MadeMethod(Protocol[P, R_co]):
    """What a type checker sees of such a method; it is a function."""

    @overload
    def __get__(self, instance: None, owner: Any = None, /) -> Callable[Concatenate[Any, P], R_co]: ...

    @overload
    def __get__(self, instance: object, owner: Any = None, /) -> Callable[P, R_co]: ...


def made_from(
    method: Callable[..., Any],
) -> Callable[[Callable[Concatenate[Any, P], R_co]], MadeMethod[P, R_co]]:
    """``functools.wraps``, with this type."""

    def made(function: Callable[Concatenate[Any, P], R_co]) -> MadeMethod[P, R_co]:
        return cast("MadeMethod[P, R_co]", functools.wraps(method)(function))

    return made
