"""A Django service that refuses a stale owner, in one file: gunicorn --threads 8 django_service:application

DATABASE_URL is a URL of libpq (postgresql://...), of a database in which `sinkfence_postgres.install` was
run. public.pem is the workers' key. In a project of yours the parts stand where they always do: settings.py,
models.py, views.py, urls.py, wsgi.py.
"""

import os
from pathlib import Path

import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

from sinkfence_http import Fence, SignedTokens, VerificationKey
from sinkfence_http.frameworks import install
from sinkfence_postgres import PostgresSink, guard, translated

DATABASE_URL = os.environ["DATABASE_URL"]
database = conninfo_to_dict(DATABASE_URL)

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["sinkfence_http.frameworks.DjangoRefusals"],  # the last of yours
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": database["dbname"],
            **{name.upper(): database.get(name, "") for name in ("user", "password", "host", "port")},
            "CONN_MAX_AGE": 60,
        }
    },
)
django.setup()

from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import connection, models, transaction  # noqa: E402
from django.http import HttpRequest, HttpResponse, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402

keys = {"2026-05": VerificationKey(key=Path("public.pem").read_bytes(), alg="EdDSA", issuer="workers")}
fence = Fence(PostgresSink(DATABASE_URL), SignedTokens(keys, audience="accounts"))


class Payment(models.Model):
    """A payment into an account."""

    account = models.IntegerField()
    amount = models.IntegerField()

    class Meta:
        app_label = "accounts"
        db_table = "payment"


def pay(request: HttpRequest, account: int) -> JsonResponse:
    """Pay into an account, as its owner."""
    amount = int(request.GET["amount"])
    token = fence.admit(request.environ, f"account-{account}")  # the converted number, not the raw path
    with translated(), transaction.atomic(durable=True):  # the outermost, whose end is the COMMIT
        guard(connection.connection, token)
        Payment.objects.create(account=account, amount=amount)
    return JsonResponse({"paid": amount})  # committed by now


def ping(request: HttpRequest) -> HttpResponse:
    """A route for senders without a token."""
    return HttpResponse("pong")


urlpatterns = [path("accounts/<int:account>", pay), path("webhooks/ping", ping)]
application = install(
    get_wsgi_application(), fence, exempt=lambda environ: environ["PATH_INFO"].startswith("/webhooks/")
)
