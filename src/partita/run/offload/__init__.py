"""The engine of offloading: a device and a server that compute the two halves of each job.

wire      messages: a JSON head and raw tensors, in safetensors
codec     how the crossing tensors travel (raw, lossless, int8), and what that does to the costs
door      who may come in: certificate, token, loopback
session   one half of a model in ONNX Runtime
store     the server's models and sessions, within a memory limit
tally     what the server counts, as Prometheus text
server    the gRPC service
client    calls to a server
line      a connection that comes back by itself: events out, parcels in
execute   the device: job after job by a plan, over a line
record    what happened: spans, outputs, timeline
"""
