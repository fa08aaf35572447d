"""What a profiling run does on an instance: keep the copy apart (``sandbox``), press on resources (``sources``)."""
