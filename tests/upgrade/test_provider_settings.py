"""Settings of clouds as the previous release knew them: translated or ignored, and each named once."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.config import load_config
from hcloud.daemon import OWNER, new_defaults_notes
from hcloud.store import Store
from providers.ec2.settings import parse_regions
from providers.gce.settings import WorkerSettings

CONFIG = """
owner: hcloud-a
providers:
  - name: amazon
    type: ec2
    settings:
      prices: {m5.large: {on_demand: 0.096}}
      scheduler_address: 10.0.0.5:8786
      credential: ssm
      parameter_path: /hcloud
      instance_profile: hcloud-worker
      regions:
        eu-central-1: {}
        us-east-1: {scheduler_address: "198.51.100.7:8786", credential: image}
  - name: google
    type: gce
    settings:
      worker: {tls_secret: projects/p/secrets/s/versions/1, tls_in_metadata: false, scheduler_address: "10.1.0.5:8786"}
"""


def test_former_settings_of_machines_are_translated_and_named(tmp_path: Path) -> None:
    file, notes = tmp_path / "config.yaml", list[str]()
    file.write_text(CONFIG)
    amazon, google = load_config(file, notes).providers
    regions = parse_regions("amazon", amazon.settings)
    assert regions["eu-central-1"].gateway_addresses == ("10.0.0.5:8786",)
    assert regions["us-east-1"].gateway_addresses == ("198.51.100.7:8786",)
    assert WorkerSettings(**google.settings["worker"]).gateway_addresses == ("10.1.0.5:8786",)
    renamed = [note for note in notes if "scheduler_address was renamed to " in note]
    removed = [note for note in notes if "(each instance gets a certificate of its own)" in note]
    assert (len(renamed), len(removed), len(notes)) == (3, 5, 8)
    assert f"{file}:8: providers[0].settings.scheduler_address" in notes[0], notes


@pytest.mark.parametrize(
    ("engine", "named"), [("", True), ("engine: {isolation: best_effort}\n", False)], ids=["unstated", "stated"]
)
def test_isolation_that_rented_machines_now_require_is_named_once_where_it_was_not_stated(
    tmp_path: Path, engine: str, named: bool
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG + engine)
    (tmp_path / "policy.yaml").write_text("name: p\n")
    config = replace(load_config(file), policy=tmp_path / "policy.yaml")
    with closing(Store.open(f"sqlite:///{tmp_path}/hcloud.db")) as store:
        store.set_meta(OWNER, config.owner)
        found = [[note for note in new_defaults_notes(store, config) if "cannot isolate" in note] for _ in range(2)]
    assert [len(notes) for notes in found] == [named, 0]
