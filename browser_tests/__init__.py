"""The pages in a real browser: Debian's Chromium, driven by Playwright, against a real daemon with real jobs.

Run by ``make browser``, which installs both. They are no part of ``make test``, which has no
browser, and no time for one.
"""
