"""What the README takes for granted; its examples follow."""

from __future__ import annotations

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sinkfence_http import TokenSigner, VerificationKey

engine = create_engine("postgresql+psycopg://")
async_engine = create_async_engine("postgresql+psycopg://")
keys = {"2026": VerificationKey(key="a public key", alg="EdDSA", issuer="workers")}
sign = TokenSigner("a private key", kid="2026", alg="EdDSA", issuer="workers", audience="orders")


class Base(DeclarativeBase):
    """The reader's tables."""


class Entry(Base):
    """A row that must not be a stale owner's."""

    __tablename__ = "entry"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


class Payment(Base):
    """A row that a service's handler writes."""

    __tablename__ = "payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[int]
