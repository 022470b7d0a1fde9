"""A module of the toy library that is not imported with it."""

import json  # noqa: F401 - patched for this module


def prune(keep=1):
    return keep
