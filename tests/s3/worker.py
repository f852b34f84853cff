"""A worker: says that it is ready, waits for the word, puts, and says what came of each put."""

import json
import sys

import boto3
from botocore.config import Config

from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket

job = json.loads(sys.argv[1])
client = boto3.client(
    "s3",
    endpoint_url=job["endpoint"],
    aws_access_key_id=job["access_key"],
    aws_secret_access_key=job["secret_key"],
    region_name="us-east-1",
    config=Config(s3={"addressing_style": "path"}, proxies={}),
)
thing = FencedBucket(client, job["bucket"], prefix=job["prefix"], probe="never").object(job["name"])
token = Token(*job["token"])
print("ready", flush=True)
sys.stdin.readline()
for put in job["puts"]:
    body = put.pop("body").encode()
    try:
        written = thing.put(body, token, **put)
        said = {"seq": written.seq, "repeated": written.repeated, "superseded": written.superseded}
    except Exception as error:
        said = {"error": type(error).__name__, "mark": getattr(error, "mark", None)}
    print(json.dumps(said), flush=True)
