"""`fvlm-engine chat`: conversations of a script beside the answers of `serve` and `generate`, and Ctrl-C on a terminal.

usage: chat_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import fcntl
import json
import os
import pty
import re
import select
import subprocess
import termios
import unittest

from against_oracle import engine, folder, tool
from running_server import Server, make_endless, picture, user

OPTIONS = ("--image-size", 28, "--max-tokens", 8)


def setUpModule():
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    make_endless("gqa")
    (folder / "picture.png").write_bytes(picture())
    (folder / "broken.png").write_bytes(picture()[:60])
    (folder / "clip").mkdir()
    for number in range(3):
        (folder / "clip" / f"{number}.png").write_bytes(picture(step=number + 2))


def command(verb, *options):
    return [str(word) for word in (engine, verb, folder / "gqa", *options)]


def with_defaults(options):
    return [word for pair in zip(OPTIONS[::2], OPTIONS[1::2], strict=True) if pair[0] not in options for word in pair] + list(options)


def generated(*options):
    printed = subprocess.run(command("generate", "--json", *with_defaults(options)), capture_output=True, text=True, check=True).stdout
    return json.loads(printed)["text"]


def clean(text):
    """As it is printed: without what would move a terminal's cursor, and what says how pasted lines arrive."""
    kept, text = "\n\t", re.sub("\x1b\\[\\?2004[hl]", "", text)
    return "".join(" " if not letter.isprintable() and letter not in kept and letter != "\ufffd" else letter for letter in text)


def chat(lines, *options, code=0):
    result = subprocess.run(command("chat", *with_defaults(options)), input="\n".join(lines) + "\n", capture_output=True, text=True)
    assert result.returncode == code, result.stderr
    return result.stdout if code == 0 else result.stderr


class Script(unittest.TestCase):
    def test_answers_as_generate_does(self):
        for line, options in ((["What is this?"], []), (["/system Be brief.", "What is this?"], ["--system", "Be brief."]),
                              (["/image " + str(folder / "picture.png"), "What is this?"], ["--image", folder / "picture.png"]),
                              (["/video " + str(folder / "clip"), "What is this?"], ["--video", folder / "clip"])):
            with self.subTest(line=line):
                expected = generated("--prompt", "What is this?", *options)
                self.assertEqual(clean(chat(line)), clean(expected) + "\n")

    def test_carries_the_conversation_along_until_it_is_reset(self):
        with Server("--image-size", 28) as server:
            first = server.ask(user("What is this?"))
            turns = [user("What is this?"), {"role": "assistant", "content": first}, user("And why?")]
            second, alone = server.ask(*turns), server.ask(user("And why?"))
        self.assertEqual(clean(chat(["What is this?", "And why?"])), clean(f"{first}\n{second}\n"))
        self.assertEqual(clean(chat(["What is this?", "/reset", "And why?"])), clean(f"{first}\n{alone}\n"))

    def test_a_line_goes_on_behind_a_backslash_and_two_slashes_are_one(self):
        self.assertEqual(clean(chat(["one \\", "two"])), clean(generated("--prompt", "one \ntwo")) + "\n")
        self.assertEqual(clean(chat(["//what"])), clean(generated("--prompt", "/what")) + "\n")

    def test_words_that_look_like_marks_are_words(self):
        with Server("--image-size", 28) as server:
            self.assertEqual(clean(chat(["An <image> or a <video>?"])), clean(server.ask(user("An <image> or a <video>?"))) + "\n")

    def test_settings_change_the_next_answer_and_retry_the_seed(self):
        drawn = [generated("--prompt", "Hi", "--temperature", 1.5, "--seed", seed) for seed in (4, 5)]
        printed = chat(["/settings temperature 1.5", "/settings seed 4", "Hi", "/retry"])
        self.assertEqual(clean(printed.split("max-tokens 8\n")[2]), clean("".join(text + "\n" for text in drawn)))

    def test_retry_shows_no_picture_of_the_next_message(self):
        plain = chat(["Hi", "/retry"])
        for show in (f"/image {folder / 'picture.png'}", f"/video {folder / 'clip'}"):
            self.assertEqual(chat(["Hi", show, "/retry"]), plain)

    def test_mistakes_end_a_script_and_say_why(self):
        for code, words, lines in ((2, "did you mean /image?", ["/imgae x"]),
                                   (4, "not an image", [f"/image {folder / 'gqa' / 'fvlm.json'}"]),
                                   (4, "broken.png: a broken PNG", [f"/image {folder / 'broken.png'}"]),
                                   (4, "it is a folder\n  /video shows videos", [f"/image {folder / 'clip'}"]),
                                   (2, "no message to answer again", ["/retry"]), (2, "'hot' is no number", ["/settings temperature hot"]),
                                   (2, "one video or pictures", [f"/video {folder / 'clip'}", f"/image {folder / 'picture.png'}"]),
                                   (2, "temperature", ["/settings temperature -1"])):
            with self.subTest(words=words):
                self.assertIn(words, chat(lines, code=code))
        self.assertIn("one video or pictures", chat([], "--video", folder / "clip", "--video", folder / "clip", code=2))
        self.assertIn("is no terminal", chat([], "--history", folder / "history", code=2))


class Terminal(unittest.TestCase):
    def read_until(self, *words):
        """What stands before the first of these words, which is kept in self.found."""
        while not any(word in self.seen for word in words):
            assert select.select([self.keyboard], [], [], 600)[0], f"waited for {words} behind {self.seen!r}"
            self.seen += os.read(self.keyboard, 65536).decode(errors="replace")
        self.found = min((word for word in words if word in self.seen), key=self.seen.index)
        before, self.seen = self.seen.split(self.found, 1)
        return before

    def start(self, *options, **environment):
        self.seen = ""
        self.keyboard, terminal = pty.openpty()
        process = subprocess.Popen(command("chat", "--image-size", 28, *options), stdin=terminal, stdout=terminal, stderr=terminal,
                                   start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                                   env=os.environ | {"NO_COLOR": "1"} | environment)
        os.close(terminal)
        return process

    def test_ctrl_c_stops_an_answer_and_not_the_program(self):
        for terminal in ("dumb", "xterm"): # where lines are edited by the terminal alone, and where by the program
            with self.subTest(terminal):
                self.check_ctrl_c(terminal)

    def check_ctrl_c(self, terminal):
        process = self.start("--max-tokens", 8000, TERM=terminal)
        self.read_until("> ")
        os.write(self.keyboard, b"\x03")
        self.read_until("/quit or Ctrl-D")
        self.read_until("> ")
        for _ in range(10): # on a busy machine the key may arrive before the answer has the terminal, or behind its end
            os.write(self.keyboard, b"Tell a story.\n")
            self.read_until("story.")
            self.read_until("\n")
            os.read(self.keyboard, 100) # the answer has begun
            os.write(self.keyboard, b"\x03")
            self.read_until(", stopped", ", not finished", "/quit or Ctrl-D")
            stopped = self.found
            self.read_until("> ")
            if stopped == ", stopped":
                break
        self.assertEqual(stopped, ", stopped")
        os.write(self.keyboard, b"/settings max-tokens 3\n")
        self.read_until("max-tokens 3\r\n")
        os.write(self.keyboard, b"And now?\n")
        self.read_until(" prompt tokens, 3 new tokens in ")
        seconds, rate = (float(word) for word in self.read_until(" tokens/s").split(" s: "))
        self.assertGreater(rate, 0.9 * 3 / (seconds + 0.005), "of the whole answer")
        self.assertLess(rate, 1.1 * 3 / max(1e-9, seconds - 0.005))
        self.read_until("> ")
        os.write(self.keyboard, b"\x04")
        self.assertEqual(process.wait(timeout=1800), 0)
        os.close(self.keyboard)

    def test_pasted_lines_are_one_message(self):
        process = self.start("--max-tokens", 3, TERM="xterm")
        self.read_until("\x1b[?2004h")
        os.write(self.keyboard, b"\x1b[200~one\n\ttwo\n\x1b[201~?")
        self.read_until("one\u21b5 two\u21b5?")
        os.write(self.keyboard, b"\n")
        said = self.read_until(" prompt tokens, ")
        self.assertIn("\x1b[?2004l", said)
        self.assertEqual(clean(said.splitlines()[-2]), clean(generated("--prompt", "one\n\ttwo\n?", "--max-tokens", 3)))
        self.read_until("> ")
        os.write(self.keyboard, b"\x04")
        self.assertEqual(process.wait(timeout=1800), 0)
        os.close(self.keyboard)

    def test_arrows_recall_lines_of_earlier_sessions(self):
        history = folder / "history"
        options = ("--max-tokens", 3, "--history", history)
        process = self.start(*options, TERM="xterm")
        self.read_until("> ")
        os.write(self.keyboard, b"What is thsi?\x7f\x7f\x7fis?\n") # mended by backspaces
        self.read_until(" prompt tokens, ")
        self.read_until("> ")
        os.write(self.keyboard, b"\x1b[A\x1b[H/settings \x0b\x04\x04") # recalled, then cut behind what was written at its beginning
        os.write(self.keyboard, b"\n")
        self.read_until("temperature 0, ")
        self.read_until("> ")
        os.write(self.keyboard, b"\x04")
        self.assertEqual(process.wait(timeout=1800), 0)
        os.close(self.keyboard)
        self.assertEqual(history.read_text(), "What is this?\n/settings \n")

        process = self.start(*options, TERM="xterm")
        self.read_until("> ")
        os.write(self.keyboard, b"\x1b[A\x1b[A")
        self.read_until("> What is this?")
        os.write(self.keyboard, b"\n")
        said = self.read_until(" prompt tokens, ")
        self.assertEqual(clean(said.splitlines()[-2]), clean(generated("--prompt", "What is this?", "--max-tokens", 3)))
        self.read_until("> ")
        os.write(self.keyboard, b"\x04")
        self.assertEqual(process.wait(timeout=1800), 0)
        os.close(self.keyboard)


if __name__ == "__main__":
    unittest.main()
