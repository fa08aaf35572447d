"""AWS's error codes as reactions, and settings that are refused in one clear sentence."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from botocore.exceptions import ClientError as AwsError
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from hcloud.cli.main import main
from hcloud.core.clock import ManualClock
from hcloud.core.errors import (
    AccountRejected,
    ConfigError,
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    Throttled,
)
from providers.ec2 import factory
from providers.ec2.errors import NOT_AUTHENTICATED, OUT_OF_CAPACITY, OVER_QUOTA, THROTTLED, Call, to_provider_error

URL = "http://endpoint"
GOOD: Mapping[str, object] = {
    "region": "us-east-1",
    "prices": {"m5.large": {"on_demand": 0.096}},
}


def answer(code: str, status: int) -> AwsError:
    return AwsError(
        {"Error": {"Code": code, "Message": "told"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "RunInstances",
    )


@pytest.mark.parametrize(
    ("codes", "status", "reaction"),
    [
        (THROTTLED, 503, Throttled),
        (OUT_OF_CAPACITY, 500, InsufficientCapacity),
        (OVER_QUOTA, 400, QuotaExceeded),
        (NOT_AUTHENTICATED, 401, ProviderUnavailable),
        ({"UnauthorizedOperation", "TagLimitExceeded", "InvalidKeyPair.NotFound"}, 400, AccountRejected),
        ({"InvalidParameterValue", "InvalidAMIID.NotFound", "Unsupported"}, 400, LaunchRejected),
        ({"InternalError", "Unavailable", "ServiceUnavailable", "SomethingNew", "502", ""}, 503, OutcomeUnknown),
    ],
)
def test_answer_to_a_launch_is_the_reaction_it_calls_for(
    codes: frozenset[str], status: int, reaction: type[ProviderError]
) -> None:
    assert {type(to_provider_error(answer(code, status), Call.WRITE, "launch")) for code in codes} == {reaction}


@pytest.mark.parametrize(
    "code", [*sorted(THROTTLED), "InternalError", "UnauthorizedOperation", "InvalidParameterValue"]
)
def test_failed_read_never_says_anything_about_what_exists(code: str) -> None:
    assert isinstance(to_provider_error(answer(code, 400), Call.READ, "list"), ProviderUnavailable | Throttled)


@pytest.mark.parametrize(
    ("trouble", "of_a_write"),
    [
        (EndpointConnectionError(endpoint_url=URL), ProviderUnavailable),
        (ConnectTimeoutError(endpoint_url=URL), ProviderUnavailable),
        (NoCredentialsError(), ProviderUnavailable),
        (ReadTimeoutError(endpoint_url=URL), OutcomeUnknown),
        (ConnectionClosedError(endpoint_url=URL), OutcomeUnknown),
        (ResponseParserError("<html>"), OutcomeUnknown),
    ],
)
def test_broken_connection_is_told_apart_from_one_that_never_was(
    trouble: Exception, of_a_write: type[ProviderError]
) -> None:
    assert type(to_provider_error(trouble, Call.WRITE, "launch")) is of_a_write
    assert type(to_provider_error(trouble, Call.READ, "list")) is ProviderUnavailable


def test_encoded_policy_decision_is_left_out() -> None:
    error = answer("UnauthorizedOperation", 403)
    error.response["Error"]["Message"] = "You may not. Encoded authorization failure message: c2VjcmV0"
    assert (
        str(to_provider_error(error, Call.WRITE, "ec2: launch")) == "ec2: launch: UnauthorizedOperation: You may not."
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"region": None}, "region: "),
        ({"region": "mars"}, "region: must be like us-east-1, not 'mars'"),
        ({"regoin": "x"}, "unknown setting regoin; did you mean region?"),
        ({"prices": {}}, "prices_file or prices is required"),
        ({"prices": {"m5.large": {"on_demand": 0}}}, r"prices\.m5\.large\.on_demand: input should be greater than 0"),
        ({"prices": {"m5.large": {"ondemand": 1}}}, "unknown setting ondemand; did you mean on_demand?"),
        ({"aws_secret_access_key": "k"}, "aws_secret_access_key must not be in this file"),
        ({"zones": ["us-west-2a"]}, "zones names us-west-2a, which is not in region us-east-1"),
        ({"subnets": ["default"]}, r"subnets\.0: must be like subnet-0a1b2c3d, not 'default'"),
        ({"image": "debian"}, "image: must be like ami-0a1b2c3d or ssm:"),
        ({"markets": ["cheap"]}, r"markets\.0: input should be 'reserved', 'on_demand' or 'spot', not 'cheap'"),
        ({"tags": {"": "x"}}, "must be like team: 1 to 127 letters"),
        ({"tags": {"k" * 128: "x"}}, "must be like team: 1 to 127 letters"),
        ({"tags": {"a;b": "x"}}, "must be like team: 1 to 127 letters"),
        ({"tags": {"a": "v" * 257}}, "must be like batch: at most 256 letters"),
        ({"tags": {f"t{n}": "" for n in range(44)}}, "tags has 44 entries; EC2 allows 50 for one instance"),
        ({"tags": {"hcloud:owner": "me"}}, "tags names hcloud:owner, which is set by HCloud"),
        ({"disk_gib": 8, "system_disk_gib": 9}, "disk_gib must be more than system_disk_gib"),
    ],
)
def test_wrong_setting_is_told_in_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        factory.check_settings("amazon", {**GOOD, **changes})
    assert str(caught.value).startswith("providers.amazon.settings")
    assert "\n" not in str(caught.value)


def test_profile_that_does_not_exist_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    with pytest.raises(ConfigError, match=r"profile.*nobody"):
        factory("amazon", {**GOOD, "profile": "nobody"}, ManualClock(), "me", str(tmp_path))


def test_config_check_tells_what_is_wrong_and_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HCLOUD_HOME", str(tmp_path / "home"))
    (tmp_path / "policy.yaml").write_text("{}\n")
    file = tmp_path / "config.yaml"
    settings = "{region: us-east-1, prices: {m5.large: {on_demand: 0.096}}, rebalance: leave}"

    def check(text: str) -> tuple[int, str]:
        file.write_text(
            f"owner: me-too\npolicy: policy.yaml\nproviders: [{{name: amazon, type: ec2, settings: {text}}}]\n"
        )
        with pytest.raises(SystemExit) as ended:
            main(["config", "check", str(file)])
        return int(ended.value.code or 0), capsys.readouterr().err

    assert check(settings)[0] == 0
    code, said = check(settings.replace("rebalance", "rebalances"))
    assert (code, "did you mean rebalance?" in said) == (2, True)
    monkeypatch.setitem(sys.modules, "boto3", None)
    code, said = check(settings)
    assert (code, "boto3, which type ec2 needs, is not installed" in said, "pip install '.[aws]'" in said) == (
        2,
        True,
        True,
    )
