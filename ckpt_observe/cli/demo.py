"""`ckpt-observe demo`: runs a small agent with saves, a failed save, a process killed during a save, and a restore; prints its trace."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace, _SubParsersAction
from shlex import quote
from typing import Any, Final

import ckpt_observe
from ckpt_observe import config, environment, query
from ckpt_observe.api import Watch, observe_environment
from ckpt_observe.cli.commands import command_description
from ckpt_observe.cli.exit_codes import ERROR, OK
from ckpt_observe.cli.next_commands import SEND_NOW, TEST_SERVERS
from ckpt_observe.cli.output import print_error, until_output_ends
from ckpt_observe.cli.trace_links import trace_links
from ckpt_observe.cli.ui import serve
from ckpt_observe.config import Settings
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import SerializationError
from ckpt_observe.journal.fallback import usable_directory
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.support.formatting import wants_colour
from ckpt_observe.support.parsing import parse_names
from ckpt_observe.tracestore.tree import render

_TASK: Final = "demo-agent"
_RUN: Final = "run-1"
_SERVICE: Final = "ckpt-observe-demo"
_SWITCHES: Final = (
    environment.ENABLED,
    environment.SDK_DISABLED,
    environment.TRACES_SAMPLER,
    environment.DISABLED_INSTRUMENTATIONS,
    environment.LIBRARIES,
    environment.TRACEPARENT,
    environment.TRACESTATE,
)
"""Settings that the demo ignores, because they would turn recording off or drop its trace."""
_LOCAL_TIMEOUT: Final = 10.0
"""Seconds to wait for the local store, which takes a fraction of a second."""
_SERVER_TIMEOUT: Final = 3.0
"""Seconds to wait for servers, after the trace is printed."""

_KILLED_WHILE_WRITING: Final = """
import os, signal, sys
import ckpt_observe.auto
from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.file import FileStore

class Doomed(FileStore):
    def put(self, info, blob):
        with open(os.path.join(sys.argv[1], "half-written"), "wb") as file:
            file.write(bytes(blob)[: len(blob) // 2])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

with ckpt_observe.task(sys.argv[2], id=sys.argv[3]):
    Checkpointer(Doomed(sys.argv[1])).save(sys.argv[3], {"step": 4, "messages": ["..."] * 40}, step=4)
"""


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("demo", description=command_description(__doc__))
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.add_argument("--exporters", metavar="LIST", help="exporters besides local, such as otlp (default: those that are configured)")
    parser.add_argument("--ui", action="store_true", help="then show the trace in the browser (extra `ui`), until Ctrl-C")
    parser.set_defaults(run=run)


@until_output_ends
def run(args: Namespace) -> int:
    """Run the agent, print its trace and where else to look at it, and return the exit code."""
    place = _set_environment(args)
    with tempfile.TemporaryDirectory(prefix="ckpt-observe-demo-") as checkpoints:
        watch = observe_environment()
        trace_id = _run_agent(checkpoints)
        spans = _wait_for_trace(watch, trace_id)
        if not spans:  # the reason is logged
            print_error(f"the demo was not recorded; to test the directories, run: ckpt-observe doctor{place}")
            return ERROR
        for line in render(spans, colour=wants_colour(sys.stdout)):
            print(line)
        print("\n" + _summary(spans), flush=True)
        is_delivered = watch.close(_SERVER_TIMEOUT)
    undelivered = [] if is_delivered else _undelivered_exporters(watch.settings)
    print(f"\nShow it again:  ckpt-observe traces {trace_id[:12]}{place}")
    print(f"Explain it:     ckpt-observe why {trace_id[:12]}{place}")
    for exporter, link in trace_links(watch.settings, trace_id):
        if exporter not in undelivered:
            print(f"Open it:        {link}")
    print("Your program:   ckpt-observe run -- python your_program.py     or, in its code: import ckpt_observe.auto", flush=True)
    if not is_delivered:
        exporters = ", ".join(undelivered) or "a server"
        print_error(f"{exporters} has not received everything yet; the other records are kept on disk; {SEND_NOW}{place}")
        print_error(TEST_SERVERS)
    return serve(watch.settings) if args.ui else OK


def _set_environment(args: Namespace) -> str:
    """Set the environment of the demo and of the process that it starts: delivery by itself, and the local store, which it reads.

    Return the option with which other commands find the store, or an empty string.
    """
    for switch in _SWITCHES:
        os.environ.pop(switch, None)
    os.environ[environment.SERVICE_NAME] = _SERVICE
    os.environ[environment.DELIVERY] = "in-process"
    if exporters := args.exporters or os.environ.get(environment.EXPORTERS):
        other_exporters = (name for name in parse_names(exporters) if name != "none")
        os.environ[environment.EXPORTERS] = ",".join(dict.fromkeys((*other_exporters, "local")))
    directory, reason = usable_directory(config.read(dir=args.dir, lenient=True).dir)
    if reason is not None:
        print_error(f"{reason}; the demo uses {directory} instead")
    os.environ[environment.DIR] = str(directory)
    return f" --dir {quote(str(directory))}" if args.dir or reason is not None else ""


def _wait_for_trace(watch: Watch, trace_id: str) -> list[Span]:
    """Return the spans of the trace as soon as the local store has all of them. Other exporters may take longer, or be down."""
    deadline = time.monotonic() + _LOCAL_TIMEOUT
    spans: list[Span] = []
    while not _is_complete(spans):
        is_delivered = watch.flush(0.2)
        with query.open_traces(watch.settings.dir) as traces:
            spans = traces.spans(trace_id)
        if is_delivered or time.monotonic() > deadline:
            break
    return spans


def _is_complete(spans: list[Span]) -> bool:
    """Return whether the task, which ends last, and the save of the killed process are there."""
    is_interrupted = any(span.attributes.get(names.OUTCOME) == "interrupted" and names.OPERATION in span.attributes for span in spans)
    return is_interrupted and any(not span.parent_span_id for span in spans)


def _undelivered_exporters(settings: Settings) -> list[str]:
    """Return the exporters that have not received all records of the demo."""
    journals = [journal for journal in query.read_waiting(settings.dir) if journal.service == _SERVICE]
    exporters = {identity.partition("@")[0] for journal in journals for identity in journal.waiting}
    return sorted(exporters.intersection(settings.exporters))


def _run_agent(checkpoints: str) -> str:
    """Save three steps, fail to save the fourth, have a process killed during a save, and restore. Return the trace ID."""
    checkpointer = Checkpointer(checkpoints, compression="gzip", keep_last=2)
    conversation = []
    with ckpt_observe.task(_TASK, id=_RUN, user="you", session="first-minute") as agent:
        for step in range(1, 4):
            conversation += [{"role": "user", "text": f"question {step}"}, {"role": "agent", "text": "a thoughtful answer " * 200}]
            checkpointer.save(_RUN, {"step": step, "conversation": conversation, "plan": ["look", "think", "act"]}, step=step)
        try:
            checkpointer.save(_RUN, {"step": 4, "socket": object()}, step=4)
        except SerializationError:
            conversation.append({"role": "system", "text": "left the socket out"})
        _run_killed_process(checkpoints, agent.traceparent())
        restored = checkpointer.restore(_RUN)
        checkpointer.save(_RUN, {**restored.state, "step": restored.next_step}, step=restored.next_step, status="done")
    return agent.trace_id


def _run_killed_process(checkpoints: str, traceparent: str) -> None:
    command = [sys.executable, "-c", _KILLED_WHILE_WRITING, checkpoints, _TASK, _RUN]
    environ = {**os.environ, environment.TRACEPARENT: traceparent}
    # Its warnings would repeat ours, and on Ctrl-C it must not print a traceback.
    subprocess.run(command, env=environ, check=False, start_new_session=True, stderr=subprocess.DEVNULL)


def _summary(spans: list[Span]) -> str:
    operations = [span for span in spans if names.OPERATION in span.attributes]
    outcomes = [span.attributes[names.OUTCOME] for span in operations]
    counts = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))
    killed = next((span for span in operations if span.attributes[names.OUTCOME] == "interrupted"), None)
    lines = [f"{len(operations)} checkpoint operations: {counts}."]
    if killed is not None:
        phase = killed.attributes.get(names.ERROR_PHASE, "?")
        lines.append(f"One process was killed with SIGKILL during {phase}; its save is in the trace nevertheless.")
    restored = next((span for span in operations if names.STEPS_SINCE in span.attributes), None)
    if restored is not None:
        step, since = restored.attributes[names.STEP], restored.attributes[names.STEPS_SINCE]
        lines.append(f"The restore returned to step {step}; steps to repeat: {since}.")
    return "\n".join(lines)
