"""Runs the command line: `python -m tfm`."""

import sys

from tfm.cli.main import main

sys.exit(main())
