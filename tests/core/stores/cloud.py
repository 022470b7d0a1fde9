"""A local server that implements as much of Google Cloud Storage and Azure Blob as the object store uses."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

LAST_MODIFIED = "Sat, 31 Jan 2026 12:00:00 GMT"
CREATE_ONLY = ("if-none-match", "x-goog-if-generation-match")
COPY_FROM = ("x-goog-copy-source", "x-ms-copy-source")
BATCH = "--batch\r\nContent-Type: application/http\r\nContent-ID: {}\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n"


def etag(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


def listing_body(objects, prefix, scheme):
    """Return the body of a listing, in the format of the service."""
    names = sorted(name for name in objects if name.startswith(prefix))
    if scheme == "az":
        entries = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{LAST_MODIFIED}</Last-Modified><Content-Length>{len(objects[name])}</Content-Length>"
            f"<Content-Type>x</Content-Type><Etag>{escape(etag(objects[name]))}</Etag></Properties></Blob>"
            for name in names
        )
        return f"<EnumerationResults><Blobs>{entries}</Blobs><NextMarker/></EnumerationResults>".encode()
    entries = "".join(
        f"<Contents><Key>{escape(name)}</Key><Size>{len(objects[name])}</Size><LastModified>2026-01-31T12:00:00Z</LastModified><ETag>{etag(objects[name])}</ETag></Contents>"
        for name in names
    )
    return f"<ListBucketResult><KeyCount>{len(names)}</KeyCount><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        cloud = self.server
        parts = urlsplit(self.path)
        name = unquote(parts.path).removeprefix(cloud.root).removeprefix("/")
        if self.command == "PUT":
            cloud.closing.wait(cloud.upload_seconds)
        if cloud.refusal:
            self.answer(cloud.refusal)
        elif self.command == "POST":
            self.delete_many(cloud, body)
        elif not name:
            self.answer(200, listing_body(cloud.objects, parse_qs(parts.query).get("prefix", [""])[0], cloud.scheme))
        elif self.command == "PUT":
            self.put(cloud, name, body)
        elif name not in cloud.objects:
            self.answer(404)
        elif self.command == "DELETE":
            del cloud.objects[name]
            self.answer(202 if cloud.scheme == "az" else 204)
        else:
            self.get(cloud.objects[name])

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = handle_any  # noqa: N815 - names of the base class

    def put(self, cloud, name, body):
        source = next((self.headers[header] for header in COPY_FROM if header in self.headers), None)
        if source is not None:
            body = cloud.objects.get(unquote(urlsplit(source).path).lstrip("/").partition(cloud.root.lstrip("/") + "/")[2])
        if body is None:
            self.answer(404)
        elif name in cloud.objects and any(header in self.headers for header in CREATE_ONLY):
            self.answer(409 if cloud.scheme == "az" else 412)
        else:
            cloud.objects[name] = body
            self.answer(200 if cloud.scheme == "gs" else 202 if source else 201, tag=etag(body))

    def delete_many(self, cloud, body):
        """Answer Azure's batch: several requests in one."""
        paths = re.findall(rb"^DELETE (\S+) HTTP", body, re.MULTILINE)
        for path in paths:
            del cloud.objects[unquote(urlsplit(path.decode()).path).removeprefix(f"{cloud.root}/")]
        parts = "".join(BATCH.format(number) for number in range(len(paths)))
        self.answer(202, f"{parts}--batch--\r\n".encode(), content_type="multipart/mixed; boundary=batch")

    def get(self, data):
        byte_range = self.headers.get("range")
        if byte_range is None:
            self.answer(200, data, etag(data))
            return
        first, last = byte_range.removeprefix("bytes=").split("-")
        if int(first) >= len(data):
            self.answer(416)
            return
        part = data[int(first) : int(last) + 1]
        self.answer(206, part, etag(data), f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")

    def answer(self, code, body=b"", tag="", content_range="", content_type=""):
        self.send_response(code)
        headers = {"ETag": tag, "Last-Modified": LAST_MODIFIED, "Content-Range": content_range, "Content-Type": content_type}
        for header, value in {"Content-Length": str(len(body)), **headers}.items():
            if value:
                self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def environment(scheme, url):
    """Return the variables with which a program reaches the server. The keys are invented, so that no real credentials are looked up."""
    google = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return {
        "gs": {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(google), "GOOGLE_ALLOW_HTTP": "true"},
        "az": {
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"key").decode(),
            "AZURE_STORAGE_ENDPOINT": url,
            "AZURE_ALLOW_HTTP": "true",
        },
    }[scheme]


@contextmanager
def serve(scheme, bucket):
    """Run a server without objects. `refusal` is a status that answers every request, `upload_seconds` the duration of an upload."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.scheme, server.root, server.objects, server.refusal = scheme, f"/{bucket}", {}, 0
        server.upload_seconds, server.closing = 0, Event()
        server.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
