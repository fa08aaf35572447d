"""How a handler gets at the desk and the caller."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from hcloud.api.desk import Desk
from hcloud.api.gate import Caller


async def the_desk(request: Request) -> Desk:
    """Return the desk the app was built with."""
    desk: Desk = request.app.state.desk
    return desk


async def the_caller(request: Request) -> Caller:
    """Return whom the gate let in."""
    caller: Caller = request.state.caller
    return caller


TheDesk = Annotated[Desk, Depends(the_desk)]
TheCaller = Annotated[Caller, Depends(the_caller)]
