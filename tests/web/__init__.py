"""The pages for browsers, over HTTP. A real browser looks at them in ``tests_browser`` (``make browser``)."""
