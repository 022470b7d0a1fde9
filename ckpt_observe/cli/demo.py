"""`ckpt-observe demo`: runs a small agent with saves, a failed save, a process killed during a save, and a restore; prints its trace."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import Namespace, _SubParsersAction
from typing import Any, Final

import ckpt_observe
from ckpt_observe import environment
from ckpt_observe.cli.output import ERROR, OK, command_description, print_error, until_pipe_closes
from ckpt_observe.config import Settings
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import SerializationError
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.tracestore import FILENAME, TraceReader
from ckpt_observe.tracestore.formatting import wants_colour
from ckpt_observe.tracestore.tree import render

_RUN: Final = "run-1"
_SWITCHES: Final = (environment.ENABLED, environment.SDK_DISABLED, environment.TRACES_SAMPLER, environment.DISABLED_INSTRUMENTATIONS)
"""Settings that the demo ignores, because they would turn recording off or drop its trace."""

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

Checkpointer(Doomed(sys.argv[1])).save("run-1", {"step": 4, "messages": ["..."] * 40}, step=4)
"""


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    summary = "run a small agent with a failure and a kill -9, and show its trace"
    parser = subparsers.add_parser("demo", help=summary, description=command_description(__doc__))
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.add_argument("--exporters", metavar="LIST", default="", help="more exporters, besides local, such as otlp,prometheus")
    parser.set_defaults(run=run)


@until_pipe_closes
def run(args: Namespace) -> int:
    """Run the agent, print its trace, and return the exit code."""
    for switch in _SWITCHES:
        os.environ.pop(switch, None)
    with tempfile.TemporaryDirectory(prefix="ckpt-observe-demo-") as checkpoints:
        exporters = ",".join(filter(None, ("local", args.exporters)))
        watch = ckpt_observe.observe(exporters=exporters, service="ckpt-observe-demo", dir=args.dir)
        trace_id = _run_agent(checkpoints, watch.settings)
        if not watch.close(timeout=10):
            print_error("some records were not delivered within 10 s; for the reason run: ckpt-observe doctor")
            return ERROR
    with TraceReader(watch.settings.dir / FILENAME) as reader:
        spans = reader.spans(trace_id)
    for line in render(spans, colour=wants_colour(sys.stdout)):
        print(line)
    print("\n" + _summary(spans))
    print(f"\nShow it again:  ckpt-observe traces {trace_id[:12]}")
    print("Your program:   ckpt-observe run -- python your_program.py     or, in its code: import ckpt_observe.auto")
    return OK


def _run_agent(checkpoints: str, settings: Settings) -> str:
    """Save three steps, fail to save the fourth, have a process killed during a save, and restore. Return the trace ID."""
    checkpointer = Checkpointer(checkpoints, compression="gzip", keep_last=2)
    conversation = []
    with ckpt_observe.task("demo-agent", id=_RUN, user="you", session="first-minute") as agent:
        for step in range(1, 4):
            conversation += [{"role": "user", "text": f"question {step}"}, {"role": "agent", "text": "a thoughtful answer " * 200}]
            checkpointer.save(_RUN, {"step": step, "conversation": conversation, "plan": ["look", "think", "act"]}, step=step)
        try:
            checkpointer.save(_RUN, {"step": 4, "socket": object()}, step=4)
        except SerializationError:
            conversation.append({"role": "system", "text": "left the socket out"})
        _run_killed_process(checkpoints, agent.traceparent(), settings)
        restored = checkpointer.restore(_RUN)
        checkpointer.save(_RUN, {**restored.state, "step": restored.next_step}, step=restored.next_step, status="done")
    return agent.trace_id


def _run_killed_process(checkpoints: str, traceparent: str, settings: Settings) -> None:
    variables = {
        environment.DIR: str(settings.dir),
        environment.EXPORTERS: ",".join(settings.exporters),
        environment.SERVICE_NAME: settings.service,
        environment.TRACEPARENT: traceparent,
    }
    environ = {**os.environ, **variables}
    command = [sys.executable, "-c", _KILLED_WHILE_WRITING, checkpoints]
    subprocess.run(command, env=environ, check=False, start_new_session=True)  # on Ctrl-C it must not print a traceback


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
