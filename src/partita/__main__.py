"""`python -m partita` is `partita`; torchrun starts it this way."""

from partita.cli import end_with_main

end_with_main()
