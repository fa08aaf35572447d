"""Settings of clouds as the previous release knew them: translated or ignored, and each named once."""

from pathlib import Path

from hcloud.config import load_config
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
