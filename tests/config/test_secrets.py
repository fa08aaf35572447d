"""Secrets by reference: found where they are said to be, and quoted nowhere."""

from pathlib import Path

import pytest

from hcloud.config import Config, resolve_secret
from hcloud.config.secrets import check_secret
from hcloud.config.settings import ProviderSettings
from hcloud.core.clock import ManualClock
from hcloud.core.errors import ConfigError
from hcloud.wiring import price_sources

SECRET = "hush-hush"


def secret_file(path: Path, mode: int = 0o600, content: bytes = SECRET.encode() + b"\n") -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return f"file:{path}"


def test_a_secret_is_read_from_a_variable_or_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", f" {SECRET}\n")
    assert resolve_secret("env:SOME_KEY") == SECRET
    assert resolve_secret(secret_file(tmp_path / "key")) == SECRET


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="is readable by other users") as refused:
        resolve_secret(secret_file(tmp_path / "key", mode))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"x" * 70_000])
def test_what_is_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match=f"file:{tmp_path}/key: (is empty|is not text|is too large)"):
        resolve_secret(secret_file(tmp_path / "key", content=content))


def test_a_secret_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(ConfigError, match="env:SOME_KEY: is not set"):
        resolve_secret("env:SOME_KEY")
    with pytest.raises(ConfigError, match="No such file"):
        resolve_secret(f"file:{tmp_path}/none")


@pytest.mark.parametrize("text", [SECRET, "env:", "env:A B", "file:relative", "file:", "AKIA:env:X"])
def test_a_secret_itself_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="must be the location of the secret") as refused:
        check_secret(text)
    assert str(refused.value) == "must be the location of the secret, env:NAME or file:/PATH, not the secret itself"


def test_prices_of_the_regions_of_ec2_providers_are_read_each_day_by_default() -> None:
    def ec2(name: str, **settings: object) -> ProviderSettings:
        return ProviderSettings(name=name, type="ec2", settings=settings)

    config = Config(
        owner="hcloud-a",
        providers=(
            ec2("one", region="us-east-1"),
            ec2("several", regions={"eu-west-1": {}, "us-west-2": {"endpoint_url": "http://127.0.0.1:5000"}}),
            ec2("no-amazon", region="us-east-2", endpoint_url="http://127.0.0.1:5000"),
            ec2("priced", region="sa-east-1", prices={"m5.large": {"on_demand": 0.1}}),
            ec2("faulty", region=7, regions=8),
            ProviderSettings(name="google", type="gce", settings={"zones": ["us-central1-a"]}),
        ),
    )
    assert config.catalog.refresh_every_s == 86_400
    assert config.default_price_regions() == ("eu-west-1", "us-east-1")
    [bulk] = price_sources(config, ManualClock(0.0))
    assert bulk.name == "AWS price list"
    assert price_sources(Config(owner="hcloud-a"), ManualClock(0.0)) == ()


def test_providers_that_take_prices_get_the_catalogue_where_they_name_none() -> None:
    config = Config(owner="hcloud-a", state_dir=Path("/state"))
    bare = ProviderSettings(name="cloud", type="gce", settings={"project": "p"})
    own = ProviderSettings(name="cloud", type="ec2", settings={"prices_file": "/own.json"})
    local = ProviderSettings(name="local", type="local")
    assert config.settings_of(bare) == {"project": "p", "prices_file": "/state/catalog/gce.json"}
    assert config.settings_of(own) is own.settings
    assert config.settings_of(local) is local.settings
