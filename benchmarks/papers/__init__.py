"""The published experiments of five papers, each by one command.

python -m benchmarks.papers list
python -m benchmarks.papers deep-2017 --experiment kin8nm --budget quick
python -m benchmarks.papers pages

A run is a JSON file; the pages of docs/papers are made of these files alone.
"""
