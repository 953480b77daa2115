"""Our EAGLE-2 against the official code, on the same weights and prompts: the ratio of tokens/s.

    python -m benchmarks.official_eagle --checkout EAGLE [--python PYTHON] [--site FOLDER]
        [--model vicuna-13b] [--device cuda] [--dtype bfloat16] [--limit N] [--seconds S]
        [--output FOLDER]

EAGLE is a checkout of https://github.com/SafeAILab/EAGLE, which stays as it is and runs in a
process of its own (`worker.py`), under an interpreter that has what it needs. At commit cb7e084
that is transformers 4.53: 4.52 lacks `masking_utils`, and 4.54 and later lack `LossKwargs`. With
that name supplied from outside, 4.54 and 4.55 give the same tokens; 5 does not, for it leaves the
official model's rotary tables without values. So `--python` names an interpreter that has 4.53, or
`--site` a folder of packages that come before those of the interpreter. On one that has specbench,
three wheels of 14 MB are enough; tried with Python 3.11 and torch 2.13, and with 3.12 and 2.11:

    pip install --no-deps --target FOLDER transformers==4.53.3 tokenizers==0.21.4 \
        huggingface_hub==0.36.2

The weights are the model's stand-in, written once to `--work` as target and EAGLE head, which both
sides load: 26 GB of disk for vicuna-13b, and twice that of the GPU's memory. All four contestants,
each side's vanilla and EAGLE-2, take turns on every prompt, so that clocks and heat hit them alike.
Each has its own stop rule: the official code runs past the budget by up to a step, and the tokens
that it emits there count for it. Tokens behind EOS count for nobody. Times are from the prompt to
the last token, prefill included, with the device at rest before and after.
"""
