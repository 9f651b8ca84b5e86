"""Ports of the loopback address, by which ranks of one machine find each other."""

import os
import socket
from dataclasses import dataclass

from ddpsched.doctor.finding import Finding, Setting
from ddpsched.errors import RankFailure
from ddpsched.local_ranks import free_port

NAME = "ports"
LOOPBACK, PATIENCE_S = "127.0.0.1", 5.0


@dataclass(frozen=True)
class Ports:
    """Results of using ports.

    ``free``: one that answered, None where none did, and ``error`` says why. ``wanted``: MASTER_PORT, if it is set;
    ``taken``: why it cannot be bound, if it cannot.
    """

    free: int | None
    error: str = ""
    wanted: str | None = None
    taken: str | None = None


def check(_: Setting) -> list[Finding]:
    """Return the finding on ports."""
    wanted = os.environ.get("MASTER_PORT")
    taken = None if wanted is None else why_taken(wanted)
    try:
        port = free_port()
        answer(port)
    except (OSError, RankFailure) as error:
        return [judge(Ports(None, str(error), wanted, taken))]
    return [judge(Ports(port, "", wanted, taken))]


def answer(port: int) -> None:
    """Listen on a port and connect to it. Raises OSError where that fails."""
    with socket.socket() as listening, socket.socket() as connecting:
        connecting.settimeout(PATIENCE_S)
        listening.settimeout(PATIENCE_S)
        listening.bind((LOOPBACK, port))
        listening.listen(1)
        connecting.connect((LOOPBACK, port))
        listening.accept()[0].close()


def why_taken(port: str) -> str | None:
    """Return why a port cannot be bound; None where it can."""
    if not port.isdigit() or not 0 < int(port) < 2**16:
        return "not a whole number from 1 to 65535"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does, after a launch has ended
        try:
            probe.bind((LOOPBACK, int(port)))
        except OSError as error:
            return error.strerror or str(error)
    return None


def judge(ports: Ports) -> Finding:
    """Return the finding."""
    if ports.free is None:
        remedy = f"let processes connect to {LOOPBACK} (firewall, container), or use executor.kind=virtual"
        return Finding(NAME, "fail", f"no port of {LOOPBACK} could be used: {ports.error}", remedy)
    says = f"port {ports.free} of {LOOPBACK} was bound, and answered"
    if ports.taken is not None:
        says += f"; MASTER_PORT = {ports.wanted}: {ports.taken}"
        return Finding(NAME, "fail", says, f"unset MASTER_PORT, or export MASTER_PORT={ports.free}")
    if ports.wanted is not None:
        says += f"; MASTER_PORT = {ports.wanted} is free"
    return Finding(NAME, "ok", says)
