"""partita spark VERB: stages that fetch over one network and compute on one CPU."""

VERBS = {
    "capture": "jobs, stages and their phases, from a Spark event log",
    "plan": "in which order stages take their turns on the network and on the CPU, with a bound",
    "explain": "why this order: the bound, the busy machine, what a faster one would bring",
    "run": "run a program's jobs on a Spark cluster, by a plan or without one",
    "report": "one self-contained HTML file from a run's folder, or from a plan",
    "simulate": "jobs that come to a shop, or to a cluster of executors, under a policy",
    "train": "weights for the policy learned",
}
