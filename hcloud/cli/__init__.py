"""The command line: one file per group of commands, loaded only when one of them is used."""
