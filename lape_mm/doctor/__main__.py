"""``python -m lape_mm.doctor``."""
from __future__ import annotations

import argparse
import sys

import lape_mm.doctor

from .checks import checks
from .report import Doctor


def main(argv: list[str] | None = None) -> int:
    """Prints the report; 1 if something is broken."""
    parser = argparse.ArgumentParser(prog='python -m lape_mm.doctor',
                                     description=lape_mm.doctor.__doc__.splitlines()[0])
    parser.add_argument('config', nargs='?', help='a config to check, with its data and folders')
    args = parser.parse_args(argv)
    doctor = Doctor()
    for check in checks(args.config):
        check(doctor)
    broken = [finding for finding in doctor.findings if finding.status == 'BROKEN']
    print(f'\n{len(broken)} broken, first: {broken[0].text}' if broken else '\nall of it works')
    return int(bool(broken))


if __name__ == '__main__':
    sys.exit(main())
