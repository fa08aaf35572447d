"""The pages for browsers, over HTTP. A real browser looks at them in ``browser_tests`` (``make browser``)."""
