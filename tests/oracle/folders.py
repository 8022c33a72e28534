"""Opens a folder of ours with transformers, sentence-transformers and torch.onnx.export, with the lines that the README shows, and
compares the results with `albert embed`.

    python3 -m venv venv && venv/bin/pip install -r tests/oracle/requirements-5.txt sentence-transformers onnx onnxruntime
    venv/bin/python tests/oracle/folders.py --albert target/release/albert --model runs/tiny

`--model` is a folder of `albert pretrain`; the folder for sentence-transformers is made from it by `albert convert`. Vectors may
differ by 1e-4. Nothing here is needed to build or to test the project.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

TEXTS = ["She was very glad to see her sister.", "The river flows to the sea."]


def lines_of_readme():
    """The Python lines of the README: of the block that opens our folders."""
    readme = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
    with open(readme) as file:
        blocks = file.read().split("```python\n")
    if len(blocks) != 2:
        sys.exit("README.md: expected one block of Python")
    return blocks[1].split("```")[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", default="target/release/albert")
    parser.add_argument("--model", default="runs/tiny")
    options = parser.parse_args()
    albert, model = os.path.abspath(options.albert), os.path.abspath(options.model)
    with tempfile.TemporaryDirectory() as folder:
        sentences = os.path.join(folder, "runs/sentences")
        os.makedirs(os.path.join(folder, "runs"))
        os.symlink(model, os.path.join(folder, "runs/tiny"))
        convert = [albert, "convert", "--from", model, "--to", sentences, "--sentence-transformers", "mean"]
        subprocess.run(convert, check=True, stdout=subprocess.DEVNULL)
        os.chdir(folder)
        names = {}
        exec(lines_of_readme(), names)  # noqa: S102
        command = [albert, "embed", "--model", sentences, "--quiet", "-"]
        told = subprocess.run(command, input="\n".join(TEXTS), text=True, capture_output=True, check=True).stdout
        ours = np.array([json.loads(line) for line in told.splitlines()])
        found = {"sentence-transformers": names["sentences"].encode(TEXTS)}
        tokenizer, opened = names["tokenizer"], names["model"]
        import torch

        hidden = []
        for text in TEXTS:
            ids = tokenizer(text, return_tensors="pt")
            with torch.inference_mode():
                hidden.append(opened(**ids).last_hidden_state[0].mean(0).numpy())
        found["transformers"] = np.array(hidden)
        import onnxruntime

        session = onnxruntime.InferenceSession("tiny.onnx", providers=["CPUExecutionProvider"])
        pooled = []
        for text in TEXTS:
            ids = tokenizer(text, return_tensors="np")["input_ids"]
            pooled.append(session.run(None, {session.get_inputs()[0].name: ids})[0][0].mean(0))
        found["torch.onnx.export"] = np.array(pooled)
        failed = False
        for name, vectors in found.items():
            error = float(abs(vectors - ours).max())
            print(f"{name}: largest difference {error:.1e}")
            failed |= error > 1e-4
        sys.exit(failed)


if __name__ == "__main__":
    main()
