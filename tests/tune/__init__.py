from typing import Any

WORK: dict[str, Any] = {"tasks": "gsm8k", "limit": 2, "dtype": "float32", "threads": 1}
