"""A unit's environment, in which secrets may be, on its machine: in its processes only, never on the disk."""

import hashlib

import pytest

from hcloud.provider import UnitSpec
from tests.engine.conftest import NAME
from tests.engine.site import SMALL, Machine, Watch, kill, new_unit_id

SECRET = "s3cr3t-5c9f1b7e-value"
SAYS_DIGEST = 'printf %s "$TOKEN" | sha256sum; echo said'


def unit(script: str, **changes: str) -> UnitSpec:
    return UnitSpec(
        id=new_unit_id(),
        instance_id=NAME,
        rank=0,
        command=("/bin/sh", "-c", script),
        resources=SMALL,
        env={"TOKEN": SECRET},
        stop_grace_s=1.0,
        **changes,
    )


def files_with_the_secret(machine: Machine) -> list[str]:
    files = [path for path in machine.state_dir.rglob("*") if path.is_file() and not path.is_symlink()]
    assert "spec.json" in {path.name for path in files}
    return [path.name for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("end", ["by itself", "keeper killed"])
def test_secret_is_in_the_environment_of_its_unit_and_in_no_file(machine: Machine, watch: Watch, end: str) -> None:
    one = unit(f"{SAYS_DIGEST}; while [ ! -e go ]; do sleep 0.05; done", setup=SAYS_DIGEST)
    watch.runner.start([one])
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    watch.says(one, f"{digest}  -\nsaid\n{digest}")
    assert files_with_the_secret(machine) == []
    if end == "by itself":
        (machine.unit(one.id).path / "root" / "job" / "go").touch()
    else:
        kill(machine.keeper(one.id))
    watch.ended(one)
    assert files_with_the_secret(machine) == []
