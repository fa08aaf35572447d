"""The laboratory: worlds of faults (`soak`) and the papers' experiments (`papers`). Not part of the wheel."""
