"""Imports CrewAI without its warnings, which pytest would turn into errors, and without its telemetry."""

import os
import warnings

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import crewai.flow.flow
    import crewai.state.checkpoint_listener
    import crewai.state.runtime  # noqa: F401
