"""Random damage to the bytes of a file."""

from __future__ import annotations

import random

from tests.delivery.damage import FRAGMENTS

_MORE_FRAGMENTS = (
    b",",
    b":",
    b"]",
    b"}",
    b"{",
    b"[",
    b"true",
    b"0",
    b"-0.0",
    b"NaN",
    b"\\u0000",
    b"\xed\xa0\x80",
    b"\xf0\x9f",
    b"\x1f\x8b",
    b" ",
)
_FRAGMENTS = (*FRAGMENTS, *_MORE_FRAGMENTS)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return the data with one to four changes."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_CHANGES)(result, rng)
    return bytes(result)


def _position(data: bytearray, rng: random.Random) -> int:
    return int(rng.random() * (len(data) + 1))


def _flip_bit(data: bytearray, rng: random.Random) -> None:
    if data:
        data[_position(data, rng) - 1] ^= 1 << rng.randrange(8)


def _replace_byte(data: bytearray, rng: random.Random) -> None:
    if data:
        data[_position(data, rng) - 1] = rng.randrange(256)


def _insert_fragment(data: bytearray, rng: random.Random) -> None:
    position = _position(data, rng)
    data[position:position] = rng.choice(_FRAGMENTS)


def _overwrite(data: bytearray, rng: random.Random) -> None:
    position, fragment = _position(data, rng), rng.choice(_FRAGMENTS)
    data[position : position + len(fragment)] = fragment


def _remove(data: bytearray, rng: random.Random) -> None:
    position = _position(data, rng)
    del data[position : position + rng.randrange(1, 64)]


def _repeat(data: bytearray, rng: random.Random) -> None:
    start, position = _position(data, rng), _position(data, rng)
    data[position:position] = data[start : start + rng.choice((4, 32, 256))]


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[_position(data, rng) :]


def _zero(data: bytearray, rng: random.Random) -> None:
    position, size = _position(data, rng), rng.choice((1, 8, 512))
    data[position : position + size] = bytes(min(size, len(data) - position))


def _change_number(data: bytearray, rng: random.Random) -> None:
    """Change a digit near a random place: numbers are sizes, times and versions."""
    position = _position(data, rng)
    for at in range(position, min(position + 64, len(data))):
        if 0x30 <= data[at] <= 0x39:
            data[at : at + 1] = rng.choice((b"-1", b"0", b"9" * 20, b"1e5", b"7", b"1.5"))
            return


_CHANGES = (
    _flip_bit,
    _flip_bit,
    _replace_byte,
    _replace_byte,
    _insert_fragment,
    _overwrite,
    _remove,
    _repeat,
    _truncate,
    _zero,
    _change_number,
)
