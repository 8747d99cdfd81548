"""Whether a folder and a file are the user's own, so that a pickle in it was written by nobody else.

Loading a pickle runs what its writer wished. So a pickle is written to and loaded from a folder only where the folder belongs
to this user and is closed to all others (mode 0700), no folder above it lets others put another in its place, and the file
itself belongs to this user and nobody else may write to it; links are not followed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def why_not_private(folder: Path) -> str:
    """Why no pickle may lie in this folder; "" where it may.

    A folder above may belong to root or to the user, and be open for writing only where it is sticky, as /tmp is.
    """
    if not hasattr(os, "getuid"):
        return "this system does not say whose a folder is"
    try:
        own = os.lstat(folder)
        if stat.S_ISLNK(own.st_mode) or not stat.S_ISDIR(own.st_mode):
            return f"{folder} is no folder"
        if own.st_uid != os.getuid():
            return f"{folder} belongs to user {own.st_uid}, not to you ({os.getuid()})"
        if own.st_mode & 0o077:
            return f"{folder} is open to others (mode {stat.S_IMODE(own.st_mode):04o}, not 0700)"
        return next((why for why in map(_why_replaceable, folder.resolve().parents) if why), "")
    except OSError as error:
        return f"{folder} cannot be looked at: {error.strerror}"


def _why_replaceable(above: Path) -> str:
    found = os.stat(above)
    if found.st_uid not in (0, os.getuid()):
        return f"{above} above it belongs to user {found.st_uid}"
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        return f"{above} above it may be written to by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def why_not_own(file: os.stat_result) -> str:
    """Why a pickle in this file, as fstat tells of it, may not be loaded; "" where it may."""
    if not stat.S_ISREG(file.st_mode):
        return "it is no plain file"
    if file.st_uid != os.getuid():
        return f"it belongs to user {file.st_uid}, not to you ({os.getuid()})"
    if file.st_mode & 0o022:
        return f"others may write to it (mode {stat.S_IMODE(file.st_mode):04o})"
    return ""
