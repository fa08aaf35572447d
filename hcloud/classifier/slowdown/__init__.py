"""Slowdown of programs beside named neighbours, learnt from what was observed of them together."""
