"""Texts that must contain some words."""


def assert_in(
    text: str,
    *parts: str,
) -> None:
    """Fail unless the text has all the parts."""
    missing = [part for part in parts if part not in text]
    assert not missing, f"the text lacks {missing}: {text}"
