"""A process that saves on command, for tests with several processes on one port. Prints one word per event."""

from __future__ import annotations

import os
import sys

import ckpt_observe
from ckpt_observe.exporters import metrics, prometheus

metrics.TAKEOVER_INTERVAL = 0.02
publish = prometheus.ScrapeEndpoint.publish


def say(word):
    os.write(1, f"{word}\n".encode())  # one system call: two threads may print at the same time


def publish_and_report(endpoint, gather):
    before = endpoint.address
    publish(endpoint, gather)
    if before is None:
        say("serving")


prometheus.ScrapeEndpoint.publish = publish_and_report
watch = ckpt_observe.observe(exporters=sys.argv[3], dir=sys.argv[1], pages_dir=sys.argv[2], service="worker")
say("ready")
for line in sys.stdin:
    word, _, count = line.strip().partition(" ")
    if word == "fork" and os.fork() == 0:
        os.read(0, 1)  # until the test is over
        os._exit(0)
    with ckpt_observe.task("train"):
        for _ in range(int(count or 0)):
            with ckpt_observe.checkpoint("save"):
                pass
        if word == "hang":
            with ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
                say("hanging")
                sys.stdin.read()
    say("done" if watch.flush(60) else "failed")
watch.close()
