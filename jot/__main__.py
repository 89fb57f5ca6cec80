"""`python -m jot`."""

import sys

from jot.cli import main

if __name__ == "__main__":
    sys.exit(main())
