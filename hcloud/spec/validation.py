"""Validation of mappings: from YAML or JSON values to typed objects, with readable errors and a described schema.

Pydantic validates; this module writes the messages. An error names the key, its value, what would be right and, for a
misspelt name, the closest known one. The first problem is the error's message; the others are its notes.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from hcloud.core.errors import ConfigError
from hcloud.core.units import shown


class DescribedJsonSchema(GenerateJsonSchema):
    """Generates JSON Schema in which the string under an attribute is the description of its key."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Return the schema of a dataclass with described properties."""
        return _described(super().dataclass_schema(schema), schema["cls"])

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model with described properties."""
        return _described(super().model_schema(schema), schema["cls"])


def describe(schemas: Mapping[str, dict[str, Any]], kinds: Iterable[type]) -> None:
    """Add descriptions, in place, to the ``schemas`` that are named after one of the classes ``kinds``."""
    for kind in kinds:
        if kind.__name__ in schemas:
            _described(schemas[kind.__name__], kind)


def attribute_docstrings(kind: type) -> dict[str, str]:
    """Return the strings under the attributes of a class, inherited ones included, by attribute."""
    texts: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__ in sys.modules and each.__module__ != "builtins":
            texts |= _module_texts(each.__module__).get(each.__name__, {})
    return texts


def _described(schema: JsonSchemaValue, kind: type) -> JsonSchemaValue:
    texts = attribute_docstrings(kind)
    for name, key in schema.get("properties", {}).items():
        if name in texts:
            key.setdefault("description", texts[name])
    return schema


@cache
def _module_texts(name: str) -> Mapping[str, dict[str, str]]:
    """Return the attribute strings of each class of a module; empty if its source is not available."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):
        return {}
    return {node.name: _class_texts(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _class_texts(kind: ast.ClassDef) -> dict[str, str]:
    texts = {}
    for line, below in pairwise(kind.body):
        match line, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = inspect.cleandoc(text)
    return texts


PROBLEMS_MAX: Final = 20
"""Problems of one document that are reported."""
KeyPath = tuple[str | int, ...]
"""Keys and list indexes that lead from the top of a document to a value."""
T = TypeVar("T")
_ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}
_SCHEMAS: Final[dict[type[Any], dict[str, Any]]] = {}
_UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_NO_MAPPING = frozenset({"dataclass_type", "model_type", "model_attributes_type", "dict_type", "mapping_type"})
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_KINDS = {
    "string_type": "text (put it in quotes)",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_unicode": "text that can be written as UTF-8",
}


class AtKey(ValueError):
    """A contradiction between several values, reported at one of their keys.

    ``key`` may be a dotted path below the validated mapping. ``otherwise`` is a second key with its own message, used
    if the document contains that key but not ``key``.
    """

    def __init__(self, key: str, message: str, *, otherwise: tuple[str, str] | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.otherwise = otherwise

    def located(self, written: object) -> tuple[KeyPath, str]:
        """Return the key path and the message to report, given the mapping as it was ``written``."""
        key, message = self.key, str(self)
        if self.otherwise is not None and not _holds(written, key) and _holds(written, self.otherwise[0]):
            key, message = self.otherwise
        return tuple(key.split(".")), message


def _holds(written: object, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(written, Mapping) or part not in written:
            return False
        written = written[part]
    return True


def key_path(path: KeyPath) -> str:
    """Return ``a.b[0].c`` for ``("a", "b", 0, "c")``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" if text else _printable(part)
    return text


def _printable(key: str) -> str:
    plain = key if key.isprintable() else ascii(key)[1:-1]
    return plain if len(plain) <= 60 else plain[:57] + "..."


def counted(count: int, one: str, several: str = "") -> str:
    """Return a count with its noun: ``1 job``, ``3 jobs``; ``several`` is an irregular plural."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the closest known one, or the list of up to twelve known ones."""
    names = sorted(known)
    given = name[:80].lower()
    if not any("-" in each for each in names):  # keys have underscores, which people type as dashes
        given = given.replace("-", "_")
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"known here: {listed}" if names else "nothing is expected here"


def parse(
    model: type[T],
    mapping: object,
    locate: Callable[[KeyPath], str] = key_path,
    context: Mapping[str, Any] | None = None,
) -> T:
    """Return ``mapping`` as a validated ``model``.

    ``locate`` turns a key path into the ``where`` of an error; ``context`` is passed to the model's validators.

    Raises:
        ConfigError: for the first problem; further ones, at most ``PROBLEMS_MAX`` in all, are added as notes.
    """
    try:
        checked: T = _adapter(model).validate_python(mapping, context=context)
        return checked
    except ValidationError as error:
        # Unknown keys first: a misspelt key explains why the right one is missing or at its default.
        problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] not in _UNKNOWN)
    sentences = [_sentence(model, problem) for problem in problems[:PROBLEMS_MAX]]
    first = ConfigError(sentences[0][1], where=locate(sentences[0][0]))
    for path, message in sentences[1:]:
        first.add_note(str(ConfigError(message, where=locate(path))))
    if len(problems) > PROBLEMS_MAX:
        first.add_note(f"and {len(problems) - PROBLEMS_MAX} more")
    raise first


def _adapter(model: type[Any]) -> TypeAdapter[Any]:
    """Return the cached validator of ``model``."""
    if model not in _ADAPTERS:
        _ADAPTERS[model] = TypeAdapter(model)
    return _ADAPTERS[model]


def json_schema(model: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of the class ``model``, with the strings under its attributes as descriptions.

    The result is shared: callers that change it take a copy.
    """
    if model not in _SCHEMAS:
        _SCHEMAS[model] = _adapter(model).json_schema(schema_generator=DescribedJsonSchema)
    return _SCHEMAS[model]


def _sentence(model: type[Any], problem: Any) -> tuple[KeyPath, str]:
    """Return the key path and the message of one problem that pydantic found."""
    kind, context, value = problem["type"], problem.get("ctx", {}), problem["input"]
    path: KeyPath = tuple(part for part in problem["loc"] if part != "[key]")
    if kind in _UNKNOWN:
        return path, f"unknown key; {nearest(str(path[-1]), _names_at(model, path[:-1]))}"
    if kind == "missing":
        return path, "is required"
    if kind == "value_error":
        cause = context["error"]
        at, message = cause.located(value) if isinstance(cause, AtKey) else ((), str(cause))
        return (*path, *at), message
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return path, f"must be {words} {context[name]:g}, not {shown(value)}"
    if kind in {"enum", "literal_error"}:
        return path, _choice_sentence(context["expected"], value)
    if kind in _NO_MAPPING:
        names = _names_at(model, path)
        listed = f" ({', '.join(names[:6])}{', ...' if len(names) > 6 else ''})" if names else ""
        return path, f"must be a mapping of keys{listed}, not {shown(value)}"
    if kind in {"too_long", "too_short"}:
        bound = f"at most {context['max_length']}" if kind == "too_long" else f"at least {context['min_length']}"
        return path, f"must have {bound} entries"
    if kind in _KINDS:
        return path, f"must be {_KINDS[kind]}, not {shown(value)}"
    return path, problem["msg"].replace("Input should be", "must be").replace("Input should", "must")


def _choice_sentence(expected: str, value: object) -> str:
    choices = [choice.strip(" '") for choice in expected.replace(" or ", ", ").split(",")]
    hint = difflib.get_close_matches(shown(value).strip("'").lower().replace("-", "_"), choices, n=1)
    allowed = f"must be {choices[0]}" if len(choices) == 1 else f"must be one of {', '.join(choices)}"
    return f"{allowed}, not {shown(value)}" + (f"; did you mean {hint[0]!r}?" if hint else "")


def _names_at(model: type[Any], path: KeyPath) -> Sequence[str]:
    """Return the known keys of the mapping at ``path``, according to the model's JSON Schema."""
    schema = json_schema(model)
    nodes = _branches(schema, schema)
    for part in path:
        children = [
            node.get("items")
            if isinstance(part, int)
            else node.get("properties", {}).get(part) or node.get("additionalProperties")
            for node in nodes
        ]
        nodes = [branch for child in children if isinstance(child, Mapping) for branch in _branches(child, schema)]
    return [name for node in nodes for name in node.get("properties", {})]


def _branches(node: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the alternatives of a schema node, with references resolved."""
    if "$ref" in node:
        return _branches(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
    alternatives = node.get("anyOf") or node.get("oneOf")
    return [leaf for each in alternatives for leaf in _branches(each, schema)] if alternatives else [node]
