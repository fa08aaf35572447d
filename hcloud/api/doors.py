"""How a handler gets at the desk and the caller."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from hcloud.api.desk import ApiContext
from hcloud.api.gate import Caller


async def get_context(request: Request) -> ApiContext:
    """Return the desk the app was built with."""
    context: ApiContext = request.app.state.context
    return context


async def the_caller(request: Request) -> Caller:
    """Return whom the gate let in."""
    caller: Caller = request.state.caller
    return caller


Context = Annotated[ApiContext, Depends(get_context)]
TheCaller = Annotated[Caller, Depends(the_caller)]
