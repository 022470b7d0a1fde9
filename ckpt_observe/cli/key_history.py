"""`ckpt-observe log` and `extract`: the history of a key over a run, and a checkpoint as text."""

from __future__ import annotations

import datetime as dt
from argparse import Namespace, _SubParsersAction
from collections.abc import Iterable, Sequence
from typing import Any, Final, get_args

import msgspec

from ckpt_observe.cli.argument_types import reference
from ckpt_observe.cli.checkpoint_source import REF_HELP, add_store, find_checkpoint, require_checkpointer
from ckpt_observe.cli.commands import add_command
from ckpt_observe.cli.contents_view import read_contents
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import Column, drop_empty_columns, print_error, print_table
from ckpt_observe.cli.store_listing import format_moment, format_optional, from_entry
from ckpt_observe.core.ciphers import KEY_VARIABLE
from ckpt_observe.core.extract import Style, extract
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError
from ckpt_observe.readers import Entry
from ckpt_observe.support.formatting import format_size
from ckpt_observe.support.suggestions import suggest


class KeyVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key in one checkpoint."""

    key: str
    id: str
    created: dt.datetime | None = None
    step: int | None = None
    node: str = ""
    size: int | None = None
    """Bytes of the value; None if this checkpoint does not have the key."""
    digest: str = ""
    changed: bool | None = None
    """Whether the value differs from that in the checkpoint before; None if a digest is missing."""
    first_with_value: str = ""
    """ID of the checkpoint since which the value is the same as here, without a break."""


JSON: Final = {"log": KeyVersion}
_MARKS: Final = {True: "~", False: "", None: "?"}
_DIGEST_LENGTH: Final = 24
"""Characters of a digest in a table; `--json` has all."""
_COLUMNS: Final = (
    Column("", lambda changed: _MARKS[changed], style=lambda changed: "yellow" if changed else ""),
    Column("ID", whole=True),
    Column("CREATED", format_moment, whole=True),
    Column("STEP", format_optional, align_right=True),
    Column("NODE"),
    Column("SIZE", lambda size: "missing" if size is None else format_size(size), align_right=True),
    Column("DIGEST", lambda digest: digest[:_DIGEST_LENGTH], whole=True),
)


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the commands."""
    log = add_command(
        subparsers,
        "log",
        run_log,
        description="Shows size and digest of a key at each checkpoint of a task, and since which checkpoint, step or node it has its "
        "present value. Without --key, shows the latter for every key.",
        notes="Marks: ~ the value changed, ? unknown because a digest is missing. The checkpoints of subgraphs of LangGraph are left out.",
        codes=(OK, ERROR, USAGE, NOT_FOUND),
        json="version of a key",
    )
    add_store(log)
    log.add_argument("task", metavar="TASK", help="task (LangGraph: thread)")
    log.add_argument("--key", metavar="KEY", help="top-level key or channel")
    text = add_command(
        subparsers,
        "extract",
        run_extract,
        description="Prints header and state of a checkpoint in a store of ckpt_observe.core as text. The default is the newest.",
        notes="An encrypted checkpoint needs its key in CKPT_ENCRYPTION_KEY. A pickle is never loaded.",
        codes=(OK, ERROR, USAGE, NOT_FOUND),
    )
    add_store(text)
    text.add_argument("task", metavar="TASK", help="task of the checkpoint")
    text.add_argument("reference", nargs="?", type=reference, default="latest", metavar="REF", help=REF_HELP)
    text.add_argument("--format", choices=get_args(Style), default="markdown", help="format of the text (default %(default)s)")


def run_log(args: Namespace) -> int:
    """Print the history of one key, or the last version of each."""
    contents = read_contents(args.store, args.task, depth=2)
    breakdown = contents.breakdown("checkpoint")
    if breakdown is None:
        raise ConfigError(f"{args.store} is a single checkpoint, which has no history; `ckpt-observe show` shows its keys")
    oldest_first = _of_outermost_graph(breakdown.entries)[::-1]
    keys = dict.fromkeys(key.name for entry in oldest_first for key in entry.children)
    if args.key is not None and args.key not in keys:
        hint = suggest(args.key, keys) or f"; its keys are: {', '.join(keys) or 'unknown'}"
        raise CheckpointNotFoundError(f"no checkpoint of {args.task!r} has a key {args.key!r}{hint}")
    if args.key is None:
        histories = [history(oldest_first, key) for key in keys]
        _print_last_versions(histories, args)
    else:
        _print_versions(history(oldest_first, args.key), args)
    return OK


def _of_outermost_graph(checkpoints: Sequence[Entry]) -> Sequence[Entry]:
    """Leave out the checkpoints of LangGraph's subgraphs, which have channels of their own, unless the thread has no others."""
    return [checkpoint for checkpoint in checkpoints if not checkpoint.details.get("namespace")] or checkpoints


def history(oldest_first: Iterable[Entry], key: str) -> list[KeyVersion]:
    """Return the versions of a key, from the entries of checkpoints whose children are keys."""
    versions: list[KeyVersion] = []
    for checkpoint in oldest_first:
        entry = next((child for child in checkpoint.children if child.name == key), None)
        listed = from_entry(checkpoint)
        previous = versions[-1] if versions else None
        changed = _has_changed(previous, entry)
        versions.append(
            KeyVersion(
                key=key,
                id=checkpoint.name,
                created=listed.created,
                step=listed.step,
                node=listed.node,
                size=None if entry is None else entry.size,
                digest="" if entry is None else entry.digest,
                changed=changed,
                first_with_value=previous.first_with_value if previous is not None and changed is False else checkpoint.name,
            )
        )
    return versions


def _has_changed(previous: KeyVersion | None, entry: Entry | None) -> bool | None:
    if previous is None:
        return entry is not None
    if entry is None or previous.size is None:
        return (entry is None) != (previous.size is None)
    if previous.size != entry.size:
        return True
    return previous.digest != entry.digest if previous.digest and entry.digest else None


def _print_versions(versions: Sequence[KeyVersion], args: Namespace) -> None:
    if args.json:
        print_structs(versions)
        return
    print_table(*drop_empty_columns(_COLUMNS, [(v.changed, v.id, v.created, v.step, v.node, v.size, v.digest) for v in versions]))
    first = _first_with_present_value(versions)
    step = "" if first.step is None else f", step {first.step}"
    print_error(f"{args.key!r} has its present value since checkpoint {first.id}{step}{f', node {first.node}' if first.node else ''}")


def _print_last_versions(histories: Sequence[Sequence[KeyVersion]], args: Namespace) -> None:
    if args.json:
        print_structs([versions[-1] for versions in histories])
        return
    size, digest = _COLUMNS[-2:]
    step = Column("STEP", format_optional, align_right=True)
    columns = (Column("KEY"), size, digest, Column("UNCHANGED SINCE", whole=True), step, Column("NODE"))
    rows = []
    for versions in histories:
        first, last = _first_with_present_value(versions), versions[-1]
        rows.append((last.key, last.size, last.digest, first.id, first.step, first.node))
    print_table(*drop_empty_columns(columns, rows))


def _first_with_present_value(versions: Sequence[KeyVersion]) -> KeyVersion:
    return next(version for version in versions if version.id == versions[-1].first_with_value)


def run_extract(args: Namespace) -> int:
    """Print the checkpoint as text."""
    with require_checkpointer(args.store, "extract") as checkpointer:
        info = find_checkpoint(checkpointer, args.task, args.reference)
        if info.cipher and checkpointer.pipeline.cipher is None:
            raise ConfigError(f"checkpoint {info.id!r} is encrypted ({info.cipher}): put its key into {KEY_VARIABLE}, as hex or base64")
        print(extract(info, checkpointer.load(args.task, info.id), args.format), end="")
    return OK
