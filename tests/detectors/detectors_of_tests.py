"""Resource detectors for tests, announced by the metadata beside this file."""

from __future__ import annotations

import os
import threading

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.sdk.resources import Resource, ResourceDetector

released = threading.Event()
"""Until it is set, `Slow` does not return."""


class Team(ResourceDetector):
    def detect(self):
        return Resource({"team": "ml", "floor": 3, "labels": ["a", "b"], "service.name": "found", "telemetry.sdk.name": "found"})


class Place(ResourceDetector):
    def detect(self):
        return Resource({"floor": 3, "labels": ["a", "b"], "height": 1.5, "is.open": True})


class OtherTeam(ResourceDetector):
    def detect(self):
        return Resource({"team": "other", "password": "hunter2", "is.traced": not get_value(_SUPPRESS_INSTRUMENTATION_KEY)})


class Pid(ResourceDetector):
    def detect(self):
        return Resource({"process.pid": -1, "process.number": os.getpid()})


class Slow(ResourceDetector):
    def detect(self):
        released.wait()
        return Resource({"slow": "found"})


class Failing(ResourceDetector):
    def detect(self):
        raise ConnectionError("no metadata server")


class NotCreatable(ResourceDetector):
    def __init__(self):
        raise RuntimeError("not here")

    def detect(self):
        return Resource({})


class Nothing(ResourceDetector):
    def detect(self):
        return None


class Exiting(ResourceDetector):
    def detect(self):
        raise SystemExit(3)
