"""Where instances come from: plug-ins found through the entry point group ``hcloud.providers``."""
