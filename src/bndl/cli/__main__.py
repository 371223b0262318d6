"""``python -m bndl.cli`` is ``bndl``."""

import sys

from bndl.cli import main

sys.exit(main())
