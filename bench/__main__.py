"""`python -m bench`: see bench.run, bench.interposer, bench.agent and bench.admission."""

import sys

from bench import admission, agent, interposer, run

sys.exit(run.main() or interposer.main() or agent.main() or admission.main())
