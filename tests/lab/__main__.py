"""A lab for people: ``python -m tests.lab up 4``, ``status``, ``down``."""

from __future__ import annotations

import argparse
import sys

from tests.lab.lab import Lab, labs, missing


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a lab that stays")
    up.add_argument("count", type=int, nargs="?", default=4, help="number of hosts (4)")
    up.add_argument(
        "--internet", action="store_true", help="let hosts reach what this machine reaches"
    )
    commands.add_parser("down", help="stop all labs that nobody uses")
    commands.add_parser("status", help="show the labs and their hosts")
    options = parser.parse_args()
    if reason := missing():
        sys.exit(f"{reason}.")
    {"up": _up, "down": _down, "status": _status}[options.command](options)


def _up(options: argparse.Namespace) -> None:
    lab = Lab.start(options.count, keep=True)
    if options.internet:
        lab.open_gate()
    print(f"{len(lab.hosts)} hosts are up. A notebook that is started with")
    print(f"    HOME={lab.home} jupyter lab")
    print("reaches them:")
    print(f"    %%sky --provider ssh --hosts {','.join(host.name for host in lab.hosts)}")


def _down(options: argparse.Namespace) -> None:
    for lab in labs():
        if lab.is_kept or lab.is_left_over:
            lab.stop()
            print(f"lab {lab.index} is gone")


def _status(options: argparse.Namespace) -> None:
    for lab in labs():
        words = "kept" if lab.is_kept else "left over" if lab.is_left_over else "in use"
        print(f"lab {lab.index} ({words}), HOME={lab.home}")
        for host in lab.hosts:
            print(f"    {host.name}  {host.address}  {'up' if host.is_up else 'off'}")


if __name__ == "__main__":
    main()
