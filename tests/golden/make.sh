#!/bin/sh
# Regenerates dense/, big/ and ollama/ (or only those named). README.md says how to get LLAMA_CPP and LLAMA_QUANTIZE.
set -e
cd "$(dirname "$0")"
: "${LLAMA_CPP:?llama.cpp source folder}" "${LLAMA_QUANTIZE:?path of the llama-quantize binary}"
export LLAMA_CPP LLAMA_QUANTIZE PYTHONHASHSEED=0 # PEFT writes a set into adapter_config.json
exec "${PYTHON:-python3}" make.py "$@"
