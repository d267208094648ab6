"""Runs a program as a fork of a process of it that has loaded LibTorch, which takes most of the time of a short command (forked_program.cpp)."""
import os
import select
import socket
import struct
import subprocess
import tempfile

from forked import connect


class Fork:
    """What tests use of subprocess.Popen, of a fork."""
    def __init__(self, path, command, cwd, env, together):
        self.path, self.args, self.returncode, self.read = path, command, None, None
        self.outputs = [tempfile.TemporaryFile() for _ in range(1 if together else 2)]
        parts = [os.path.abspath(cwd or "."), str(len(command)), *command, *(f"{name}={value}" for name, value in env.items())]
        request = b"".join(os.fsencode(part) + b"\0" for part in parts)
        self.server = connect(path, listen=False)
        with open(os.devnull) as nothing:
            streams = (nothing, self.outputs[0], self.outputs[-1])
            socket.send_fds(self.server, [struct.pack("=Q", len(request))], [stream.fileno() for stream in streams])
        self.server.sendall(request)

    def poll(self):
        if self.returncode is None and select.select([self.server], [], [], 0)[0]:
            self.communicate()
        return self.returncode

    def kill(self):
        if self.returncode is None:
            self.server.shutdown(socket.SHUT_WR)  # the server ends the fork, and says so

    def communicate(self, timeout=None):
        """Both outputs, the second one None where they are together."""
        if self.returncode is None:
            if not select.select([self.server], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            status = self.server.recv(4, socket.MSG_WAITALL)
            assert len(status) == 4, f"{self.path}: the server has ended"
            self.returncode = os.waitstatus_to_exitcode(struct.unpack("=i", status)[0])
            self.server.close()
            self.read = []
            for output in self.outputs:
                with output:
                    output.seek(0)
                    self.read.append(output.read().decode().replace("\r\n", "\n"))
        return self.read[0], self.read[1] if len(self.read) > 1 else None


def start(command, cwd=None, env=None, together=False):
    """As subprocess.Popen() with its outputs as text, in two or `together`. The command runs by itself where nobody serves, or with a number
    of threads that OpenMP, once it is loaded, does not read any more."""
    command, env = [str(word) for word in command], os.environ if env is None else env
    path = os.path.join(env.get("FVLM_FORKED_PROGRAMS", ""), os.path.basename(command[0]))
    if env.get("OMP_NUM_THREADS") != "1" or "FVLM_FORKED_PROGRAMS" not in env or not os.path.exists(path):
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if together else subprocess.PIPE, text=True, cwd=cwd,
                                env=env)
    return Fork(path, command, cwd, env, together)


def run(command, cwd=None, env=None):
    """As subprocess.run() with its output as text."""
    process = start(command, cwd, env)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
