#!/usr/bin/env python3
"""pages_test.py BUILD: the manual page is a page that man takes, and completion offers in bash (and zsh and fish, where they are)
what the help of the verbs says."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

build = pathlib.Path(sys.argv[1])
engine = build / "bin/fvlm-engine"
share = build / "share"
bash_file = share / "bash-completion/completions/fvlm-engine"


def run(*words, **options):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def verbs_of(page):
    return re.findall(r"^  (?:fvlm-engine \w+ )?([a-z][a-z-]*)  +\S", page.split("Exit codes")[0], re.MULTILINE)


def all_commands():
    """Every verb and member of a group with the options of its help, as somebody reads them there."""
    commands = {}
    for verb in verbs_of(run(engine, "--help")):
        page = run(engine, verb, "--help")
        if "Usage\n" in page:
            commands[verb] = re.findall(r"^  (--[a-z0-9-]+)", page, re.MULTILINE)
            continue
        for member in verbs_of(page):
            commands[f"{verb} {member}"] = re.findall(r"^  (--[a-z0-9-]+)", run(engine, verb, member, "--help"), re.MULTILINE)
    return commands


def bash_offers(*words, folder="/"):
    script = f"""source '{bash_file}'
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fvlm_engine; printf '%s\\n' "${{COMPREPLY[@]}}" """
    return run("bash", "--norc", "-c", script, "bash", "fvlm-engine", *words, cwd=folder).split()


def check_bash(commands):
    verbs = {command.split()[0] for command in commands}
    assert set(bash_offers("")) == verbs | {"help", "--help", "--version"}, bash_offers("")
    assert set(bash_offers("help", "")) == verbs | {"--man"}
    assert bash_offers("tra") == ["train", "trace"], bash_offers("tra")
    for command, options in commands.items():
        offered = bash_offers(*command.split(), "--")
        assert sorted(offered) == sorted(options), f"{command}: {set(offered) ^ set(options)}"
    assert bash_offers("plugin", "ch") == ["check"]
    assert bash_offers("help", "plugin", "ch") == ["check"] and bash_offers("plugin", "--") == ["--help"]
    assert bash_offers("completion", "") == ["bash", "zsh", "fish"] and bash_offers("plugin", "new", "pa") == ["packer"]
    assert bash_offers("plugin", "new", "packer", "") == [], "the name, which is free"
    assert bash_offers("serve", "model", "--dtype", "b") == ["bf16"]
    assert bash_offers("train", "--device", "") == ["cpu", "cuda"]
    assert bash_offers("train", "--device", "=", "cu") == ["cuda"]
    assert bash_offers("train", "--run-dir", "") == [], "a folder, which bash itself completes"


def check_zsh(commands):
    if not shutil.which("zsh"):
        return
    run("zsh", "-n", share / "zsh/site-functions/_fvlm-engine")
    # _arguments and _describe are replaced by functions that print what they are given.
    script = f"""_arguments() {{ print -rl -- "$@" }}; _describe() {{ print -rl -- ${{(P)2}} }}; compdef() {{ }}
source {share / "zsh/site-functions/_fvlm-engine"}
words=("$@"); CURRENT=$#; _fvlm_engine"""
    for command, options in commands.items():
        said = run("zsh", "-f", "-c", script, "zsh", "fvlm-engine", *command.split(), "")
        assert sorted(re.findall(r"^\*?(--[a-z0-9-]+)\[", said, re.MULTILINE)) == sorted(options), said
    said = run("zsh", "-f", "-c", script, "zsh", "fvlm-engine", "")
    assert re.search(r"^train:train the stages", said, re.MULTILINE), said


def check_fish(commands):
    if not shutil.which("fish"):
        return
    with tempfile.TemporaryDirectory() as home:
        for command, options in commands.items():
            source = f"source {share}/fish/vendor_completions.d/fvlm-engine.fish; complete -C 'fvlm-engine {command} --'"
            said = run("fish", "-N", "-c", source, env={"HOME": home, "PATH": f"{build}/bin:/usr/bin:/bin"})
            offered = {line.split("\t")[0] for line in said.splitlines()}
            assert offered == set(options), f"{command}: {offered ^ set(options)}"


def check_manual(commands):
    page = (share / "man/man1/fvlm-engine.1").read_text()
    if shutil.which("man"):
        said = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", share / "man/man1/fvlm-engine.1"],
                              capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "MANWIDTH": "200", "LC_ALL": "C.UTF-8"})
        wrong = [line for line in said.stderr.splitlines() if "can't break line" not in line] # a long list of names
        assert said.returncode == 0 and not wrong, wrong
    for command, options in commands.items():
        at = page.index(f"\n.SS {command.replace('-', chr(92) + '-')}\n")
        section = page[at:page.find("\n.SS ", at + 1)].replace("\\-", "-")
        for option in set(options) - {"--help"}:
            assert f"\\fB{option}\\fR" in section, f"{command} {option} is not in the manual page"
    assert page == run(engine, "help", "--man"), "the installed page is an old one"


def main():
    commands = all_commands()
    assert len(commands) > 30 and "bench profile" in commands and "plugin check" in commands, sorted(commands)
    check_bash(commands)
    check_zsh(commands)
    check_fish(commands)
    check_manual(commands)
    assert bash_file.read_text() == run(engine, "completion", "bash")
    refused = subprocess.run([engine, "completion", "tcsh"], capture_output=True, text=True)
    assert refused.returncode == 2 and "no completion for 'tcsh'" in refused.stderr, refused
    version = run(engine, "--version")
    assert version.startswith("fvlm-engine ") and re.search(r"^plugin ABI  \d+\.\d+: fvlm\.", version, re.MULTILINE), version
    assert re.search(r"^commit      (unknown|[0-9a-f]{12})", version, re.MULTILINE), version


main()
