"""`python -m partita` is `partita`; torchrun starts it this way."""

import sys

from partita.cli import main

sys.exit(main())
