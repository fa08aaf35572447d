"""All pages, as an application takes them."""

from __future__ import annotations

from fastapi import FastAPI

from hcloud.web import applications, jobs, live, login, machines, money, now
from hcloud.web.fleet import FleetCache
from hcloud.web.heat import EarlierUse
from hcloud.web.site import Site
from hcloud.web.what_if import WhatIfRuns


class WebPages(Site):
    """The pages that a daemon serves beside its API, on its socket and its TLS port; see ``hcloud.api.auth.Pages``."""

    __slots__ = ("_earlier_use", "_feed", "_fleet", "_losses", "_reports", "_what_if")

    def install(self, app: FastAPI) -> None:
        """Add the pages' routes; the applications of one process share what is shown to all."""
        context = app.state.context
        if not hasattr(self, "_fleet"):
            self._fleet = FleetCache(context)
            self._feed = live.LiveFeed(context, self._fleet, self)
            self._reports, self._what_if = money.ReportCache(context), WhatIfRuns(context)
            self._earlier_use, self._losses = EarlierUse(context), machines.LossCache(context)
        app.state.pages, app.state.fleet, app.state.live_feed = self, self._fleet, self._feed
        app.state.report_cache, app.state.what_if = self._reports, self._what_if
        app.state.earlier_use, app.state.loss_cache = self._earlier_use, self._losses
        for part in (login, now, live, jobs, machines, applications, money):
            app.include_router(part.router, include_in_schema=False)
