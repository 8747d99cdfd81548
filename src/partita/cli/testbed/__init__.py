"""partita testbed VERB: shaped hosts on this machine."""

VERBS = {
    "up": "make hosts with shaped links and slowed processors",
    "exec": "run a command on a host",
    "rate": "change a host's rate while it is used",
    "cpu": "change a host's share of a core while it is used",
    "down": "take the hosts away",
}
