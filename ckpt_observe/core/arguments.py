"""Whether a Checkpointer can be made of what it is given: a wrong setting is told where it is given, not at the first save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

from ckpt_observe.core.ciphers import Cipher
from ckpt_observe.core.retention import Retention
from ckpt_observe.errors import ConfigError


def check(encryption: Any, retention: Any, incremental: Any, hooks: Sequence[Any]) -> None:
    if not isinstance(incremental, SupportsIndex) or incremental < 0:  # type: ignore[operator]
        raise ConfigError(f"`incremental` is the number of checkpoints that one may be built on, 0 or more, not {incremental!r:.80}")
    if incremental and encryption:
        raise ConfigError("incremental checkpoints compare digests of values, which encrypted ones must not show: choose one")
    if not isinstance(retention, Retention | None):
        raise ConfigError(f"`retention` is a policy, such as KeepLast(5), not {retention!r:.80}")
    if not isinstance(encryption, Cipher | None):
        raise ConfigError(f"`encryption` is a cipher, such as AeadCipher(), not {encryption!r:.80}")
    if not all(map(callable, hooks)):
        raise ConfigError(f"`hooks` are functions, not {hooks!r:.80}")
