"""Errors of client libraries that checkpoint libraries use for their stores: for databases, object stores, HTTP and serialization.

Where a server is needed, it is a loopback server that answers as the real one does in this case.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import sqlite3
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import ckpt_observe
from ckpt_observe.record.error_tables import DEFAULTS, MESSAGES, TYPES
from ckpt_observe.record.failures import classify, exception_attributes
from ckpt_observe.record.native_codes import NATIVE_CODES

pytestmark = pytest.mark.libraries

NOT_HERE = {"torch.OutOfMemoryError", "compression.zstd.ZstdError", "backports.zstd.ZstdError"}
"""torch is large, and there is one module for Zstandard per Python version."""
PURE_PYTHON = {"pickle.PicklingError", "pickle.UnpicklingError"}
"""Names that these types have only in an interpreter without the C module."""


def failure_of(function):
    with pytest.raises(Exception) as caught:
        function()
    return classify(caught.value)


def code_of(function):
    return failure_of(function).code


def message_of(error):
    return exception_attributes(error, stack=False)["exception.message"]


class Content:
    """A value of a state, whose representation is its content."""

    def __repr__(self):
        return "content"


@pytest.mark.parametrize("name", sorted({*TYPES, *DEFAULTS, *MESSAGES, *NATIVE_CODES} - NOT_HERE - PURE_PYTHON))
def test_types_exist(name):
    """Every type in the tables has this name in its library."""
    module, _, attribute = name.rpartition(".")
    with warnings.catch_warnings(action="ignore"):
        if module == "_block":  # a part of lz4 that forgets its package
            module = "lz4.block"
        kind = getattr(importlib.import_module(module), attribute)
    assert f"{kind.__module__}.{kind.__qualname__}" == name


def run_statement(url, driver, statement):
    """Run a statement with a driver of PostgreSQL, and commit."""
    module = importlib.import_module(driver)
    if driver != "asyncpg":
        with contextlib.closing(module.connect(url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement)
        return

    async def run():
        connection = await module.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


@pytest.fixture(scope="session")
def postgres_database(postgres_server):
    """URLs of new databases, by driver."""
    psycopg = importlib.import_module("psycopg")
    urls = {}
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        for driver in ("psycopg", "psycopg2", "asyncpg"):
            connection.execute(f"CREATE DATABASE {driver}")
            urls[driver] = postgres_server.rpartition("/")[0] + f"/{driver}"
    return urls


class Server(ThreadingHTTPServer):
    """Answers every request with the same status and body."""

    status, body = 200, b""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def silent_url():
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def dead_url():
    """The URL of a port on which nobody listens, and which nobody else gets."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{reserved.getsockname()[1]}"


SILENCE = 0.2
"""Timeout for a server that never answers. One that does answer may take longer on a busy machine."""


def get_with_requests(url, timeout=60):
    importlib.import_module("requests").get(url, timeout=timeout).raise_for_status()


def get_with_urllib3(url, timeout=60):
    urllib3 = importlib.import_module("urllib3")
    with urllib3.PoolManager() as pool:
        pool.request("GET", url, timeout=timeout, retries=urllib3.Retry(1))


def get_with_httpx(url, timeout=60):
    importlib.import_module("httpx").get(url, timeout=timeout, trust_env=False).raise_for_status()


def get_with_aiohttp(url, timeout=60):
    aiohttp = importlib.import_module("aiohttp")

    async def get():
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(timeout)) as session, session.get(url) as response:
            response.raise_for_status()

    asyncio.run(get())


CLIENTS = [get_with_requests, get_with_urllib3, get_with_httpx, get_with_aiohttp]


class TestHttp:
    """HTTP clients."""

    @pytest.mark.parametrize("get", CLIENTS)
    def test_no_server(self, dead_url, get):
        """The connection is refused."""
        assert code_of(lambda: get(dead_url)) == "unavailable.connection"

    @pytest.mark.parametrize("get", CLIENTS)
    def test_silent_server(self, silent_url, get):
        """The server does not answer in time."""
        assert code_of(lambda: get(silent_url, SILENCE)) == "timeout.deadline"

    @pytest.mark.parametrize("get", [get_with_requests, get_with_httpx, get_with_aiohttp])
    @pytest.mark.parametrize(
        ("status", "code"),
        [(401, "permission.authentication"), (404, "not_found.path"), (429, "unavailable.overloaded"), (502, "unavailable.overloaded")],
    )
    def test_status(self, server, get, status, code):
        """The status of the response counts."""
        server.status = status
        assert code_of(lambda: get(f"http://127.0.0.1:{server.server_port}")) == code


class TestObjectStores:
    """botocore and obstore with answers of S3."""

    ERRORS = (
        (403, "AccessDenied", "storage.permission"),
        (403, "SignatureDoesNotMatch", "permission.authentication"),
        (404, "NoSuchKey", "not_found.path"),
        (404, "NoSuchBucket", "storage.no_bucket"),
        (412, "PreconditionFailed", "conflict.exists"),
        (503, "SlowDown", "unavailable.overloaded"),
        (500, "SomethingNew", "unavailable.overloaded"),
    )

    def answer(self, server, status, code):
        server.status, server.body = status, f"<Error><Code>{code}</Code><Message>x</Message></Error>".encode()

    def client(self, url, timeout=60):
        session = importlib.import_module("botocore.session").Session()
        session.set_credentials("testing", "testing")
        config = importlib.import_module("botocore.config").Config(
            retries={"total_max_attempts": 1}, connect_timeout=timeout, read_timeout=timeout, proxies={}
        )
        return session.create_client("s3", region_name="us-east-1", endpoint_url=url, config=config)

    @pytest.mark.parametrize(("status", "error", "code"), ERRORS)
    def test_botocore(self, server, status, error, code):
        """The code in the response counts, or else its status."""
        self.answer(server, status, error)
        client = self.client(f"http://127.0.0.1:{server.server_port}")
        assert code_of(lambda: client.get_object(Bucket="b", Key="k")) == code

    def test_botocore_without_a_server(self, dead_url, silent_url):
        """No connection, no answer, no credentials."""
        assert code_of(lambda: self.client(dead_url).get_object(Bucket="b", Key="k")) == "unavailable.connection"
        assert code_of(lambda: self.client(silent_url, SILENCE).get_object(Bucket="b", Key="k")) == "timeout.deadline"

    def store(self, url, timeout=60):
        store = importlib.import_module("obstore.store")
        return store.S3Store(
            "b",
            endpoint=url,
            access_key_id="testing",
            secret_access_key="testing",
            region="us-east-1",
            client_options={"allow_http": True, "timeout": f"{timeout}s"},
            retry_config={"max_retries": 0},
        )

    @pytest.mark.parametrize(("status", "error", "code"), [row for row in ERRORS if row[0] != 412])
    def test_obstore(self, server, status, error, code):
        """obstore has few types; its messages contain the response."""
        self.answer(server, status, error)
        store = self.store(f"http://127.0.0.1:{server.server_port}")
        assert code_of(lambda: store.get("k")) == code

    def test_obstore_without_a_server(self, dead_url, silent_url):
        """No connection, no answer."""
        assert code_of(lambda: self.store(dead_url).get("k")) == "unavailable.connection"
        assert code_of(lambda: self.store(silent_url, SILENCE).get("k")) == "timeout.deadline"


class TestDatabases:
    """Libraries around database drivers."""

    def test_sqlalchemy(self, tmp_path):
        """SQLAlchemy's exception is explained by the driver's; its own pool has its own."""
        sqlalchemy = importlib.import_module("sqlalchemy")
        path = tmp_path / "x.db"
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN IMMEDIATE")
        options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.1, "connect_args": {"timeout": 0}}
        engine = sqlalchemy.create_engine(f"sqlite:///{path}", poolclass=sqlalchemy.pool.QueuePool, **options)
        with engine.connect() as connection:
            failure = failure_of(lambda: connection.execute(sqlalchemy.text("INSERT INTO t VALUES (1)")))
            assert code_of(engine.connect) == "timeout.deadline"
        assert (failure.code, failure.cause, failure.retryable) == ("conflict.locked", "sqlite3.OperationalError", True)
        other.close()
        engine.dispose()

    def test_pool(self, dead_url):
        """A pool that gets no connection in time, and one that is closed."""
        pool = importlib.import_module("psycopg_pool").ConnectionPool(dead_url.replace("http", "postgresql"), timeout=0.1, open=True)
        assert code_of(pool.getconn) == "timeout.deadline"
        pool.close()
        assert code_of(pool.getconn) == "storage.closed"

    @pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
    def test_no_server(self, dead_url, driver):
        """The connection is refused."""
        connect = importlib.import_module(driver).connect
        assert code_of(lambda: connect(dead_url.replace("http", "postgresql"))) == "unavailable.connection"

    @pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            ("SELECT 'content'::integer", "invalid input syntax for type integer"),
            ("SELECT 'a \"quoted\" content'::integer", "invalid input syntax for type integer"),
            ("SELECT '91847362519'::integer", "value is out of range for type integer"),
            ("SELECT '{\"text\": content'::jsonb", "invalid input syntax for type json"),
            (
                "CREATE TABLE t (id text PRIMARY KEY); INSERT INTO t VALUES ('content'), ('content')",
                'duplicate key value violates unique constraint "t_pkey"',
            ),
        ],
    )
    def test_content_is_not_in_the_message(self, postgres_database, driver, statement, message):
        """PostgreSQL quotes the data that it refuses, and drivers add its details and the statement to their messages."""
        with pytest.raises(Exception, match=r"content|91847362519") as caught:
            run_statement(postgres_database[driver], driver, statement)
        assert message_of(caught.value) == message

    def test_content_of_arguments_is_not_in_the_message(self, postgres_database):
        """The client asyncpg quotes an argument that it cannot encode."""

        async def run():
            connection = await importlib.import_module("asyncpg").connect(postgres_database["asyncpg"])
            try:
                await connection.execute("SELECT $1::integer", "content")
            finally:
                await connection.close()

        with pytest.raises(Exception, match="content") as caught:
            asyncio.run(run())
        assert message_of(caught.value) == "invalid input for query argument $1"

    @pytest.mark.parametrize(
        ("statement", "arguments", "message"),
        [
            ("SELECT 'content'::integer", {}, "invalid input syntax for type integer"),
            ("SELECT CAST(:value AS integer)", {"value": "content"}, "invalid input for query argument $1"),
        ],
    )
    def test_content_is_not_in_the_message_of_sqlalchemy(self, postgres_database, statement, arguments, message):
        """SQLAlchemy replaces the errors of asyncpg, with the same message."""
        sqlalchemy = importlib.import_module("sqlalchemy")
        url = postgres_database["asyncpg"].replace("postgresql://", "postgresql+asyncpg://")

        async def run():
            engine = importlib.import_module("sqlalchemy.ext.asyncio").create_async_engine(url)
            try:
                async with engine.connect() as connection:
                    await connection.execute(sqlalchemy.text(statement), arguments)
            finally:
                await engine.dispose()

        with pytest.raises(sqlalchemy.exc.DBAPIError, match="content") as caught:
            asyncio.run(run())
        assert message_of(caught.value) == message

    def test_content_is_not_in_another_language(self):
        """Servers quote data with the marks of their language."""
        error = importlib.import_module("asyncpg").InvalidTextRepresentationError("ungültige Eingabesyntax für Typ integer: »content«")
        assert message_of(error) == "ungültige Eingabesyntax für Typ integer"

    def test_content_of_documents_is_not_in_the_message(self):
        """The client of MongoDB quotes what it cannot encode, and the reply of the server, which has the whole document of a bulk write."""
        bson, errors = importlib.import_module("bson"), importlib.import_module("pymongo.errors")
        with pytest.raises(errors.InvalidDocument, match="content") as caught:
            bson.encode({"state": {"messages": Content()}})
        assert message_of(caught.value) == f"invalid document: cannot encode an object of type {__name__}.Content"
        with pytest.raises(errors.InvalidDocument) as caught:
            bson.encode({("content",): 1})
        assert message_of(caught.value) == "invalid document"
        reply = {"writeErrors": [{"op": {"state": "content"}}]}
        assert message_of(errors.BulkWriteError(reply)) == "batch op errors occurred"
        duplicate = errors.DuplicateKeyError(
            'E11000 duplicate key error collection: a.b index: _id_ dup key: { _id: "content" }', 11000, reply
        )
        assert message_of(duplicate) == "E11000 duplicate key error collection: a.b index: _id_"

    def test_content_of_commands_is_not_in_the_message(self):
        """Redis and its client quote the command, in which anything may be."""
        command = "Command # 1 (SET a content (b) of pipeline, with args beginning with: content) of pipeline"
        reply = "unknown command 'SET', with args beginning with: 'content'"
        error = importlib.import_module("redis.exceptions").ResponseError(f"{command} caused error: {reply}")
        assert message_of(error) == "Command # 1 of pipeline caused error: unknown command 'SET'"

    @pytest.mark.parametrize(("kind", "text"), [("redis.exceptions.RedisError", "Content (a) "), ("pymongo.errors.PyMongoError", " ")])
    def test_long_message(self, kind, text):
        """Reading a message of megabytes takes milliseconds: the caller waits. With regular expressions it took hours."""
        module, _, name = kind.rpartition(".")
        message = message_of(getattr(importlib.import_module(module), name)(text * 400_000))
        assert message.startswith(text)

    def test_content_of_parameters_is_not_in_the_message(self):
        """The client of AWS quotes a parameter of the wrong type."""
        session = importlib.import_module("botocore.session").Session()
        client = session.create_client("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
        with pytest.raises(Exception, match="content") as caught:
            client.put_object(Bucket="b", Key="k", Body={"state": "content"})
        assert message_of(caught.value) == "Parameter validation failed:\nInvalid type for parameter Body"

    def test_closed_aiosqlite(self):
        """A connection of aiosqlite after its end."""
        aiosqlite = importlib.import_module("aiosqlite")

        async def use():
            async with aiosqlite.connect(":memory:") as connection:
                pass
            await connection.execute("SELECT 1")

        assert code_of(lambda: asyncio.run(use())) == "storage.closed"


class TestBytes:
    """Serializers, codecs and ciphers. Some raise exceptions of Python, so the phase counts, too."""

    @pytest.mark.parametrize("name", ["ormsgpack", "msgpack"])
    def test_msgpack(self, name):
        """A value that cannot be packed, and bytes that cannot be unpacked."""
        library = importlib.import_module(name)
        assert code_of(lambda: library.packb(object())) == "serialization.unsupported_type"
        with pytest.raises(ValueError) as caught:
            library.unpackb(b"\xc1")
        assert classify(caught.value, "deserialize").code == "serialization.malformed"

    def test_safetensors(self):
        """The file of tensors is damaged."""
        assert code_of(lambda: importlib.import_module("safetensors").deserialize(b"x" * 20)) == "integrity.malformed"

    def test_codecs(self):
        """Damaged bytes of lz4 and Zstandard."""
        assert code_of(lambda: importlib.import_module("lz4.frame").decompress(b"x" * 30)) == "compression.malformed"
        assert code_of(lambda: importlib.import_module("lz4.block").decompress(b"x" * 30)) == "compression.malformed"
        assert code_of(lambda: importlib.import_module("zstandard").decompress(b"x" * 30)) == "compression.malformed"

    def test_ciphers(self):
        """The wrong key, with cryptography and with PyCryptodome, which raises ValueError."""
        aes = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
        encrypted = aes(bytes(32)).encrypt(bytes(12), b"state", None)
        assert code_of(lambda: aes(b"1" * 32).decrypt(bytes(12), encrypted, None)) == "encryption.wrong_key"
        other = importlib.import_module("Crypto.Cipher.AES")
        cipher = other.new(b"1" * 32, other.MODE_EAX, nonce=bytes(16))
        assert code_of(lambda: cipher.decrypt_and_verify(b"state", bytes(16))) == "encryption.wrong_key"


def test_pause_of_langgraph(recording):
    """A pause in a node that records its own checkpoint is not an error."""
    errors = importlib.import_module("langgraph.errors")
    with pytest.raises(errors.GraphInterrupt), ckpt_observe.checkpoint("save"):
        raise errors.GraphInterrupt(())
    (span,) = recording.spans()
    assert (span.attributes["checkpoint.outcome"], span.attributes["checkpoint.control_flow"]) == ("ok", "GraphInterrupt")
