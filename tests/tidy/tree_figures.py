"""Figures about the source tree: folders, imports, contracts, modules that know the record's layout, citations that do
not open, definitions and settings without a reader, repeated lines, tests beside code.

    python tests/tidy/tree_figures.py              # this checkout
    python tests/tidy/tree_figures.py OTHER        # another one, for instance of an earlier commit

`test_repository.py` fails on some of these figures; the rest is for reading. Everything is found by parsing: nothing is
imported.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import attrs
from citations import Citations
from record_layout import defines_structs, restatements

SOURCES = {
    "triomq_protocol": "protocol",
    "triomq": "sdk",
    "triomq_command": "sdk",
    "triomq_dashboard": "sdk",
    "pyspark_rocketmq": "sdk",
    "triomq_adapters": "sdk",
    "triomq_server": "server",
    "triomq_testing": "server",
    "triomq_benchmarks": "benchmarks",
}
TEST_FOLDERS = {
    "triomq_protocol": ("protocol",),
    "triomq": ("sdk",),
    "triomq_command": (),
    "triomq_dashboard": ("dashboard",),
    "pyspark_rocketmq": ("pyspark_rocketmq", "sdk_spark", "spark"),
    "triomq_adapters": ("adapters",),
    "triomq_server": ("server",),
    "triomq_testing": ("testing",),
    "triomq_benchmarks": ("benchmarks",),
}
PUBLIC = {
    *SOURCES,
    "triomq.plugins",
    "triomq.errors",
    "triomq.blocking",
    "triomq_adapters.faststream",
    "triomq_adapters.faststream.fastapi",
    "triomq_adapters.kombu",
    "triomq_adapters.opentelemetry",
    "triomq_adapters.taskiq",
    "triomq_server.cluster",
    "triomq_testing",
    "triomq_testing.plugin",
}
"""Modules whose names users import."""
REPEATED_LINES = 6
"""Runs of at least this many equal lines count as repeated."""


@attrs.frozen
class Definition:
    """A module-level name, or a method or field of a class."""

    module: str
    name: str
    line: int
    owner: str | None = None

    def is_inside(self, other: Definition) -> bool:
        """Whether this is a member of a class."""
        return self.owner == other.name and self.module == other.module and other.owner is None

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {f'{self.owner}.' if self.owner else ''}{self.name}"


@attrs.frozen
class Module:
    """One parsed file of a package."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package that its relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


class Tree:
    """A checkout, read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules = {module.name: module for module in self._read()}
        self.settings = tomllib.loads((root / "pyproject.toml").read_text())

    def _read(self) -> Iterator[Module]:
        for package, folder in SOURCES.items():
            for path in sorted((self.root / folder / package).rglob("*.py")):
                parts = path.relative_to(self.root / folder).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                text = path.read_text(encoding="utf-8")
                yield Module(name, path, text, ast.parse(text))

    # -- folders and imports ---------------------------------------------------------------------------------------

    def files_per_folder(self) -> Counter[str]:
        """Modules per folder, `__init__` left out."""
        return Counter(
            str(module.path.parent.relative_to(self.root))
            for module in self.modules.values()
            if module.path.name != "__init__.py"
        )

    @cached_property
    def arrows(self) -> dict[str, set[str]]:
        """Module to the modules of the same top package that it imports."""
        found: dict[str, set[str]] = {}
        for module in self.modules.values():
            top = module.name.split(".", maxsplit=1)[0]
            names = {name for name in self._imported(module) if name.split(".", maxsplit=1)[0] == top}
            found[module.name] = names - {module.name}
        return found

    def _imported(self, module: Module) -> Iterator[str]:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.modules)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = module.package.split(".")
                    base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
                for alias in node.names:
                    name = f"{base}.{alias.name}"
                    if name in self.modules:
                        yield name
                    elif base in self.modules:
                        yield base

    def levels(self, package: str) -> int:
        """Length of the longest chain of imports between the folders and modules directly inside a package."""
        inside: dict[str, set[str]] = defaultdict(set)
        prefix = f"{package}."
        for name, targets in self.arrows.items():
            if name.startswith(prefix):
                child = name[len(prefix) :].split(".")[0]
                inside[child] |= {
                    target[len(prefix) :].split(".")[0] for target in targets if target.startswith(prefix)
                } - {child}
        depths: dict[str, int] = {}

        def depth(child: str, above: frozenset[str]) -> int:
            if child not in depths:
                below = [depth(each, above | {child}) for each in inside[child] - above]
                depths[child] = 1 + max(below, default=0)
            return depths[child]

        return max((depth(child, frozenset({child})) for child in list(inside)), default=0)

    # -- contracts -------------------------------------------------------------------------------------------------

    @property
    def contracts(self) -> list[dict[str, object]]:
        """The import rules of pyproject.toml."""
        found: list[dict[str, object]] = self.settings["tool"]["importlinter"]["contracts"]
        return found

    def contract_lines(self) -> Counter[str]:
        """Lines of the layers of each container."""
        lines: Counter[str] = Counter()
        for contract in self.contracts:
            for container in contract.get("containers", ()):  # type: ignore[attr-defined]
                lines[container] += len(contract["layers"])  # type: ignore[arg-type]
        return lines

    def without_contract(self) -> list[str]:
        """Packages of more than one module that no exhaustive contract orders."""
        ordered = {
            container
            for contract in self.contracts
            if contract.get("exhaustive")
            for container in contract.get("containers", ())  # type: ignore[attr-defined]
        }
        # Modules of which none may import another have an order, too.
        for contract in self.contracts:
            if contract["type"] == "independence":
                ordered |= {str(name).removesuffix(".*") for name in contract["modules"]}  # type: ignore[attr-defined]
        children: dict[str, set[str]] = defaultdict(set)
        for name in self.modules:
            parent = name.rpartition(".")[0]
            if parent:
                children[parent].add(name)
        return sorted(package for package, inside in children.items() if package not in ordered and len(inside) > 1)

    # -- definitions -----------------------------------------------------------------------------------------------

    def unread_definitions(self) -> list[Definition]:
        """Definitions whose name is nowhere in the packages except where it is defined.

        Left out: what users and other packages read (exports, public methods of exported classes, what decorators
        register, entry points), and what a base class or a serializer asks for.
        """
        read: Counter[str] = Counter()
        for module in self.modules.values():
            read.update(_names_read(module.tree))
        for path in (
            self.root / "pyproject.toml",
            *self.root.glob("benchmarks/**/*.j2"),
            *self.root.glob("server/**/*.pyx"),
        ):
            read.update(set(re.findall(r"[A-Za-z_]\w+", path.read_text())))
        exported = self._exported()
        candidates = {
            definition: Counter(_names_read(node))
            for module in self.modules.values()
            for definition, node in _definitions(module, exported)
        }
        gone: dict[Definition, Counter[str]] = {}
        # What only unread definitions read is unread too.
        while found := [each for each, own in candidates.items() if read[each.name] <= own[each.name]]:
            for definition in found:
                own = gone[definition] = candidates.pop(definition)
                inside = [names for each, names in gone.items() if each.is_inside(definition)]
                if not any(definition.is_inside(each) for each in gone):
                    read.subtract(own - sum(inside, Counter()))
        return sorted(gone, key=str)

    def _exported(self) -> set[str]:
        """Names that users import from a package's top."""
        names: set[str] = set()
        for module in self.modules.values():
            if module.name not in PUBLIC:
                continue
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ImportFrom):
                    names |= {alias.asname or alias.name for alias in node.names}
            if module.name in ("triomq.errors", "triomq.blocking"):
                names |= {node.name for node in module.tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        return names

    # -- settings --------------------------------------------------------------------------------------------------

    def unread_settings(self) -> list[str]:
        """Keys of the servers' settings whose attribute no module of the servers reads.

        A key counts as explained where a table of the settings' package states the reason.
        """
        inside = [module for name, module in self.modules.items() if name.startswith("triomq_server")]
        read = {
            node.attr
            for module in inside
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        }
        found = []
        for module in inside:
            if module.name.startswith("triomq_server.config"):
                for owner in module.tree.body:
                    if isinstance(owner, ast.ClassDef) and owner.name.endswith("Config"):
                        found += [key for attribute, key in _keys(owner) if attribute not in read]
        return found

    def explained_settings(self) -> set[str]:
        """Keys that the table of settings without effect states a reason for."""
        table = self.modules.get("triomq_server.config.without_effect")
        if table is None:
            return set()
        return {
            key
            for node in ast.walk(table.tree)
            if isinstance(node, ast.Dict)
            for each in node.keys
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
            for key in each.value.split()
        }

    # -- the record's layout ---------------------------------------------------------------------------------------

    def restating_the_record(self) -> list[str]:
        """Modules outside the protocol's record package that state magic numbers, bits or offsets of a record."""
        return [
            module.name
            for module in self.modules.values()
            if not module.name.startswith("triomq_protocol.record") and list(restatements(module.tree))
        ]

    def with_structs(self) -> list[str]:
        """Modules outside the protocol package that define a Struct, of a record or of another format."""
        return [
            module.name
            for module in self.modules.values()
            if not module.name.startswith("triomq_protocol") and defines_structs(module.tree)
        ]

    # -- repeated lines and tests ----------------------------------------------------------------------------------

    def repeated_share(self) -> float:
        """Share of code lines that are in a run of equal lines elsewhere too."""
        places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
        total = 0
        for module in self.modules.values():
            lines = [" ".join(line.split()) for line in module.text.splitlines()]
            kept = [
                (n, line)
                for n, line in enumerate(lines)
                if len(line) > 4 and not line.startswith(("#", "import ", "from "))
            ]
            total += len(kept)
            for start in range(len(kept) - REPEATED_LINES + 1):
                run = kept[start : start + REPEATED_LINES]
                places[tuple(line for _, line in run)].extend((module.name, number) for number, _ in run[:1])
        repeated = {
            (module, number + offset)
            for found in places.values()
            if len(found) > 1
            for module, number in found
            for offset in range(REPEATED_LINES)
        }
        return len(repeated) / total

    def lines_of(self, package: str) -> int:
        """Lines of a package's modules."""
        return sum(m.text.count("\n") for m in self.modules.values() if m.name.split(".")[0] == package)

    def test_lines_of(self, package: str) -> int:
        """Lines of the tests in the folders of a package."""
        folders = [self.root / "tests" / name for name in TEST_FOLDERS[package]]
        return sum(path.read_text().count("\n") for folder in folders for path in folder.rglob("*.py"))


def _keys(owner: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Attribute and key of each setting of a class: the key that it names, or its own name in camel case."""
    for node in owner.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        attribute = node.target.id
        keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
        named = [each.value for each in keywords if each.arg == "key"]
        first, *rest = attribute.split("_")
        key = named[0].value if named and isinstance(named[0], ast.Constant) else first + "".join(map(str.title, rest))
        yield attribute, str(key)


# Methods that foreign code calls: click, Spark, logging, http.server, selectors, pytest, the interpreter.
_CALLED_BY_OTHERS = re.compile(r"__\w+__|visit_\w+|do_[A-Z]+")


def _names_read(tree: ast.AST) -> Iterator[str]:
    """Each name that a module reads: variables, attributes, keywords, imports, words of strings that are one name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load | ast.Del):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value
        elif isinstance(node, ast.MatchClass):
            yield from node.kwd_attrs


def _definitions(module: Module, exported: set[str]) -> Iterator[tuple[Definition, ast.AST]]:
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.decorator_list and node.name not in exported and not _CALLED_BY_OTHERS.fullmatch(node.name):
                yield Definition(module.name, node.name, node.lineno), node
        elif isinstance(node, ast.ClassDef):
            if node.name not in exported and not node.decorator_list:
                yield Definition(module.name, node.name, node.lineno), node
            yield from _members(module, node, exported)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if (
                    isinstance(target, ast.Name)
                    and target.id not in exported
                    and not _CALLED_BY_OTHERS.fullmatch(target.id)
                ):
                    yield Definition(module.name, target.id, node.lineno), node


def _members(module: Module, owner: ast.ClassDef, exported: set[str]) -> Iterator[tuple[Definition, ast.AST]]:
    """Methods and properties; fields of values are left to the types that need them."""
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in owner.bases]
    bases = {base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in plain}
    # A class with a foreign base overrides methods that the base calls.
    foreign = bases - {"Protocol", "Generic", "Exception", "object", ""}
    if owner.name in exported or foreign:
        return
    for node in owner.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _CALLED_BY_OTHERS.fullmatch(node.name):
            continue
        names = {getattr(each, "id", getattr(each, "attr", "")) for each in node.decorator_list}
        if names <= {
            "property",
            "staticmethod",
            "classmethod",
            "cached_property",
            "contextmanager",
            "asynccontextmanager",
        }:
            yield Definition(module.name, node.name, node.lineno, owner.name), node


def print_figures(tree: Tree) -> None:
    """The report."""
    folders = tree.files_per_folder()
    print("modules per folder, the fullest ten")
    for folder, count in folders.most_common(10):
        print(f"  {count:4} {folder}")
    lines = tree.contract_lines()
    print("package: modules, folders, levels, arrows, contract lines, lines, test lines, tests to code")
    for package in SOURCES:
        inside = [name for name in tree.modules if name == package or name.startswith(f"{package}.")]
        arrows = sum(len(tree.arrows[name]) for name in inside)
        code, tests = tree.lines_of(package), tree.test_lines_of(package)
        packages = len({tree.modules[name].package for name in inside})
        print(
            f"  {package}: {len(inside)} modules, {packages} folders, {tree.levels(package)} levels, {arrows} arrows, "
            f"{lines[package]} contract lines, {code} lines, {tests} test lines, {tests / max(code, 1):.2f}"
        )
    print("packages that no exhaustive contract orders:", ", ".join(tree.without_contract()) or "none")
    unread = tree.unread_definitions()
    print(f"definitions without a reader: {len(unread)}")
    for definition in unread:
        print(f"  {definition}")
    unread_keys, explained = tree.unread_settings(), tree.explained_settings()
    unexplained = [key for key in unread_keys if key not in explained]
    print(f"settings without a reader: {len(unread_keys)}, of them without a reason: {len(unexplained)}")
    print(f"modules that restate the record's layout: {', '.join(tree.restating_the_record()) or 'none'}")
    print(f"modules outside the protocol that define a Struct: {len(tree.with_structs())}")
    print(f"citations that do not open: {len(Citations(tree.root).all_unopened())}")
    print(f"repeated lines: {tree.repeated_share():.1%}")


if __name__ == "__main__":
    print_figures(Tree(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]))
