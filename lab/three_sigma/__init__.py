"""3Sigma's experiments (EuroSys 2018, §6) with our predictor and our planner's linear program, on simulated nodes."""
