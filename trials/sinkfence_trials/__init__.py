"""What puts the fences on trial, for whoever doesn't take our word: nothing in the library imports it.

`demo` tells one story, `torture` makes trouble for as long as it is asked to; both write a `history`, which
`checker` judges and `timeline` draws. `servers` starts a PostgreSQL and an S3 server to try things on.
"""
