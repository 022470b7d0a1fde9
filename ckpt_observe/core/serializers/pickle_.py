"""pickle: any Python object, and any code it names. Only when asked for by name, never by fallback.

Loading a pickle runs what the file says. Use it for checkpoints that only your own program can write.
"""

from __future__ import annotations

import pickle
from typing import Any

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.serializers.base import Document
from ckpt_observe.errors import SerializationError


class PickleSerializer:
    """Protocol 5."""

    name = "pickle"

    def dumps(self, state: Any) -> Document:
        try:
            return Document((pickle.dumps(state, protocol=5),))
        except Exception as error:  # whatever the state runs to be pickled may raise
            raise SerializationError(f"this state cannot be pickled: {error}") from error

    def loads(self, data: Buffer) -> Any:
        try:
            return pickle.loads(data)  # noqa: S301 - asked for by name; see above
        except Exception as error:  # whatever the pickle runs may raise
            raise SerializationError(f"this pickle does not load: {error}", code="serialization.malformed") from error
