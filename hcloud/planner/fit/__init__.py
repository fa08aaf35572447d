"""How well instances fit a job: resource quality, interference and sizes (Paragon, Quasar, ARQ)."""
