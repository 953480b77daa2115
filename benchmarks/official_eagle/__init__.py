"""Our EAGLE-2 against the official code, on the same weights and prompts: the ratio of tokens/s.

    python -m benchmarks.official_eagle --checkout EAGLE [--python PYTHON] [--site FOLDER]
        [--model vicuna-13b] [--device cuda] [--dtype bfloat16] [--limit N] [--seconds S]
        [--output FOLDER]

EAGLE is an unmodified checkout of https://github.com/SafeAILab/EAGLE. It runs in its own process
(`worker.py`), under an interpreter with the packages that it needs. At commit cb7e084 these are
transformers 4.53: 4.52 lacks `masking_utils`, and 4.54 and later lack `LossKwargs`. With that name
supplied from outside, 4.54 and 4.55 give the same tokens; 5 does not, because it leaves the
official model's rotary tables without values. So `--python` names an interpreter with 4.53, or
`--site` a folder of packages that precede those of the interpreter. For an interpreter with
specbench, three wheels of 14 MB are enough; tested with Python 3.11 and torch 2.13, and with 3.12
and 2.11:

    pip install --no-deps --target FOLDER transformers==4.53.3 tokenizers==0.21.4 \
        huggingface_hub==0.36.2

The weights are the model's stand-in, written once to `--work` as target and EAGLE head, which both
sides load: 26 GB of disk for vicuna-13b, and twice that of GPU memory. All four entries, each
side's vanilla and EAGLE-2, take turns on every prompt, so clocks and heat affect them equally. Each
side has its own stop rule: the official code exceeds the budget by up to a step, and those tokens
count for it. Tokens after EOS never count. Times are from the prompt to the last token, including
the prefill, with the device synchronised before and after.
"""
