"""Interpreted programs: conditions, expressions and conflict functions, verified, and run by kernels over row images.

Read `program_layout` (the instructions), `interpreter` (the assembler), `verifier`, `vm_run_kernels` (the loop).
"""
