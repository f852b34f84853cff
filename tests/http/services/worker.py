"""A worker that holds a generation and posts once: python worker.py URL PATH JOB GENERATION KEY.

It prints what it got, as JSON, and looks at no lease: it believes for ever that it is the owner.
"""

from __future__ import annotations

import json
import sys

import requests

from sinkfence import StaleToken, Token
from sinkfence_http import TokenSigner
from sinkfence_http.requests_adapter import FencedAdapter

url, path, job_id, generation, key = sys.argv[1:]
sign = TokenSigner(key, kid="k1", alg="EdDSA", issuer="workers", audience="ledger")
with requests.Session() as session:
    session.mount(url + "/", FencedAdapter(Token(job_id, int(generation), f"worker:{generation}"), sign=sign))
    try:
        answer = {"status": session.post(url + path).status_code}
    except StaleToken as stale:
        answer = {"stale": stale.token.generation, "mark": stale.mark}
print(json.dumps(answer))
