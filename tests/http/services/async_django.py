"""The Django example by ASGI: an async view, and a sync one."""

from __future__ import annotations

import importlib

from asgiref.sync import async_to_sync, sync_to_async
from django.core.asgi import get_asgi_application
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from sinkfence import Token
from sinkfence_http.aio import Fence
from sinkfence_http.frameworks import install
from sinkfence_postgres import guard, translated
from sinkfence_postgres.aio import PostgresSink

example = importlib.import_module("django_service")  # of docs/examples, where example_service.py finds it

fence = Fence(PostgresSink(example.DATABASE_URL), example.fence.verifier)


def insert(account: int, amount: int, token: Token) -> None:
    with translated(), transaction.atomic(durable=True):
        guard(connection.connection, token)
        example.Payment.objects.create(account=account, amount=amount)


async def pay(request: HttpRequest, account: int) -> JsonResponse:
    amount = int(request.GET["amount"])
    token = await fence.admit(request.scope, f"account-{account}")
    await sync_to_async(insert)(account, amount, token)
    return JsonResponse({"paid": amount})


def pay_in_a_thread(request: HttpRequest, account: int) -> JsonResponse:
    amount = int(request.GET["amount"])
    token = async_to_sync(fence.admit)(request.scope, f"account-{account}")
    insert(account, amount, token)
    return JsonResponse({"paid": amount})


example.urlpatterns[:] = [
    path("accounts/<int:account>", pay),
    path("sync/accounts/<int:account>", pay_in_a_thread),
    path("webhooks/ping", example.ping),
]
application = install(
    get_asgi_application(), fence, exempt=lambda scope: scope["path"].startswith("/webhooks/")
)
