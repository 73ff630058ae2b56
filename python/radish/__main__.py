"""python -m radish is the program."""

from radish._program import main

main()
