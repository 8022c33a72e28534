#!/usr/bin/env bash
# Reports in a real browser (tests/browser/check.py): a run, a comparison, a fine-tuning and a benchmark, at three widths in the light
# and the dark scheme. Pictures: target/browser.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
if ! { command -v chromium && command -v chromedriver; } >/dev/null; then
  { apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 || true
fi
if ! { command -v chromium && command -v chromedriver; } >/dev/null; then
  echo "SKIPPED: reports in a browser: chromium and chromedriver cannot be installed here"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
if ! "$folder/python/bin/pip" install --quiet selenium; then
  echo "SKIPPED: reports in a browser: selenium cannot be installed here"
  exit 0
fi
cargo build --release --quiet --workspace --bin albert
albert=$target/release/albert
text=cli/data/public_domain.txt
shape=(model.embedding_size=32 model.hidden_size=64 model.num_hidden_layers=2 model.num_attention_heads=2
  model.intermediate_size=256 'data.batch={max_tokens=1024,max_sequences=16}' schedule.steps=120 schedule.warmup_steps=10
  evaluation.interval=20 run.log_interval=1)
"$albert" tokenizer train "$text" --vocab-size 2000 -o "$folder/tokenizer.json" --quiet
"$albert" data build "$text" --tokenizer "$folder/tokenizer.json" -o "$folder/data" --quiet
rates=(0.002 0.005 0.01)
for rate in "${rates[@]}"; do
  "$albert" pretrain tiny -o "$folder/rate-$rate" --data "$folder/data" --tokenizer "$folder/tokenizer.json" --quiet \
    "${shape[@]}" "optimizer.learning_rate=$rate"
done
{
  printf 'text\tlabel\n'
  # A label that is HTML, and texts that are scripts: all of it is shown as text.
  awk 'length > 20 && length < 200 && n < 600 { n++; print $0 " <script>alert(" n ")</script>\t" (n % 2 ? "<b>odd</b>" : "even") }' "$text"
} >"$folder/train.tsv"
"$albert" finetune classify --model "$folder/rate-0.01" --train "$folder/train.tsv" --dev "$folder/train.tsv" \
  -o "$folder/tuned" --steps 40 --quiet >/dev/null
report() { "$albert" report "${@:2}" -o "$folder/$1.html" --quiet; }
report run "$folder/rate-0.01"
report comparison "${rates[@]/#/$folder/rate-}"
report finetuning "$folder/tuned"
"$albert" bench all --rounds 2 --seconds 0.05 --report "$folder/bench.html" --quiet >/dev/null
"$folder/python/bin/python" tests/browser/check.py --pictures "$target/browser" "$folder"/*.html
