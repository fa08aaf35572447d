"""How the code reads, counted: words of docstrings, class names used twice, helpers that could stand in their caller.

``python -m bench.house [--list] [--room PREFIX]``. ``--list`` names each class and helper that was counted; ``--room``
counts only files below a path.
"""

import argparse
import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("hcloud", "providers")
HELPER_LINES = 7
VERBS = ("tell", "tells", "told", "hear", "hears", "heard")
PERSONS = ("who", "whose", "whom", "nobody", "somebody", "anybody")
AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Helper:
    """A function of fewer than HELPER_LINES lines that one place calls and no test names."""

    where: str
    name: str
    lines: int


@dataclass(frozen=True, slots=True)
class House:
    """What was counted."""

    words: int
    """Words in docstrings."""
    verbs: int
    """Of these, forms of tell and hear."""
    persons: int
    """Of these, who, whose, nobody and their like."""
    classes_twice: dict[str, list[str]]
    """Places by class name, for names that are defined more than once."""
    functions: int
    helpers: tuple[Helper, ...]

    def rows(self) -> Iterator[str]:
        """Yield one line per figure, with its goal."""
        yield f"tell, told, hear per 1,000 docstring words: {1000 * self.verbs / max(1, self.words):.2f} (below 0.3)"
        yield f"who, whose, nobody per 1,000: {1000 * self.persons / max(1, self.words):.2f} (below 0.4)"
        yield f"class names defined more than once: {len(self.classes_twice)} (0)"
        share = 100 * len(self.helpers) / max(1, self.functions)
        yield (
            f"helpers with one caller, under {HELPER_LINES} lines, without a test: "
            f"{len(self.helpers)} of {self.functions} functions, {share:.1f} % (below 12)"
        )


def count(root: Path = ROOT, below: str = "") -> House:
    """Count the product's code, or the part of it in files whose path begins with ``below``."""
    product = [path for each in PRODUCT for path in sorted((root / each).rglob("*.py"))]
    tested = Counter[str]()
    for path in (root / "tests").rglob("*.py"):
        tested.update(_names(path.read_text(encoding="utf-8")))
    used, defined, classes = Counter[str](), Counter[str](), defaultdict[str, list[str]](list)
    trees, used_in = dict[str, ast.Module](), dict[str, Counter[str]]()
    for path in product:
        source, where = path.read_text(encoding="utf-8"), str(path.relative_to(root))
        used_in[where] = Counter(_names(source))
        used += used_in[where]
        trees[where] = ast.parse(source)
        for node in ast.walk(trees[where]):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{where}:{node.lineno}")
            elif isinstance(node, AnyFunction):
                defined[node.name] += 1
    words, functions, helpers = Counter[str](), 0, list[Helper]()
    for where, tree in trees.items():
        if not where.startswith(below):
            continue
        nested = {
            id(inner)
            for outer in ast.walk(tree)
            if isinstance(outer, AnyFunction)
            for inner in ast.walk(outer)
            if inner is not outer
        }
        here = Counter(node.name for node in ast.walk(tree) if isinstance(node, AnyFunction))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | AnyFunction):
                words.update(re.findall(r"[a-z']+", (ast.get_docstring(node) or "").lower()))
            if isinstance(node, AnyFunction):
                functions += 1
                lines = _lines(node)
                own = node.name.startswith("_") or id(node) in nested  # nothing outside its file may use it
                definitions, uses = (here, used_in[where]) if own else (defined, used)
                once = (
                    definitions[node.name] == 1 and uses[node.name] == 2
                )  # its definition, and one place that uses it
                if once and lines < HELPER_LINES and not tested[node.name] and not node.decorator_list:
                    helpers.append(Helper(f"{where}:{node.lineno}", node.name, lines))
    return House(
        words=words.total(),
        verbs=sum(words[each] for each in VERBS),
        persons=sum(words[each] for each in PERSONS),
        classes_twice={
            name: places
            for name, places in sorted(classes.items())
            if len(places) > 1 and any(each.startswith(below) for each in places)
        },
        functions=functions,
        helpers=tuple(helpers),
    )


def _names(source: str) -> Iterator[str]:
    """Yield every name token; in Python 3.11 an f-string is one token, so names in its braces are searched as text."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.string
        elif token.type == tokenize.STRING and token.string[:2].lower().startswith(("f", "rf")):
            for braces in re.findall(r"\{([^{}]*)\}", token.string):
                yield from re.findall(r"[A-Za-z_]\w*", braces)


def _lines(function: AnyFunction) -> int:
    """Return the lines from ``def`` to the end, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        text = function.body[0]
        lines -= (text.end_lineno or text.lineno) - text.lineno + 1
    return lines


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> None:
    """Print the figures of a checkout."""
    parser = argparse.ArgumentParser(description="Count how the code reads.")
    parser.add_argument("--list", action="store_true", help="name each class and helper that was counted")
    parser.add_argument("--room", default="", help="count only files whose path begins with this, e.g. hcloud/api")
    options = parser.parse_args(arguments)
    house = count(root, below=options.room)
    for row in house.rows():
        print(row)
    if options.list:
        for name, places in house.classes_twice.items():
            print(f"class {name}: {', '.join(places)}")
        for each in house.helpers:
            print(f"helper {each.where} {each.name} ({each.lines} lines)")


if __name__ == "__main__":
    main()
