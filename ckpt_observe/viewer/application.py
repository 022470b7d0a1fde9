"""The web application: static files, the JSON API under `/api`, and a WebSocket with what changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from ckpt_observe import query
from ckpt_observe.errors import CkptObserveError, TraceNotFoundError
from ckpt_observe.query import OperationFilter, Traces
from ckpt_observe.viewer import page_data
from ckpt_observe.viewer.live_feed import LiveFeed
from ckpt_observe.viewer.sessions import SessionMiddleware

_STATIC: Final = Path(__file__).parent / "static"
_FILTERS: Final = ("operation", "outcome", "task_name", "task_id", "system", "error_class", "error_code", "checkpoint_id")
_TIMES: Final = ("since_unix_nano", "until_unix_nano")


def create_application(state: Path, *, token: str, port: int, adopt: Callable[[], None], single_use_token: str = "") -> Starlette:
    """Return the application for one state directory.

    `token` opens a session, `single_use_token` only the first one, `port` is that of the server, and `adopt` delivers the records of dead
    processes.
    """
    feed = LiveFeed(state, adopt)
    routes = [
        Route("/api/overview", _endpoint(state, lambda traces, _: page_data.overview(traces))),
        Route("/api/operations", _endpoint(state, _history)),
        Route("/api/traces/{trace_id}", _endpoint(state, lambda traces, request: traces.trace(request.path_params["trace_id"]))),
        Route("/api/checkpoints/{trace_id}/{span_id}", _endpoint(state, _checkpoint)),
        Route("/api/libraries", _endpoint(state, lambda traces, _: page_data.library_health(traces))),
        WebSocketRoute("/api/live", _live_endpoint(feed)),
        Mount("/", StaticFiles(directory=_STATIC, html=True)),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        feed.close()

    sessions = Middleware(SessionMiddleware, token=token, port=port, single_use_token=single_use_token)
    return Starlette(routes=routes, middleware=[sessions], lifespan=lifespan)


def _endpoint(state: Path, load: Callable[[Traces, Request], Any]) -> Callable[[Request], Any]:
    """Return a handler that answers with what `load` returns, as JSON. It reads files, so it runs in a thread."""

    def read(request: Request) -> Response:
        try:
            with query.open_traces(state) as traces:
                return _json(load(traces, request))
        except TraceNotFoundError as error:
            return _json({"error": str(error)}, 404)
        except ValueError as error:
            return _json({"error": f"a parameter is not valid: {error}"}, 400)
        except CkptObserveError as error:
            return _json({"error": str(error)}, 500)

    async def handle(request: Request) -> Response:
        return await run_in_threadpool(read, request)

    return handle


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _history(traces: Traces, request: Request) -> page_data.History:
    parameters = request.query_params
    conditions: dict[str, Any] = {name: parameters[name] for name in _FILTERS if parameters.get(name)}
    conditions |= {name: int(parameters[name]) for name in _TIMES if parameters.get(name)}
    limit = int(parameters.get("limit", page_data.MAX_ROWS))
    return page_data.history(traces, OperationFilter(**conditions), parameters.get("text", ""), max(1, limit))


def _checkpoint(traces: Traces, request: Request) -> page_data.CheckpointPage:
    return page_data.checkpoint(traces, request.path_params["trace_id"], request.path_params["span_id"])


def _live_endpoint(feed: LiveFeed) -> Callable[[WebSocket], Any]:
    async def handle(socket: WebSocket) -> None:
        await socket.accept()
        updates = feed.subscribe()
        sending = asyncio.create_task(_send_updates(socket, updates))
        try:
            with suppress(WebSocketDisconnect):
                while True:
                    await socket.receive_bytes()  # nothing is expected: it ends when the page does
        except (KeyError, RuntimeError):  # a text message, or the connection is gone
            pass
        finally:
            feed.unsubscribe(updates)
            sending.cancel()

    return handle


async def _send_updates(socket: WebSocket, updates: asyncio.Queue[bytes]) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):  # the page was closed meanwhile
        while True:
            await socket.send_text((await updates.get()).decode())
