"""Pages for browsers: the fleet, its money and the reasons of its decisions. See docs/web.md."""
