"""An answer that S3 did not give, or not whole, says nothing about what is there."""

import pytest
from botocore.exceptions import ClientError

from sinkfence.errors import OutcomeUnknown
from sinkfence.tokens import Token

A, B = Token("j", 3_000_000_007, "a:1"), Token("j", 3_000_000_008, "b:1")
INGRESS = [b"404 page not found\n", b"<html><head><title>404 Not Found</title></head></html>", b""]


@pytest.mark.parametrize("page", INGRESS)
def test_a_404_that_is_not_of_s3_does_not_say_that_nothing_is_there(fenced, through, proxy, page):
    """An ingress whose backend is away for a moment answers so: boto3's own error, as for a 403."""
    fenced.object("r").put(b"1000", A)
    thing = through.object("r")
    for call in (
        thing.get,
        thing.stat,
        lambda: thing.arm(B),
        lambda: thing.delete(B),
        lambda: thing.put(b"1", B, expect=0),
        lambda: through.collect("r"),
    ):
        proxy.once("GET", "forge", 404, page)
        with pytest.raises(ClientError) as error:
            call()
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
    assert fenced.object("r").get().read() == b"1000"
    assert fenced.object("r").stat().generation == A.generation


def test_such_a_404_in_place_of_what_would_be_read_back_leaves_the_outcome_unknown(fenced, through, proxy):
    """The put was applied and its answer lost: it is not sent again as if the object were gone."""
    thing = through.object("r")
    thing.put(b"before", A)
    proxy.once("PUT", "lose reply")
    proxy.once("GET", "forge", 404, INGRESS[0])
    with pytest.raises(OutcomeUnknown):
        thing.put(b"after", A, step="s")
    assert proxy.rules == []
    assert thing.put(b"after", A, step="s").repeated
