"""partita spark VERB: stages that fetch over one network and compute on one CPU."""

VERBS = {
    "plan": "in which order stages take their turns on the network and on the CPU, with a bound",
    "simulate": "jobs that come to a shop, or to a cluster of executors, under a policy",
    "train": "weights for the policy learned",
}
