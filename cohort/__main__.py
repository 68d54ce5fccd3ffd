"""``python -m cohort`` is ``cohort``."""

import sys

from cohort.cli.main import main

sys.exit(main())
