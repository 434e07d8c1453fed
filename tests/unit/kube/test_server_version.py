"""Which Kubernetes it is, and what is said of one that is too old."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gpuslice.kube import server_version
from gpuslice.kube.server_version import ServerVersion


def version(minor: str) -> ServerVersion:
    return ServerVersion("1", minor, f"v1.{minor.rstrip('+')}.2")


@pytest.mark.parametrize(
    ("minor", "claims"), [("31", False), ("33+", False), ("35", False), ("36", True), ("36+", True), ("40", True)]
)
def test_claims_are_expected_from_1_36_on(minor: str, claims: bool) -> None:  # noqa: FBT001 - a parameter
    assert server_version.has_claims(version(minor)) is claims


def test_a_server_that_does_not_tell_counts_as_new() -> None:
    assert server_version.has_claims(None)


@pytest.mark.parametrize(("minor", "level"), [("30", "error"), ("31", "info"), ("37", "info")])
def test_a_version_older_than_what_we_promise_is_an_error_in_the_log(minor: str, level: str) -> None:
    with capture_logs() as logged:
        server_version.check(version(minor))
    ((told, found),) = [(line["log_level"], line) for line in logged]
    assert told == level
    assert found["version"] == f"v1.{minor}.2"
