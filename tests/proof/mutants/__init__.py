"""Broken variants of the shipped source, each with the invariant that must catch it."""

from mutants.hosts import HOSTS
from mutants.http import HTTP
from mutants.leases import LEASES
from mutants.managers import MANAGERS
from mutants.modes import MODES
from mutants.mutant import Mutant
from mutants.postgres import POSTGRES
from mutants.s3 import S3

MUTANTS: tuple[Mutant, ...] = (*LEASES, *MANAGERS, *POSTGRES, *MODES, *S3, *HTTP, *HOSTS)
