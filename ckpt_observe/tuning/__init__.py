"""Advice from measurements: the checkpoint interval that loses least, what to change in a save, and when the disk will be full."""

from ckpt_observe.tuning.failure_model import FailureModel, fit_failures
from ckpt_observe.tuning.interval import lost_share, optimal_interval
from ckpt_observe.tuning.recommendations import Assumptions, Recommendation, recommend

__all__ = ["Assumptions", "FailureModel", "Recommendation", "fit_failures", "lost_share", "optimal_interval", "recommend"]
