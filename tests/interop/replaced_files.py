"""Files that a broker replaces while a test reads them."""

from pathlib import Path


def text_of(file: Path) -> str:
    """The file's text; empty where there is none, as for a moment when RocketMQ replaces it: it deletes the old one
    first."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
