"""Planning a mapping: heft, intuitive cuts, a constraint program, Bayesian optimisation, a genetic search, all together."""
