"""What README.md and the pages in docs/ say of the program is what it does: verbs, options, exit codes, links, figures of memory.

usage: readme_test.py FVLM_ENGINE MAKE_SHAPES SOURCE"""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from functools import cache
from pathlib import Path

engine, make_shapes, source = (Path(word).absolute() for word in sys.argv[1:4])
readme = (source / "README.md").read_text()
pages = [source / name for name in ("README.md", "CONTRIBUTING.md", "core/report/METRICS.md")]
for folder in ("docs", "recipes", "sdk"):
    pages += [page for form in ("*.md", "*.lua") for page in sorted((source / folder).rglob(form))]


def run(*words, code=0, **options):
    done = subprocess.run([str(word) for word in (engine, *words)], capture_output=True, text=True, **options)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@cache
def page_of(*verb):
    """What `help VERB` prints; nothing for other words."""
    done = subprocess.run([engine, "help", *verb], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def help_of(words):
    return page_of(*words[:2]) if len(words) > 1 and page_of(*words[:2]) else page_of(words[0])


# The page's figures are those of a processor of Intel, where LibTorch computes linears; on others a plugin may, with memory of its own.
LIBTORCH = ("--set", "kernels.linear=reference,auto")


class Readme(unittest.TestCase):
    def test_verbs_are_those_of_the_program(self):
        listed = re.search(r"`fvlm-engine (train \|[^`]*)`", readme)[1].split(" | ")
        verbs = re.findall(r"^  ([a-z]+)  +[a-z]", page_of(), re.MULTILINE)
        self.assertEqual(sorted(listed), sorted(verbs))

    def test_commands_have_the_options_that_pages_give_them(self):
        checked = 0
        for page in pages:
            commands = re.findall(r"fvlm-engine((?: [a-z][a-z-]*)+)([^`#\n]*)", page.read_text())
            commands += re.findall(r"`((?:[a-z-]+ ){1,2})([^`\n]*--[^`\n]*)`", page.read_text())
            for verb, rest in commands:
                known = help_of(verb.split())
                for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest) if known else ():
                    self.assertIn(option, known, f"{page}: {verb.strip()}")
                    checked += 1
        self.assertGreater(checked, 100)

    def test_links_lead_somewhere(self):
        for page in pages:
            text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
            for link in re.findall(r"\]\(([^)#\s]+)", text) if page.suffix == ".md" else ():
                if not link.startswith("http"):
                    self.assertTrue((page.parent / link).exists(), f"{page}: {link}")

    def test_exit_codes_are_those_that_help_lists(self):
        page = (source / "docs/command-line.md").read_text()
        table = page[page.index("| code | kind | |"):].split("\n\n")[0]
        codes = [int(code) for row in table.splitlines()[2:] for code in re.findall(r"\d+", row.split("|")[1])]
        line = page_of()[page_of().index("Exit codes"):]
        self.assertEqual(codes, [int(code) for code in re.findall(r"\b(\d+) [a-z]", line)])

    def test_bundled_recipes_are_all_listed(self):
        table = readme[readme.index("| recipe | what it trains |"):]
        table = table[: table.index("\n\n")]
        listed = set(re.findall(r"`([\w./-]+\.lua)`", table))
        recipes = source / "recipes"
        there = {str(file.relative_to(recipes)) for form in ("*.lua", "tiny/*.lua") for file in recipes.glob(form)}
        self.assertEqual(listed, there - {"fvlm.d.lua"})

    def test_memory_of_the_quickstart_is_what_plan_prints(self):
        page = (source / "docs/training.md").read_text()
        rows = re.search(r"--budget  +# 3 of its rows, on a processor of Intel\n(.*?)\$ ", page, re.DOTALL)[1].strip().splitlines()
        with tempfile.TemporaryDirectory() as folder:
            parts = "captions,text,questions,pairs,heldout/questions,heldout/pairs".split(",")
            subprocess.run([make_shapes, "--out", "data/shapes", "--samples", ",".join(f"{part}=2000" for part in parts)], cwd=folder, check=True,
                           capture_output=True)
            printed = run("plan", source / "recipes/quickstart.lua", "--budget", *LIBTORCH, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "2"})
        self.assertEqual(len(rows), 4)
        for row in rows:
            self.assertIn(row, printed.splitlines())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
