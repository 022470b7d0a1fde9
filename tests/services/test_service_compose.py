"""The compose files and the files that they mount, as their programs read them, and what docker-compose.yml promises."""

from __future__ import annotations

import os
import re
import subprocess

import compose_services
import pytest
from compose_services import LAMINAR, PROJECT, SCALE, STACK
from processes import program

pytestmark = pytest.mark.services

DATASOURCES = PROJECT / "dashboards" / "provisioning" / "datasources" / "ckpt_observe.yml"
PROVIDER = PROJECT / "dashboards" / "provisioning" / "dashboards" / "ckpt_observe.yml"

AS_IMAGE = {"prometheus": lambda version: version.replace("0.3", "3.", 1), "jaeger": {"1.76.0": "2.13.0"}.get}
"""Two projects number their Go modules differently from their images."""


@pytest.fixture(scope="module")
def services():
    """Return the services of all compose files by file and name."""
    services = {}
    for files, *options in ((STACK,), (SCALE,), (LAMINAR, "--no-interpolation")):
        model = compose_services.read(files, *options)
        services |= {(files[-1], name): service for name, service in model["services"].items()}
    return services


def test_invalid_compose_file_is_rejected(tmp_path):
    """Control: unknown keys and missing secrets are rejected."""
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text("services: {one: {image: busybox, prots: ['127.0.0.1:1:1']}}")
    assert "prots" in compose_services.read([str(wrong)])
    assert set(re.findall(r"required variable (\w+) is missing", compose_services.read(LAMINAR))) == {"LAMINAR_KEY", "LAMINAR_PASSWORD"}


def test_every_image_has_a_version(services):
    """Every image has a fixed version."""
    images = {service["image"] for service in services.values() if "build" not in service}
    assert len(images) == 14
    assert [image for image in images if not re.search(r":v?\d+(\.\d+)+(-alpine)?$", image)] == []


def test_image_versions_are_those_of_the_tests(services):
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
    """No port can be reached from another machine."""
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert len(published) > 10
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_services_are_confined(services):
    """Our services have read-only images and no capabilities, and only those that own their volume run as root. No service gains privileges."""
    for (file, name), service in services.items():
        assert "no-new-privileges:true" in service["security_opt"], name
        if file not in LAMINAR:
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert "user" in service or name in {"demo", "s3"}, name


def test_health_checks(services):
    """Every service has a health check, unless its image cannot run one."""
    silent = {name for (_, name), service in services.items() if "healthcheck" not in service}
    assert silent == {"collector", "gateway-1", "gateway-2", "demo", "app-server", "frontend"}


def test_mounts_exist_and_are_read_only(services):
    """Docker would create a directory for a missing file, and a writable mount would change the checkout."""
    mounts = [mount for service in services.values() for mount in service.get("volumes", ()) if mount["type"] == "bind"]
    assert len(mounts) > 10
    assert [mount["source"] for mount in mounts if not os.path.exists(mount["source"])] == []
    assert all(mount["read_only"] for mount in mounts)


def test_variables_of_grafana(services):
    """All variables of the provisioning files are set, the dashboards are in the provider's directory, and the two data sources refer to each other."""
    grafana = services["docker-compose.yml", "grafana"]
    variables = re.findall(r"(?<!\$)\$\{(\w+)\}", DATASOURCES.read_text() + PROVIDER.read_text())
    assert sorted(variables) == ["DASHBOARDS_DIRECTORY", "JAEGER_URL", "PROMETHEUS_URL"]
    assert set(variables) <= set(grafana["environment"])
    places = {mount["target"]: mount["source"] for mount in grafana["volumes"]}
    assert places[grafana["environment"]["DASHBOARDS_DIRECTORY"]] == str(PROJECT / "dashboards" / "grafana")
    uids = re.findall(r"(?m)^    uid: (.+)$", DATASOURCES.read_text())
    assert sorted(uids) == sorted(re.findall(r'(?:datasourceUid: |"datasource":")([\w-]+)', DATASOURCES.read_text()))


@pytest.mark.parametrize("file", ["deploy/collector.yaml", "deploy/scale/front.yaml", "deploy/scale/gateway.yaml"])
def test_collector_accepts_the_file(file):
    """The OTel Collector accepts the file, and rejects it with an unknown key."""
    assert validate("otelcol", file).returncode == 0
    assert "nonsense" in validate("otelcol", file, "yaml:service::nonsense: 1").stderr


@pytest.mark.parametrize("store", ["badger", "cassandra", "clickhouse", "opensearch"])
def test_jaeger_accepts_the_storage_file(store):
    """Jaeger accepts the file, and rejects it with an unknown key. The storage itself is not tested."""
    files = "deploy/jaeger/jaeger.yaml", f"deploy/jaeger/{store}.yaml"
    assert validate("jaeger", *files).returncode == 0
    assert "nonsense" in validate("jaeger", *files, f"yaml:extensions::jaeger_storage::backends::traces::{store}::nonsense: 1").stderr


def validate(name, *files):
    command = [program(name), "validate", *(f"--config={file}" for file in files)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
