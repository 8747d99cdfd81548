"""partita spark VERB: stages that fetch over one network and compute on one CPU."""

VERBS = {
    "capture": "jobs, stages and their phases, from a Spark event log",
    "plan": "in which order stages take their turns on the network and on the CPU, with a bound",
    "simulate": "jobs drawn from traces on a cluster of executors, under a policy",
}
