"""Only a browser on this machine that opened the printed address can use the viewer."""

from __future__ import annotations

import pytest

from tests.viewer.address import BASE, LIVE, PORT, TOKEN

PATHS = ["/", "/app.js", "/api/overview", "/api/operations", "/api/traces/ab", "/api/checkpoints/ab/cd", "/api/libraries"]


@pytest.mark.parametrize("path", PATHS)
def test_request_without_a_session(stranger, path):
    """Without a session nothing is served, and the answer says how to get one."""
    answer = stranger.get(path)
    assert (answer.status_code, "ckpt-observe ui" in answer.text) == (401, True)


def test_token_is_exchanged_for_a_cookie(stranger):
    """The printed address gives a session and redirects to the same address without the token."""
    answer = stranger.get("/", params={"token": TOKEN, "x": "1"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/?x=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert stranger.get("/").status_code == 200


def test_single_use_token(tmp_path):
    """The token on the command line of a browser opens one session, and the printed one any number."""
    application = pytest.importorskip("ckpt_observe.viewer.application", exc_type=ModuleNotFoundError)
    pytest.importorskip("httpx2")
    testclient = pytest.importorskip("starlette.testclient")
    viewer = application.create_application(tmp_path, token=TOKEN, port=PORT, adopt=lambda: None, single_use_token="once")
    with testclient.TestClient(viewer, base_url=BASE, follow_redirects=False) as client:
        answers = [client.get("/", params={"token": token}).status_code for token in ("once", "once", TOKEN, TOKEN)]
    assert answers == [303, 401, 303, 303]


def test_redirect_stays_on_this_server(stranger):
    """A path that looks like another host is not a redirect to it."""
    answer = stranger.get(f"{BASE}//evil.example/", params={"token": TOKEN})
    assert answer.headers["location"] == "/evil.example/"


@pytest.mark.parametrize("token", ["wrong", "", TOKEN + "x", "é"])
def test_wrong_token(stranger, token):
    """A wrong token gives no session."""
    assert stranger.get("/", params={"token": token}).status_code == 401
    assert stranger.get("/api/overview").status_code == 401


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", f"0.0.0.0:{PORT}", ""])
def test_foreign_host(client, host):
    """A request for another host name is refused, so that DNS rebinding does not help another site."""
    assert client.get("/api/overview", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", [f"localhost:{PORT}", f"[::1]:{PORT}"])
def test_loopback_names(stranger, host):
    """All names of loopback reach the viewer."""
    assert stranger.get("/", headers={"host": host}).status_code == 401


@pytest.mark.parametrize("origin", ["http://evil.example", "null", f"http://127.0.0.1:{PORT + 1}", f"https://127.0.0.1:{PORT}"])
def test_foreign_origin(client, origin):
    """A request from a page of another site is refused, although the browser sends the cookie."""
    assert client.get("/api/overview", headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize("headers", [{}, {"origin": "http://evil.example"}])
def test_websocket_from_elsewhere(client, headers):
    """A WebSocket is refused from another origin, and without one."""
    disconnect = pytest.importorskip("starlette.websockets").WebSocketDisconnect
    with pytest.raises(disconnect), client.websocket_connect(LIVE, headers=headers):
        pass


def test_websocket_without_a_session(stranger):
    """A WebSocket of our own origin needs the session, too."""
    disconnect = pytest.importorskip("starlette.websockets").WebSocketDisconnect
    with pytest.raises(disconnect), stranger.websocket_connect(LIVE, headers={"origin": BASE}):
        pass


@pytest.mark.parametrize("path", ["/", "/api/overview", "/nothing"])
def test_headers(client, path):
    """Every answer forbids foreign content, inline scripts, framing and guessing of types."""
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


@pytest.mark.parametrize("path", ["/../sessions.py", "/%2e%2e/sessions.py", "/..%2fsessions.py"])
def test_files_outside_the_static_directory(client, path):
    """Only files of the viewer are served."""
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_nothing_can_be_changed(client, method):
    """The API only reads."""
    assert getattr(client, method)("/api/overview").status_code == 405
