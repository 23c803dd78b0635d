"""What users may touch: the exported names, the types that their signatures use, and an import that changes nothing."""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
import subprocess
import sys
import textwrap
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import triomq
import triomq.aio
import triomq.blocking
import triomq.errors
import triomq_testing
from triomq._constructors import NoPublicConstructor

ROOT = Path(__file__).parents[2]
OURS = ("triomq", "triomq_protocol")
MODULES = [triomq, triomq.admin, triomq.plugins, triomq.statistics]
MADE_PER_MESSAGE = [triomq.Delivery, triomq.PullResult, triomq.ReceivedMessage]
"""Made so often that a constructor which is checked would cost: theirs stays plain."""

PLUMBING = {"triomq.ReceivedMessage.record"}
"""Called by the client itself."""


def public_names(module: ModuleType) -> list[str]:
    return [name for name in module.__all__ if not name.startswith("_")]


def test_public_names_are_those_of_the_list():
    names = [
        f"{module.__name__}.{name}" for module in [*MODULES, triomq_testing] for name in sorted(public_names(module))
    ]
    listed = (ROOT / "tests" / "public_names.txt").read_text().split()
    assert names == listed, "a change of the public surface belongs into tests/public_names.txt, for review"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_is_what_the_module_has(module):
    # A name that is imported and not listed would be public by accident. Pytest adds names with @ where it rewrites
    # asserts: in all modules of an installed package that has a plugin.
    assert sorted(public_names(module)) == sorted(name for name in vars(module) if name[0] not in "_@")


def test_no_name_is_exported_by_two_modules():
    names = [name for module in MODULES for name in public_names(module)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("Admin", "triomq.admin"),
        ("RouteNotFound", "triomq.errors"),
        ("Compressor", "triomq.plugins"),
        ("ClientStatistics", "triomq.statistics"),
    ],
)
def test_a_name_of_another_module_is_found_by_the_error(name, home):
    with pytest.raises(ImportError, match=rf"no attribute '{name}'; it is {home}\.{name}$"):
        exec(f"from triomq import {name}")
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; it is {home}\.{name}$"):
        getattr(triomq, name)
    assert not hasattr(triomq, name)


@pytest.mark.parametrize("name", ["Nothing", "Sequence", "__wrapped__"])
def test_other_names_are_simply_missing(name):
    with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
        exec(f"from triomq import {name}")
    with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
        getattr(triomq, name)


def test_the_version_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert triomq.__version__ == project["version"]


_STATE = """
import json, logging, signal, sys, threading, warnings

def state():
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in logging.root.manager.loggerDict)]
    return {
        "excepthook": str(sys.excepthook),
        "thread excepthook": str(threading.excepthook),
        "unraisablehook": str(sys.unraisablehook),
        "signals": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        "threads": len(threading.enumerate()),
        "warnings": [str(each) for each in warnings.filters],
        "showwarning": str(warnings.showwarning),
        "levels": {each.name: each.level for each in loggers if each.level},
        "handlers": {each.name: [str(handler) for handler in each.handlers] for each in loggers if each.handlers},
        "recursion": sys.getrecursionlimit(),
        "switches": sys.getswitchinterval(),
        "search path": sys.path,
    }

import trio, msgspec, attrs, cachetools, tenacity  # what other projects do when they are imported is not ours
before = state()
import triomq, triomq.blocking, triomq.plugins
print(json.dumps([before, state()]))
"""


# As the command was started, too: its name is no reason for the package to behave otherwise.
@pytest.mark.parametrize("program", ["other.py", "triomq"])
def test_importing_changes_nothing(tmp_path, program):
    script = tmp_path / program
    script.write_text(_STATE)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=True, text=True)
    before, after = json.loads(done.stdout)
    assert after == before
    assert done.stderr == ""


def test_importing_leaves_tenacity_to_producers():
    program = "import sys, triomq; print({'tenacity', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"


def test_what_a_client_makes_has_no_constructor_for_users():
    made = [
        triomq.Client, triomq.admin.Admin, triomq.admin.GroupAdmin, triomq.Producer,
        triomq.PullConsumer, triomq.PushConsumer, triomq.LitePullConsumer,
    ]  # fmt: skip
    made += [getattr(triomq.blocking, each.__name__) for each in made]
    for cls in made:
        with pytest.raises(TypeError, match=f"{cls.__qualname__} has no public constructor"):
            cls()
        assert str(inspect.signature(cls)) == "()"
        assert str(inspect.signature(cls.__init__)) == "(self, /)"


def test_what_a_client_makes_describes_no_constructor():
    # Of these classes the docstring's arguments are attributes, or it has none.
    made = [value for module in MODULES for value in vars(module).values() if isinstance(value, NoPublicConstructor)]
    assert {cls.__init__.__doc__ for cls in made} <= {None, object.__init__.__doc__}
    described = {
        (cls.__name__, name)
        for cls in made
        if "Args:" in (cls.__doc__ or "")
        for name in re.findall(r"^        (\w+): ", cls.__doc__.split("Args:")[1], re.MULTILINE)
        if name not in cls.__annotations__ and not hasattr(cls, name)
    }
    assert described == set()


def test_every_type_in_a_public_signature_is_exported():
    exported = {id(value) for module in [*MODULES, triomq.errors, triomq.blocking] for value in vars(module).values()}
    missing = {
        place: f"{leaf.__module__}.{leaf.__qualname__}"
        for place, leaf in _types_used()
        if leaf.__module__.split(".")[0] in OURS and id(leaf) not in exported
    }
    # Both ways: an entry of PLUMBING that nothing needs any more would hide the next one of that name.
    assert missing.keys() == PLUMBING, missing


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_reference_has_what_automodule_leaves_out(module):
    # Aliases of types and objects; classes and functions it finds by itself.
    found = {name for name in public_names(module) if not isinstance(vars(module).get(name), type | ModuleType)}
    found = {name for name in found if not inspect.isroutine(getattr(module, name))} - {"aio"}
    page = (ROOT / "docs" / "reference" / "sdk.md").read_text()
    assert {name for name in found if f".. py:data:: {module.__name__}.{name}\n" not in page} == set()


def test_the_walk_sees_signatures():
    # A walk that finds nothing proves nothing.
    used = {leaf for _, leaf in _types_used()}
    assert {triomq.PullResult, triomq.MessageQueue, triomq.admin.ClusterInfo, triomq.plugins.Compressor} <= used


# --- the walk --------------------------------------------------------------------------------------------------------


def test_public_attributes_state_their_types():
    """Type checkers may infer different types for the others: `pyright --verifytypes triomq` counts them."""
    classes = {
        cls
        for module in [*MODULES, triomq.aio, triomq.blocking, triomq.errors]
        for cls in vars(module).values()
        if isinstance(cls, type) and not issubclass(cls, enum.Enum) and cls.__module__.split(".")[0] in OURS
    }
    assert len(classes) > 100
    assert [f"{cls.__module__}.{cls.__qualname__}.{name}" for cls in classes for name in _without_type(cls)] == []


def _without_type(cls: type) -> set[str]:
    """Public attributes that a class or its bases assign without a type anywhere."""
    assigned: set[str] = set()
    stated = {name for name in dir(cls) if isinstance(inspect.getattr_static(cls, name), property)}
    for base in cls.__mro__:
        if base.__module__.split(".")[0] not in OURS:
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        assigned |= {ast.unparse(name) for each in node.body if isinstance(each, ast.Assign) for name in each.targets}
        for each in ast.walk(node):
            if isinstance(each, ast.AnnAssign):
                stated.add(ast.unparse(each.target).removeprefix("self."))
            elif (
                isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and ast.unparse(each.value) == "self"
            ):
                assigned.add(each.attr)
    return {name for name in assigned - stated if not name.startswith("_")}


def _types_used() -> Iterator[tuple[str, type]]:
    """Every class in the annotations of exported functions, methods, properties and fields, with its place."""
    for module in [*MODULES, triomq.blocking]:
        for name in public_names(module):
            value = getattr(module, name)
            if isinstance(value, type):
                yield from _of_class(f"{module.__name__}.{name}", value)
            elif inspect.isfunction(value):
                yield from _of_function(f"{module.__name__}.{name}", value)


def _of_class(place: str, cls: type) -> Iterator[tuple[str, type]]:
    if not cls.__module__.startswith("triomq_protocol"):  # their fields are the wire's, which docs/protocol describes
        for name, hint in typing.get_type_hints(cls).items():
            if not name.startswith("_"):
                yield from ((f"{place}.{name}", leaf) for leaf in _leaves(hint))
    for name, member in vars(cls).items():
        if name == "__init__" and (isinstance(cls, NoPublicConstructor) or cls in MADE_PER_MESSAGE):
            continue
        if name.startswith("_") and name not in ("__init__", "__call__", "__iter__", "__anext__"):
            continue
        function = member.fget if isinstance(member, property) else inspect.unwrap(getattr(cls, name))
        if inspect.isfunction(function):
            yield from _of_function(f"{place}.{name}", function)


def _of_function(place: str, function: typing.Any) -> Iterator[tuple[str, type]]:
    for each in [inspect.unwrap(function), *typing.get_overloads(function)]:
        # `contextmanager` writes nothing down of what it makes of a function; Unpack needs the module's names.
        for hint in typing.get_type_hints(each).values():
            yield from ((place, leaf) for leaf in _leaves(hint))


def _leaves(hint: object) -> Iterator[type]:
    if isinstance(hint, list):
        for each in hint:
            yield from _leaves(each)
    elif typing.get_args(hint):
        if isinstance(typing.get_origin(hint), type):
            yield typing.get_origin(hint)
        for each in typing.get_args(hint):
            yield from _leaves(each)
    elif isinstance(hint, type):
        yield hint


OF_TRIO_ALONE = {
    "Client": {"bounds"},
    "LitePullConsumer": {"start"},
    "Producer": {"abort"},
    "PushConsumer": {"aclose"},
}
"""What other faces need not have: what their blocks do, what is no use in them, closing by force."""


@pytest.mark.parametrize("face", [triomq.aio, triomq.blocking], ids=lambda module: module.__name__)
@pytest.mark.parametrize("name", [name for name in triomq.blocking.__all__ if name != "open_client"])
def test_other_faces_have_what_trios_has(face, name):
    original = next(getattr(module, name) for module in (triomq, triomq.admin) if hasattr(module, name))
    ours = {each for each in dir(getattr(face, name)) if not each.startswith("_")}
    trios = {each for each in dir(original) if not each.startswith("_")}
    assert trios - ours - {"aclose" if face is triomq.blocking else ""} <= OF_TRIO_ALONE.get(name, set())
    attributes = set(original.__annotations__)
    assert ours - trios - {"close" if face is triomq.blocking else ""} <= attributes
