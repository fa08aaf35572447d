"""Reference programs measured by jobs: machine set-up, findings, and the resulting profile."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import Measure, Reading
from hcloud.engine.host import EngineHost
from hcloud.profiler.bootstrap import TOTAL
from hcloud.profiler.reference_runs import measure_reference
from hcloud.profiler.references import Part, facts_of, job_of, profile_of, readings_of, setup_script
from hcloud.profiler.subject import Subject
from hcloud.spec.jobfile import parse_job
from tests.machine import needs, needs_stress_ng
from tests.profiler.test_bootstrap import RECIPE, TrueBench

LARGE = Part(provider="mock", instance_type="m.two", vcpus=4.0, whole=True)
SMALL = Part(provider="mock", instance_type="m.one", vcpus=2.0, whole=False)


def found(part: Part, scale: float = 1.0, **changes: object) -> Part:
    """The results of a perfect measurement of a part."""
    readings = [("type", part.column, 40.0), *((("step", "1 vCPU", 10.0), ("tolerated", "llc-capacity", 30.0))
                                                if part.whole else ())]  # fmt: skip
    cells = tuple(
        Reading(question=q, column=c, value=v, low=v * 0.9, high=v * 1.1)
        if q == "tolerated"
        else Reading(
            question=q,
            column=c,
            value=v * scale / TOTAL,
            low=0.9 * v * scale / TOTAL,
            high=1.1 * v * scale / TOTAL,
        )
        for q, c, v in readings
    )
    done = {"measure": "progress", "readings": cells, "use": (1.0, 2.0, 0.0, 0.0), "measured_at": 1.8e9, "took_s": 9.0}
    return replace(part, **{**done, **changes})  # type: ignore[arg-type]


def prepared(folder: Path, *packages: str) -> subprocess.CompletedProcess[str]:
    script = setup_script(replace(RECIPE, packages=packages, prepare=("echo hello > made",)))
    return subprocess.run(["/bin/sh", "-c", script], cwd=folder, capture_output=True, text=True, check=False)


@needs_stress_ng
def test_setup_prepares_and_tells_of_the_machine(tmp_path: Path) -> None:
    done = prepared(tmp_path, "coreutils")
    assert done.returncode == 0, done.stderr
    facts = facts_of(done.stdout)
    assert {"cores", "kernel", "load", "stress-ng", "package:coreutils"} <= set(facts)
    assert (tmp_path / "made").read_text() == "hello\n"


@needs(Path("/usr/share/doc/coreutils").is_dir(), "packages have no directories here")
@needs_stress_ng
def test_setup_finds_packages_where_their_database_is_out_of_sight(tmp_path: Path) -> None:
    """An environment like that in the sandbox of a unit."""
    blind = tmp_path / "bin" / "dpkg-query"
    blind.parent.mkdir()
    blind.write_text("#!/bin/sh\nexit 2\n")
    blind.chmod(0o755)
    for package, code in (("coreutils", 0), ("hcloud-no-such-package", 3)):
        script = setup_script(replace(RECIPE, packages=(package,))).replace('"$(id -u)"', "1000")
        environment = {**os.environ, "PATH": f"{blind.parent}:{os.environ['PATH']}"}
        assert subprocess.run(["/bin/sh", "-c", script], env=environment, check=False).returncode == code


def test_setup_names_what_cannot_be_installed_and_prepares_nothing(tmp_path: Path) -> None:
    script = setup_script(replace(RECIPE, packages=("hcloud-no-such-package",))).replace('"$(id -u)"', "1000")
    done = subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "not installed on this machine: hcloud-no-such-package" in done.stderr


def test_job_asks_for_everything_on_the_first_type_and_for_its_speed_on_others() -> None:
    whole, other = (parse_job(job_of("copy", RECIPE, part, 30.0)).to_spec("ada") for part in (LARGE, SMALL))
    assert whole.profile is not None and other.profile is not None
    assert (whole.profile.steps_vcpus, len(whole.profile.sources)) == ((4.0, 2.0, 1.0, 0.5), 16)
    assert (other.profile.steps_vcpus, other.profile.sources) == ((2.0,), ())
    assert (whole.exclusive, whole.instance_types, whole.profiling) == (True, ("m.two",), "never")


@pytest.mark.parametrize("stated", [{"nodes": 2}, {"measure": {"on": "m.one", "sizes": [1.0]}},
                                    {"measure": {"on": "mock/m.one", "sizes": []}}])  # fmt: skip
def test_job_that_cannot_be_measured_is_refused(stated: dict[str, object]) -> None:
    from hcloud.core.errors import ConfigError

    with pytest.raises(ConfigError):
        parse_job({**job_of("copy", RECIPE, SMALL, 30.0), **stated})


@needs_stress_ng
def test_instance_is_asked_what_this_machine_is_asked_by_the_bootstrap(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("some words\n")
    request = parse_job(job_of("copy", RECIPE, LARGE, 30.0)).to_spec("ada").profile
    assert request is not None
    bench, reports = TrueBench(unmeasurable=("tlb",)), []
    subject = Subject(name="copy", command=("cat",), workdir=tmp_path)
    answers = measure_reference(request, subject, EngineHost(), report=reports.append, bench_for=bench)
    cells = {(each.question, each.column): each.value for each in answers.readings}
    assert cells["type", "mock/m.two"] * TOTAL == pytest.approx(160.0)
    assert cells["step", "0.5 vCPU"] * TOTAL == pytest.approx(20.0)
    assert sum(question == "tolerated" for question, _ in cells) == 15
    assert "tolerated tlb was not measured: nothing feels it here" in answers.notes
    assert answers.measure is Measure.PROGRESS
    assert len(reports) == 4 + 2 * 16


def test_profile_joins_what_jobs_found_on_several_types() -> None:
    both = profile_of("copy", RECIPE, [found(LARGE, facts={"cpu": "Some CPU", "cores": "4"}), found(SMALL, 0.5)])
    assert {name: cell.value for name, cell in both.cells.type.items()} == {"mock/m.two": 40.0, "mock/m.one": 20.0}
    assert both.cells.step["1 vCPU"].value == pytest.approx(10.0)
    assert both.cells.tolerated["llc-capacity"].value == 30.0
    assert (both.provenance.cpu, both.provenance.cores, both.provenance.took_s) == ("Some CPU", 4, 18.0)


def test_program_that_was_not_measured_is_no_profile_and_says_why() -> None:
    lost = replace(LARGE, notes=("job-7 on mock/m.two failed: not installed on this machine: jq",))
    with pytest.raises(Unmeasurable, match="job-7 on mock/m\\.two failed: not installed on this machine: jq"):
        profile_of("copy", RECIPE, [lost, found(SMALL)])
    with pytest.raises(Unmeasurable, match="too little progress"):
        profile_of("copy", RECIPE, [found(LARGE, measure="cpu")])


def test_readings_of_an_event_are_read_again() -> None:
    (one,) = readings_of(["type:local/local.large:1.5e-08:1e-08:2e-08:4"])
    assert (one.question, one.column, one.value, one.runs) == ("type", "local/local.large", 1.5e-08, 4)
