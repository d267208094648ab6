"""Runs a program as a fork of a process of it that has loaded LibTorch, which takes most of the time of a short command (forked_program.cpp)."""
import os
import socket
import struct
import subprocess
import tempfile

from forked import connect


def run(command, cwd=None, env=None):
    """As subprocess.run() with its output as text. The command runs by itself where nobody serves, or with a number of threads that OpenMP, once
    it is loaded, does not read any more."""
    command, env = [str(word) for word in command], os.environ if env is None else env
    path = os.path.join(env.get("FVLM_FORKED_PROGRAMS", ""), os.path.basename(command[0]))
    if env.get("OMP_NUM_THREADS") != "1" or "FVLM_FORKED_PROGRAMS" not in env or not os.path.exists(path):
        return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)
    parts = [os.path.abspath(cwd or "."), str(len(command)), *command, *(f"{name}={value}" for name, value in env.items())]
    request = b"".join(os.fsencode(part) + b"\0" for part in parts)
    with connect(path, listen=False) as server, open(os.devnull) as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        socket.send_fds(server, [struct.pack("=Q", len(request))], [stream.fileno() for stream in (nothing, out, err)])
        server.sendall(request)
        status = server.recv(4, socket.MSG_WAITALL)
        assert len(status) == 4, f"{path}: the server has ended"
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(struct.unpack("=i", status)[0]), *said)
