"""Mechanisms that several packages share: forks, locks, files, SQLite, HTTP, YAML, logging, errno codes. Imports only `errors`."""
