"""Where the value of a setting comes from: an argument, an environment variable or its former name, or the default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ckpt_observe import environment
from ckpt_observe.support.logs import WarningLog
from ckpt_observe.support.parsing import parse_flag, parse_number, parse_path, quote

_warnings: Final = WarningLog()


class SettingSource:
    """Looks up values in arguments, then in the environment, and remembers in `origin` where each was found."""

    def __init__(self, environ: Mapping[str, str], arguments: dict[str, Any]) -> None:
        self.environ, self.arguments = environ, arguments
        self.origin: dict[str, str] = {}

    def get(self, argument: str, variable: str, default: Any) -> Any:
        """Return the argument, else the variable, else the default. `argument` is empty if `observe()` has none for this setting."""
        key = argument or variable
        if self.arguments.get(argument) is not None:
            self.origin[key] = "argument"
            return self.arguments[argument]
        for name in (variable, environment.FORMER_NAMES.get(variable, "")):
            if self.environ.get(name):  # as in OpenTelemetry, an empty variable counts as unset
                self.origin[key] = name
                return _current_value(name, variable, self.environ[name])
        self.origin[key] = "default"
        return default

    def flag(self, argument: str, variable: str, *, default: bool) -> bool:
        """Return a setting that is true or false. Raise ConfigError if it is neither."""
        return parse_flag(variable, self.get(argument, variable, default))

    def path(self, argument: str, variable: str) -> Path | None:
        """Return an absolute path, or None if the setting is not set. Raise ConfigError if it cannot be a path."""
        value = self.get(argument, variable, None)
        return parse_path(variable, value) if value else None

    def count(self, variable: str, default: int, unit: str) -> int:
        """Return a limit, 0 for no limit. Raise ConfigError if it is not a number."""
        meaning = f"a number of {unit}; use an integer such as {default}, or 0 for no limit"
        return parse_number(variable, self.get("", variable, default), meaning, smallest=0)


def _current_value(name: str, variable: str, value: str) -> str:
    """Return the current form of a value that was read from `name`, which is `variable` or its former name.

    Warn once if the variable, the value or both were renamed.
    """
    current = environment.FORMER_VALUES.get(variable, {}).get(value, value)
    if current != value:
        _warn_renamed(f"{name}={value}", f"{variable}={current}")
    elif name != variable:
        _warn_renamed(name, variable)
    return current


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that begin with `CKPT_OBSERVE_` and are not settings. The value is the setting with a similar name, or empty."""
    settings = [row.name for row in environment.VARIABLES if row.name.startswith(environment.PREFIX)]
    valid_names = {*settings, *environment.FORMER_NAMES.values()}
    unknown = sorted(name for name in environ if name.startswith(environment.PREFIX) and name not in valid_names)
    if not unknown:
        return {}
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    names = [name.removeprefix(environment.PREFIX) for name in settings]
    similar = {name: get_close_matches(name.removeprefix(environment.PREFIX), names, 1) for name in unknown}
    return {name: environment.PREFIX + matches[0] if matches else "" for name, matches in similar.items()}


def warn_unknown_variables(environ: Mapping[str, str]) -> None:
    """Log once each variable that looks like a setting, but is not one."""
    for name, similar in unknown_variables(environ).items():
        hint = f"did you mean {similar}?" if similar else "see docs/semconv.md for all settings."
        _warnings.warn_once(f"unknown {name}", "%s is not a setting and has no effect; %s", quote(name), hint)


def _warn_renamed(former: str, current: str) -> None:
    _warnings.warn_once(former, "%s was renamed. It still works; set %s instead.", former, current)
