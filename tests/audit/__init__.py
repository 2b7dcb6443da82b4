"""Tools that judge the tests: the cases and the lines they run, mutants of the program, kernels as plain Python."""
