"""The doctor on servers: each kind of right and wrong one, on loopback, for real."""

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
from ckpt_observe.cli.doctor import listener, prometheus
from ckpt_observe.cli.doctor.finding import NOTE, OK, PROBLEM

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
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def closed_port():
    """Nobody else gets it while the test runs, for it is bound; and nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextmanager
def web(answers, name="something/1.0", date=None):
    """A web server with these statuses by path, else 404."""

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


def otlp(url, protocol="http/protobuf", **more):
    return {"CKPT_OBSERVE_EXPORTERS": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, **more}


def test_a_collector_over_http(doctor, server):
    """One request without spans, with the headers that spans would have; and its clock is ours."""
    found = doctor(**otlp(server.url, OTEL_EXPORTER_OTLP_HEADERS="x-tenant=a"))
    assert found["server otlp"] == (OK, "server otlp", f"{server.url}/v1/traces by http/protobuf takes spans")
    assert found["clock"].state == OK
    [(path, headers, body)] = server.requests
    assert (path, headers["x-tenant"], body) == ("/v1/traces", "a", b"")


@pytest.mark.parametrize(
    ("answer", "verdict", "hint"),
    [
        (401, PROBLEM, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (403, PROBLEM, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (404, PROBLEM, "takes no OTLP here: check port and path"),
        (400, PROBLEM, "takes no OTLP here"),
        (PAGE, PROBLEM, "a web page"),
        ((302, {"location": "http://elsewhere"}, b""), PROBLEM, "it redirects"),
        (429, NOTE, "busy"),
        (503, NOTE, "busy"),
        (500, PROBLEM, "answered 500"),
    ],
)
def test_answers_over_http(doctor, server, answer, verdict, hint):
    """What each status means, and what to do."""
    server.otherwise = answer
    finding = doctor(**otlp(server.url))["server otlp"]
    assert (finding.state, hint in finding.detail) == (verdict, True), finding


@pytest.mark.parametrize(
    ("answer", "verdict", "hint"),
    [
        (200, OK, "takes spans"),
        (grpc.StatusCode.UNAUTHENTICATED, PROBLEM, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (grpc.StatusCode.PERMISSION_DENIED, PROBLEM, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (grpc.StatusCode.UNIMPLEMENTED, PROBLEM, "takes no OTLP here"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, NOTE, "busy"),
    ],
)
def test_answers_over_grpc(doctor, grpc_server, answer, verdict, hint):
    """The same over gRPC; a key that the server says again is not shown."""
    grpc_server.otherwise = answer
    found = doctor(**otlp(grpc_server.url, "grpc", OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20s3cret"))
    assert (found["server otlp"].state, hint in found["server otlp"].detail) == (verdict, True), found["server otlp"]
    assert "s3cret" not in repr(found)


WRONG_KINDS = [
    ("closed_port", "http/protobuf", "http", "nobody listens there"),
    ("closed_port", "grpc", "http", "nobody listens there"),
    ("tls_server", "http/protobuf", "http", "it speaks TLS, so the address begins with https://"),
    ("tls_server", "grpc", "http", "it speaks TLS, so the address begins with https://"),
    ("tls_server", "http/protobuf", "https", "check OTEL_EXPORTER_OTLP_CERTIFICATE"),
    ("tls_server", "grpc", "https", "check OTEL_EXPORTER_OTLP_CERTIFICATE"),
    ("server", "http/protobuf", "https", "without TLS, so the address begins with http://"),
    ("server", "grpc", "https", "without TLS, so the address begins with http://"),
    ("server", "grpc", "http", "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
    ("grpc_server", "http/protobuf", "http", "set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
    ("grpc_server", "http/protobuf", "https", "without TLS, as gRPC does, so the address begins with http://"),
    ("silent_port", "http/protobuf", "http", "speaks neither TLS nor HTTP"),
    ("silent_port", "grpc", "http", "speaks neither TLS nor HTTP"),
]


@pytest.mark.parametrize(("there", "protocol", "scheme", "hint"), WRONG_KINDS)
def test_the_wrong_kind_of_server(doctor, request, there, protocol, scheme, hint):
    """Wrong port, wrong protocol, TLS on one side only, a certificate that nobody vouches for: told apart by looking at what is there."""
    fixture = request.getfixturevalue(there)
    port = fixture if isinstance(fixture, int) else fixture.port
    patience = {"OTEL_EXPORTER_OTLP_TIMEOUT": "500"} if there == "silent_port" else {}
    finding = doctor(**otlp(f"{scheme}://127.0.0.1:{port}", protocol, **patience))["server otlp"]
    assert (finding.state, hint in finding.detail) == (PROBLEM, True), finding


def test_tls_that_fits(doctor, tls_server):
    """With the authority that signed the certificate."""
    finding = doctor(**otlp(tls_server.url, OTEL_EXPORTER_OTLP_CERTIFICATE=collectors.PEM))["server otlp"]
    assert finding.state == OK, finding


def test_a_name_that_is_not_known(monkeypatch):
    """Told from a port where nobody listens."""

    def unknown(*_args):
        raise socket.gaierror

    monkeypatch.setattr(socket, "create_connection", unknown)
    assert listener.look("nobody.invalid", 1, 1.0) == listener.UNRESOLVED


@pytest.mark.parametrize(("key", "verdict", "hint"), [("right", OK, "takes spans"), ("wrong", PROBLEM, "check LMNR_PROJECT_API_KEY")])
def test_laminar(doctor, server, key, verdict, hint):
    """Its key is tried, not shown."""
    server.authorization = "Bearer right"
    finding = doctor(CKPT_OBSERVE_EXPORTERS="laminar", LMNR_PROJECT_API_KEY=key, LMNR_BASE_URL=server.url)["server laminar"]
    assert (finding.state, hint in finding.detail) == (verdict, True), finding


def test_metrics_over_otlp(doctor, server):
    """The collector that metrics are pushed to is asked at its own path."""
    found = doctor(
        CKPT_OBSERVE_EXPORTERS="prometheus", OTEL_EXPORTER_PROMETHEUS_PORT=0, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{server.url}/v1/metrics"
    )
    assert found["server otlp metrics"] == (OK, "server otlp metrics", f"{server.url}/v1/metrics by http/protobuf takes metrics")
    assert [path for path, _, _ in server.requests] == ["/v1/metrics"]


def test_metrics_over_otlp_with_a_wrong_setting(doctor, server):
    """What would keep a program from being observed is found here, too, by its name."""
    finding = doctor(**metrics(0, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{server.url}/v1/metrics", OTEL_METRIC_EXPORT_INTERVAL="often"))[
        "server otlp metrics"
    ]
    assert (finding.state, "OTEL_METRIC_EXPORT_INTERVAL" in finding.detail) == (PROBLEM, True)


def test_a_clock_that_is_off(doctor):
    """Against the time that the server tells."""
    with web({"/v1/traces": 200}, date="Sat, 01 Jan 2000 00:00:00 GMT") as port:
        finding = doctor(**otlp(f"http://127.0.0.1:{port}"))["clock"]
    assert finding.state == PROBLEM
    assert "ahead of" in finding.detail


def metrics(port, **more):
    return {"CKPT_OBSERVE_EXPORTERS": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": port, **more}


@pytest.fixture
def free_port():
    """Below those that the kernel gives to clients, or one of them may have it before we do."""
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def test_metrics_port_is_free(doctor, free_port):
    """It can be had; and is given back."""
    for _ in range(2):
        assert doctor(**metrics(free_port))[f"metrics port {free_port}"].detail == f"127.0.0.1:{free_port} is free"


def test_metrics_port_of_a_stranger(doctor):
    """Its name, and which variable moves us."""
    with web({}, name="stranger/2.0") as port:
        finding = doctor(**metrics(port))[f"metrics port {port}"]
    assert finding == (
        PROBLEM,
        f"metrics port {port}",
        f"127.0.0.1:{port} is taken by another program (stranger/2.0); set OTEL_EXPORTER_PROMETHEUS_PORT to a free one",
    )


def test_metrics_port_of_a_stranger_without_http(doctor, silent_port, monkeypatch):
    """That it is taken is known, though not by whom."""
    monkeypatch.setattr(prometheus, "TIMEOUT", 0.3)
    assert "(not HTTP)" in doctor(**metrics(silent_port))[f"metrics port {silent_port}"].detail


@pytest.mark.parametrize(
    ("more", "verdict", "hint"),
    [
        ({}, OK, "for all processes of this state directory"),
        ({"CKPT_OBSERVE_METRICS_TOKEN": "other"}, PROBLEM, "answers 401"),
        ({"CKPT_OBSERVE_DIR": "elsewhere"}, PROBLEM, "for another state directory"),
    ],
)
def test_metrics_port_of_our_own(doctor, state, tmp_path, monkeypatch, free_port, more, verdict, hint):
    """Served for this state directory: as it should be. With another token, or for another directory: not."""
    variables = metrics(free_port, CKPT_OBSERVE_METRICS_TOKEN="token")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    watch = observe(dir=state, pages_dir=tmp_path / "pages")
    try:
        wait_for(lambda: listener.look("127.0.0.1", free_port, 1.0) == listener.HTTP)
        moved = {name: tmp_path / value if name == "CKPT_OBSERVE_DIR" else value for name, value in more.items()}
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
    """It is asked whether it is ready; nothing is pushed."""
    with web(answers) as port:
        finding = doctor(**metrics(0, CKPT_OBSERVE_METRICS_PUSHGATEWAY=f"http://127.0.0.1:{port}"))["metrics pushgateway"]
    assert (finding.state, hint in finding.detail) == (verdict, True), finding


def test_pushgateway_that_is_not_there(doctor, closed_port):
    """Said so."""
    finding = doctor(**metrics(0, CKPT_OBSERVE_METRICS_PUSHGATEWAY=f"http://127.0.0.1:{closed_port}"))["metrics pushgateway"]
    assert (finding.state, "cannot be reached" in finding.detail) == (PROBLEM, True)


@pytest.mark.parametrize(("directory", "verdict"), [("", OK), ("missing", PROBLEM)])
def test_textfile(doctor, tmp_path, directory, verdict):
    """Its directory is written to for real."""
    found = doctor(**metrics(0, CKPT_OBSERVE_METRICS_TEXTFILE=tmp_path / directory / "x.prom"))
    assert found["metrics textfile"].state == verdict
    assert not [subject for subject in found if subject.startswith("metrics port")], "the file stands in its place"
