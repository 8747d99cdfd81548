"""A wing: any operator on any device, searched for: what an iteration takes decides, whatever makes it up."""
