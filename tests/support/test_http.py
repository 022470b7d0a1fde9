"""Our HTTP client and server, against each other and against misbehaving peers."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from opentelemetry.context import _SUPPRESS_HTTP_INSTRUMENTATION_KEY, _SUPPRESS_INSTRUMENTATION_KEY, get_value

from ckpt_observe.errors import HttpError
from ckpt_observe.support.http_client import MAX_ANSWER_BYTES, HttpClient, split_credentials, untraced
from ckpt_observe.support.http_server import HttpServer, Response

CERTIFICATE = str(next(Path(__file__).parents[1].glob("*/loopback.pem")))


@contextmanager
def serving(respond, **options):
    server = HttpServer(("127.0.0.1", 0), respond, thread_name="test-server", **options)
    server.start()
    scheme = "https" if options else "http"
    try:
        yield f"{scheme}://127.0.0.1:{server.address[1]}"
    finally:
        server.close()


@contextmanager
def raw_server(answer):
    """A server that sends what `answer(socket)` sends, whatever was requested."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with suppress_os_errors(), listener.accept()[0] as connection:
                connection.recv(65536)
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.close()
        thread.join()


@contextmanager
def suppress_os_errors():
    try:
        yield
    except OSError:
        pass


@pytest.fixture
def client():
    with closing(HttpClient(5.0, headers={"User-Agent": "test"})) as client:
        yield client


def test_request_and_answer(client):
    """Path without query, headers, status and body arrive."""
    requests = []

    def respond(request):
        requests.append((request.path, request.headers["user-agent"], request.headers["X-Own"]))
        return Response(503, b"busy\n", [("Retry-After", "7")])

    with serving(respond) as url:
        answer = client.request("GET", url + "/a?b=c", headers={"x-own": "d"})
    assert requests == [("/a", "test", "d")]
    assert (answer.status, answer.body, answer.headers["retry-after"], answer.headers["server"]) == (503, b"busy\n", "7", "ckpt_observe")
    assert not answer.is_success
    assert answer.status_line == "503 Service Unavailable"


def test_redirects_are_not_followed(client):
    """Credentials go to no other server."""
    paths = []

    def respond(request):
        paths.append(request.path)
        return Response(302, b"", [("Location", "/elsewhere")])

    with serving(respond) as url:
        assert client.request("GET", url + "/here").status == 302
    assert paths == ["/here"]


def test_netrc_does_not_replace_our_header(tmp_path, monkeypatch, client):
    """A password of the user for the same host is not sent."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with serving(lambda request: Response(200, request.headers["authorization"].encode())) as url:
        assert client.request("GET", url, headers={"Authorization": "Bearer ours"}).body == b"Bearer ours"


def test_long_answers_are_cut_off(client):
    """Memory is bounded, whatever the server sends."""
    with serving(lambda _: Response(200, b"x" * 10_000_000)) as url:
        assert MAX_ANSWER_BYTES <= len(client.request("GET", url).body) <= 2 * MAX_ANSWER_BYTES


def test_deadline_covers_the_whole_answer():
    """A server that sends a byte at a time does not hold the client for ever."""

    def drip(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            connection.sendall(b"x")
            time.sleep(0.1)

    with closing(HttpClient(0.5)) as client, raw_server(drip) as url:
        start = time.monotonic()
        with pytest.raises(HttpError) as caught:
            client.request("GET", url)
        assert time.monotonic() - start < 3.0
        assert caught.value.stage == HttpError.ANSWER


def test_no_server(client):
    """Nothing was sent, so the server cannot have acted on it. The message is the cause, without the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(HttpError, match=r"^ConnectionRefusedError: Connection refused$") as caught:
        client.request("GET", f"http://127.0.0.1:{port}/secret")
    assert caught.value.stage == HttpError.CONNECT


def test_lost_answer(client):
    """The server may have acted on a request whose answer was lost."""
    with raw_server(lambda _: None) as url, pytest.raises(HttpError) as caught:
        client.request("POST", url, b"x")
    assert caught.value.stage == HttpError.ANSWER


def test_bad_certificate_file(tmp_path):
    """Nothing is sent."""
    with closing(HttpClient(1.0, certificate=str(tmp_path / "missing.pem"))) as client, pytest.raises(HttpError) as caught:
        client.request("GET", "https://127.0.0.1:1")
    assert caught.value.stage == HttpError.PREPARE


def test_tls():
    """A server with a certificate of its own is refused, unless the client trusts that file."""
    with serving(lambda _: Response(200, b"ok"), certificate=CERTIFICATE) as url:
        with closing(HttpClient(5.0)) as client, pytest.raises(HttpError) as caught:
            client.request("GET", url)
        assert caught.value.stage == HttpError.TLS
        for options in ({}, {"check_hostname": False, "use_proxies": False}):
            with closing(HttpClient(5.0, certificate=CERTIFICATE, **options)) as client:
                assert client.request("GET", url).body == b"ok"


def test_system_certificates_are_trusted(monkeypatch):
    """The CAs of the system count, which is where a company installs its own; OpenSSL reads SSL_CERT_FILE instead of them."""
    monkeypatch.setenv("SSL_CERT_FILE", CERTIFICATE)
    with serving(lambda _: Response(200, b"ok"), certificate=CERTIFICATE) as url, closing(HttpClient(5.0)) as client:
        assert client.request("GET", url).body == b"ok"


def test_silent_client_does_not_block_the_tls_server():
    """The handshake happens on the thread of the connection."""
    with serving(lambda _: Response(200, b"ok"), certificate=CERTIFICATE) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address), closing(HttpClient(5.0, certificate=CERTIFICATE)) as client:
            assert client.request("GET", url).status == 200


def test_own_requests_are_not_traced():
    """Instrumentations of HTTP and gRPC look at these two keys."""
    with untraced():
        assert get_value(_SUPPRESS_INSTRUMENTATION_KEY)
        assert get_value(_SUPPRESS_HTTP_INSTRUMENTATION_KEY)
    assert not get_value(_SUPPRESS_INSTRUMENTATION_KEY)


def test_credentials_move_from_url_to_header():
    """A URL with credentials would be printed in error messages."""
    assert split_credentials("http://me:p%40ss@host:1/a?b") == ("http://host:1/a?b", {"Authorization": "Basic bWU6cEBzcw=="})
    assert split_credentials("http://host/a") == ("http://host/a", {})


def test_post_is_refused_by_the_server(client):
    """The server answers GET only."""
    with serving(lambda _: Response(200, b"")) as url:
        assert client.request("POST", url, b"x").status == 501


def test_port_in_use():
    """Two servers cannot share a port."""
    with serving(lambda _: Response(200, b"")) as url, pytest.raises(OSError):
        HttpServer(("127.0.0.1", int(url.rpartition(":")[2])), lambda _: Response(200, b""), thread_name="second")


def test_closing_an_unstarted_server():
    """It does not wait for a loop that never ran, and gives the port back."""
    server = HttpServer(("127.0.0.1", 0), lambda _: Response(200, b""), thread_name="unstarted")
    port = server.address[1]
    server.close()
    socket.create_server(("127.0.0.1", port)).close()
