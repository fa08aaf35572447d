"""The checkers: each takes source text (and where it came from) and returns one sentence per violation."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

FUNCTION_LINES_CAP = 60
FILE_LINES_CAP = 900

PURE_ROOMS = (
    "planner", "classifier", "forecast", "spec.policy", "core.model", "core.estimates", "core.pricing", "core.quality",
    "core.rows", "core.units",
)  # fmt: skip
IMPURE_MODULES = {
    "time",
    "random",
    "os",
    "logging",
    "sqlalchemy",
    "yaml",
    "secrets",
    "subprocess",
    "socket",
    "hcloud.core.clock",
}
IMPURE_CALLS = {"now", "utcnow", "today", "default_rng", "open", "print", "input"}
# A file may read a port's protocol or a name of the vocabulary; it may not be called one of these.
VAGUE_FILE_NAMES = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py", "manager.py", "data.py", "info.py"}

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


class FunctionLength(NamedTuple):
    """Lines of one function from `def` to its end, its docstring not counted."""

    where: str
    lines: int


@lru_cache(maxsize=1)  # of one file all checkers are asked; the nodes of all files would be a million objects
def _nodes(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a file; ``ast.walk`` takes twice the time."""
    found: list[ast.AST] = [ast.parse(source)]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
    return tuple(found)


def _docstring_lines(function: AnyFunction) -> int:
    if ast.get_docstring(function, clean=False) is None:
        return 0
    text = function.body[0]
    return (text.end_lineno or text.lineno) - text.lineno + 1


def function_lengths(source: str, where: str) -> list[FunctionLength]:
    """Length of every function and method in the source, nested ones too."""
    lengths = []
    for node in _nodes(source):
        if isinstance(node, AnyFunction):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)
            lengths.append(FunctionLength(f"{where}:{node.lineno} {node.name}", lines))
    return lengths


def too_long_functions(source: str, where: str) -> list[str]:
    """Functions over the hard cap."""
    return [
        f"{name} has {lines} lines; the cap is {FUNCTION_LINES_CAP}"
        for name, lines in function_lengths(source, where)
        if lines > FUNCTION_LINES_CAP
    ]


def too_long_file(source: str, where: str) -> list[str]:
    """Files over the cap."""
    lines = source.count("\n")
    return [f"{where} has {lines} lines; the cap is {FILE_LINES_CAP}"] if lines > FILE_LINES_CAP else []


def vague_file_name(path: Path) -> list[str]:
    """File names that say nothing about what is in them."""
    return [f"{path}: name the file after what it does"] if path.name in VAGUE_FILE_NAMES else []


def _public_definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.ClassDef | AnyFunction]]:
    """Public classes, functions and methods of public classes; not what is nested in functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, AnyFunction):
            if not child.name.startswith("_") and not {"overload", "setter"} & set(
                map(_decorator_name, child.decorator_list)
            ):
                yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            if not child.name.startswith("_"):
                yield prefix + child.name, child
                yield from _public_definitions(child, f"{prefix}{child.name}.")
        else:
            yield from _public_definitions(child, prefix)


def _decorator_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def missing_docstrings(source: str, where: str) -> list[str]:
    """Modules, public classes, functions and methods without a docstring; private and nested ones need none."""
    module = _nodes(source)[0]
    assert isinstance(module, ast.Module)
    found = [] if ast.get_docstring(module) else [f"{where} has no module docstring"]
    return found + [
        f"{where}:{node.lineno} {name} has no docstring"
        for name, node in _public_definitions(module)
        if not ast.get_docstring(node)
    ]


def fields_described_above(source: str, where: str) -> list[str]:
    """Class docstrings that describe two or more fields (```` ``field``: ... ````): each has its own place below it."""
    found = []
    for node in _nodes(source):
        if isinstance(node, ast.ClassDef):
            fields = {a.target.id for a in node.body if isinstance(a, ast.AnnAssign) and isinstance(a.target, ast.Name)}
            described = set(re.findall(r"``(\w+)``(?: \([^)]*\))?:", ast.get_docstring(node) or "")) & fields
            if len(described) > 1:
                names = ", ".join(sorted(described))
                found.append(
                    f"{where}:{node.lineno} {node.name} describes {names} in its docstring; write it under each"
                )
    return found


def unpickling(source: str, where: str) -> list[str]:
    """Any import of a module that unpickles: what comes from a machine, a file or a caller may hold any program."""
    return [
        f"{where}:{line} imports {name}; read JSON or another format that holds data only"
        for line, name in _imports(source)
        if name.split(".")[0] in {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
    ]


def unbounded_paging(source: str, where: str) -> list[str]:
    """Any list that is read page by page without ``hcloud.core.paging``: a cloud that lies would be asked for ever."""
    paginators = source.count(".get_paginator(") > len(re.findall(r"\bchecked\(", source))
    own = re.search(r"\.next_page_token\b|\.get\(\"next(Page)?Token\"", source) and "pages_of(" not in source
    return [f"{where} reads pages without a bound; use hcloud.core.paging"] if paginators or own else []


def _imports(source: str) -> Iterator[tuple[int, str]]:
    for node in _nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def impurities(source: str, where: str) -> list[str]:
    """What a pure room may not do: import a clock, chance, the system, a log or a database, or call one.

    Stricter than the import contracts: it also sees `datetime.now()`, `open()` and a generator made on the spot.
    """
    found = []
    for line, name in _imports(source):
        if any(name == banned or name.startswith(banned + ".") for banned in IMPURE_MODULES):
            found.append(f"{where}:{line} imports {name}; a pure room gets such things as arguments")
    for node in _nodes(source):
        if isinstance(node, ast.Call) and _called_name(node) in IMPURE_CALLS:
            found.append(
                f"{where}:{node.lineno} calls {_called_name(node)}(); a pure room gets its result as an argument"
            )
    return found


def mocks(source: str, where: str) -> list[str]:
    """Any use of mock objects in place of behaving fakes."""
    pattern = re.compile(r"unittest\.mock|unittest import mock|MagicMock|mocker\b|import mock\b")
    return [
        f"{where}:{number} uses mock objects; write a fake that behaves"
        for number, line in enumerate(source.splitlines(), 1)
        if pattern.search(line)
    ]


def sleeps(source: str, where: str) -> list[str]:
    """Calls of `time.sleep`, by any name they were imported under, and `asyncio.sleep` for a real time."""
    sleepers = {"sleep"} | {
        alias.asname
        for node in _nodes(source)
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "asyncio"}
        for alias in node.names
        if alias.name == "sleep" and alias.asname
    }
    return [
        f"{where}:{node.lineno} sleeps; wait for an event, or with holds_within (tests: with wait_until)"
        for node in _nodes(source)
        if isinstance(node, ast.Call) and _called_name(node) in sleepers and not _sleeps_zero(node)
    ]


def _sleeps_zero(call: ast.Call) -> bool:
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def hidden_defects(source: str, where: str) -> list[str]:
    """Skips and expected failures: they hide a defect, unless it is the machine that lacks something."""
    return [
        f"{where}:{node.lineno} has {node.attr}; fix it, or use a mark of tests/machine.py that says what is lacking"
        for node in _nodes(source)
        if isinstance(node, ast.Attribute) and node.attr in {"xfail", "skip", "skipif", "importorskip", "SkipTest"}
    ]


def broad_excepts(source: str, where: str) -> list[str]:
    """`except Exception` (or barer) without a comment on its line or the next that says why, and all that swallow."""
    lines = source.splitlines()
    found = []
    for node in _nodes(source):
        if isinstance(node, ast.Call) and _called_name(node) == "suppress" and _catches_all(node):
            found.append(f"{where}:{node.lineno} suppresses everything; name what may be ignored")
        if not isinstance(node, ast.ExceptHandler) or not (node.type is None or _catches_all(node.type)):
            continue
        nearby = "\n".join(lines[node.lineno - 1 : node.lineno + 1]).replace("noqa: BLE001", "")
        if not re.search(r"#[^\w\n]*\w", nearby):
            found.append(
                f"{where}:{node.lineno} catches everything; only a loop's top may, with a comment that says why"
            )
        if not any(map(_keeps_the_trace, ast.walk(node))):
            found.append(f"{where}:{node.lineno} swallows everything; raise it again or log its traceback")
    return found


def _catches_all(types: ast.expr) -> bool:
    return any(getattr(each, "id", "") in {"Exception", "BaseException"} for each in ast.walk(types))


def _keeps_the_trace(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _called_name(node) in {"exception", "print_exc", "format_exc", "format_exception"}
    return isinstance(node, ast.Raise) or (isinstance(node, ast.keyword) and node.arg == "exc_info")


# Written in two parts so that this file does not contain what it forbids.
_REGISTRY_HOSTS = [
    name + ending
    for name, ending in [
        ("pypi.", "org"), ("pythonhosted.", "org"), ("npmjs.", "org"), ("npmjs.", "com"), ("deb.debian.", "org"),
        ("security.debian.", "org"), ("archive.ubuntu.", "com"), ("proxy.golang.", "org"), ("crates.", "io"),
        ("rubygems.", "org"), ("conda.", "anaconda.org"),
    ]
]  # fmt: skip
_MACHINE_PATH = re.compile(r"(?<![\w.}\-)])/(?:work|root|tmp/brief)" + r"/")
_UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


def forbidden_words(text: str, where: str) -> list[str]:
    """Package registries' hosts, paths of one machine, and marks of unfinished work."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        found += [f"{where}:{number} names {host}" for host in _REGISTRY_HOSTS if host in line]
        if _MACHINE_PATH.search(line):
            found.append(f"{where}:{number} has a path of one machine")
        if _UNFINISHED.search(line):
            found.append(f"{where}:{number} is marked as unfinished")
    return found


def import_cycles_hidden(source: str, where: str) -> list[str]:
    """Imports under TYPE_CHECKING are fine; `importlib.import_module("providers...")` slips past the contracts."""
    return [
        f"{where}:{node.lineno} imports {node.args[0].value!r} by name; find plug-ins by entry point"
        for node in _nodes(source)
        if isinstance(node, ast.Call)
        and _called_name(node) in {"import_module", "__import__"}
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ]
