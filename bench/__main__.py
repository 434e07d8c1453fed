"""`python -m bench`: see bench.run, bench.interposer and bench.admission."""

import sys

from bench import admission, interposer, run

sys.exit(run.main() or interposer.main() or admission.main())
