"""What is wrong with settings is said in one sentence, by `hcloud config check` as by the daemon."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hcloud.cli.main import main
from hcloud.core.clock import SystemClock
from hcloud.core.errors import ConfigError
from providers.gce import GceProvider
from providers.gce.settings import GceSettings, WorkerSettings, parse_settings
from tests.house import tree


def _settings(tmp_path: Path, **changes: object) -> dict[str, object]:
    prices = tmp_path / "prices.json"
    prices.write_text("{}")
    return {"project": "my-project", "zones": ["us-central1-a"], "prices_file": str(prices), **changes}


def _complaint(settings: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_settings("gce", settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"zone": ["us-central1-a"]}, "settings.zone: unknown setting zone; did you mean zones?"),
        ({"zones": ["us-central1"]}, "zones.0: must be a zone such as us-central1-a, not 'us-central1'"),
        ({"zones": []}, "zones: must not be empty, not []"),
        ({"zones": "us-central1-a"}, "zones: must be a list, not 'us-central1-a'"),
        ({"project": "My Project"}, "must be a project id"),
        ({"markets": ["cheap"]}, "must be 'reserved', 'on_demand' or 'spot', not 'cheap'"),
        ({"disk_gib": 5}, "disk_gib: must be at least 10, not 5"),
        ({"longest_run_s": 1e9}, "longest_run_s: must be at most 1.0368e+07"),
        ({"endpoint": "http://example.org"}, "must be https except on this machine"),
        ({"endpoint": "compute.googleapis.com"}, "must be a scheme and a host"),
        ({"credentials": "/no/such/key.json"}, "'/no/such/key.json' does not exist"),
        ({"labels": {"Team": "x"}}, "must be lower-case letters, digits, - or _"),
        ({"labels": {f"t{n}": "" for n in range(60)}}, "labels: must have at most 59 entries"),
        (
            {"worker": {"gateway_addres": "x"}},
            "worker.gateway_addres: unknown setting gateway_addres; did you mean gateway_addresses",
        ),
        ({"worker": {"gateway_addresses": ["here"]}}, "must be addresses and ports such as 10.128.0.5:8786"),
        ({"worker": None}, "worker: must be a mapping, not None"),
        ({"shielded": "perhaps"}, "shielded: must be true or false, not 'perhaps'"),
    ],
)
def test_wrong_setting_is_named_with_what_would_be_right(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    told = _complaint(_settings(tmp_path, **changes))
    assert told.startswith("providers.gce.settings")
    assert says in told
    assert "nput should" not in told and "\n" not in told


@pytest.mark.parametrize("key", ["project", "zones", "prices_file"])
def test_missing_setting_is_named(tmp_path: Path, key: str) -> None:
    settings = _settings(tmp_path)
    del settings[key]
    assert _complaint(settings) == f"providers.gce.settings.{key}: is required"


def test_missing_prices_are_named_when_the_provider_is_built(tmp_path: Path) -> None:
    settings = _settings(tmp_path, prices_file="/no/such/prices.json")
    GceProvider.check_settings("gce", settings)
    with pytest.raises(ConfigError, match=r"settings\.prices_file: '/no/such/prices\.json' does not exist"):
        GceProvider("gce", settings, SystemClock(), "me", str(tmp_path))


def test_missing_library_is_named_with_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install '.[gcp]'" in _complaint(_settings(tmp_path))


def test_settings_are_checked_without_loading_the_library(tmp_path: Path) -> None:
    """It takes 1.5 s and 150 MB, which no command but the daemon should pay."""
    settings = _settings(tmp_path)
    code = (
        "import sys; from hcloud.core.clock import SystemClock; from providers.gce import GceProvider\n"
        f"GceProvider('gce', {settings!r}, SystemClock(), 'me', '.').facts()\n"
        "assert 'google.cloud.compute_v1' not in sys.modules and 'google.api_core' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_config_check_tells_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.yaml").write_text("name: mine\n")
    config = tmp_path / "config.yaml"
    config.write_text(
        "owner: hcloud-test\npolicy: policy.yaml\nproviders:\n  - name: google\n    type: gce\n    settings:\n"
        "      project: my-project\n      zone: [us-central1-a]\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["config", "check", str(config)])
    assert ended.value.code == 2
    assert "providers.google.settings.zone: unknown setting zone; did you mean zones?" in capsys.readouterr().err


def test_key_files_are_named_never_shown(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text('{"private_key": "very secret"}')
    provider = GceProvider("gce", _settings(tmp_path, credentials=str(key)), SystemClock(), "me", str(tmp_path))
    assert "very secret" not in str(provider.facts()) + repr(provider.settings)


def test_every_setting_is_in_the_document() -> None:
    told = set(re.findall(r"`([a-z_.]+)`", (tree.ROOT / "docs" / "gcp.md").read_text()))
    known = set(GceSettings.model_fields) - {"worker"} | {f"worker.{name}" for name in WorkerSettings.model_fields}
    assert known - told == set()
