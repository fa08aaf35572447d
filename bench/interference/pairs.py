"""Programs beside real programs: which meet, and what was measured of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from hcloud.classifier.library import Library
from hcloud.config import package_data
from hcloud.config.profiles import load_library
from hcloud.core.errors import BadInput

NEIGHBOURS_EACH = 2
PLACES_OF_TRIPLES = ((True, True), (True, False), (False, False))
"""Which of two neighbours share a program's core, from triple to triple. Those that do not share another core."""


class Place(NamedTuple):
    """A neighbour, and where it runs."""

    neighbour: str
    same_core: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Which programs are watched, and which may be their neighbours."""

    victims: tuple[str, ...]
    neighbours: tuple[str, ...]
    neighbours_each: int = NEIGHBOURS_EACH
    places: tuple[bool, ...] = (False, True)
    """Where they meet: on another core (False), on the same (True)."""
    repeats: int = 1
    """How often each pair is measured; the second time after all others were measured once."""
    has_triples: bool = True
    """Whether each program also meets two of its neighbours at once."""

    def programs(self) -> tuple[str, ...]:
        """Return every program, once."""
        return tuple(dict.fromkeys((*self.victims, *self.neighbours)))

    def partners(self) -> Iterator[tuple[str, str]]:
        """Yield each program with a neighbour: all have the same number of them, and never themselves."""
        for at, victim in enumerate(self.victims):
            others = [name for name in self.neighbours if name != victim]
            for step in range(self.neighbours_each):
                yield victim, others[(at + step) % len(others)]

    def triples(self) -> Iterator[tuple[str, tuple[Place, ...]]]:
        """Yield each program with two neighbours it meets in pairs, too: both on its core, one, or none in turn."""
        partners = dict[str, list[str]]()
        for victim, neighbour in self.partners():
            partners.setdefault(victim, []).append(neighbour)
        for at, (victim, met) in enumerate(partners.items() if self.has_triples else ()):
            yield victim, tuple(map(Place, met, PLACES_OF_TRIPLES[at % len(PLACES_OF_TRIPLES)]))


CASTS = {
    "design": Cast(
        victims=("gzip", "sqlite-insert", "redis-get", "numpy-matmul", "memory-random", "disk-write", "http-server",
                 "sort"),
        neighbours=("memory-triad", "zstd", "disk-read", "numpy-fft"),
    ),
    "test": Cast(
        victims=("grep", "jq", "openssl-aes", "postgres-select", "python-json", "sha256sum", "numpy-fft", "awk"),
        neighbours=("memory-random", "disk-write", "gzip", "numpy-matmul"),
    ),
    "ranks": Cast(
        victims=("awk", "disk-read", "git-log", "grep", "gzip", "http-server", "jq", "numpy-fft", "postgres-select",
                 "python-json", "sort", "sqlite-insert"),
        neighbours=("memory-random", "disk-write", "memory-triad", "numpy-matmul", "zstd", "openssl-aes"),
        neighbours_each=6,
        places=(False,),
        repeats=2,
        has_triples=False,
    ),
}  # fmt: skip
"""How predictions are made was chosen on ``design``; ``test`` was measured afterwards. ``ranks`` asks whether needed
quality distinguishes programs: twelve of them beside six neighbours each, measured twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What probes of a program found, by source, for each of its two sides; ``busy_vcpus``: what it uses alone."""

    tolerated: Mapping[str, float]
    caused: Mapping[str, float]
    busy_vcpus: float = 1.0
    spreads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """95 % half-widths in points, by side and source; as a profile states them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A program beside a neighbour, on one core or on two, and how many times longer it took than alone."""

    victim: str
    neighbour: str
    same_core: bool
    slowdown: float
    low: float
    high: float
    repeat: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """What was measured: the same for a measurement made again."""
        return (self.victim, self.neighbour, self.same_core, self.repeat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Triple:
    """A program beside two neighbours, and how many times longer it took than alone."""

    victim: str
    places: tuple[Place, ...]
    slowdown: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything that was measured."""

    probed: Mapping[str, Probed] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    triples: tuple[Triple, ...] = ()

    def write(self, path: Path) -> None:
        """Keep it, to judge it again later, or to go on measuring. A kill leaves the old file or the new one."""
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(json.dumps(asdict(self), indent=1) + "\n")
        fresh.replace(path)


def read(path: Path) -> Found:
    """Return what ``Found.write`` kept, also of versions without triples. Raises BadInput."""
    try:
        kept = json.loads(path.read_text())
        return Found(
            probed={name: Probed(**each) for name, each in kept["probed"].items()},
            pairs=tuple(Pair(**each) for each in kept["pairs"]),
            triples=tuple(
                Triple(**{**each, "places": tuple(Place(*place) for place in each["places"])})
                for each in kept.get("triples", ())
            ),
        )
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path}: not what this benchmark keeps ({error}); give a file that --out wrote") from error


def shipped_library() -> Library:
    """Return the library as shipped."""
    return load_library([package_data.path("profiles")])


def without(library: Library, *names: str) -> Library:
    """Return the library as if these programs (whatever their input) had never been measured."""
    programs = {library.known[name].program for name in names if name in library.known} | set(names)
    return Library(known={name: each for name, each in library.known.items() if each.program not in programs})
