"""The text below a class's attributes, as the description of the keys they are in a JSON Schema.

Pydantic can do this by itself (``use_attribute_docstrings``), but then it reads a whole file anew for each class in it
as soon as that is imported: every start of the daemon paid a third of a second for what only a few commands show.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema


class DescribedJsonSchema(GenerateJsonSchema):
    """Makes the JSON Schema of classes, with what stands below their attributes as descriptions."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Return the schema of a dataclass, its properties described."""
        return _described(super().dataclass_schema(schema), schema["cls"])

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model, its properties described."""
        return _described(super().model_schema(schema), schema["cls"])


def describe(schemas: Mapping[str, dict[str, Any]], kinds: Iterable[type]) -> None:
    """Describe the properties of those ``schemas`` that bear the name of one of ``kinds``, in place."""
    for kind in kinds:
        if kind.__name__ in schemas:
            _described(schemas[kind.__name__], kind)


def attribute_docstrings(kind: type) -> dict[str, str]:
    """Return what stands below each attribute of a class, or below that of a class it inherits from."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__ in sys.modules and each.__module__ != "builtins":
            found |= _of_module(each.__module__).get(each.__name__, {})
    return found


def _described(schema: JsonSchemaValue, kind: type) -> JsonSchemaValue:
    texts = attribute_docstrings(kind)
    for name, key in schema.get("properties", {}).items():
        if name in texts:
            key.setdefault("description", texts[name])
    return schema


@cache
def _of_module(name: str) -> Mapping[str, dict[str, str]]:
    """Return the attributes' texts of each class of a module, read in one go; none where there is no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):
        return {}
    return {node.name: _texts(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _texts(kind: ast.ClassDef) -> dict[str, str]:
    found = {}
    for line, below in pairwise(kind.body):
        match line, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found
