"""Who may use the viewer: only a browser on this machine that opened the printed address, and only pages of the viewer itself.

A random token in that address is exchanged for a cookie. The checks of `Host` and `Origin` keep out pages of other sites that let the
browser connect to loopback (DNS rebinding, requests across sites, WebSockets).
"""

from __future__ import annotations

import secrets
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN: Final = "token"  # noqa: S105 - the name of a parameter
_HOST_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
_MISDIRECTED: Final = 421
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_HOW_TO_GET_IN: Final = (
    "This page needs a session.\n\n"
    "`ckpt-observe ui` prints an address with a token when it starts. Open that address in this browser; afterwards this link works, too.\n"
    "If the command is no longer running, start it again.\n"
)


class SessionMiddleware:
    """Lets requests with a session pass. Every answer gets headers that forbid foreign content."""

    def __init__(self, app: ASGIApp, *, token: str, port: int, single_use_token: str = "") -> None:
        """`single_use_token` opens one session: the command line of a browser contains it, and other users can read that."""
        self._app = app
        self._token = token
        self._single_use_token = single_use_token
        self._session = secrets.token_urlsafe(32)
        self._cookie = f"ckpt_observe_{port}"  # cookies do not depend on the port, and several viewers may run
        self._hosts = frozenset(f"{name}:{port}" for name in _HOST_NAMES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request if it may not pass."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        answer = self._check(connection)
        if scope["type"] == "websocket":
            if answer is None:
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008, "reason": "no session"})  # before it is accepted: status 403
            return
        await (answer or self._app)(scope, receive, _with_headers(send))

    def _check(self, connection: HTTPConnection) -> Response | None:
        """Return the answer to a request that may not pass, or None."""
        headers = connection.headers
        if headers.get("host", "") not in self._hosts:
            return PlainTextResponse("The viewer answers only on loopback. Use the address that `ckpt-observe ui` printed.\n", _MISDIRECTED)
        if not _is_same_origin(headers, is_socket=connection.scope["type"] == "websocket"):
            return PlainTextResponse("Requests from other sites are refused.\n", 403)
        if token := connection.query_params.get(TOKEN):
            return self._begin_session(connection, token)
        if secrets.compare_digest(connection.cookies.get(self._cookie, "").encode(), self._session.encode()):
            return None
        if connection.url.path.startswith("/api/"):
            return JSONResponse({"error": _HOW_TO_GET_IN}, 401)
        return PlainTextResponse(_HOW_TO_GET_IN, 401)

    def _begin_session(self, connection: HTTPConnection, token: str) -> Response:
        """Exchange the token for a cookie, and remove it from the address of the browser."""
        if self._single_use_token and secrets.compare_digest(token.encode(), self._single_use_token.encode()):
            self._single_use_token = ""
        elif not secrets.compare_digest(token.encode(), self._token.encode()):
            return PlainTextResponse(f"The token is not valid.\n\n{_HOW_TO_GET_IN}", 401)
        rest = urlencode([(name, value) for name, value in connection.query_params.multi_items() if name != TOKEN])
        answer = RedirectResponse("/" + connection.url.path.lstrip("/") + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer


def _is_same_origin(headers: Headers, *, is_socket: bool) -> bool:
    """Return whether the request comes from a page of the viewer, or from no page at all. A WebSocket always comes from a page."""
    origin = headers.get("origin")
    if origin is None:
        return not is_socket
    return str(origin) == f"http://{headers.get('host')}"


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
        await send(message)

    return send_with_headers
