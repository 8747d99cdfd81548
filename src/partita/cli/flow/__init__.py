"""partita flow VERB: explore and choose."""

VERBS = {
    "plan": "what a flow unfolds to: tasks, what is shared, what can be pruned, predicted time and memory",
    "run": "run a flow, on this machine's processes or on a Dask scheduler's",
    "resume": "go on with a run that was ended: what was finished comes from its folder",
    "report": "one HTML file of a run: choices, what was saved and why, workers and memory over time",
}
