"""The operation of the reference core: a failure is recorded with the checkpoint that it is about."""

from __future__ import annotations

from ckpt_observe.errors import CheckpointError, IntegrityError
from ckpt_observe.instrument.reference_attributes import safe_value
from ckpt_observe.record.failures import type_name
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import Operation
from ckpt_observe.semconv import attributes as names


class CoreOperation(Operation):
    """An operation of the reference core."""

    __slots__ = ()

    def finish(self, error: BaseException | None = None) -> None:
        """End the operation. Record the cause of an error and, if a checkpoint could not be loaded, which one, and how many are damaged."""
        if self.open_page and isinstance(error, CheckpointError):
            try:
                if error.__cause__ is not None:
                    self.set_trusted({names.ERROR_CAUSE: type_name(error.__cause__)})
                if error.checkpoint_id is not None:
                    self.set_trusted({names.ID: safe_value(error.checkpoint_id)})
                if isinstance(error, IntegrityError):
                    self.set_trusted({names.DAMAGED_COUNT: error.damaged_count})
            except Exception as fault:
                record_fault(fault)
        super().finish(error)
