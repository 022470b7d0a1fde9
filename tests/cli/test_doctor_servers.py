"""`ckpt-observe doctor` with servers on loopback, right and wrong ones."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import collectors
import grpc
import pytest

from ckpt_observe import observe
from ckpt_observe.cli.doctor import NOTE, OK, PROBLEM, Diagnosis, prometheus, servers
from ckpt_observe.cli.doctor.servers import HTTP_SERVER, UNRESOLVED, identify_listener

PAGE = (200, {"content-type": "text/html"}, b"<html>welcome")


@pytest.fixture
def server():
    with collectors.HttpCollector() as running:
        yield running


@pytest.fixture
def tls_server():
    with collectors.HttpCollector(tls=True) as running:
        yield running


@pytest.fixture
def grpc_server():
    with collectors.GrpcCollector() as running:
        yield running


@pytest.fixture
def silent_port():
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def closed_port():
    """Bound, so that no other program can use it during the test, but not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextmanager
def web(answers, name="something/1.0", date=None):
    """A web server that answers with these statuses by path, otherwise 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.do_POST()

        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(answers.get(self.path, 404))
            self.send_header("content-length", "0")
            self.end_headers()

        def version_string(self):
            return name

        def date_time_string(self, timestamp=None):
            return date or super().date_time_string(timestamp)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running.server_port
        running.shutdown()
        thread.join()


def otlp(url, protocol="http/protobuf", **variables):
    return {"CKPT_OBSERVE_EXPORTERS": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, **variables}


def test_otlp_over_http(doctor, server):
    """The doctor sends one request without spans, with the configured headers, and compares the clocks."""
    findings = doctor(**otlp(server.url, OTEL_EXPORTER_OTLP_HEADERS="x-tenant=a"))
    assert findings["server otlp"] == Diagnosis(OK, "server otlp", f"{server.url}/v1/traces (http/protobuf) accepts spans")
    assert findings["clock"].state == OK
    [(path, headers, body)] = server.requests
    assert (path, headers["x-tenant"], body) == ("/v1/traces", "a", b"\x0a\x00")


@pytest.mark.parametrize(
    ("answer", "verdict", "hint"),
    [
        (401, PROBLEM, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (403, PROBLEM, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (404, PROBLEM, "does not accept OTLP here: check port and path"),
        (400, PROBLEM, "does not accept OTLP here"),
        (PAGE, PROBLEM, "a web page"),
        ((302, {"location": "http://elsewhere"}, b""), PROBLEM, "redirects are not followed"),
        (429, NOTE, "busy"),
        (503, NOTE, "busy"),
        (500, PROBLEM, "answered 500"),
    ],
)
def test_answers_over_http(doctor, server, answer, verdict, hint):
    """The advice fits the HTTP status."""
    server.otherwise = answer
    finding = doctor(**otlp(server.url))["server otlp"]
    assert (finding.state, hint in finding.detail) == (verdict, True), finding


@pytest.mark.parametrize(
    ("page", "verdict", "hint"),
    [
        ((200, {}, b"{}"), OK, "7 exists"),
        (404, PROBLEM, "create it, or set the id of another one"),
        (400, PROBLEM, "create it, or set the id of another one"),
        (403, NOTE, "answered 403"),
        (500, NOTE, "not known whether 7 exists"),
    ],
)
def test_mlflow_experiment(doctor, server, page, verdict, hint):
    """The experiment is looked up, because MLflow accepts a request without spans for one that does not exist."""
    server.pages["/api/2.0/mlflow/experiments/get?experiment_id=7"] = page
    findings = doctor(**otlp(server.url, OTEL_EXPORTER_OTLP_HEADERS="x-mlflow-experiment-id=7"))
    assert findings["server otlp"].state == OK
    assert "input and output of OpenInference" in findings["server otlp"].detail
    assert (findings["mlflow experiment"].state, hint in findings["mlflow experiment"].detail) == (verdict, True), findings


def test_mlflow_without_experiment(doctor, server):
    """If the header with the experiment is missing, the advice names it."""
    server.otherwise = 422, {"content-type": "application/json"}, b'{"detail":[{"loc":["header","x-mlflow-experiment-id"]}]}'
    finding = doctor(**otlp(server.url))["server otlp"]
    assert finding.state == PROBLEM
    assert "add x-mlflow-experiment-id=ID to OTEL_EXPORTER_OTLP_HEADERS" in finding.detail


@pytest.mark.parametrize(
    ("answer", "verdict", "hint"),
    [
        (200, OK, "accepts spans"),
        (grpc.StatusCode.UNAUTHENTICATED, PROBLEM, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (grpc.StatusCode.PERMISSION_DENIED, PROBLEM, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (grpc.StatusCode.UNIMPLEMENTED, PROBLEM, "does not accept OTLP here"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, NOTE, "busy"),
    ],
)
def test_answers_over_grpc(doctor, grpc_server, answer, verdict, hint):
    """The advice fits the gRPC status; a key that the server repeats is not shown."""
    grpc_server.otherwise = answer
    findings = doctor(**otlp(grpc_server.url, "grpc", OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20s3cret"))
    assert (findings["server otlp"].state, hint in findings["server otlp"].detail) == (verdict, True), findings["server otlp"]
    assert "s3cret" not in repr(findings)


WRONG_KINDS = [
    ("closed_port", "http/protobuf", "http", "nothing listens on this port"),
    ("closed_port", "grpc", "http", "nothing listens on this port"),
    ("tls_server", "http/protobuf", "http", "the server uses TLS: the URL must start with https://"),
    ("tls_server", "grpc", "http", "the server uses TLS: the URL must start with https://"),
    ("tls_server", "http/protobuf", "https", "check OTEL_EXPORTER_OTLP_CERTIFICATE"),
    ("tls_server", "grpc", "https", "check OTEL_EXPORTER_OTLP_CERTIFICATE"),
    ("server", "http/protobuf", "https", "without TLS: the URL must start with http://"),
    ("server", "grpc", "https", "without TLS: the URL must start with http://"),
    ("server", "grpc", "http", "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
    ("grpc_server", "http/protobuf", "http", "set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
    ("grpc_server", "http/protobuf", "https", "without TLS, as gRPC does: the URL must start with http://"),
    ("silent_port", "http/protobuf", "http", "uses neither TLS nor HTTP"),
    ("silent_port", "grpc", "http", "uses neither TLS nor HTTP"),
]


@pytest.mark.parametrize(("listener", "protocol", "scheme", "hint"), WRONG_KINDS)
def test_wrong_kind_of_server(doctor, request, listener, protocol, scheme, hint):
    """A wrong port, a wrong protocol, TLS on one side only and an untrusted certificate are distinguished."""
    fixture = request.getfixturevalue(listener)
    port = fixture if isinstance(fixture, int) else fixture.port
    patience = {"OTEL_EXPORTER_OTLP_TIMEOUT": "500"} if listener == "silent_port" else {}
    finding = doctor(**otlp(f"{scheme}://127.0.0.1:{port}", protocol, **patience))["server otlp"]
    assert (finding.state, hint in finding.detail) == (PROBLEM, True), finding


def test_trusted_certificate(doctor, tls_server):
    """A server with a trusted certificate is fine."""
    finding = doctor(**otlp(tls_server.url, OTEL_EXPORTER_OTLP_CERTIFICATE=collectors.PEM))["server otlp"]
    assert finding.state == OK, finding


def test_unresolvable_host_name(monkeypatch):
    """A host name that cannot be resolved is distinguished from a closed port."""

    def unknown(*_args):
        raise socket.gaierror

    monkeypatch.setattr(socket, "create_connection", unknown)
    assert identify_listener("nobody.invalid", 1, 1.0) == UNRESOLVED


@pytest.mark.parametrize(("key", "verdict", "hint"), [("right", OK, "accepts spans"), ("wrong", PROBLEM, "check LMNR_PROJECT_API_KEY")])
def test_laminar(doctor, server, key, verdict, hint):
    """The key is checked."""
    server.authorization = "Bearer right"
    finding = doctor(CKPT_OBSERVE_EXPORTERS="laminar", LMNR_PROJECT_API_KEY=key, LMNR_BASE_URL=server.url)["server laminar"]
    assert (finding.state, hint in finding.detail) == (verdict, True), finding


@pytest.mark.parametrize(("status", "is_reported"), [(200, False), (404, True), (403, True)])
def test_laminar_key_that_cannot_read(doctor, server, monkeypatch, status, is_reported):
    """A key for writing only is reported: with it, spans may be stored twice."""
    send = server.handle
    monkeypatch.setattr(server, "handle", lambda request, body: status if request.path == "/v1/sql/query" else send(request, body))
    findings = doctor(CKPT_OBSERVE_EXPORTERS="laminar", LMNR_PROJECT_API_KEY="key", LMNR_BASE_URL=server.url)
    assert findings["server laminar"].state == OK
    assert ("laminar key" in findings) is is_reported
    assert not is_reported or "may be stored twice" in findings["laminar key"].detail


@pytest.mark.parametrize("is_installed", [True, False])
def test_port_that_the_laminar_sdk_ignores(doctor, server, monkeypatch, is_installed):
    """A port in LMNR_BASE_URL is reported if Laminar's SDK, which ignores it, is installed."""
    monkeypatch.setattr(servers, "find_spec", lambda name: object() if is_installed else None)
    findings = doctor(CKPT_OBSERVE_EXPORTERS="laminar", LMNR_PROJECT_API_KEY="key", LMNR_BASE_URL=server.url)
    assert any("http_port=" in finding.detail for finding in findings.values()) is is_installed


def test_metrics_over_otlp(doctor, server):
    """The server for OTLP metrics is checked with its own path."""
    findings = doctor(
        CKPT_OBSERVE_EXPORTERS="prometheus", OTEL_EXPORTER_PROMETHEUS_PORT=0, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{server.url}/v1/metrics"
    )
    assert findings["server otlp metrics"] == Diagnosis(
        OK, "server otlp metrics", f"{server.url}/v1/metrics (http/protobuf) accepts metrics"
    )
    assert [path for path, _, _ in server.requests] == ["/v1/metrics"]


def test_metrics_over_otlp_with_a_wrong_setting(doctor, server):
    """An invalid setting of the metrics exporter is reported by name."""
    finding = doctor(**metrics(0, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{server.url}/v1/metrics", OTEL_METRIC_EXPORT_INTERVAL="often"))[
        "settings"
    ]
    assert (finding.state, "OTEL_METRIC_EXPORT_INTERVAL" in finding.detail) == (PROBLEM, True)


def test_wrong_clock(doctor):
    """A clock that differs from the server's is a problem."""
    with web({"/v1/traces": 200}, date="Sat, 01 Jan 2000 00:00:00 GMT") as port:
        finding = doctor(**otlp(f"http://127.0.0.1:{port}"))["clock"]
    assert finding.state == PROBLEM
    assert "ahead of" in finding.detail


def metrics(port, **variables):
    return {"CKPT_OBSERVE_EXPORTERS": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": port, **variables}


@pytest.fixture
def free_port():
    """Below the range of ephemeral ports, so that no client gets it first."""
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def test_free_metrics_port(doctor, free_port):
    """A free port is fine, and the check releases it."""
    for _ in range(2):
        assert doctor(**metrics(free_port))[f"metrics port {free_port}"].detail == f"127.0.0.1:{free_port} is free"


def test_metrics_port_of_another_program(doctor):
    """The finding has the name of the other server and the variable to change."""
    with web({}, name="stranger/2.0") as port:
        finding = doctor(**metrics(port))[f"metrics port {port}"]
    assert finding == Diagnosis(
        PROBLEM,
        f"metrics port {port}",
        f"127.0.0.1:{port} is used by another program (stranger/2.0); set OTEL_EXPORTER_PROMETHEUS_PORT to a free port",
    )


def test_metrics_port_of_a_program_without_http(doctor, silent_port, monkeypatch):
    """A port that is used by a program without HTTP is a problem too."""
    monkeypatch.setattr(prometheus, "TIMEOUT", 0.3)
    assert "(not HTTP)" in doctor(**metrics(silent_port))[f"metrics port {silent_port}"].detail


@pytest.mark.parametrize(
    ("changes", "verdict", "hint"),
    [
        ({}, OK, "for all processes of this state directory"),
        ({"CKPT_OBSERVE_METRICS_TOKEN": "other"}, PROBLEM, "answers 401"),
        ({"CKPT_OBSERVE_DIR": "elsewhere"}, PROBLEM, "for another state directory"),
    ],
)
def test_metrics_port_served_by_ckpt_observe(doctor, state, tmp_path, monkeypatch, free_port, changes, verdict, hint):
    """A port served for this state directory is fine; with another token or for another directory it is a problem."""
    variables = metrics(free_port, CKPT_OBSERVE_METRICS_TOKEN="token")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    watch = observe(dir=state, pages_dir=tmp_path / "pages")
    try:
        wait_for(lambda: identify_listener("127.0.0.1", free_port, 1.0) == HTTP_SERVER)
        moved = {name: tmp_path / value if name == "CKPT_OBSERVE_DIR" else value for name, value in changes.items()}
        finding = doctor(**{**variables, **moved})[f"metrics port {free_port}"]
    finally:
        watch.close(10)
    assert (finding.state, hint in finding.detail) == (verdict, True), finding


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("answers", "verdict", "hint"),
    [({"/-/ready": 200}, OK, "is ready"), ({"/-/ready": 401}, PROBLEM, "answered 401"), ({}, PROBLEM, "is it a Pushgateway?")],
)
def test_pushgateway(doctor, answers, verdict, hint):
    """The Pushgateway is checked with /-/ready; nothing is pushed."""
    with web(answers) as port:
        finding = doctor(**metrics(0, CKPT_OBSERVE_METRICS_PUSHGATEWAY=f"http://127.0.0.1:{port}"))["metrics pushgateway"]
    assert (finding.state, hint in finding.detail) == (verdict, True), finding


def test_unreachable_pushgateway(doctor, closed_port):
    """A Pushgateway that cannot be reached is a problem."""
    finding = doctor(**metrics(0, CKPT_OBSERVE_METRICS_PUSHGATEWAY=f"http://127.0.0.1:{closed_port}"))["metrics pushgateway"]
    assert (finding.state, "cannot be reached" in finding.detail) == (PROBLEM, True)


@pytest.mark.parametrize(("directory", "verdict"), [("", OK), ("missing", PROBLEM)])
def test_textfile(doctor, tmp_path, directory, verdict):
    """The directory of the text file is checked by writing to it."""
    findings = doctor(**metrics(0, CKPT_OBSERVE_METRICS_TEXTFILE=tmp_path / directory / "x.prom"))
    assert findings["metrics textfile"].state == verdict
    assert not [subject for subject in findings if subject.startswith("metrics port")], "the file replaces the endpoint"
