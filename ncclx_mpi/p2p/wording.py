"""How an operation of a rank is put into words, in errors and in reports."""

from __future__ import annotations

_ONE_SIDED = {"send": "to", "isend": "to", "recv": "from", "irecv": "from", "probe": "from", "mrecv": "from", "sendrecv": "with"}
_ROOTED = {"bcast", "reduce", "gather", "scatter"}


def in_words(operation: str, peer: int, tag: int, nbytes: int) -> str:
    """What a trace record says, as ``recv from rank 2, any tag, 32 bytes``; `peer` and `tag` are negative where any will do."""
    words = [operation]
    if operation in _ONE_SIDED:
        words.append(f"{_ONE_SIDED[operation]} {'any rank' if peer < 0 else f'rank {peer}'},")
        words.append(f"{'any tag' if tag < 0 else f'tag {tag}'},")
    elif operation in _ROOTED and peer >= 0:
        words.append(f"with root {peer},")
    if nbytes or len(words) > 1:
        words.append(f"{nbytes} bytes")
    return " ".join(words).rstrip(",")
