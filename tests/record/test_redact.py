"""Lines contain no secrets and no large values, and always fit into a page."""

from __future__ import annotations

import enum
import math
import random
import string

import msgspec
import pytest

import ckpt_observe
from ckpt_observe.journal.pages import HEADER_SIZE, PAGE_SIZE
from ckpt_observe.record import redact
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events

CANARY = "hunter2canary"

PLANTED = [
    f"postgres://admin:{CANARY}@db.example/x",
    f"redis://:{CANARY}@cache:6379/0",
    f"https://user:p@{CANARY}@host/path",
    f"host=db user=u password={CANARY} dbname=x",
    f"Server=db;Pwd={CANARY};",
    f"PASSWORD: {CANARY}",
    f'{{"api_key": "{CANARY}"}}',
    f"https://bucket.example/k?X-Amz-Signature={CANARY}&x=1",
    f"https://x.example/?access_token={CANARY}",
    f"Authorization: Bearer {CANARY}",
    f"authorization=Basic {CANARY}==",
    f"bearer {CANARY}.abc",
    f"sk-proj-{CANARY}0123456789",
    f"ghp_{CANARY}0123456789abcdef",
    f"xoxb-{CANARY}-0123456789",
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={CANARY}+/==;",
    f"https://account.blob.example/c?sv=2024-01-01&sig={CANARY}%3D",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIi{CANARY}.{CANARY}",
]


@pytest.mark.parametrize("planted", PLANTED)
def test_secrets_in_text(recording, planted):
    """A secret in an id, attribute, event, exception or phase is in no line, also when it is recorded a second time."""
    for _ in range(2):
        task = ckpt_observe.task("t", id=planted, attributes={"own.first": planted})
        with pytest.raises(ValueError), task:  # noqa: SIM117 - the operation may be one of many in the task
            with ckpt_observe.checkpoint("save", id=planted, attributes={"own.second": planted}) as operation:
                operation.set({"own.third": planted, names.LOCATION: planted, names.ID: planted, "list": [planted]})
                operation.add_event("e", {"own.fourth": planted})
                operation.link("a" * 32, "b" * 16, {"own.fifth": planted})
                with operation.phase("write") as phase:
                    phase.set({"own.sixth": planted})
                    raise ValueError(planted)
    assert "[redacted]" in recording.text()
    assert CANARY not in recording.text()


@pytest.mark.parametrize(
    "key", ["password", "db.passwd", "API_KEY", "api-key", "client_secret", "auth_token", "Cookie", "aws.credentials", "private_key"]
)
def test_secrets_by_name(recording, key):
    """A value whose name suggests a secret is redacted, whatever it looks like."""
    for _ in range(2):
        with ckpt_observe.checkpoint("save", attributes={key: CANARY}) as operation:
            operation.set({key: CANARY})
    assert CANARY not in recording.text()
    assert recording.spans()[0].attributes[key] == "[redacted]"


@pytest.mark.parametrize(
    "harmless",
    [
        "asia-northeast1-a-bucket",
        "skip-connection-v2-final",
        "task-0123456789abcdef0",
        "tokenizer=bpe",
        "max_tokens=4096",
        "config=small",
        "design=2",
        "ckpt/step-100",
        "s3://bucket/a",
        "mail me",
    ],
)
def test_harmless_text_stays(harmless):
    """Text that merely resembles a secret is not changed."""
    assert redact.text(harmless) == harmless


def test_secret_at_a_cut():
    """A secret that the limit of a text cuts in two is not recorded in part."""
    for padding in range(redact.MAX_TEXT * 8 - 60, redact.MAX_TEXT * 8):
        assert CANARY[:4] not in redact.text("password=x " + " " * (padding - 40) + f"ghp_{CANARY}0123456789")
        assert CANARY[:4] not in redact.text(f"token='{'x' * padding}' ghp_{CANARY}0123456789")


def test_token_counts(recording):
    """A number of tokens and the name of a tokenizer are not secret; a text under the same name later is redacted."""
    with ckpt_observe.checkpoint("save", attributes={"own.input_tokens": 512, "tokenizer": "bpe", "pin.password": 1234}) as operation:
        operation.set({"own.input_tokens": 513})
    with ckpt_observe.checkpoint("load", attributes={"own.input_tokens": CANARY}):
        pass
    save, load = recording.spans()
    assert save.attributes.items() >= {"own.input_tokens": 513, "tokenizer": "bpe", "pin.password": "[redacted]"}.items()
    assert load.attributes["own.input_tokens"] == "[redacted]"


class Colour(enum.IntEnum):
    RED = 3


class Word(str):
    __slots__ = ()


class NumpyLike:
    size = 1

    def item(self):
        return 2.5


class Hostile:
    size = 1

    def item(self):
        raise RuntimeError

    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


LOOP: list = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True), (7, 7), (0.5, 0.5), ("a", "a"), (Colour.RED, 3), (Word("w"), "w"), (NumpyLike(), 2.5), (1 << 64, "<int of 65 bits>"),
        ([1, 2], [1, 2]), ((1, "a"), ["1", "a"]), (b"bytes", "<bytes>"), ({"state": 1}, "<dict>"), ({1}, "<set>"), (Hostile(), "<Hostile>"),
        (LOOP, ["<list>"]), ("half \ud800 pair", "half ? pair"), (-(1 << 63), -(1 << 63)), (1 << 40_000, "<int of 40001 bits>"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values(recording, value, expected):
    """Values are converted to OpenTelemetry's types. Of other objects only the type is recorded, never their content."""
    with ckpt_observe.checkpoint("save") as operation:
        operation.set({"v": value})
    assert recording.spans()[0].attributes["v"] == expected


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_values_that_are_dropped(recording, value):
    """Values that JSON and OpenTelemetry cannot represent are dropped."""
    with ckpt_observe.checkpoint("save") as operation:
        operation.set({"v": value})
    assert "v" not in recording.spans()[0].attributes


def test_long_values_and_many_attributes(recording):
    """Long values are cut and surplus attributes are dropped, but not those of the failure."""
    with pytest.raises(OSError), ckpt_observe.checkpoint("save", attributes={"long": "x" * 10_000_000}) as operation:
        operation.set({f"own.{number}": "y" * 500 for number in range(1000)})
        raise OSError(28, "z" * 100_000)
    [span] = recording.spans()
    assert (span.attributes[names.OUTCOME], span.attributes[names.ERROR_CODE], span.status) == ("error", "storage.no_space", "error")
    assert len(span.attributes["long"]) <= redact.MAX_TEXT
    assert len(span.attributes) <= 2 * redact.MAX_ATTRIBUTES


NOISE = "".join(random.Random(1).choices(string.printable + "\x00\ud800ä状🧭@= ", k=30_000))


def some_text(chooser):
    size, start = chooser.choice([0, 1, 5, 50, 300, 9000]), chooser.randrange(20_000)
    noise = NOISE[start : start + size]
    return chooser.choice([noise, noise + " " + chooser.choice(PLANTED), chooser.choice(PLANTED) + " " + noise])


def anything(chooser):
    """Return some value that a program could pass."""
    kinds = [some_text(chooser), chooser.getrandbits(80), -1.5, None, True, Hostile(), NumpyLike(), LOOP, {"a": some_text(chooser)}]
    return chooser.choice([*kinds, [chooser.choice(kinds) for _ in range(chooser.choice([0, 1, 40]))]])


def any_attributes(chooser):
    keys = ["own", "password", names.ID, names.OUTCOME, names.ERROR_CODE]
    size = chooser.choice([0, 3, 30, 80])
    return {chooser.choice([*keys, f"own.{number}", some_text(chooser)]): anything(chooser) for number in range(size)}


@pytest.mark.parametrize("seed", range(20))
def test_every_line_fits_and_has_no_secret(seed):
    """Whatever an event contains, its line is JSON, fits into a page and has no planted secret."""
    chooser = random.Random(seed)
    start = ("0123456789abcdef", 1_700_000_000_000_000_000)
    phases = [(name, number, 0, start[1], start[1], any_attributes(chooser)) for number, name in enumerate(events.PHASE_CODES, 1)]
    for event in (
        (events.BEGIN, *start, "operation", "save", "a" * 32, "", any_attributes(chooser), None),
        (events.EVENT, *start, some_text(chooser), any_attributes(chooser)),
        (events.PHASE, *start, 15, 0, some_text(chooser)),
        (events.DONE, *start, (some_text(chooser), 15, 0, start[1], start[1], any_attributes(chooser))),
        (events.END, *start, any_attributes(chooser), phases[: chooser.choice([0, 4, 13])], 0),
    ):
        line = encode_line(tuple(redact.attributes(part) if isinstance(part, dict) else part for part in event))
        assert len(line) <= PAGE_SIZE - HEADER_SIZE
        assert CANARY.encode() not in line
        assert msgspec.json.decode(line)[:3] == list(event[:3])


class EqualToAll:
    """A value that claims to be equal to any other."""

    def __init__(self, hashed):
        self._hashed = hashed

    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash(self._hashed)


CLEAN = {"checkpoint.id": "3f2504e0-4f89-11d3-9a0c-0305e82c3301", "checkpoint.step": 3, "checkpoint.reason": "loop"}
"""Attributes of an instrumentor."""
NOT_CLEAN = [
    "https://alice:hunter2@example.com", "password=hunter2", "x" * 3000, "\ud800", 1 << 63,
    ["password=hunter2"], {"a": "b"}, object(), EqualToAll("loop"), EqualToAll(True),
]  # fmt: skip


@pytest.mark.parametrize("value", [*CLEAN.values(), *NOT_CLEAN, None, True, 1.5, -7, "Grüße", b"loop"])
@pytest.mark.parametrize("key", ["checkpoint.id", "checkpoint.step", "checkpoint.password"])
def test_clean_attributes_stay_as_they_are(key, value):
    """What `is_clean` accepts is written as it is, so `attributes` must not change it; and at the end, the same is in the line."""
    attributes = {**CLEAN, key: value}
    for _ in range(3):  # the first time, nothing is known about these keys and values
        if redact.is_clean(attributes):
            line = encode_line((events.BEGIN, "0" * 16, 0, attributes))
            assert line == encode_line((events.BEGIN, "0" * 16, 0, redact.attributes(attributes)))
        redact.attributes(attributes)


def test_what_is_clean():
    """Control: attributes that came before are recognized, and those with a secret are not."""
    redact.attributes(CLEAN)
    assert redact.is_clean(CLEAN)
    for value in NOT_CLEAN[:-2]:
        assert not redact.is_clean({**CLEAN, "checkpoint.reason": value}), value
    assert not redact.is_clean({**CLEAN, "password": "loop"})


def test_known_values_are_bounded():
    """A program that saves for years does not fill the memory with ids."""
    redact.attributes(CLEAN)
    for number in range(3 * redact._MAX_VALUES):
        assert redact.is_clean({**CLEAN, "checkpoint.id": f"{number:036x}"})
    assert len(redact._clean_values) <= redact._MAX_VALUES
