"""Crash harness: runs a program under crash states, failing calls, kills and power losses.

`program` defines a program under test. The parts are `crash_states` (with `places` and `pieces`), `anomaly_loop`,
`kill_loop` (with `forks`) and `power_loop`. `disks` has the simulated disks.
"""
