"""Servers for telemetry, each in its own directory. Their ports are chosen once, so that they can be restarted."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request

import processes

SCRAPED = "scraped"
"""Job name of the target that Prometheus scrapes."""


class Server:
    """A program with a configuration file, which it reads as YAML."""

    def __init__(self, program, directory, configuration):
        self.program = processes.program(program)
        self.directory = directory
        self.configuration = directory / "configuration.yaml"
        self.configuration.write_text(json.dumps(configuration))

    def running(self):
        return processes.running(self.command(), self.ready, cwd=self.directory)


class OtlpServer(Server):
    """A server that accepts spans over OTLP, on two ports."""

    def variables(self, protocol):
        """Return the environment variables that make an exporter use this server."""
        port = self.grpc if protocol == "grpc" else self.http
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}


class Collector(OtlpServer):
    """An OTel Collector that writes what it receives to files, one OTLP JSON object per line, and forwards spans to a port if one is given."""

    def __init__(self, directory, forward=None):
        self.grpc, self.http, self._health = (processes.free_port() for _ in range(3))
        self.file, self.metrics = directory / "traces.jsonl", directory / "metrics.jsonl"
        exporters = {"file": {"path": str(self.file), "append": True, "flush_interval": "100ms"}}
        if forward is not None:
            exporters["otlp_grpc"] = {"endpoint": f"127.0.0.1:{forward}", "tls": {"insecure": True}}
        pipelines = {
            "traces": {"receivers": ["otlp"], "exporters": list(exporters)},
            "metrics": {"receivers": ["otlp"], "exporters": ["file/metrics"]},
        }
        super().__init__(
            "otelcol",
            directory,
            {
                "receivers": {"otlp": {"protocols": _protocols(self.grpc, self.http)}},
                "exporters": {**exporters, "file/metrics": {"path": str(self.metrics)}},
                "extensions": {"health_check": {"endpoint": f"127.0.0.1:{self._health}"}},
                "service": {
                    "extensions": ["health_check"],
                    "pipelines": pipelines,
                    "telemetry": {"metrics": {"level": "none"}},
                },
            },
        )

    def command(self):
        return [self.program, "--config", str(self.configuration)]

    def ready(self):
        return processes.answers(f"http://127.0.0.1:{self._health}/")


class Jaeger(OtlpServer):
    """Jaeger with in-memory storage."""

    def __init__(self, directory):
        self.grpc, self.http, self._query, self._query_grpc = (processes.free_port() for _ in range(4))
        super().__init__(
            "jaeger",
            directory,
            {
                "extensions": {
                    "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 10_000}}}},
                    "jaeger_query": {
                        "storage": {"traces": "memory"},
                        "http": {"endpoint": f"127.0.0.1:{self._query}"},
                        "grpc": {"endpoint": f"127.0.0.1:{self._query_grpc}"},
                    },
                },
                "receivers": {"otlp": {"protocols": _protocols(self.grpc, self.http)}},
                "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
                "service": {
                    "extensions": ["jaeger_storage", "jaeger_query"],
                    "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}},
                    "telemetry": {"metrics": {"level": "none"}},
                },
            },
        )

    def command(self):
        return [self.program, "--config", str(self.configuration)]

    def ready(self):
        return processes.answers(f"http://127.0.0.1:{self._query}/api/services") and all(map(processes.listens, (self.grpc, self.http)))

    def traces(self, service):
        return self.get("traces", urllib.parse.urlencode({"service": service, "limit": 1000}))

    def get(self, path, query):
        """Return what its API answers to a query string."""
        return get(f"http://127.0.0.1:{self._query}/api/{path}?{query}")["data"]


class Prometheus(Server):
    """Prometheus that scrapes a loopback port twice a second and accepts OTLP, with exemplars. Alerts of `rules` go to the Alertmanager's port."""

    def __init__(self, directory, rules=None, alertmanager=None):
        self.port, self.scraped = processes.free_port(), processes.free_port()
        self.otlp = f"http://127.0.0.1:{self.port}/api/v1/otlp/v1/metrics"
        job = {"job_name": SCRAPED, "static_configs": [{"targets": [f"127.0.0.1:{self.scraped}"]}]}
        configuration = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "scrape_configs": [job],
        }
        if rules is not None:
            (directory / "rules.yml").write_text(rules)
            configuration["rule_files"] = ["rules.yml"]
            configuration["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]}
        super().__init__("prometheus", directory, configuration)

    def command(self):
        return [
            self.program,
            f"--config.file={self.configuration}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-otlp-receiver",
            "--enable-feature=exemplar-storage",
            "--rules.alert.resend-delay=1s",
        ]

    def ready(self):
        return processes.answers(f"http://127.0.0.1:{self.port}/-/ready")

    def query(self, expression, **when):
        """Return an instant vector by label values, in the order of the label names. Of now, or of a `time`."""
        return {tuple(value for _, value in sorted(labels.items())): value for labels, value in self.samples(expression, **when)}

    def samples(self, expression, **when):
        """Return the labels and value of each element of an instant vector."""
        result = get(f"http://127.0.0.1:{self.port}/api/v1/query", query=expression, **when)["data"]["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]

    def exemplars(self, expression):
        """Return the exemplars of each series."""
        return get(f"http://127.0.0.1:{self.port}/api/v1/query_exemplars", query=expression, start=0, end=4_000_000_000)["data"]


class Alertmanager(Server):
    """Alertmanager without peers."""

    def __init__(self, directory, configuration):
        self.port = processes.free_port()
        super().__init__("alertmanager", directory, configuration)

    def command(self):
        listen = f"--web.listen-address=127.0.0.1:{self.port}"
        return [
            self.program,
            f"--config.file={self.configuration}",
            f"--storage.path={self.directory / 'data'}",
            listen,
            "--cluster.listen-address=",
        ]

    def ready(self):
        return processes.answers(f"http://127.0.0.1:{self.port}/-/ready")


class Pushgateway:
    def __init__(self):
        self.port = processes.free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def running(self):
        arguments = [processes.program("pushgateway"), f"--web.listen-address=127.0.0.1:{self.port}"]
        return processes.running(arguments, lambda: processes.answers(f"{self.url}/-/ready"))


def get(url, **parameters):
    url = f"{url}?{urllib.parse.urlencode(parameters)}" if parameters else url
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def _protocols(grpc, http):
    return {"grpc": {"endpoint": f"127.0.0.1:{grpc}"}, "http": {"endpoint": f"127.0.0.1:{http}"}}
