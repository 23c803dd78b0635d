"""Classes without a public constructor: users get their objects from a client.

Such a class has the metaclass :class:`NoPublicConstructor`; the client's own code makes objects by :func:`construct`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def _refuse_copies(made: object, _protocol: object) -> NoReturn:
    kind = type(made)
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} can be neither pickled nor copied: its client belongs to this process; open "
        "a client in the other process, by the address of the name servers"
    )


class NoPublicConstructor(type):
    """The metaclass of what a client makes: calling the class is an error, and ``help()`` shows no arguments of it.

    An object cannot be pickled either, as for an argument of another process.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls.__signature__: Signature = Signature()
        cls.__reduce_ex__ = _refuse_copies  # type: ignore[method-assign,assignment]
        if "__init__" in namespace:
            namespace["__init__"].__doc__ = None  # it is for readers of the source
            namespace["__init__"].__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_ONLY)])

    if not TYPE_CHECKING:  # checkers are to see the constructor that `construct` calls

        def __call__(cls, *_args: object, **_options: object) -> NoReturn:
            raise TypeError(f"{cls.__module__}.{cls.__qualname__} has no public constructor; a client makes it")


def construct(cls: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Make an object of a class that has no public constructor."""
    made: T = type.__call__(cls, *args, **kwargs)  # type: ignore[arg-type]  # a class, of which only the call is typed
    return made
