"""Runs the command line: `python -m tfm.cli`."""

import sys

from tfm.cli.main import main

sys.exit(main())
