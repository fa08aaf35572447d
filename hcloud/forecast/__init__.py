"""What is expected of the future, from what was observed: how long until something is free, how much load there is."""
