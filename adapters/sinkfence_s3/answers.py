"""What an answer of S3, or the want of one, says about the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from botocore.exceptions import ClientError, ConnectionError, HTTPClientError, IncompleteReadError
from botocore.parsers import ResponseParserError

_NOT_PROCESSED: Final = frozenset({"RequestTimeout", "RequestTimeTooSkewed"})
"""Refusals of a request that came too slowly or was signed too long ago: signed anew it may pass."""


def code(error: ClientError) -> str:
    """Return the error code of S3, which stands in the body even where the status is 200."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status(error: ClientError) -> int:
    """Return the HTTP status; 0 where there was none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def retries(response: Mapping[str, Any]) -> int:
    """Return how often boto3 repeated the request by itself."""
    return int(response.get("ResponseMetadata", {}).get("RetryAttempts", 0))


def condition_failed(error: ClientError) -> bool:
    """Whether S3 says that the condition did not hold: 412; 409; 404 for If-Match on a missing key."""
    return status(error) in (409, 412) or code(error) == "NoSuchKey"


def worth_repeating(error: Exception) -> bool:
    """Whether to read back and, if the register's state allows it, to send the same request again.

    S3 says that the condition did not hold, or that it did not process the request.
    """
    return isinstance(error, ClientError) and (condition_failed(error) or _not_processed(error))


def nothing_written(error: Exception) -> bool:
    """Whether this answer says by itself that nothing was written; otherwise only reading back tells.

    The answer to a repetition by boto3 doesn't say it: the first sending may have been applied and its
    success lost, and the second one was refused with 412, or as the credentials had expired. An error of
    another operation than PutObject is no answer of S3: before it repeats, boto3 may ask STS for new
    credentials, and the errors of STS look just like those of S3.
    """
    if not isinstance(error, ClientError) or error.operation_name != "PutObject":
        return False
    return 300 <= status(error) < 500 and retries(error.response) == 0


def transient(error: Exception) -> bool:
    """Whether the same request may well succeed if it is sent again."""
    if not isinstance(error, ClientError):
        return no_answer(error)
    # An error in a 200 came after S3 had begun to answer: as good as a 500.
    return not 300 <= status(error) < 500 or status(error) == 409 or _not_processed(error)


def _not_processed(error: ClientError) -> bool:
    return status(error) == 429 or code(error) in _NOT_PROCESSED


def no_answer(error: Exception) -> bool:
    """Whether the connection or the answer failed, so that the request may or may not have arrived."""
    return isinstance(error, HTTPClientError | ConnectionError | IncompleteReadError | ResponseParserError)
