"""Observes what implements a `Protocol` when it is handed to the library: such a class inherits from nothing that could be watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import parameter_names
from ckpt_observe.instrument.wrappers import Args, Kwargs, Wrapper
from ckpt_observe.record.guard import record_fault


@dataclass(frozen=True, slots=True, eq=False)
class MemberArgument:
    """A callable one of whose arguments is an object of a family: from then on, the object's class is observed."""

    instrumentor: Instrumentor
    family: str
    """Name of the family."""
    parameter: str

    def wrapper_for(self, original: Any, _declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        parameters = parameter_names(original)
        position = parameters.index(self.parameter) if self.parameter in parameters else len(parameters)

        def call(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
            try:
                member = args[position] if position < len(args) else kwargs.get(self.parameter)
                if member is not None:
                    self.instrumentor.adopt(self.family, member)
            except Exception as error:
                record_fault(error)
            return wrapped(*args, **kwargs)

        return call
