"""Stand-ins for an OTel Collector on loopback: they decode requests with protobuf and give the answers that a test configures.

They do not process or forward anything. The tests marked `services` use a real OTel Collector.
"""

from __future__ import annotations

import gzip
import ssl
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from ckpt_observe.span import Span, SpanEvent, SpanLink

PEM = Path(__file__).parent / "loopback.pem"
"""Certificate and key of 127.0.0.1 and localhost, signed by itself, for these tests only."""
STATUS = ("unset", "ok", "error")


def value(message):
    kind = message.WhichOneof("value")
    return [value(item) for item in message.array_value.values] if kind == "array_value" else getattr(message, kind)


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


def spans_of(body):
    """Return the spans of a request."""
    return [
        Span(
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_span_id=span.parent_span_id.hex(),
            name=span.name,
            start_unix_nano=span.start_time_unix_nano,
            end_unix_nano=span.end_time_unix_nano,
            status=STATUS[span.status.code],
            attributes=attributes(span.attributes),
            events=tuple(SpanEvent(event.name, event.time_unix_nano, attributes(event.attributes)) for event in span.events),
            links=tuple(SpanLink(link.trace_id.hex(), link.span_id.hex(), attributes(link.attributes)) for link in span.links),
            resource=attributes(group.resource.attributes),
        )
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


class Received:
    """Records requests. Answers are those of `answers` in order, then `otherwise`."""

    def __init__(self):
        self.requests = []
        self.spans = {}
        self.answers = deque()
        self.otherwise = 200
        self.authorization = None
        self.poison = None
        self.poison_status = 400
        self.accepts_empty = self.refuses_empty = False
        self.copies = Counter()
        self.released = threading.Event()

    def answer(self, spans, authorization):
        if self.authorization and authorization != self.authorization:
            return 401
        if self.poison and any(span.span_id in self.poison for span in spans):
            return self.poison_status
        if not spans and (self.accepts_empty or self.refuses_empty):
            return 200 if self.accepts_empty else 400
        return self.answers.popleft() if self.answers else self.otherwise

    def keep(self, spans):
        """Store spans as Jaeger does: a repeated span replaces the earlier copy."""
        self.copies.update(span.span_id for span in spans)
        for span in spans:
            self.spans[span.trace_id, span.span_id] = span


class HttpCollector(Received):
    """Answers with a status, a `(status, headers, body)`, or one of

    `stall` reads and never answers · `keep and stall` keeps the spans and never answers · `cut` keeps them and closes without an answer ·
    `half` keeps them and sends half an answer

    A GET request gets the answer of its path in `pages`.
    """

    def __init__(self, *, tls=False):
        super().__init__()
        self.pages = {}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                owner.respond(self, owner.pages.get(self.path, 404))

            def do_POST(self):
                owner.serve(self)

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # tests break connections on purpose

        self.server = Server(("127.0.0.1", 0), Handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(PEM)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self.server.server_port
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def serve(self, request):
        body = request.rfile.read(int(request.headers["content-length"]))
        if request.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        self.requests.append((request.path, dict(request.headers), body))
        self.respond(request, self.handle(request, body))

    def handle(self, request, body):
        spans = spans_of(body)
        answer = self.answer(spans, request.headers["authorization"])
        if answer in ("cut", "half", "keep and stall") or answer == 200 or (isinstance(answer, tuple) and answer[0] == 200):
            self.keep(spans)
        return answer

    def respond(self, request, answer):
        if answer in ("stall", "keep and stall"):
            self.released.wait(30)
        if answer in ("stall", "keep and stall", "cut"):
            request.close_connection = True
            return
        status, headers, body = (200, {}, b"x") if answer == "half" else (answer, {}, b"") if isinstance(answer, int) else answer
        request.send_response(status)
        for name, text in headers.items():
            request.send_header(name, text)
        request.send_header("content-length", str(1000 if answer == "half" else len(body)))
        request.end_headers()
        request.wfile.write(body)
        request.close_connection = answer == "half"


class GrpcCollector(Received, grpc.GenericRpcHandler):
    """Answers with 200, a partial success, a `grpc.StatusCode`, or a code with the seconds of a RetryInfo."""

    def __init__(self, *, tls=False):
        super().__init__()
        self.server = grpc.server(ThreadPoolExecutor(4), handlers=(self,), options=[("grpc.so_reuseport", 0)])
        if tls:
            credentials = grpc.ssl_server_credentials([(PEM.read_bytes(), PEM.read_bytes())])
            self.port = self.server.add_secure_port("localhost:0", credentials)
        else:
            self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.url = f"{'https://localhost' if tls else 'http://127.0.0.1'}:{self.port}"

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.server.stop(None).wait()

    def service(self, details):
        if details.method == "/opentelemetry.proto.collector.trace.v1.TraceService/Export":
            return grpc.unary_unary_rpc_method_handler(self.export)
        return None

    def export(self, body, context):
        metadata = dict(context.invocation_metadata())
        self.requests.append((None, metadata, body))
        spans = spans_of(body)
        answer = self.answer(spans, metadata.get("authorization"))
        if answer in (400, 401):
            answer = grpc.StatusCode.UNAUTHENTICATED if answer == 401 else grpc.StatusCode.INVALID_ARGUMENT
        if answer == "stall":
            self.released.wait(30)
        elif isinstance(answer, grpc.StatusCode):
            context.abort(answer, f"said the server to {metadata.get('authorization')}")
        elif isinstance(answer, tuple):
            code, seconds = answer
            status = Status(code=code.value[0])
            info = RetryInfo()
            info.retry_delay.FromNanoseconds(int(seconds * 1e9))
            status.details.add().Pack(info)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(code, "busy")
        else:
            self.keep(spans)
        return (answer if isinstance(answer, ExportTraceServiceResponse) else ExportTraceServiceResponse()).SerializeToString()
