"""Settings from arguments and environment: renamed variables still work."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_observe import config, environment, setting_source
from ckpt_observe.errors import ConfigError
from ckpt_observe.support.logs import WarningLog


@pytest.fixture(autouse=True)
def no_earlier_warnings(monkeypatch):
    """A process warns once, but each test must see its own warnings."""
    monkeypatch.setattr(setting_source, "_warnings", WarningLog())


def test_former_name_of_a_variable(caplog):
    """The former name has the same effect, is named as the origin, and warns once with the new name."""
    for _ in range(3):
        settings = config.read({"CKPT_OBSERVE_RING_DIR": "/pages", "CKPT_OBSERVE_DRAIN": "companion"})
    assert (settings.pages_dir, settings.delivery) == (Path("/pages"), "companion")
    assert (settings.origin["pages_dir"], settings.origin["delivery"]) == ("CKPT_OBSERVE_RING_DIR", "CKPT_OBSERVE_DRAIN")
    assert [record.getMessage() for record in caplog.records] == [
        "CKPT_OBSERVE_RING_DIR was renamed. It still works; set CKPT_OBSERVE_PAGES_DIR instead.",
        "CKPT_OBSERVE_DRAIN was renamed. It still works; set CKPT_OBSERVE_DELIVERY instead.",
    ]


@pytest.mark.parametrize("variable", [environment.DELIVERY, environment.FORMER_NAMES[environment.DELIVERY]])
@pytest.mark.parametrize(("former", "mode"), environment.FORMER_VALUES[environment.DELIVERY].items())
def test_former_value_of_a_variable(variable, former, mode, caplog):
    """The former names of delivery modes still work. One warning says what is set and what to set instead, the variable included."""
    for _ in range(3):
        assert config.read({variable: former}).delivery == mode
    message = f"{variable}={former} was renamed. It still works; set CKPT_OBSERVE_DELIVERY={mode} instead."
    assert [record.getMessage() for record in caplog.records] == [message]


def test_former_value_as_an_argument():
    """Arguments have no aliases: the former name of a mode is an error that lists the modes."""
    with pytest.raises(ConfigError, match="CKPT_OBSERVE_DELIVERY: 'thread' is not valid; use one of: in-process, companion, daemon"):
        config.read({}, delivery="thread")


def test_new_name_takes_precedence(caplog):
    """If both names are set, the former one is ignored without a warning."""
    settings = config.read({"CKPT_OBSERVE_RING_DIR": "/former", "CKPT_OBSERVE_PAGES_DIR": "/new"})
    assert (settings.pages_dir, settings.origin["pages_dir"]) == (Path("/new"), "CKPT_OBSERVE_PAGES_DIR")
    assert caplog.text == ""


def test_empty_variable_counts_as_unset(caplog):
    """As in OpenTelemetry; the former name of a variable included."""
    assert config.read({"CKPT_OBSERVE_DRAIN": "", "CKPT_OBSERVE_DELIVERY": ""}).origin["delivery"] == "default"
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CKPT_OBSERVE_EXPORTER", "did you mean CKPT_OBSERVE_EXPORTERS?"),
        ("CKPT_OBSERVE_DRI", "did you mean CKPT_OBSERVE_DIR?"),
        ("CKPT_OBSERVE_DELIVREY", "did you mean CKPT_OBSERVE_DELIVERY?"),
        ("CKPT_OBSERVE_XYZ", "see docs/semconv.md for all settings."),
    ],
)
def test_misspelt_variable_is_logged_once(name, hint, caplog, monkeypatch):
    """A variable that looks like a setting and is none would have no effect without a word."""
    monkeypatch.setattr(setting_source, "_warnings", WarningLog())
    for _ in range(2):
        config.read({name: "x", "CKPT_OBSERVE_DIR": "/state", "OTEL_EXPORTER_OTLP_ENDPIONT": "x", "_CKPT_OBSERVE_RUN_PID": "1"})
    assert [record.getMessage() for record in caplog.records] == [f"'{name}' is not a setting and has no effect; {hint}"]


def test_every_setting_is_known(caplog, monkeypatch):
    """Neither the settings nor their former names are reported as unknown."""
    monkeypatch.setattr(setting_source, "_warnings", WarningLog())
    names = [row.name for row in environment.VARIABLES] + list(environment.FORMER_NAMES.values())
    assert setting_source.unknown_variables(dict.fromkeys(names, "x")) == {}


@pytest.mark.parametrize(
    ("value", "exporters"),
    [
        ("+prometheus", ("otlp", "local", "prometheus")),
        ("default,-local", ("otlp",)),
        ("-otlp", ("local",)),
        ("console,default", ("console", "otlp", "local")),
        ("console", ("console",)),
        ("none", ()),
        ([], ()),
        (None, ("otlp", "local")),
    ],
)
def test_exporters_are_added_to_the_configured_ones(value, exporters):
    """`+` and `-` change the default, which is what the environment configures; plain names replace it."""
    settings = config.read({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, exporters=value)
    assert settings.exporters == exporters
    assert settings.extends_default_exporters == (exporters != () and value != "console")


@pytest.mark.parametrize("value", ["+pigeon", "none,local", "+none"])
def test_wrong_selection_of_exporters(value):
    """An unknown name, and `none` among others, raise an error that names the variable."""
    with pytest.raises(ConfigError, match="CKPT_OBSERVE_EXPORTERS"):
        config.read({}, exporters=value)


@pytest.mark.parametrize(("value", "hint"), [("promethus", "did you mean 'prometheus'?"), ("otpl,local", "did you mean 'otlp'?")])
def test_misspelt_exporter(value, hint):
    """The error names the exporter that was probably meant, and lists all."""
    with pytest.raises(ConfigError) as raised:
        config.read({"CKPT_OBSERVE_EXPORTERS": value})
    assert hint in str(raised.value)
    assert "one of: " in str(raised.value)
