"""Runs the web application on loopback, until Ctrl-C."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn

from ckpt_observe.viewer.application import create_application


def serve(listener: socket.socket, state: Path, *, adopt: Callable[[], None], opens_browser: bool) -> None:
    """Serve the viewer of a state directory on a listening socket, and print its address, which contains the token.

    `adopt` delivers the records of dead processes. It is called in a thread, as long as a page is open.
    """
    port = listener.getsockname()[1]
    token, single_use_token = (secrets.token_urlsafe(24) for _ in range(2))
    address = f"http://127.0.0.1:{port}/?token="
    application = create_application(state, token=token, port=port, adopt=adopt, single_use_token=single_use_token if opens_browser else "")
    print(f"The viewer of {state} runs at\n\n  {address}{token}\n\nPress Ctrl-C to stop it.", flush=True)
    if opens_browser:
        threading.Thread(target=webbrowser.open, args=(address + single_use_token,), daemon=True).start()
    # Connections stay open as long as their pages: at the end, do not wait for them.
    settings = uvicorn.Config(application, log_level="error", server_header=False, timeout_graceful_shutdown=1)
    uvicorn.Server(settings).run(sockets=[listener])
