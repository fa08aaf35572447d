"""YAML files as plain values, with the line of every key.

Stricter than YAML 1.1: duplicate keys are errors, keys are text, only ``true`` and ``false`` are booleans (``NO`` is
text), ``0660`` and dates stay text, and tags cannot construct objects. Anchors, aliases and ``<<`` are supported.
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
"""Limit of values in one document after its aliases are expanded."""
STDIN: Final = Path("-")

_PLAIN_TYPES: Final = (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
)
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Composes nodes only; :class:`_NodeReader` converts them to values."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own way)


for _name, _pattern, _first in _PLAIN_TYPES:
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), _first)

_DISPUTED: Final = re.compile("[\t?!\x85\u2028\u2029\ufeff]|[|>]#")
"""Text that libyaml and PyYAML treat differently."""

if yaml.__with_libyaml__:

    class _QuickLoader(Composer, yaml.CSafeLoader):
        """Like :class:`_Loader` but parses with libyaml, which is faster. Composing in Python limits the depth."""

        yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One YAML document."""

    file: str
    """Name for errors."""
    value: object
    lines: dict[KeyPath, int]
    """Line, from 1, of every key and list item."""

    def where(self, path: KeyPath) -> str:
        """Return ``file:line: key`` for ``path``; a key that is missing gets the line of the mapping around it."""
        written = path
        while written not in self.lines and written:
            written = written[:-1]
        text = f"{self.file}:{self.lines.get(written, 1)}"
        return f"{text}: {key_path(path)}" if path else text


def file_name(path: Path) -> str:
    """Return the name of a file for errors."""
    name = "<stdin>" if path == STDIN else str(path)
    return name if name.isprintable() else ascii(name)


def read_documents(path: Path) -> list[Document]:
    """Return the documents of a YAML file (``-``: standard input) that are not empty.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8 or not YAML, repeats a key, or has no document.
    """
    documents = list[Document]()
    for each in read_each_document(path):
        if isinstance(each, ConfigError):
            raise each
        documents.append(each)
    return documents


def read_each_document(path: Path) -> list[Document | ConfigError]:
    """Return the documents of a YAML file that are not empty, and the fault of each that cannot be read.

    Raises:
        ConfigError: the file as a whole cannot be read, is not YAML, or has no document.
    """
    file, text = file_name(path), read_text(path)
    try:
        documents = [_document_or_fault(file, node) for node in _composed(text)]
    except yaml.MarkedYAMLError as error:
        raise _invalid_yaml(file, error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError("contains a control character; YAML is plain text", where=f"{file}:{line}") from None
    except RecursionError:
        raise ConfigError(f"is nested deeper than {DEPTH_MAX} levels", where=f"{file}:1") from None
    documents = [each for each in documents if isinstance(each, ConfigError) or each.value is not None]
    if not documents:
        raise ConfigError("is empty", where=f"{file}:1")
    return documents


def _document_or_fault(file: str, node: yaml.Node) -> Document | ConfigError:
    try:
        return _NodeReader(file=file).document(node)
    except ConfigError as fault:
        return fault


def read_document(path: Path) -> Document:
    """Return the only document of a YAML file.

    Raises:
        ConfigError: as ``read_documents``, or the file has several documents.
    """
    documents = read_documents(path)
    if len(documents) > 1:
        second = documents[1]
        raise ConfigError("a second document begins here; only job files may contain several", where=second.where(()))
    return documents[0]


def read_text(path: Path) -> str:
    """Return a text file's content.

    Raises:
        ConfigError: the file does not exist, is a directory, is not readable, is too large, or is not UTF-8.
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
    """Return plain values (mappings, lists, text, numbers) as YAML that reads back as the same values."""
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110))


def _composed(text: str) -> Iterable[yaml.Node]:
    """Return the documents of ``text`` as nodes. Raises YAMLError while iterated."""
    # libyaml's nodes are the same, but its errors are not: the messages below are written for PyYAML's.
    if yaml.__with_libyaml__ and not _DISPUTED.search(text):
        with suppress(yaml.YAMLError):
            return list(yaml.compose_all(text, Loader=_QuickLoader))
    return yaml.compose_all(text, Loader=_Loader)


def _unreadable(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.name, names, n=1)
        return "no such file" + (f"; did you mean {str(path.with_name(close[0]))!r}?" if close else "")
    if isinstance(error, IsADirectoryError):
        return "is a directory, not a file"
    if isinstance(error, PermissionError):
        return "is not readable: permission denied"
    return f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"


def _invalid_yaml(file: str, error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or "it cannot be parsed"
    if "'\\t'" in problem:
        sentence = "indented with a tab; use spaces"
    elif "mapping values are not allowed" in problem:
        sentence = "unexpected ':'; check the indentation, and put text that contains ': ' in quotes"
    elif "could not find expected ':'" in problem:
        sentence = "a key without ':' above this line"
    else:
        sentence = f"is not valid YAML: {problem}"
    return ConfigError(" ".join(sentence.split()), where=f"{file}:{mark.line + 1}" if mark else f"{file}:1")


@dataclass(slots=True, kw_only=True)
class _NodeReader:
    """Converts the nodes of one document to values and records their lines."""

    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    values: int = 0

    def document(self, node: yaml.Node) -> Document:
        """Return the whole document."""
        self.lines[()] = _line(node)
        return Document(file=self.file, value=self.read(node, ()), lines=self.lines)

    def read(self, node: yaml.Node, path: KeyPath) -> object:
        """Return the value at ``path``. Raises ConfigError: nested too deeply, too large, or of an unknown tag."""
        self.count(node, path)
        if len(path) > DEPTH_MAX:
            raise self.wrong(f"is nested deeper than {DEPTH_MAX} levels", node, path[:3])
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            if node.tag != _TAG + "seq":
                raise self.wrong(f"has a tag {shown(node.tag)} that is not supported", node, path)
            return [self.item(child, (*path, index)) for index, child in enumerate(node.value)]
        return self.scalar(node, path)

    def count(self, node: yaml.Node, path: KeyPath) -> None:
        """Count a value. Raises ConfigError beyond the limit, which aliases reach quickly."""
        self.values += 1
        if self.values > VALUES_MAX:
            raise self.wrong(f"expands to more than {VALUES_MAX} values", node, path)

    def item(self, node: yaml.Node, path: KeyPath) -> object:
        """Return a list's item and record its line."""
        self.lines[path] = _line(node)
        return self.read(node, path)

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        """Return a mapping with its merges resolved, and record the lines of its keys. Raises as ``read`` does."""
        if node.tag != _TAG + "map":
            raise self.wrong(f"has a tag {shown(node.tag)} that is not supported", node, path)
        result: dict[str, object] = {}
        for key, child in self.entries(node, path, depth=0):
            child_path = (*path, key.value)
            self.lines[child_path] = _line(key)
            result[key.value] = self.read(child, child_path)
        return result

    def entries(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return a mapping's entries; its own take precedence over those merged with ``<<``."""
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
                raise self.wrong(f"is a duplicate of the key in line {first}; keep one of them", key, (*path, name))
            own[name] = (key, child)
        for key, child in merged:
            own.setdefault(key.value, (key, child))
        return list(own.values())

    def sources(self, node: yaml.Node, path: KeyPath) -> Iterator[yaml.MappingNode]:
        """Yield the mappings that one ``<<`` merges. Raises ConfigError for other values."""
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(source, yaml.MappingNode):
                raise self.wrong("can merge only mappings", node, (*path, "<<"))
            yield source

    def key_name(self, key: yaml.Node, path: KeyPath) -> str:
        """Return a key's text. Raises ConfigError for a key that is not text (``1``, a list)."""
        value = self.scalar(key, path) if isinstance(key, yaml.ScalarNode) else key.value
        if not isinstance(value, str):
            raise self.wrong(f"has a key that is not text, {shown(value)}; put it in quotes", key, path)
        return value

    def scalar(self, node: yaml.Node, path: KeyPath) -> object:
        """Return text, None, a boolean or a finite number. Raises ConfigError for other tags and numbers."""
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
            raise self.wrong(f"is not a finite number: {shown(text)}", node, path)
        return number

    def wrong(self, message: str, node: yaml.Node, path: KeyPath) -> ConfigError:
        """Return an error with file, line and key."""
        where = f"{self.file}:{_line(node)}"
        return ConfigError(message, where=f"{where}: {key_path(path)}" if path else where)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
