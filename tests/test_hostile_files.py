"""Whatever is in a file, its reader gives a value or a PartitaError, soon and in little memory: a contract for all readers."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest
from hostile_files import READERS, little_memory, mutated, sound_file

from partita.errors import PartitaError
from partita.files import write_whole


def attack(name: str, folder: Path, first: int, times: int) -> tuple[int, int]:
    """(accepted, refused) of that many mutations of a sound file. Raises AssertionError with the first that breaks out."""
    reader = READERS[name]
    sound = sound_file(name, folder).read_bytes()
    accepted = 0
    with little_memory():
        for seed in range(first, first + times):
            raw = mutated(sound, random.Random(seed * 7919 + zlib.crc32(name.encode())))
            path = write_whole(folder / f"hostile{reader.suffix}", raw)
            try:
                reader.read(path)
                accepted += 1
            except PartitaError as error:
                str(error).encode()
            except BaseException as error:
                raise AssertionError(f"{name}, mutation {seed}: {type(error).__name__}: {error}") from error
    return accepted, times - accepted


@pytest.mark.parametrize("name", READERS)
def test_a_hostile_file_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    READERS[name].read(sound_file(name, tmp_path))
    accepted, refused = attack(name, tmp_path, 0, 150)
    assert refused > 10
    assert accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_hostile_files_are_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    attack(name, tmp_path, 1000, 2500)
