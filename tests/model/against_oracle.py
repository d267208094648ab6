"""What the tests against the oracle share: its tools as functions and a folder for their files. Leaves with 77 (skipped)
where the oracle's wheels are missing. The script's arguments are FVLM_ENGINE FOLDER_OF_THE_ORACLE."""
import contextlib
import io
import runpy
import sys
import tempfile
from pathlib import Path

engine, tools = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
sys.path.insert(0, str(tools))
try:
    import tokenizers
    import torch
    from fvlm_oracle import load_file, save_file
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

torch.set_num_threads(1)
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)


def tool(name, *arguments):
    """What a program of the oracle's folder prints."""
    saved, sys.argv = sys.argv, [str(tools / name), *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(str(tools / name), run_name="__main__")
    except SystemExit as left:
        assert not left.code, f"{name}: {left.code}"
    finally:
        sys.argv = saved
    return printed.getvalue()
