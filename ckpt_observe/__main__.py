"""`python -m ckpt_observe` is `ckpt-observe`."""

import sys

from ckpt_observe.cli.main import main

sys.exit(main())
