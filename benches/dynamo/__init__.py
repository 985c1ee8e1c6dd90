"""cachelb's policies beside Dynamo's own router, on equal engines."""

from __future__ import annotations
