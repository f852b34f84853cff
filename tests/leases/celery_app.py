"""Celery with a folder as its broker."""

from __future__ import annotations

import os

import preforked
from celery import Celery

folder = os.environ["BROKER"]
app = Celery("celery_app", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": folder,
        "data_folder_out": folder,
        "control_folder": folder + "/control",
        "polling_interval": 0.05,
    },
    worker_prefetch_multiplier=1,
)
charge = app.task(preforked.charge)
