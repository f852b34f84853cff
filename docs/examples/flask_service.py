"""A Flask service that refuses a stale owner: gunicorn --threads 8 flask_service:app

DATABASE_URL is a URL of SQLAlchemy (postgresql+psycopg://...), of a database in which
`sinkfence_postgres.install` was run. public.pem is the workers' key.
"""

import os
from pathlib import Path

from flask import Flask, request
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sinkfence_http import Fence, SignedTokens, VerificationKey
from sinkfence_http.frameworks import install
from sinkfence_postgres import PostgresSink, transaction

engine = create_engine(os.environ["DATABASE_URL"])
keys = {"2026-05": VerificationKey(key=Path("public.pem").read_bytes(), alg="EdDSA", issuer="workers")}
fence = Fence(PostgresSink(engine), SignedTokens(keys, audience="accounts"))

app = Flask(__name__)
install(app, fence, exempt=lambda environ: environ["PATH_INFO"].startswith("/webhooks/"))


class Base(DeclarativeBase):
    """The service's tables."""


class Payment(Base):
    """A payment into an account."""

    __tablename__ = "payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[int]
    amount: Mapped[int]


@app.post("/accounts/<int:account>")
def pay(account: int) -> dict[str, int]:
    """Pay into an account, as its owner."""
    amount = int(request.args["amount"])
    token = fence.admit(request.environ, f"account-{account}")  # the converted number, not the raw path
    with Session(engine) as session, transaction(session, token):
        session.add(Payment(account=account, amount=amount))
    return {"paid": amount}  # committed by now


@app.post("/webhooks/ping")
def ping() -> str:
    """A route for senders without a token."""
    return "pong"
