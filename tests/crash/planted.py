"""Planted defects: one changed line each, and the part of the harness that must see it.

`python -m tests.crash.planted NAME` runs that part against the changed program; exit code 0 and one line on standard
output if it was seen, 1 if not. The line is changed while the module is imported; no file is touched.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.crash.binlog_defects import BINLOG_DEFECTS
from tests.crash.call_defects import CALL_DEFECTS, CALL_KERNEL_DEFECTS
from tests.crash.defects import DEFECTS, KERNEL_DEFECTS, Defect
from tests.crash.disk_defects import DISK_DEFECTS, DISK_KERNEL_DEFECTS
from tests.crash.log_defects import LOG_DEFECTS
from tests.crash.replication_defects import PART as SIMULATION
from tests.crash.replication_defects import REPLICATION_DEFECTS
from tests.crash.schedule_defects import PART as SCHEDULE
from tests.crash.schedule_defects import SCHEDULE_DEFECTS
from tests.crash.view_defects import PART as VIEWS
from tests.crash.view_defects import VIEW_DEFECTS
from tests.planting import plant, without_the_face

with without_the_face():
    from tidemark.engine.base.errors import Error  # nothing else: modules loaded before cannot be changed

COMPILED = ("_kernels", "_layout")
MISSED = 1
SIMULATED_SEEDS = 60
STRESS_SEEDS = 4


def part(name: str) -> Callable[[], object]:
    """A part of the harness, small; an anomaly loop by the name of its anomaly."""
    if name.startswith("binlog-"):
        return functools.partial(binlog, name)
    if name.startswith("site-"):
        return functools.partial(sites, name)
    if name.startswith(SIMULATION):
        return lambda: simulate(name.split()[1:])
    if name.startswith(SCHEDULE):
        return lambda: schedule(name.split()[1:])
    if name.startswith(VIEWS):
        return lambda: simulate_views(int(name.split()[1]))
    if name in CALL_PARTS:
        return CALL_PARTS[name]
    if name in LOG_PARTS:
        return LOG_PARTS[name]

    from hypothesis import HealthCheck, Phase

    from tests.crash import test_disk_tables
    from tests.crash.programs import (
        disk_history,
        history,
        index_history,
        partition_history,
        spool_history,
        stress,
        stress_verify,
    )
    from tests.crash.test_stateful import run
    from tests.unique import test_life
    from tidemark.recovery.crash_harness.anomaly_loop import anomaly_loop
    from tidemark.recovery.crash_harness.crash_states import crash_states, record
    from tidemark.recovery.crash_harness.power_loop import power_loop
    from tidemark.recovery.crash_harness.program import whole_state

    if name == "states":
        return lambda: [crash_states(history.work, whole_state, seed) for seed in (1, 2)]
    if name == "growth-states":
        return growth_states
    if name == "epoch":
        return lambda: crash_states(history.epoch_work, whole_state, 1)
    if name == "laps":
        return lambda: record(history.long_work, 1)
    if name == "damage":
        return damage
    if name == "disk-order":
        return lambda: record(disk_history.work, 1)
    if name == "disk-restarts":
        return test_disk_tables.test_fifty_restarts_interrupted_in_replay_do_not_fill_the_undo_log
    if name == "disk-grown":
        return test_disk_tables.test_free_pages_of_a_file_that_grew_as_the_power_failed_are_never_read
    if name == "disk-left":
        return test_disk_tables.test_what_a_lost_run_left_on_free_pages_does_not_come_back
    if name == "disk-beside":
        return test_disk_tables.test_data_file_that_grows_during_a_batch_of_pages_does_not_count_them_as_synced
    if name == "disk-undo-full":
        return test_disk_tables.test_store_with_a_full_undo_log_takes_a_local_checkpoint_after_a_restart
    if name == "unique":
        return unique_entries
    if name == "unique-build":
        return test_life.test_transactions_from_before_the_build_leave_no_entry
    if name == "disk-states":
        return lambda: [crash_states(disk_history.work, whole_state, seed, 2) for seed in (1, 2, 3)]
    if name == "disk-epoch":
        return lambda: [crash_states(disk_history.epoch_work, whole_state, seed, 2) for seed in (1, 2, 3)]
    if name == "spool-order":
        return lambda: record(spool_history.work, 1)
    if name == "spool-states":
        return lambda: [crash_states(spool_history.tiny_work, whole_state, seed, 1) for seed in (1, 2)]
    if name == "index-states":
        return lambda: crash_states(index_history.work, index_history.verify, 1, 1)
    if name == "partition-states":
        return lambda: crash_states(partition_history.work, partition_history.verify, 7, 1)
    if name == "stress":
        # Threads decide which states one run meets: a defect that one run misses is tried in others.
        return lambda: [power_loop(stress.work, stress_verify.verify, 12, seed) for seed in range(1, STRESS_SEEDS + 1)]
    if name == "life":
        return stress_lives
    if name == "stateful":
        slow = [HealthCheck.too_slow]  # it compiles its kernels first
        return lambda: run(300, 40, phases=[Phase.generate], derandomize=True, suppress_health_check=slow)
    return lambda: anomaly_loop(history.short_work, whole_state, name, 5)


def growth_states() -> None:
    """A log that grows, and a damaged copy of the sysfile after that."""
    from tests.crash.programs import growth_history
    from tests.log import test_growing
    from tidemark.recovery.crash_harness.crash_states import crash_states
    from tidemark.recovery.crash_harness.program import whole_state

    with growth_history.small_files():
        crash_states(growth_history.work, whole_state, 7, 3)
        for name in ("sysfile.0", "sysfile.1"):
            test_growing.test_either_copy_of_the_sysfile_has_the_files_of_the_log(name)


def unique_entries() -> None:
    """Entries of rows that change and go."""
    from tests.unique import test_history, test_life

    test_life.test_one_row_that_flips_between_two_keys_a_thousand_times_keeps_both_until_it_ends()
    test_history.test_random_transactions_leave_rows_and_entries_as_the_model("memory", 1)


def binlog(name: str) -> None:
    """The tests of the binlog of an open store that a defect must fail."""
    from tests.log import test_follower_batches
    from tests.replication import (
        test_attached,
        test_attached_back,
        test_attached_crash,
        test_binlog_bytes,
        test_channel_moves,
        test_gtids,
        test_second_loss,
    )
    from tests.replication.test_failover import Net
    from tests.replication.two_sites import EPOCH_FUNCTIONS, Pair

    if name == "binlog-openings":
        test_attached.test_binlog_applied_strictly_makes_the_tables_of_the_store_over_many_openings()
        test_attached_crash.test_interrupted_openings_lose_and_double_nothing(test_attached_crash.SEED)
    elif name == "binlog-types":
        test_attached.test_binlog_says_what_transactions_did_by_every_type(7, 11)
    elif name == "binlog-batches":
        test_follower_batches.test_kinds_of_small_transactions_are_gathered_and_each_key_keeps_its_order("epoch", False)
    elif name == "binlog-power":
        test_attached_crash.test_power_loss_at_every_write_leaves_a_binlog_that_is_what_the_store_did(1)
    elif name == "binlog-power-lazy":
        test_attached_crash.test_power_loss_at_every_write_leaves_a_binlog_that_is_what_the_store_did(0)
    elif name == "binlog-back":
        test_attached_back.test_old_copy_with_a_newer_binlog_begins_anew_after_an_incident(0, 0, True)
    elif name == "binlog-gap":
        test_attached.test_store_opened_without_its_binlog_has_a_gap_that_an_incident_reports()
    elif name == "binlog-shown-relay":
        test_second_loss.test_relay_log_whose_sync_failed_is_written_again_before_more_is_received()
    elif name == "binlog-shown-index":
        for nth in (1, 2, 3):
            test_second_loss.test_first_index_of_a_binlog_is_written_again_before_it_has_its_name(nth)
        for opened in (test_second_loss.relay_index, test_second_loss.binlog_index):
            test_second_loss.test_files_go_only_when_the_index_on_the_disk_does_not_name_them(
                opened, test_second_loss.purged, 2
            )
    elif name == "binlog-shown-mark":
        test_second_loss.test_mark_of_a_store_without_its_binlog_is_durable_before_it_commits()
    elif name == "binlog-moves":
        test_channel_moves.test_another_source_has_not_confirmed_what_the_old_one_has(Pair, EPOCH_FUNCTIONS[0])
        test_channel_moves.test_server_at_an_address_is_known_when_it_is_met(Pair)
        test_channel_moves.test_source_of_a_fail_over_has_not_confirmed_what_the_one_before_has(Net())
    elif name == "binlog-numbers-full":
        test_gtids.test_rolled_back_transaction_gives_its_number_back()
    elif name == "binlog-numbers-off":
        test_gtids.test_option_counts_from_the_next_file_and_a_time_without_it_ends_the_history()
    elif name == "binlog-numbers-back":
        test_gtids.test_store_that_went_back_begins_another_history()
    elif name == "binlog-full":
        test_attached.test_epochs_wait_for_a_full_disk_and_no_local_checkpoint_passes_them()
    else:
        test_binlog_bytes.test_f67_file_cut_between_two_transactions_is_not_read_over()


def sites(name: str) -> None:
    """Two sites whose tables have a function that compares epochs."""
    from tests.replication import test_channel_reset, test_unique_clashes, test_updates_of_nothing
    from tests.replication.two_sites import EPOCH_FUNCTIONS, Pair

    function = EPOCH_FUNCTIONS[0]
    if name == "site-reset":
        for which in ("primary", "secondary"):
            test_channel_reset.test_reset_lets_no_change_through_a_second_time(Pair, function, which)
    elif name == "site-clash":
        test_unique_clashes.test_one_unique_value_inserted_at_both_sites_is_the_primarys_and_is_reported(
            Pair, function, 7
        )
        test_unique_clashes.test_row_that_conflicted_comes_back_as_the_primary_has_it(Pair, function)
        test_unique_clashes.test_row_that_the_primary_has_taken_meanwhile_is_lost_at_both_sites_alike(Pair, function)
    else:
        test_updates_of_nothing.test_change_of_the_other_site_after_an_update_of_nothing_is_taken(Pair, function, 7)


def simulate(functions: Sequence[str]) -> None:
    """Seeds of the simulation, until one is broken."""
    from tests.simulation.sites.world import run_seed

    for seed in range(1, SIMULATED_SEEDS + 1):
        run_seed(seed, functions)


def simulate_views(seeds: int) -> None:
    """Seeds of the simulation of node groups, until one is broken."""
    from tests.simulation.nodes.world import run_seed

    for seed in range(1, seeds + 1):
        run_seed(seed)


def schedule(arguments: Sequence[str]) -> None:
    """Lives whose threads take turns, until one is a finding; their output is not printed."""
    os.environ["TIDEMARK_KERNEL_DOOR"] = "1"  # no module of the program is loaded yet
    reported = io.StringIO()
    with contextlib.redirect_stderr(reported):
        from tests.simulation.threads.lives import NO_WORD, main

        is_found = main([*arguments, "--first"]) != 0
    if NO_WORD in reported.getvalue():
        raise RuntimeError(f"a life could not be lived, whatever was planted: {reported.getvalue()}")
    if is_found:
        raise AssertionError(next(line for line in reported.getvalue().split("\n")[1:] if line))


def stress_lives() -> None:
    """Run the stress program to its end, without a crash, a few times: it verifies itself while it runs
    and at the end.
    """
    from tests.crash.programs import stress
    from tidemark.database import Database
    from tidemark.engine.base.clock import SystemClock
    from tidemark.engine.base.options import Options
    from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
    from tidemark.recovery.crash_harness.program import Ledger

    for seed in range(3 * STRESS_SEEDS):

        def open_store(**options: Any) -> Database:
            return Database(MemoryFiles(), Options.from_keywords({**options, "background": False}), SystemClock())

        stress.work(open_store, seed, Ledger(), 300)


def batch_states() -> None:
    """Batches of many groups: killed, with failed syncs, lost; then the commits acknowledged by a second session."""
    from tests.crash.programs import batch_history
    from tidemark.recovery.crash_harness.crash_states import crash_states
    from tidemark.recovery.crash_harness.program import whole_state

    for seed in (1, 2):
        crash_states(batch_history.short_work, whole_state, seed, 1)


def first_checkpoint() -> None:
    """A store whose first local checkpoint was abandoned."""
    from tests.crash import test_crash_states as tests

    tests.test_store_whose_first_local_checkpoint_was_abandoned_opens_after_any_loss()


def second_loss() -> None:
    """Data that a second process sees in the page cache and the disk lacks."""
    from tests.log import test_second_loss as tests

    tests.test_batch_in_two_files_killed_before_its_sync_is_firmed_up_whole(3)
    tests.test_batch_whose_sync_failed_is_firmed_up_whole()
    for is_cut in (False, True):
        tests.test_power_lost_in_an_opening_leaves_no_floor_that_the_log_does_not_reach(is_cut)


def batches() -> None:
    """The groups of a batch that a crash leaves."""
    from tests.log import test_batches as tests

    tests.test_whatever_a_crash_leaves_of_a_batch_its_beginning_is_read_and_the_rest_never_comes_back()


def floor() -> None:
    """Flipped bits in data that was reported durable."""
    from tests.store import test_durable_floor as tests

    for end in ("sync", "close", "checkpoint", "advance_gci"):
        tests.test_bit_flipped_in_the_last_group_is_damage_once_it_was_reported_durable(end, 1)
    tests.test_floor_never_goes_back()


def tail() -> None:
    """The holders of the log, and ids of transactions."""
    from tests.log import test_tail as tests

    tests.test_log_is_cut_to_the_lowest_need_and_status_names_it()
    tests.test_store_that_was_opened_too_often_says_so_before_ids_overflow()


def directory() -> None:
    """Files of others in the directory of a new store, or in its folders."""
    from tests.recovery import test_directory as tests

    tests.test_the_directory_is_looked_at_again_under_the_lock()
    tests.test_forget_removes_files_of_a_store_only()


def double_write() -> None:
    """Pages that are whole in the page cache and torn on the disk."""
    from tests.disk import test_double_write as tests

    for is_failed in (False, True):
        tests.test_pages_of_the_last_batch_are_durable_before_their_copies_go(is_failed)


def archive() -> None:
    """A segment that is in the page cache and not on the disk."""
    from tests.backup import test_archiver as tests

    for shown in ("failed sync", "growth"):
        tests.test_segment_that_only_the_page_cache_has_is_synced(shown)


def follower_drops() -> None:
    """Changes the log reports for rows whose partition was dropped before they were committed."""
    from tests.log import test_follower_drops as drops

    drops.test_rows_of_a_dropped_partition_that_are_committed_after_the_drop_are_not_reported("1 MiB")


def shown_names() -> None:
    """Folders and files whose names are in the page cache and not on the disk."""
    from tests.files import test_durable_files as tests

    tests.test_folder_that_is_there_already_is_durable_all_the_same()
    tests.test_copies_of_a_view_keep_their_names()
    tests.test_end_of_a_restore_is_durable_before_the_store_commits()


def shown_backups() -> None:
    """Files of backups that are in the page cache and not on the disk."""
    from tests.backup import test_incremental, test_retention

    test_retention.test_backup_that_is_only_shown_does_not_stand_in_for_those_that_go()
    for fault in ("failed sync", "killed"):
        for pattern in ("*-test.b/1/*.parquet", "1/2-*.level"):
            test_incremental.test_file_of_an_interrupted_backup_is_synced_before_it_is_a_level(fault, pattern)


def shown_load() -> None:
    """A load that is published in the cache alone."""
    from tests.load import test_crash as tests

    tests.test_load_that_is_published_is_durably_so_for_every_publisher()


def synced_writes() -> None:
    """A write and its sync in one call: every step may fall short or fail."""
    import errno

    from tests.files import test_synced_writes as tests

    with tempfile.TemporaryDirectory() as folder:
        tests.test_bytes_reach_the_real_disk(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        tests.test_errors_of_real_calls_are_those_of_their_step(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        tests.test_signal_around_a_failed_sync_does_not_lose_it(Path(folder))
    for short in (0, 7, 4_095):
        tests.test_short_write_is_completed_and_synced(short)
    for number in (errno.EIO, errno.ENOSPC):
        tests.test_failed_write_ends_as_that_of_two_calls(number)
        tests.test_failed_sync_ends_as_that_of_two_calls_and_is_never_repeated(number)


def sealing() -> None:
    """The header of a group."""
    from tests.log import test_sealing as tests

    for used in (16, 700, 20_000):
        tests.check_sealed_group(bytes(range(16)), 3, used, (5, 4_096, 2, 9, 77), (1_000, 2_000), 4, False)


def gates() -> None:
    """Threads that wait for one another's work."""
    from tests.log import test_leaders as tests

    tests.module.FOLLOWER_POLL_SECONDS = 3_600  # a follower that is not woken waits for ever
    tests.PATIENCE_SECONDS = 5
    tests.test_work_that_goes_further_wakes_every_group_it_has_passed()
    tests.test_failure_is_raised_by_every_follower_of_every_group()


LOG_PARTS: dict[str, Callable[[], object]] = {
    "synced-writes": synced_writes,
    "sealing": sealing,
    "gates": gates,
    "batch-states": batch_states,
    "first-checkpoint": first_checkpoint,
    "second-loss": second_loss,
    "batches": batches,
    "floor": floor,
    "tail": tail,
    "double-write": double_write,
    "directory": directory,
    "archive": archive,
    "follower-drops": follower_drops,
    "shown-names": shown_names,
    "shown-backups": shown_backups,
    "shown-load": shown_load,
}


def commit_stopped() -> None:
    """Commits that meet a broken invariant."""
    from tests.store import test_commit_stopped as tests

    for kind in ("small", "disk", "large", "spooled"):
        with pytest.MonkeyPatch.context() as patch:
            tests.test_a_commit_that_met_a_broken_invariant_is_not_written_or_its_outcome_is_unknown(kind, patch)


def durable_changes() -> None:
    """Changes of one row that wait for the disk."""
    from tests.point import test_durable_changes as tests

    tests.test_each_change_that_has_returned_is_on_the_disk()
    tests.test_what_refused_a_row_is_on_the_disk_once_the_call_has_returned("update")
    for fault in tests.FAULTS:
        tests.test_change_whose_write_or_sync_fails_is_not_acknowledged(*fault, "first")
    tests.test_change_that_ctrl_c_interrupts_at_the_disk_names_its_transaction()
    tests.test_memory_error_at_any_point_changes_nothing_or_fails_the_store(True)


def last_id() -> None:
    """The last transaction id of an opening."""
    from tests.log import test_tail as tests

    tests.test_last_id_of_an_opening_is_followed_by_none("epoch")


def full_partition() -> None:
    """A partition dropped in a full memory."""
    from tests.store import test_full_stores as tests

    tests.test_drops_make_room_in_full_memory("drop_partition")


def full_tablespace() -> None:
    """A table dropped for one that finds no room in its tablespace."""
    from tests.store import test_full_files as tests

    tests.test_room_of_dropped_tables_is_waited_for()


def pool() -> None:
    """Pages, blocks and cells against a model."""
    from tests.engine import test_pool as tests

    tests.test_any_units_taken_and_freed_have_one_owner_and_blocks_become_pages_again(1)


def left_user() -> None:
    """A transaction that ends while a partition is dropped."""
    from tests.engine import test_withdrawn as tests

    with (
        tempfile.TemporaryDirectory() as folder,
        tests.store_at(Path(folder) / "store") as db,
        pytest.MonkeyPatch.context() as patch,
    ):
        tests.test_user_that_leaves_while_a_partition_is_dropped_is_not_waited_for(db, patch)


def withdrawn() -> None:
    """Structures dropped between two calls of kernels."""
    from tests.engine import test_withdrawn as tests

    seen = (
        lambda db, patch: tests.test_scan_of_a_partition_whose_memory_is_another_tables_gives_none_of_its_rows(
            db, patch, "memory"
        ),
        tests.test_scan_by_an_index_that_no_commit_maintains_any_more_ends,
        lambda db, patch: tests.test_withdrawn_handle_is_refused_for_good(db),
    )
    for test in seen:
        with (
            tempfile.TemporaryDirectory() as folder,
            tests.store_at(Path(folder) / "store") as db,
            pytest.MonkeyPatch.context() as patch,
        ):
            test(db, patch)


def values_short() -> None:
    """Decimals of conditions."""
    from tests.rows import test_bounded_values as tests

    tests.test_numbers_made_short_compare_as_they_did(1)


def values_of_rows() -> None:
    """Decimals of rows, whose time is bounded by the system."""
    from tests.rows import test_bounded_values as tests

    tests.run("rows")


CALL_PARTS: dict[str, Callable[[], object]] = {
    "commit-stopped": commit_stopped,
    "durable-changes": durable_changes,
    "last-id": last_id,
    "full-partition": full_partition,
    "full-tablespace": full_tablespace,
    "pool": pool,
    "left-user": left_user,
    "withdrawn": withdrawn,
    "values-short": values_short,
    "values-of-rows": values_of_rows,
}


def damage() -> None:
    """Files with right checksums and wrong content, and what a restart without both local checkpoints still needs."""
    from tests.recovery import test_local_checkpoint_content as content
    from tests.recovery.support import make_history

    content.test_log_before_both_checkpoints_is_kept_once_a_restart_has_needed_it()
    content.test_entries_missing_from_an_intact_file_of_the_newest_are_counted(make_history(), "{newest}-copies.data")


# Errors that a defect makes the harness or the store raise; a badly changed line raises others.
SEEN = (AssertionError, Error, ValueError, LookupError, OverflowError, BaseExceptionGroup, pytest.fail.Exception)


def changed(defect: Defect, source: str) -> str:
    """Its module with the line changed."""
    if source.count(defect.old) != 1:
        raise SystemExit(f"{defect.name}: its line occurs {source.count(defect.old)} times")
    return source.replace(defect.old, defect.new)


def main(name: str) -> int:
    """Plant it, look."""
    planted = (
        *(*DEFECTS, *DISK_DEFECTS, *LOG_DEFECTS, *BINLOG_DEFECTS, *CALL_DEFECTS),
        *(
            *KERNEL_DEFECTS,
            *CALL_KERNEL_DEFECTS,
            *DISK_KERNEL_DEFECTS,
            *REPLICATION_DEFECTS,
            *SCHEDULE_DEFECTS,
            *VIEW_DEFECTS,
        ),
    )
    defect = next(each for each in planted if each.name == name)
    plant(defect.module, functools.partial(changed, defect))
    with tempfile.TemporaryDirectory() as folder:
        if defect.module.endswith(COMPILED):
            # The cache is keyed on the sources, which do not show the defect: other processes would get its code.
            os.environ["TIDEMARK_CACHE"] = folder
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                part(defect.part)()
        except SEEN as error:
            print(f"{name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
            return 0
    return MISSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
