"""Explains an operation in sentences, from its record and from what else is recorded.

| module | subject |
|---|---|
| `wording` | the words by which sentences refer to an operation |
| `comparison` | how long operations of this kind usually take, and which phase was slower |
| `effects` | what a failure means for the run, and where it can continue |
| `explanation` | the sentences |
| `evidence` | the queries for what the sentences need |
"""

from __future__ import annotations

from ckpt_observe.explain.evidence import Explainer
from ckpt_observe.explain.explanation import TITLES, Evidence, OperationExplanation, ProgramFailure, Sentence, explain

__all__ = ["TITLES", "Evidence", "Explainer", "OperationExplanation", "ProgramFailure", "Sentence", "explain"]
