"""The services of the compose files without containers: the real program of each, with the arguments and the very files that its service has.
What is mounted is linked below a directory that takes the place of `/`; only the addresses are those of loopback."""

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
    """Compose files as `docker compose config` reads them; what it says, if it refuses them. It has no variables."""
    command = [processes.program("compose-spec"), "--format", "json", *options, *files]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


class Service:
    """One service of a compose file."""

    def __init__(self, name, program, directory, files=STACK, arguments=(), **variables):
        self.model = read(files)["services"][name]
        self.root = directory / name
        self.program = processes.program(program)
        self.environ = {key: str(value) for key, value in variables.items()}
        self._more = list(arguments)
        for mount in self.model["volumes"]:
            place = self.below(mount["target"])
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(mount["source"]) if mount["type"] == "bind" else place.mkdir()

    def below(self, path):
        """Where a path of the container is here."""
        return self.root / path.lstrip("/")

    def command(self):
        return [self.program, *(re.sub(r"(^|=)/", rf"\1{self.root}/", each) for each in self.model["command"]), *self._more]

    def running(self):
        """Until its own health check says that it is well, if it has one."""
        return processes.running(self.command(), lambda: processes.answers(self.health), cwd=self.root, env={**os.environ, **self.environ})

    def probe(self, port):
        """The URL that its health check asks, at the port that it has here."""
        return re.sub(r":\d+/", f":{port}/", self.model["healthcheck"]["test"][-1])


class OtlpService(Service, telemetry.OtlpServer):
    """One whose addresses are variables."""

    def __init__(self, name, program, directory, files=STACK, arguments=(), **variables):
        self.grpc, self.http, self.metrics, health = (processes.free_port() for _ in range(4))
        own = {
            "OTLP_GRPC_ENDPOINT": f"127.0.0.1:{self.grpc}",
            "OTLP_HTTP_ENDPOINT": f"127.0.0.1:{self.http}",
            "HEALTH_ENDPOINT": f"127.0.0.1:{health}",
            "TELEMETRY_HOST": "127.0.0.1",
            "TELEMETRY_PORT": self.metrics,
        }
        Service.__init__(self, name, program, directory, files, arguments, **own, **variables)
        self.health = self.probe(health) if "healthcheck" in self.model else f"http://127.0.0.1:{health}/"


class Jaeger(OtlpService):
    def __init__(self, directory):
        self._query = processes.free_port()
        own = {"QUERY_ENDPOINT": f"127.0.0.1:{self._query}", "QUERY_GRPC_ENDPOINT": f"127.0.0.1:{processes.free_port()}"}
        super().__init__("jaeger", "jaeger", directory, BADGER_DIRECTORY=directory / "jaeger" / "tmp" / "jaeger", **own)

    traces = telemetry.Jaeger.traces


class Prometheus(Service):
    """With the targets of the file, at their ports here."""

    def __init__(self, directory, targets):
        self.port = processes.free_port()
        super().__init__("prometheus", "prometheus", directory, arguments=[f"--web.listen-address=127.0.0.1:{self.port}"])
        self.health = self.probe(self.port)
        self.otlp = f"http://127.0.0.1:{self.port}/api/v1/otlp"
        place = self.below("/etc/prometheus/targets")
        files = [(each.name, each.read_text()) for each in place.iterdir()]
        place.unlink()
        place.mkdir()
        ports = {**targets, "localhost:9090": self.port}
        for name, text in files:
            (place / name).write_text(re.sub(r"[a-z]+:\d+", lambda address: f"127.0.0.1:{ports[address[0]]}", text))

    query, exemplars = telemetry.Prometheus.query, telemetry.Prometheus.exemplars

    def get(self, path, **parameters):
        return telemetry.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", **parameters)["data"]


class Alertmanager(Service):
    def __init__(self, directory):
        self.port = processes.free_port()
        super().__init__("alertmanager", "alertmanager", directory, arguments=[f"--web.listen-address=127.0.0.1:{self.port}"])
        self.health = self.probe(self.port)
