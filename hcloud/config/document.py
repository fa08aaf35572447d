"""YAML files as plain values that remember their lines.

Stricter and less surprising than YAML 1.1: a key may stand only once, keys are text, only ``true`` and ``false`` are
booleans (``NO`` is text), ``0660`` and dates stay text, no tags that build objects. Anchors, aliases and ``<<`` work.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml
from yaml.composer import Composer

from hcloud.core.errors import ConfigError
from hcloud.core.units import shown
from hcloud.spec.validation import KeyPath, key_path

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
DEPTH_MAX: Final = 32
VALUES_MAX: Final = 100_000
"""One document may not expand to more values than this through its aliases."""
STDIN: Final = Path("-")

_PLAIN_TYPES: Final = (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
)
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Only composes nodes; their values are read here."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own way)


for _name, _pattern, _first in _PLAIN_TYPES:
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), _first)

_DISPUTED: Final = re.compile("[\t?!\x85\u2028\u2029\ufeff]|[|>]#")
"""What libyaml reads otherwise than PyYAML, or reads where PyYAML refuses it."""

if yaml.__with_libyaml__:

    class _QuickLoader(Composer, yaml.CSafeLoader):
        """As :class:`_Loader`, but libyaml reads: three times as fast. Composing in Python bounds the depth."""

        yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

        def __init__(self, text: str) -> None:
            """Begin to read ``text``."""
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One YAML document: its value and the line (from 1) of every key and list item."""

    file: str
    value: object
    lines: dict[KeyPath, int]

    def where(self, path: KeyPath) -> str:
        """Return ``file:line: key`` of ``path``, or of the nearest thing around it that is really there."""
        there = path
        while there not in self.lines and there:
            there = there[:-1]
        text = f"{self.file}:{self.lines.get(there, 1)}"
        return f"{text}: {key_path(path)}" if path else text


def file_name(path: Path) -> str:
    """Return how errors name a file."""
    name = "<stdin>" if path == STDIN else str(path)
    return name if name.isprintable() else ascii(name)


def read_documents(path: Path) -> list[Document]:
    """Return the documents of a YAML file (``-``: standard input), empty ones left out.

    Raises:
        ConfigError: it cannot be read, is no UTF-8 or no YAML, repeats a key, or holds nothing.
    """
    file, text = file_name(path), read_text(path)
    try:
        documents = [_NodeReader(file=file).document(node) for node in _composed(text)]
    except yaml.MarkedYAMLError as error:
        raise _invalid_yaml(file, error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError("holds a control character; YAML is plain text", where=f"{file}:{line}") from None
    except RecursionError:
        raise ConfigError(f"is nested deeper than {DEPTH_MAX} levels", where=f"{file}:1") from None
    documents = [document for document in documents if document.value is not None]
    if not documents:
        raise ConfigError("is empty", where=f"{file}:1")
    return documents


def read_document(path: Path) -> Document:
    """Return the only document of a YAML file.

    Raises:
        ConfigError: as ``read_documents``, or there are several.
    """
    documents = read_documents(path)
    if len(documents) > 1:
        second = documents[1]
        raise ConfigError("begins a second document here; only job files may hold several", where=second.where(()))
    return documents[0]


def read_text(path: Path) -> str:
    """Return a text file's content.

    Raises:
        ConfigError: it does not exist, is a directory, may not be read, is too large, or is not UTF-8.
    """
    file = file_name(path)
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with path.open("rb") as stream:
                content = stream.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(_unreadable(path, error), where=file) from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"is larger than {FILE_BYTES_MAX // 2**20} MiB", where=file)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 text (byte 0x{content[error.start]:02x})"
        raise ConfigError(message, where=f"{file}:{line}") from None


def to_yaml(value: object) -> str:
    """Return plain values (of mappings, lists, text, numbers) as YAML that reads back as the same."""
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110))


def _composed(text: str) -> Iterable[yaml.Node]:
    """Return the documents of ``text`` as nodes, the same whichever loader reads it. Raises YAMLError while iterated:
    always PyYAML's, as the sentences are made of its words."""
    if yaml.__with_libyaml__ and not _DISPUTED.search(text):
        with suppress(yaml.YAMLError):
            return list(yaml.compose_all(text, Loader=_QuickLoader))
    return yaml.compose_all(text, Loader=_Loader)


def _unreadable(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.name, beside, n=1)
        return "no such file" + (f"; did you mean {str(path.with_name(close[0]))!r}?" if close else "")
    if isinstance(error, IsADirectoryError):
        return "is a directory, not a file"
    if isinstance(error, PermissionError):
        return "may not be read: permission denied"
    return f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"


def _invalid_yaml(file: str, error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or "it cannot be understood"
    if "'\\t'" in problem:
        sentence = "a tab stands where YAML wants spaces; indent with spaces"
    elif "mapping values are not allowed" in problem:
        sentence = "a ':' stands where no key can begin; check the indentation, and put text that holds ': ' in quotes"
    elif "could not find expected ':'" in problem:
        sentence = "a key without ':' after it, just above this line"
    else:
        sentence = f"is not valid YAML: {problem}"
    return ConfigError(" ".join(sentence.split()), where=f"{file}:{mark.line + 1}" if mark else f"{file}:1")


@dataclass(slots=True, kw_only=True)
class _NodeReader:
    """Turns one document's nodes into values and remembers their lines."""

    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    values: int = 0

    def document(self, node: yaml.Node) -> Document:
        """Return the whole document: its value, and the line of every key and item."""
        self.lines[()] = _line(node)
        return Document(file=self.file, value=self.read(node, ()), lines=self.lines)

    def read(self, node: yaml.Node, path: KeyPath) -> object:
        """Return the value at ``path``. Raises ConfigError: nested too deep, too large, or of an unknown tag."""
        self.count(node, path)
        if len(path) > DEPTH_MAX:
            raise self.wrong(f"is nested deeper than {DEPTH_MAX} levels", node, path[:3])
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.item(child, (*path, index)) for index, child in enumerate(node.value)]
        return self.scalar(node, path)

    def count(self, node: yaml.Node, path: KeyPath) -> None:
        """Stop documents that grow without end by referring to themselves."""
        self.values += 1
        if self.values > VALUES_MAX:
            raise self.wrong(f"expands to more than {VALUES_MAX} values", node, path)

    def item(self, node: yaml.Node, path: KeyPath) -> object:
        """Return a list's item, its line remembered."""
        self.lines[path] = _line(node)
        return self.read(node, path)

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        """Return a mapping with its merges resolved, the lines of its keys remembered. Raises as ``read`` does."""
        if node.tag != _TAG + "map":
            raise self.wrong(f"has a tag {shown(node.tag)} that is not supported", node, path)
        result: dict[str, object] = {}
        for key, child in self.entries(node, path, depth=0):
            here = (*path, key.value)
            self.lines[here] = _line(key)
            result[key.value] = self.read(child, here)
        return result

    def entries(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return a mapping's entries; those merged with ``<<`` only where it has none of that name."""
        if depth > DEPTH_MAX:
            raise self.wrong("merges itself", node, path)
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        for key, child in node.value:
            self.count(key, path)
            if key.value == "<<" and not key.style:
                merged += [
                    entry for source in self.sources(child, path) for entry in self.entries(source, path, depth + 1)
                ]
                continue
            name = self.key_name(key, path)
            if name in own:
                first = _line(own[name][0])
                raise self.wrong(f"stands twice, first in line {first}; keep one of them", key, (*path, name))
            own[name] = (key, child)
        for key, child in merged:
            own.setdefault(key.value, (key, child))
        return list(own.values())

    def sources(self, node: yaml.Node, path: KeyPath) -> Iterator[yaml.MappingNode]:
        """Yield what one ``<<`` merges: a mapping, or each of a list. Raises ConfigError for anything else."""
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(source, yaml.MappingNode):
                raise self.wrong("can merge only mappings", node, (*path, "<<"))
            yield source

    def key_name(self, key: yaml.Node, path: KeyPath) -> str:
        """Return a key that is text. Raises ConfigError for one that YAML reads as something else (``1``, a list)."""
        value = self.scalar(key, path) if isinstance(key, yaml.ScalarNode) else key.value
        if not isinstance(value, str):
            raise self.wrong(f"has a key that is not text, {shown(value)}; put it in quotes", key, path)
        return value

    def scalar(self, node: yaml.Node, path: KeyPath) -> object:
        """Return text, None, a boolean, or a finite number. Raises ConfigError for other tags and numbers."""
        text, kind = str(node.value), node.tag.removeprefix(_TAG)
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        try:
            number = int(text) if kind == "int" else float(text) if kind == "float" else None
        except ValueError:
            number = math.inf
        if number is None:
            raise self.wrong(f"has a tag {shown(node.tag)} that is not supported", node, path)
        if isinstance(number, float) and not math.isfinite(number):
            raise self.wrong(f"is no number that can be used: {shown(text)}", node, path)
        return number

    def wrong(self, message: str, node: yaml.Node, path: KeyPath) -> ConfigError:
        """Return, for the caller to raise, what is wrong with file, line and key."""
        where = f"{self.file}:{_line(node)}"
        return ConfigError(message, where=f"{where}: {key_path(path)}" if path else where)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
