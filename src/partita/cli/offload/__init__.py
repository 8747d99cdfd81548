"""partita offload VERB: networks between a small device and a server."""

import os

# gRPC's own log is no output of ours; what fails is told by our sentences
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

VERBS = {
    "measure": "measure ONNX models here, on a server, and the link between",
    "plan": "where to cut each job and in which order to serve them, with a bound",
    "simulate": "predict a plan's timeline over device, uplink, server and downlink",
    "explain": "why this plan: the bottleneck, the bound, the baselines, what a better link would bring",
    "serve": "answer the server's part of jobs",
    "run": "execute jobs over this device and a server",
    "report": "one self-contained HTML file: predicted above measured",
}
