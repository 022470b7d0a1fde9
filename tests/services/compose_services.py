"""Runs the services of the compose files without containers: the real programs with the arguments and files of each service.

Mounted files are linked below a directory that takes the place of `/`. Only the addresses differ: they are on loopback.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import processes
import telemetry

PROJECT = Path(__file__).parents[2]
STACK, SCALE, LAMINAR = (
    ("docker-compose.yml",),
    ("docker-compose.yml", "deploy/scale/docker-compose.yml"),
    ("deploy/laminar/docker-compose.yml",),
)


def read(files, *options):
    """Return compose files as `docker compose config` reads them without variables, or its error message."""
    command = [processes.program("compose-spec"), "--format", "json", *options, *files]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    return json.loads(result.stdout) if result.returncode == 0 else result.stderr


class Service:
    """One service of a compose file."""

    def __init__(self, name, program, directory, files=STACK, arguments=(), **variables):
        self.model = read(files)["services"][name]
        self.root = directory / name
        self.program = processes.program(program)
        self.environ = {key: str(value) for key, value in variables.items()}
        self._arguments = list(arguments)
        for mount in self.model["volumes"]:
            path = self.local_path(mount["target"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(mount["source"]) if mount["type"] == "bind" else path.mkdir()

    def local_path(self, path):
        """Return where a path of the container is on this machine."""
        return self.root / path.lstrip("/")

    def command(self):
        return [self.program, *(re.sub(r"(^|=)/", rf"\1{self.root}/", each) for each in self.model["command"]), *self._arguments]

    def running(self):
        """Run the service. It is ready when its health check succeeds."""
        return processes.running(self.command(), lambda: processes.answers(self.health), cwd=self.root, env={**os.environ, **self.environ})

    def probe(self, port):
        """Return the URL of its health check, with the port used here."""
        return re.sub(r":\d+/", f":{port}/", self.model["healthcheck"]["test"][-1])


class OtlpService(Service, telemetry.OtlpServer):
    """A service whose addresses are environment variables."""

    def __init__(self, name, program, directory, files=STACK, arguments=(), **variables):
        self.grpc, self.http, self.metrics, health = (processes.free_port() for _ in range(4))
        addresses = {
            "OTLP_GRPC_ENDPOINT": f"127.0.0.1:{self.grpc}",
            "OTLP_HTTP_ENDPOINT": f"127.0.0.1:{self.http}",
            "HEALTH_ENDPOINT": f"127.0.0.1:{health}",
            "TELEMETRY_HOST": "127.0.0.1",
            "TELEMETRY_PORT": self.metrics,
        }
        Service.__init__(self, name, program, directory, files, arguments, **addresses, **variables)
        self.health = self.probe(health) if "healthcheck" in self.model else f"http://127.0.0.1:{health}/"


class Jaeger(OtlpService):
    def __init__(self, directory):
        self._query = processes.free_port()
        addresses = {"QUERY_ENDPOINT": f"127.0.0.1:{self._query}", "QUERY_GRPC_ENDPOINT": f"127.0.0.1:{processes.free_port()}"}
        super().__init__("jaeger", "jaeger", directory, BADGER_DIRECTORY=directory / "jaeger" / "tmp" / "jaeger", **addresses)

    traces, get = telemetry.Jaeger.traces, telemetry.Jaeger.get


class Prometheus(Service):
    """Prometheus with the targets of its file, on the ports used here."""

    def __init__(self, directory, targets):
        self.port = processes.free_port()
        super().__init__("prometheus", "prometheus", directory, arguments=[f"--web.listen-address=127.0.0.1:{self.port}"])
        self.health = self.probe(self.port)
        self.otlp = f"http://127.0.0.1:{self.port}/api/v1/otlp"
        targets_directory = self.local_path("/etc/prometheus/targets")
        files = [(each.name, each.read_text()) for each in targets_directory.iterdir()]
        targets_directory.unlink()
        targets_directory.mkdir()
        ports = {**targets, "localhost:9090": self.port}
        for name, text in files:
            (targets_directory / name).write_text(re.sub(r"[a-z]+:\d+", lambda address: f"127.0.0.1:{ports[address[0]]}", text))

    query, samples, exemplars = telemetry.Prometheus.query, telemetry.Prometheus.samples, telemetry.Prometheus.exemplars

    def get(self, path, **parameters):
        return telemetry.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", **parameters)["data"]


class Alertmanager(Service):
    def __init__(self, directory, arguments=()):
        self.port = processes.free_port()
        arguments = [f"--web.listen-address=127.0.0.1:{self.port}", *arguments]
        super().__init__("alertmanager", "alertmanager", directory, arguments=arguments)
        self.health = self.probe(self.port)
