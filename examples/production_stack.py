"""production-stack's router with cachelb as its routing logic; run it with the arguments of `vllm-router`.

For example `python production_stack.py --service-discovery static --static-backends http://gpu0:8000,http://gpu1:8000
--static-models llama,llama --routing-logic roundrobin --max-instance-failover-reroute-attempts 1`.
"""

from __future__ import annotations

import uvicorn
from vllm_router.app import app, initialize_all  # type: ignore[import-not-found]
from vllm_router.parsers.parser import parse_args  # type: ignore[import-not-found]

from cachelb.integrations.production_stack import install
from cachelb.sources import MetricsSource


def main() -> None:
    """Serve by the options of the command line."""
    args = parse_args()
    initialize_all(app, args)
    logic = install(app)
    logic.router.attach(MetricsSource())  # stopped when the application shuts down
    uvicorn.run(app, host=args.host, port=args.port, log_level=args.log_level)


if __name__ == "__main__":
    main()
