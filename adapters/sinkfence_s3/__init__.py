"""Objects in S3 that only the newest owner of their job can write."""

try:
    import botocore as _botocore
except ModuleNotFoundError:
    raise ModuleNotFoundError("sinkfence_s3 needs boto3: pip install 'sinkfence[s3]'") from None

from sinkfence_s3.buckets import FencedBucket
from sinkfence_s3.doctor import Report, doctor
from sinkfence_s3.objects import FencedObject, Reader, Stat, Written

__all__ = ["FencedBucket", "FencedObject", "Reader", "Report", "Stat", "Written", "doctor"]
del _botocore
