"""A FastAPI service that refuses a stale owner: uvicorn fastapi_service:app

DATABASE_URL is a URL of SQLAlchemy (postgresql+psycopg://...), of a database in which
`sinkfence_postgres.install` was run. public.pem is the workers' key.
"""

import os
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sinkfence import Token
from sinkfence_http import SignedTokens, VerificationKey
from sinkfence_http.aio import Fence
from sinkfence_http.frameworks import install
from sinkfence_postgres.aio import PostgresSink, transaction

engine = create_async_engine(os.environ["DATABASE_URL"])
keys = {"2026-05": VerificationKey(key=Path("public.pem").read_bytes(), alg="EdDSA", issuer="workers")}
fence = Fence(PostgresSink(engine), SignedTokens(keys, audience="accounts"))

app = FastAPI()
install(app, fence, exempt=lambda scope: scope["path"].startswith("/webhooks/"))


class Base(DeclarativeBase):
    """The service's tables."""


class Payment(Base):
    """A payment into an account."""

    __tablename__ = "payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[int]
    amount: Mapped[int]


async def caller(account: int, request: Request) -> Token:
    """The token of whoever calls, if it is for this account: the validated number, not the raw path."""
    return await fence.admit(request.scope, f"account-{account}")


@app.post("/accounts/{account}")
async def pay(account: int, amount: int, token: Annotated[Token, Depends(caller)]) -> dict[str, int]:
    """Pay into an account, as its owner."""
    async with AsyncSession(engine) as session, transaction(session, token):
        session.add(Payment(account=account, amount=amount))
    return {"paid": amount}  # committed by now


@app.post("/webhooks/ping")
async def ping() -> str:
    """A route for senders without a token."""
    return "pong"
