"""Process that runs a program which a model wrote: it can use processor and memory up to a limit, read files, and do nothing else.

Started by path without site-packages; it imports nothing of ours. Before the program runs, the kernel is told (seccomp, Linux on
x86-64 and 64-bit ARM) which system calls are left: none that opens a socket, writes, creates, renames or removes a file, starts a
process or signals one. Whatever is not listed fails with ``EPERM``.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import struct
import sys

SYSCALLS = {
    "x86_64": (
        0xC000003E,
        [
            *(
                0,
                1,
                3,
                4,
                5,
                6,
                7,
                8,
                9,
                10,
                11,
                12,
                13,
                14,
                15,
                16,
                17,
                19,
                20,
                21,
                23,
                24,
                25,
                28,
                32,
                33,
                35,
                36,
                37,
                38,
                39,
            ),
            *(
                60,
                63,
                72,
                79,
                89,
                96,
                97,
                98,
                99,
                100,
                102,
                104,
                107,
                108,
                110,
                131,
                158,
                186,
                201,
                202,
                204,
                217,
                218,
                228,
                229,
            ),
            *(230, 231, 262, 267, 269, 270, 271, 273, 318, 332, 334, 439),
        ],
        {2: 1, 257: 2},
    ),
    "aarch64": (
        0xC00000B7,
        [
            *(
                17,
                23,
                24,
                25,
                29,
                48,
                57,
                61,
                62,
                63,
                64,
                65,
                66,
                67,
                72,
                73,
                78,
                79,
                80,
                93,
                94,
                96,
                98,
                99,
                101,
                102,
                103,
                113,
                114,
            ),
            *(
                115,
                123,
                124,
                132,
                134,
                135,
                139,
                153,
                160,
                163,
                165,
                169,
                172,
                173,
                174,
                175,
                176,
                177,
                178,
                179,
                214,
                215,
                216,
                222,
            ),
            *(226, 233, 278, 291, 293, 439),
        ],
        {56: 2},
    ),
}
"""Audit number of the architecture; calls that are left: memory, time, and reading of what is open or is opened to be read; and those
that open a file, with the place of their flags among the arguments."""

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def restrict_calls() -> None:
    """Leave the listed calls alone. Raises ``OSError`` where the kernel does not take the filter."""
    audit, calls, opening = SYSCALLS[platform.machine()]
    rules = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for number, place in opening.items():
        rules += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, 16 + 8 * place)]
        rules += [(_ANY_BIT, 0, 1, _WRITING), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    for number in calls:
        rules += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    rules.append((_RETURN, 0, 0, _REFUSE))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = _Program(len(rules), ctypes.addressof(code))
    kernel = ctypes.CDLL(None, use_errno=True)
    if kernel.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or kernel.prctl(
        _PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "the kernel takes no seccomp filter")


def restrict_resources(cpu_seconds: int, memory_bytes: int) -> None:
    """Limit processor time, memory and files; nothing is left behind by a crash."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Run the program of standard input, and say behind the given word how it ended; a program that leaves early says nothing."""
    given = json.loads(sys.stdin.buffer.read())
    verdict = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    restrict_resources(given["cpu_seconds"], given["memory_bytes"])
    restrict_calls()
    word = given["word"]
    os.write(verdict, b"ready ")
    try:
        code = compile(given["program"], "program", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        os.write(verdict, f"{word} unreadable".encode())
        os._exit(0)
    try:
        exec(code, {"__name__": "__main__"})  # noqa: S102 - it is what this process is for
    except BaseException:  # noqa: BLE001 - a program may raise anything
        os.write(verdict, f"{word} failed".encode())
    else:
        os.write(verdict, f"{word} passed".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
