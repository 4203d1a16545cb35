"""Whether a process is alive, asked of the lock that the kernel drops when it dies."""

import subprocess
import sys
import threading
from pathlib import Path

from tuner.locks import Presence, locked

HOLD = """
import sys
from pathlib import Path
from tuner.locks import Presence
presence = Presence(Path(sys.argv[1]))
print(presence.token, flush=True)
sys.stdin.read()
"""


def test_a_process_is_alive_until_it_is_killed(tmp_path: Path) -> None:
    ours = Presence(tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        token = process.stdout.readline().strip()
        assert ours.is_alive(token)
        assert ours.others() == (token,)
        process.kill()
        process.wait()
        assert not ours.is_alive(token)
        assert ours.others() == ()
    assert [path.stem for path in (tmp_path / "_locks").iterdir()] == [ours.token]
    ours.close()


def test_one_that_left_or_never_was_is_not_alive(tmp_path: Path) -> None:
    ours, other = Presence(tmp_path), Presence(tmp_path)
    assert ours.is_alive(ours.token)
    assert ours.is_alive(other.token)
    other.close()
    other.close()
    assert not ours.is_alive(other.token)
    assert not ours.is_alive("elsewhere-1-deadbeef")
    assert not other.is_alive(other.token)
    ours.close()


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def enter() -> None:
        for _ in range(50):
            with locked(tmp_path / "lock"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 200
