"""Remembers what is left to send of one batch, while delivery searches it for a bad span.

The batch is halved until the bad span is alone. What was accepted meanwhile is not sent again, even if the search takes several attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from ckpt_observe.span import Span

MAX_SUSPECTS: Final = 8
"""If this many spans of a batch fail alone and the server accepts no other, the server is the cause."""
SpanKey: TypeAlias = tuple[str, str]


def span_key(span: Span) -> SpanKey:
    """Return the ids that identify a span."""
    return span.trace_id, span.span_id


class BatchProgress:
    """The groups of spans to be sent, one after the other."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.groups: list[Sequence[Span]] = [spans] if spans else []
        self.accepted = self.refused = self.set_aside = 0
        """Number of spans with each result."""
        self.accepted_before = 0
        """How many spans the exporter had accepted, of all batches, when this batch last failed or was taken up."""
        self.failures = 0
        """Number of server errors for groups of several spans."""
        self.suspects: dict[SpanKey, list[int]] = {}
        """For spans that failed alone: number of failures, and how many spans the exporter had accepted before the first."""
        self._spans = spans
        """What the batch had at the last attempt."""

    def update(self, spans: Sequence[Span]) -> None:
        """Add spans that the batch did not have at the last attempt, and remove those that it no longer has."""
        keys, former_keys = ({span_key(span) for span in batch} for batch in (spans, self._spans))
        if keys != former_keys:
            groups = [[span for span in group if span_key(span) in keys] for group in self.groups]
            groups.append([span for span in spans if span_key(span) not in former_keys])
            self.groups = [group for group in groups if group]
            self._spans = spans

    def pop(self) -> Sequence[Span]:
        """Remove the first group and return it."""
        return self.groups.pop(0)

    def split(self) -> None:
        """Halve the first group."""
        group = self.pop()
        middle = len(group) // 2
        self.groups[:0] = [group[:middle], group[middle:]]

    def suspect(self, accepted: int) -> tuple[int, bool]:
        """Record that the first group, a single span, failed.

        Return how often it failed so far, and whether other spans were accepted since its first failure.

        `accepted` is the number of spans that the exporter has accepted so far.
        """
        record = self.suspects.setdefault(span_key(self.groups[0][0]), [0, accepted])
        record[0] += 1
        return record[0], accepted > record[1]

    def all_are_suspects(self) -> bool:
        """Return whether every span that is left has failed alone."""
        return all(len(group) == 1 and span_key(group[0]) in self.suspects for group in self.groups)

    def try_rest_first(self) -> None:
        """Move the suspects behind all other spans, which become one group again. Start over if the server accepts nothing at all."""
        spans = [span for group in self.groups for span in group]
        suspects = [span for span in spans if span_key(span) in self.suspects]
        rest = [span for span in spans if span_key(span) not in self.suspects]
        if not rest:
            self.groups = [[span] for span in (*suspects[1:], suspects[0])]
        elif not self.accepted and len(suspects) > MAX_SUSPECTS:
            self.groups = [rest, suspects]  # in this order: the first accepted span may be anywhere
            self.suspects.clear()
            self.failures = 0
        else:
            self.groups = [rest, *([span] for span in suspects)]
