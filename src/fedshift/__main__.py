"""`python -m fedshift` is the command `fedshift`, also where the package is not installed."""

import sys

from fedshift.cli import main

sys.exit(main())
