"""The files of this checkout, by kind."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CODE = ("hcloud", "providers")
_ALL_PYTHON = (*_CODE, "lab", "tests", "bench", "demo", "scripts")
_NOT_OURS = {".git", ".venv", "build", "dist", "node_modules"}


def relative(path: Path) -> str:
    """The path as people write it, from the root of the checkout."""
    return str(path.relative_to(ROOT))


def python_files(*directories: str) -> list[Path]:
    """Python files below the directories, by default of the two packages."""
    found = sorted(path for each in directories or _CODE for path in (ROOT / each).rglob("*.py"))
    return [path for path in found if not path.name.endswith("_pb2.py")]  # these are made of .proto files


def all_python_files() -> list[Path]:
    """Every Python file: packages, tests, benchmarks, demo."""
    return python_files(*_ALL_PYTHON)


def text_files() -> Iterator[tuple[Path, str]]:
    """Every text file of the checkout and its text; made or fetched directories are left out."""
    for path in sorted(_walk(ROOT)):
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def _walk(directory: Path) -> Iterator[Path]:
    for entry in directory.iterdir():
        if entry.is_symlink() or entry.name in _NOT_OURS or entry.name.endswith(("cache", "_cache", ".egg-info")):
            continue
        if entry.is_dir() and entry.name not in {"__pycache__", ".hypothesis", ".schemathesis"}:
            yield from _walk(entry)
        elif entry.is_file():
            yield entry


def yaml_files() -> list[Path]:
    """Every YAML file that is shipped or shown."""
    return [path for path in sorted(_walk(ROOT)) if path.suffix in {".yaml", ".yml"} and "tests" not in path.parts]
