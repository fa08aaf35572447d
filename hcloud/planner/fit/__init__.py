"""How well instances fit a job: resource quality, interference, sizes (Paragon, Quasar, ARQ)."""
