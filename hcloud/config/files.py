"""Loading of configurations, policies and job files. Errors name file, line and key."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hcloud.config.document import STDIN, Document, file_name, read_document, read_each_document, read_text
from hcloud.config.plugins import load_plugins
from hcloud.config.settings import Config, EngineSettings
from hcloud.core.dependencies import DependencyError, resolve_names
from hcloud.core.errors import ConfigError
from hcloud.core.units import shown
from hcloud.spec.jobfile import JobFile, parse_job
from hcloud.spec.key_changes import (
    DEFAULT_CHANGES,
    DEFAULTS_SINCE,
    KEY_CHANGES,
    DocumentKind,
    new_defaults_of,
    states_former_defaults,
    translate_keys,
)
from hcloud.spec.policy import Policy, parse_policy
from hcloud.spec.validation import KeyPath, nearest, parse

_log = logging.getLogger("hcloud")
_YAML = (".yaml", ".yml", ".json")
_REFERENCE = re.compile(r"\$\{([^}]*)\}")


def load_config(path: Path, notes: list[str] | None = None, *, provider_types: Collection[str] | None = None) -> Config:
    """Return the configuration in ``path``; relative paths in it are relative to its directory.

    A sentence for each renamed or removed key is appended to ``notes``; without a list it is logged as a warning.
    Providers of a type that is not in ``provider_types`` are refused.

    Raises:
        ConfigError: names file, line, key, what is wrong and what would be right.
    """
    document = read_config(path, notes)
    value = _with_references(document)
    context = {"base": path.expanduser().absolute().parent, "provider_types": provider_types}
    return parse(Config, value, document.where, context=context)


def load_engine(path: Path) -> EngineSettings:
    """Return the section ``engine`` of the configuration in ``path``: all that the gateway needs of it, and may know.

    Raises ConfigError.
    """
    document = read_config(path, [])
    value = document.value.get("engine") if isinstance(document.value, Mapping) else None
    context = {"base": path.expanduser().absolute().parent}
    return parse(EngineSettings, value or {}, lambda key: document.where(("engine", *key)), context=context)


def read_config(path: Path, notes: list[str] | None = None) -> Document:
    """Return the configuration in ``path``, not validated, with old keys translated. ``notes``: as of load_config."""
    return _with_todays_keys(read_document(path), "config", notes)


def load_policy(path: Path, notes: list[str] | None = None) -> Policy:
    """Return the policy in ``path``. ``notes``: as of :func:`load_config`; also one for a copy of a former default.

    Raises:
        ConfigError: names file, line, key, what is wrong and what would be right; or a package's rule for policies that
            cannot be used.
    """
    document = _with_todays_keys(read_document(path), "policy", notes)
    load_plugins()
    policy = parse_policy(document.value, locate=document.where)
    if states_former_defaults(document.value):
        rules = ", ".join(f"{change.key}: {change.old}" for change in DEFAULT_CHANGES if change.rule)
        every = ", ".join(change.key for change in DEFAULT_CHANGES)
        _note(
            f"{file_name(path)} states the rules that were the default before {DEFAULTS_SINCE} ({rules}); to take the "
            f"new default, delete {every}; to keep these rules, set name: simple",
            notes,
        )
    return policy


def new_defaults_note(path: Path) -> str | None:
    """Return which changed defaults the policy in ``path`` takes by leaving keys out; None if none.

    Raises:
        ConfigError: the file cannot be read or is not YAML.
    """
    changes = new_defaults_of(read_document(path).value)
    if not changes:
        return None
    changed = ", ".join(f"{each.key} is {_in_yaml(each.new)} (was {_in_yaml(each.old)})" for each in changes)
    return (
        f"{file_name(path)} leaves out keys whose defaults changed in {DEFAULTS_SINCE}: {changed}; "
        "to keep the former rules, state the former values"
    )


def _in_yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def load_named_policy(config: Config, file: Path, notes: list[str] | None = None) -> Policy:
    """Return the policy that the configuration read from ``file`` names. ``notes``: as of :func:`load_config`.

    Raises:
        ConfigError: as ``load_policy``. A policy that cannot be read is reported at the key that names it.
    """
    try:
        return load_policy(config.policy, notes)
    except ConfigError as error:
        if error.where != file_name(config.policy):  # the file was read, but its content is wrong
            raise
        message = str(error)
        if not config.policy.exists():
            message = f"there is no {file_name(config.policy)}{_similar_policy(config.policy, file)}"
        raise ConfigError(message, where=read_document(file).where(("policy",))) from None


def _similar_policy(missing: Path, config_file: Path) -> str:
    """Return a hint with the most similar policy name in the same directory, or an empty string."""
    siblings = missing.parent.iterdir() if missing.parent.is_dir() else ()
    files = {each.name: each for each in siblings if each.suffix in _YAML and each.is_file()}
    for name in difflib.get_close_matches(missing.name, files, n=5):
        with suppress(ConfigError, OSError):
            load_policy(files[name], [])
            if not files[name].samefile(config_file):
                return f"; did you mean {str(files[name])!r}?"
    return ""


def at_its_line(error: ConfigError, file: Path) -> ConfigError:
    """Return the error with file and line added, if its ``where`` is a top-level key that ``file`` contains."""
    document, key = read_document(file), error.where
    if (key,) not in document.lines:
        return error
    return ConfigError(str(error).removeprefix(f"{key}: "), where=document.where((key,)))


def load_job(
    path: Path, notes: list[str] | None = None, *, now: float | None = None, alone: bool = False
) -> tuple[JobFile, ...]:
    """Return the jobs in ``path`` (``-``: standard input), one per document.

    ``env_file`` is merged into ``env``, and ``workdir`` becomes an absolute path; both are relative to the job file.
    Deadlines before ``now`` are refused. ``notes``: as of :func:`load_config`. ``alone``: no other file is submitted
    with it, so that names in ``after`` are those of its own jobs.

    Raises:
        ConfigError: names file, line, key, what is wrong and what would be right; the faults of further documents are
            its notes.
    """
    base = Path.cwd() if path == STDIN else path.expanduser().absolute().parent
    jobs, faults, documents = list[JobFile](), list[ConfigError](), list[Document]()
    for document in read_each_document(path):
        if isinstance(document, ConfigError):
            faults.append(document)
            continue
        try:
            documents.append(_with_todays_keys(document, "job", notes))
            jobs.append(_job(documents[-1], base, now))
        except ConfigError as error:
            faults.append(error)
    if faults:
        for fault in faults[1:]:
            for line in (str(fault), *getattr(fault, "__notes__", ())):
                faults[0].add_note(line)
        raise faults[0]
    if alone:
        try:
            resolve_names([job.name for job in jobs], [job.after for job in jobs])
        except DependencyError as error:
            where = documents[error.position].where(("after", error.key))
            raise ConfigError(str(error), where=where) from error
    return tuple(jobs)


def _job(document: Document, base: Path, now: float | None) -> JobFile:
    job = parse_job(document.value, locate=document.where, now=now)
    changes: dict[str, object] = {}
    if job.workdir is not None:
        directory = base / Path(job.workdir).expanduser()
        if not directory.is_dir():
            raise ConfigError(f"is not a directory: {file_name(directory)}", where=document.where(("workdir",)))
        changes["workdir"] = str(directory)
    for index, each in enumerate(job.inputs):
        if each.is_local and not (base / Path(each.source).expanduser()).exists():
            raise ConfigError(
                f"there is no file or folder {each.source}", where=document.where(("inputs", index, "from"))
            )
    if any(each.is_local for each in job.inputs):
        changes["inputs"] = tuple(
            each.model_copy(update={"source": str(base / Path(each.source).expanduser())}) if each.is_local else each
            for each in job.inputs
        )
    if job.env_file is not None:
        file = base / Path(job.env_file).expanduser()
        changes |= {"env_file": None, "env": {**read_env_file(file, document.where(("env_file",))), **job.env}}
    return (
        parse_job({**job.model_dump(mode="json", exclude_unset=True), **changes}, locate=document.where)
        if changes
        else job
    )


def read_env_file(path: Path, where: str = "") -> dict[str, str]:
    """Return the variables of a file of ``NAME=value`` lines; blank lines and ``#`` comments are skipped.

    Values are literal, except that one pair of quotes around them is removed. ``where`` is the key that named the file.

    Raises:
        ConfigError: the file cannot be read, or a line has another form.
    """
    try:
        text = read_text(path)
    except ConfigError as error:
        raise ConfigError(str(error), where=where) from None
    variables = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip().removeprefix("export ").lstrip()
        if not entry or entry.startswith("#"):
            continue
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", entry)
        if match is None:
            raise ConfigError(f"must be a line NAME=value, not {shown(entry)}", where=f"{file_name(path)}:{number}")
        value = match[2].strip()
        quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
        variables[match[1]] = value[1:-1] if quoted else value
    return variables


def _with_todays_keys(document: Document, kind: DocumentKind, notes: list[str] | None) -> Document:
    """Return the document with renamed keys under their new names and without removed ones, each with its line."""
    value, applied = translate_keys(document.value, KEY_CHANGES[kind], document.where)
    lines = dict(document.lines)
    for each in applied:
        _note(f"{document.where(each.path)} {each.change.sentence}", notes)
        depth = len(each.path)
        for path in [path for path in lines if path[:depth] == each.path]:
            line = lines.pop(path)
            if each.new_path is not None:
                lines[each.new_path + path[depth:]] = line
    return replace(document, value=value, lines=lines)


def _note(sentence: str, notes: list[str] | None) -> None:
    if notes is None:
        _log.warning("%s", sentence)
    else:
        notes.append(sentence)


def _with_references(document: Document) -> object:
    """Return the configuration with ``${NAME}`` in ``database`` replaced. Raises ConfigError for it in other values."""
    value = document.value
    if not isinstance(value, Mapping):
        return value
    for path, text in _texts(value, ()):
        if "${" in text and path != ("database",):
            raise ConfigError("references such as ${NAME} work only in database", where=document.where(path))
    database = value.get("database")
    if not isinstance(database, str):
        return value
    return {**value, "database": _REFERENCE.sub(lambda match: _variable(match[1], document), database)}


def _variable(name: str, document: Document) -> str:
    value = os.environ.get(name)
    if not value:
        hint = nearest(name, [each for each in os.environ if each.startswith("HCLOUD_")] or [])
        hint = f"; {hint}" if hint.startswith("did you mean") else ""
        raise ConfigError(
            f"the environment variable {shown(name)} is not set{hint}", where=document.where(("database",))
        )
    return value


def _texts(value: object, path: KeyPath) -> list[tuple[KeyPath, str]]:
    if isinstance(value, str):
        return [(path, value)]
    if isinstance(value, Mapping):
        return [each for key, child in value.items() for each in _texts(child, (*path, str(key)))]
    if isinstance(value, list):
        return [each for index, child in enumerate(value) for each in _texts(child, (*path, index))]
    return []
