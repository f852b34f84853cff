"""Objects in S3 that only the newest owner of their job can write."""

try:
    import botocore as _botocore
except ModuleNotFoundError:
    raise ModuleNotFoundError("sinkfence_s3 needs boto3: pip install 'sinkfence[s3]'") from None

from sinkfence.findings import Finding, Report
from sinkfence_s3.buckets import FencedBucket
from sinkfence_s3.doctor import doctor
from sinkfence_s3.objects import FencedObject
from sinkfence_s3.put import Written
from sinkfence_s3.readers import JobMark, Reader, Stat
from sinkfence_s3.writers import Writer

__all__ = [
    "FencedBucket",
    "FencedObject",
    "Finding",
    "JobMark",
    "Reader",
    "Report",
    "Stat",
    "Writer",
    "Written",
    "doctor",
]
del _botocore
