"""The address and the token of the viewer in tests without a browser."""

TOKEN = "the-token"
PORT = 4711
BASE = f"http://127.0.0.1:{PORT}"
LIVE = f"ws://127.0.0.1:{PORT}/api/live"
