"""What commands of plugins share with ours."""

from __future__ import annotations

import subprocess
import sys

import mt_train.command


def test_its_names_are_sorted_and_it_imports_no_torch() -> None:
    names = mt_train.command.__all__
    assert sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name)) == names
    code = "import sys, mt_train.command as c; [getattr(c, n) for n in c.__all__]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
