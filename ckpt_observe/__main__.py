"""`python -m ckpt_observe` runs the command `ckpt-observe`."""

import sys

from ckpt_observe.cli.main import main

sys.exit(main())
