"""Runs Python programs as forks of one process that has imported torch and transformers, which takes 4 to 5 processor seconds.

usage: forked.py SOCKET               serves in the background until the process that called it ends
       forked.py SOCKET PROGRAM ...   runs a program, as `python PROGRAM ...` does; where nobody serves, by that

A program has its own arguments, environment, folder and standard streams. What it sets in the environment for an import comes too late,
except for HF_HUB_OFFLINE=1, which is set."""
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys


def connect(path, listen):
    """A server or a client. The path may be longer than the 107 bytes that a socket's address has."""
    folder, name = os.path.split(os.path.abspath(path))
    opened = os.open(folder, os.O_RDONLY)
    address = f"/proc/self/fd/{opened}/{name}"
    found = socket.socket(socket.AF_UNIX)
    try:
        if listen:
            if os.path.lexists(address):
                os.unlink(address)
            found.bind(address)
            found.listen(64)
        else:
            found.connect(address)
    finally:
        os.close(opened)
    return found


def ask(path, words):
    """The exit code of the program."""
    try:
        server = connect(path, listen=False)
    except OSError:
        os.execv(sys.executable, [sys.executable, *words])
    socket.send_fds(server, [b"."], [0, 1, 2])
    server.sendall(json.dumps([words, os.getcwd(), dict(os.environ)]).encode() + b"\n")
    code = server.recv(1)
    return code[0] if code else 1


def become(words, folder, environment, streams):
    """Turns a fork into the process of a program."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[:1] = words, [os.path.dirname(os.path.abspath(words[0])), *environment.get("PYTHONPATH", "").split(":")]
    sys.modules["torch"].set_num_threads(int(environment.get("OMP_NUM_THREADS", os.cpu_count())))
    runpy.run_path(words[0], run_name="__main__")


def answer(client):
    """Runs a program in a process of its own, which ends with the client, and sends its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    request = json.loads(client.makefile().readline())
    program = os.fork()
    if not program:
        client.close()
        become(*request, streams)
        return
    ended = os.pidfd_open(program)
    if ended not in select.select([ended, client], [], [])[0]:
        os.kill(program, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    client.send(bytes([status if status >= 0 else 128 - status]))
    os._exit(0)


def serve(path):
    caller = os.pidfd_open(os.getppid())
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import torch  # noqa: F401
        import transformers.generation
        import transformers.image_processing_utils
        import transformers.modeling_utils
        import transformers.processing_utils  # noqa: F401
    except ImportError:
        return  # programs that need them say that they are skipped
    gc.freeze()  # no fork looks at what was imported again, and copies its pages
    listener = connect(path, listen=True)
    if os.fork():
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while caller not in select.select([caller, listener], [], [])[0]:
        client, _ = listener.accept()
        if not os.fork():
            listener.close()
            os.close(caller)
            return answer(client)
        client.close()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]) if len(sys.argv) > 2 else serve(sys.argv[1]))
