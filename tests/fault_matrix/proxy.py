"""A TCP proxy in front of a real server that can stop forwarding, or cut connections."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Forwards connections to a port on loopback. `fail_after` bytes from the server, it cuts the connection or falls silent."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._remaining: int | None = None
        self._cuts = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, size: int) -> None:
        """Close connections after so many more bytes from the server."""
        self._remaining, self._cuts = size, True

    def hang_after(self, size: int) -> None:
        """Forward so many more bytes from the server, and nothing then. Connections stay open."""
        self._remaining, self._cuts = size, False

    def close(self) -> None:
        for connection in (self._listener, *self._sockets):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                threading.Thread(target=self._forward, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_answer and self._remaining is not None:
                    data, self._remaining = data[: self._remaining], max(0, self._remaining - len(data))
                    target.sendall(data)
                    if self._remaining == 0 and self._cuts:
                        break
                else:
                    target.sendall(data)
            if self._remaining != 0 or self._cuts:  # a silent proxy does not even pass on that the server closes the connection
                for connection in (source, target):
                    connection.shutdown(socket.SHUT_RDWR)
