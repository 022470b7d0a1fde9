"""The compose files and the files that they mount, as their own programs read them, and what docker-compose.yml promises."""

from __future__ import annotations

import os
import re
import subprocess

import deployed
import pytest
from deployed import LAMINAR, PROJECT, SCALE, STACK
from processes import program

pytestmark = pytest.mark.services

DATASOURCES = PROJECT / "dashboards" / "provisioning" / "datasources" / "ckpt_observe.yml"
PROVIDER = PROJECT / "dashboards" / "provisioning" / "dashboards" / "ckpt_observe.yml"

AS_IMAGE = {"prometheus": lambda version: version.replace("0.3", "3.", 1), "jaeger": {"1.76.0": "2.13.0"}.get}
"""Two number their modules otherwise than their images."""


@pytest.fixture(scope="module")
def services():
    """Of all compose files, by file and name."""
    found = {}
    for files, *options in ((STACK,), (SCALE,), (LAMINAR, "--no-interpolation")):
        model = deployed.read(files, *options)
        found |= {(files[-1], name): service for name, service in model["services"].items()}
    return found


def test_bad_compose_file_is_refused(tmp_path):
    """Control: the reader refuses a key that compose does not have, and secrets that are not given."""
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text("services: {one: {image: busybox, prots: ['127.0.0.1:1:1']}}")
    assert "prots" in deployed.read([str(wrong)])
    assert set(re.findall(r"required variable (\w+) is missing", deployed.read(LAMINAR))) == {"LAMINAR_KEY", "LAMINAR_PASSWORD"}


def test_every_image_has_a_version(services):
    """A version is named, so that next year's start is this year's."""
    images = {service["image"] for service in services.values() if "build" not in service}
    assert len(images) == 14
    assert [image for image in images if not re.search(r":v?\d+(\.\d+)+(-alpine)?$", image)] == []


def test_images_are_what_the_tests_start(services):
    """The versions of the images are those of the programs that `.ci/services` builds."""
    script = (PROJECT / ".ci" / "services").read_text()
    [collector] = re.findall(r"(?m)^  version: (.*)$", (PROJECT / ".ci" / "collector.yaml").read_text())
    built = {"collector": collector, **dict(re.findall(r"(?m)^server (\S+) ([\d.]+) ", script))}
    for name, service in (
        ("jaeger", "jaeger"),
        ("prometheus", "prometheus"),
        ("alertmanager", "alertmanager"),
        ("pushgateway", "pushgateway"),
        ("collector", "collector"),
        ("versitygw", "s3"),
    ):
        version = AS_IMAGE.get(name, str)(built[name])
        assert services["docker-compose.yml", service]["image"].rpartition(":")[2].removeprefix("v") == version


def test_every_port_is_on_loopback(services):
    """Nothing is reached from another machine."""
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert len(published) > 10
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_services_are_confined(services):
    """No service of ours may write to its own image or gain a right; none is root but the one that owns its volume so. Laminar's get no new rights."""
    for (file, name), service in services.items():
        assert "no-new-privileges:true" in service["security_opt"], name
        if file not in LAMINAR:
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert "user" in service or name in {"demo", "s3"}, name


def test_health_is_asked(services):
    """Every service says when it is well, but those whose image cannot ask."""
    silent = {name for (_, name), service in services.items() if "healthcheck" not in service}
    assert silent == {"collector", "gateway-1", "gateway-2", "demo", "app-server", "frontend"}


def test_what_is_mounted_is_there_and_only_read(services):
    """A file that is missing would become an empty directory; one that can be written would be the user's checkout."""
    mounts = [mount for service in services.values() for mount in service.get("volumes", ()) if mount["type"] == "bind"]
    assert len(mounts) > 10
    assert [mount["source"] for mount in mounts if not os.path.exists(mount["source"])] == []
    assert all(mount["read_only"] for mount in mounts)


def test_grafana_has_what_its_files_ask_for(services):
    """Each variable of the provisioning files is set, the dashboards are where the provider looks, and the two datasources know each other."""
    grafana = services["docker-compose.yml", "grafana"]
    asked = re.findall(r"(?<!\$)\$\{(\w+)\}", DATASOURCES.read_text() + PROVIDER.read_text())
    assert sorted(asked) == ["DASHBOARDS_DIRECTORY", "JAEGER_URL", "PROMETHEUS_URL"]
    assert set(asked) <= set(grafana["environment"])
    places = {mount["target"]: mount["source"] for mount in grafana["volumes"]}
    assert places[grafana["environment"]["DASHBOARDS_DIRECTORY"]] == str(PROJECT / "dashboards" / "grafana")
    uids = re.findall(r"(?m)^    uid: (.+)$", DATASOURCES.read_text())
    assert sorted(uids) == sorted(re.findall(r'(?:datasourceUid: |"datasource":")([\w-]+)', DATASOURCES.read_text()))


@pytest.mark.parametrize("file", ["deploy/collector.yaml", "deploy/scale/front.yaml", "deploy/scale/gateway.yaml"])
def test_collector_takes_the_file(file):
    """As it stands, with its defaults; and with a key that it does not have, it does not."""
    assert validated("otelcol", file).returncode == 0
    assert "nonsense" in validated("otelcol", file, "yaml:service::nonsense: 1").stderr


@pytest.mark.parametrize("store", ["badger", "cassandra", "clickhouse", "opensearch"])
def test_jaeger_takes_the_store(store):
    """The same; whether the store answers is not asked here."""
    files = "deploy/jaeger/jaeger.yaml", f"deploy/jaeger/{store}.yaml"
    assert validated("jaeger", *files).returncode == 0
    assert "nonsense" in validated("jaeger", *files, f"yaml:extensions::jaeger_storage::backends::traces::{store}::nonsense: 1").stderr


def validated(name, *files):
    command = [program(name), "validate", *(f"--config={file}" for file in files)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
