"""``python -m lape_mm.doctor``."""
from __future__ import annotations

import argparse
import sys

from . import checks
from .report import Doctor


def main(argv: list[str] | None = None) -> int:
    """Prints the report; returns 1 if something is broken."""
    parser = argparse.ArgumentParser(prog='python -m lape_mm.doctor', description=(
        'Check an installation, and name the command that repairs what is broken.'))
    parser.add_argument('config', nargs='?', help='a config to check, with its data and folders')
    args = parser.parse_args(argv)
    doctor = Doctor()
    checks.check_python(doctor)
    checks.check_torch(doctor)
    checks.check_mmcv(doctor)
    checks.check_toolboxes(doctor)
    checks.check_model(doctor)
    checks.check_versions(doctor)
    if args.config:
        checks.check_config(doctor, args.config)
    else:
        checks.check_folder(doctor, 'work_dirs')
    broken = [text for status, text in doctor.findings if status == 'BROKEN']
    print(f'\n{len(broken)} broken, first: {broken[0]}' if broken else '\nall of it works')
    return int(bool(broken))


if __name__ == '__main__':
    sys.exit(main())
