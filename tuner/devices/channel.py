"""Length-prefixed pickles over a socket of their own, so that nothing printed can get between them."""

import pickle
import socket
import struct
import time
from contextlib import suppress
from typing import Any

_HEADER = struct.Struct("<4sQ")
_MAGIC = b"tune"
_MOST_BYTES = 1 << 32  # a longer message is garbage: jobs and results are at most a few megabytes


class ChannelClosedError(Exception):
    """The other end is gone."""


class ChannelTimeoutError(Exception):
    """Nothing, or not everything, came in time."""


class ChannelGarbageError(Exception):
    """What came is no message."""


class Channel:
    """One end of a two-way channel.

    Args:
        end: A connected stream socket, which the channel then owns.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, value: Any, timeout_s: float | None = None) -> None:
        """Send one value.

        Raises:
            ChannelClosedError: The other end is gone.
            ChannelTimeoutError: The other end does not read.
            Exception: What pickling `value` raises; nothing has been sent then.
        """
        payload = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self._end.settimeout(timeout_s)
            self._end.sendall(_HEADER.pack(_MAGIC, len(payload)) + payload)
        except TimeoutError:
            raise ChannelTimeoutError(f"{len(payload)} bytes were not taken within {timeout_s} s") from None
        except OSError as error:
            raise ChannelClosedError(str(error)) from None

    def receive(self, timeout_s: float | None = None) -> Any:
        """The next value.

        Raises:
            ChannelClosedError: The other end is gone.
            ChannelTimeoutError: Nothing, or only a part, came in time.
            ChannelGarbageError: The bytes are no message, or do not unpickle.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        header = self._exactly(_HEADER.size, deadline)
        magic, length = _HEADER.unpack(header)
        if magic != _MAGIC or length > _MOST_BYTES:
            raise ChannelGarbageError(f"a message starts with {_MAGIC!r} and a length, got {header!r}")
        payload = self._exactly(length, deadline)
        try:
            return pickle.loads(payload)
        except Exception as error:  # unpickling calls whatever the bytes name, so anything can be raised
            raise ChannelGarbageError(f"{type(error).__name__} while reading a message: {error}") from error

    def close(self) -> None:
        """Close this end, and wake whoever waits on it."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _exactly(self, count: int, deadline: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                if deadline is None:
                    self._end.settimeout(None)
                else:
                    remaining = deadline - time.monotonic()
                    if remaining <= 0:
                        raise ChannelTimeoutError
                    self._end.settimeout(remaining)
                part = self._end.recv(min(count - len(parts), 1 << 20))
            except TimeoutError:
                raise ChannelTimeoutError from None
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            if not part:
                raise ChannelClosedError("end of stream")
            parts += part
        return bytes(parts)
