"""`python -m bench`: see bench.run and bench.interposer."""

import sys

from bench import interposer, run

sys.exit(run.main() or interposer.main())
