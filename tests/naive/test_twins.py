"""Every kernel has a test that compares it with something naive; the table below names it.

Kernels of shared memory have no meaning apart from the structure they work on. They have two naive twins. One is a dict
of rows, which gets the same random calls as the store. The other is the walk of `tests/engine/arena_check.py`, which
derives from the layout alone the owner of each word, the place of each index entry, and the value of every counter.
"""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naive import batches as naive
from tidemark.engine.jit import registry
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.pool_kernels import setup_memory, take_transaction_block
from tidemark.engine.rows.key_hashes_kernels import hash_images, sort_by_fragment
from tidemark.engine.txn import operations_kernels as k

CODEC = "tests.rows.test_kernels"
WALK = "tests.engine.test_arena:test_random_transactions_leave_every_word_owned_once_and_rows_as_the_model"
GROWN = "tests.engine.test_arena:test_index_grown_by_splits_and_shrunk_by_deletes_holds_each_key_once"
DROPPED = "tests.engine.test_arena:test_dropped_tables_and_refused_ones_give_all_their_memory_back"
RESTARTED = "tests.engine.test_arena:test_memory_used_after_a_restart_counts_pages_of_both_loaders"
SCAN = "tests.store.test_local_checkpoint_patterns:test_patterns_around_the_scan_leave_the_state_of_the_epoch"
BITS = (
    "tests.store.test_local_checkpoint_patterns"
    ":test_checkpoint_bits_are_clear_after_a_checkpoint_and_after_an_abandoned_one"
)
SAME = "tests.store.test_metamorphic:test_same_history_gives_same_answers_however_the_table_is_kept"
LOCKS = "tests.engine.test_locks"
SEALED = "tests.log.test_sealing:test_sealed_group_of_any_values_equals_twin"
XXH3 = "tests.engine.test_checksums:test_xxh3_equals_the_reference_around_every_block_boundary"
XXH3_128 = "tests.engine.test_checksums:test_xxh3_128_equals_the_reference_for_every_length"
COPIES = f"{CODEC}:test_scatter_and_gather_any_geometry_equal_twin"
PADDED = f"{CODEC}:test_padded_values_equal_twin"
NULLS = f"{CODEC}:test_nulls_any_bitmap_equal_twin"
KEYS = f"{CODEC}:test_variable_keys_equal_twin_and_come_back"
VAR = f"{CODEC}:test_var_parts_equal_twin_and_come_back"
UNDO = "tests.log.test_undo_kernels:test_reservations_and_records_of_any_sequence_equal_twin"
UNDO_WORDS = "tests.log.test_undo_kernels:test_filter_and_parser_of_any_words_equal_twin"
JOINED = "tests.rows.test_disk_parts:test_parts_joined_and_found_again_equal_twin"
INTACT = "tests.disk.test_cache_trouble:test_page_read_alone_is_intact_or_not_as_the_careful_way_says"
TRACES = "tests.disk.test_replacement:test_random_traces_equal_twin_step_by_step"
HERE = "tests.naive.test_twins"
WITHDRAWN = "tests.engine.test_withdrawn"
FOLLOWED = "tests.log.test_follower:test_random_transactions_are_read_back_as_what_they_did"
TAGGED = "tests.log.test_follower:test_any_value_and_author_belong_to_operations_and_rows"
KEY_WORDS = "tests.index.test_key_words:test_key_words_of_random_columns_agree_and_sort_as_keys"
TREE_RANGES = "tests.index.test_tree:test_ranges_of_every_shape_equal_twin"
TREE_RESERVATIONS = "tests.index.test_reservations:test_reserved_entries_find_room_with_the_pool_empty"
TREE_BUILT = "tests.index.test_build:test_bulk_build_of_every_shape_equals_twin_and_takes_changes"
TREE_ONLINE = "tests.index.test_build:test_online_build_with_commits_between_its_slices_equals_twin"
TREE_DAMAGE = "tests.index.test_build:test_damage_of_a_tree_is_found"
STORED = "tests.index.test_store_history:test_random_transactions_leave_index_scans_equal_to_the_sorted_dict"
STORED_ONLINE = "tests.index.test_store_online"
INDEX_ONLY = "tests.index.test_index_only"
TREE_DROPPED = "tests.index.test_build:test_dropped_index_gives_every_block_back"
MACHINE = "tests.interpreter.test_machine:test_random_programs_over_random_rows_vector_row_by_row_and_naive_agree"
SPACE = "tests.disk.test_space:test_random_history_of_reservation_equals_twin_after_every_step"
SPACE_COPIES = "tests.disk.test_space:test_extents_copied_and_restored_are_the_same_without_reservations"
SPACE_DROPPED = "tests.disk.test_space:test_dropped_tables_extents_wait_and_come_back_wholly_free"
SPACE_FREED = "tests.disk.test_space:test_tablespace_freed_leaves_every_block_as_before"

BACKUP = "tidemark.recovery.backup"
DISK_ROWS = "tidemark.recovery.verification.disk_rows_check"
DIGEST = "tidemark.recovery.verification.digests"
BACKED_UP = "tests.recovery.test_disk_entries:test_entries_appended_and_made_records_equal_twins"
CHAINS = "tests.backup.test_chains:test_each_backup_of_a_random_life_restores_to_its_rows"
DIGESTS = "tests.digest.test_rows:test_digests_of_any_columns_equal_twin_wherever_arrays_begin"
MERGED = "tests.backup.test_restore_kernels:test_levels_and_changes_merged_equal_rows_changed_one_by_one"
COLLECTED = "tests.backup.test_restore_kernels:test_changes_collected_and_gathered_are_those_of_the_group_by_fragment"
EPOCHS_TAKEN = "tests.backup.test_restore_kernels:test_records_of_one_epoch_after_the_other_are_taken_without_it"
SNAPSHOTS = "tests.snapshot.test_history:test_random_transactions_leave_every_snapshot_as_it_was"
VIEWS = "tests.snapshot.test_views:test_scans_show_the_rows_of_the_instant_they_began"
SNAPSHOT_LIFE = (
    "tests.snapshot.test_life:test_snapshots_closed_in_any_order_leave_the_others_right_and_the_ring_empty_at_last"
)
UNIQUE = "tests.unique.test_history:test_random_transactions_leave_rows_and_entries_as_the_model"
UNIQUE_LIFE = "tests.unique.test_life"
UNIQUE_ORDERED = "tests.unique.test_ordered"
UNIQUE_KEYS = "tests.unique.test_keys"
SPOOLED = "tests.spool.test_beside:test_random_transactions_that_spool_answer_as_those_that_do_not"
SCHEMA_CHANGES = "tests.schema.test_history:test_every_step_of_a_random_history_leaves_the_rows_of_the_model"
PARTITIONS = "tests.partition.test_kinds:test_fragment_of_any_key_equals_twin_in_batches_and_alone"

LOADED = "tests.load.test_tasks:test_file_read_by_struct_alone_has_every_row_once_and_in_order"
SURVEYED = "tests.load.test_kernels:test_blocks_of_any_rows_are_listed_and_any_changed_word_is_refused_as_the_twin_says"
ADOPTED = "tests.load.test_adopt:test_adopted_rows_are_there_with_the_epoch_of_the_commit_and_after_every_restart"
LOADS_REFUSED = "tests.load.test_adopt:test_duplicates_are_counted_and_shown_and_nothing_happens"

JOINED_NODE = "tests.node_group.test_node_restart_kernels:test_kernels_of_random_joins_equal_twins_at_every_call"

DELETE_RING = "tests.node_group.test_delete_log:test_full_log_loses_its_oldest_and_says_from_which_epoch_on"
BODIES = "tests.replication.test_row_bodies"
GROUPS = "tests.node_group.test_twin:test_random_groups_leave_the_rows_that_the_twin_has"

TWINS = {
    "rows.csv.scan_csv": "tests.doors.test_csv:test_rows_and_quotes_of_any_bytes_equal_twin",
    "store.group_apply.apply_records": GROUPS,
    "txn.delete_log.note_deletes_of": DELETE_RING,
    "txn.delete_log.setup_delete_log": DELETE_RING,
    **dict.fromkeys(
        [
            *(f"store.node_copy.{name}" for name in ("list_items", "scan_changed")),
            *(f"store.node_join.find_{name}" for name in ("deleted", "conflicting_rows", "stale")),
            *(
                f"store.node_join.{name}"
                for name in ("executed_records", "records_of_slice", "set_uncopied", "stamp_slice")
            ),
        ],
        JOINED_NODE,
    ),
    "memory.touch_ahead.end_touch": "tests.engine.test_touch_ahead:test_thread_ends_with_a_call_that_fails",
    "memory.touch_ahead.touch_ahead": "tests.engine.test_touch_ahead:test_any_plan_is_done_as_by_its_twin",
    **dict.fromkeys(
        [
            "access.versions_reads.find_keys",
            "access.versions_reads.pages_of_places",
            "access.versions_reads.read_places",
            "access.versions_reads.scan_rows",
            "access.versions_index.gather_versions",
            "access.versions_index.index_entries",
        ],
        SNAPSHOTS,
    ),
    **dict.fromkeys([f"txn.versions.{name}" for name in ("close_view", "find_view", "open_snapshot")], SNAPSHOT_LIFE),
    **dict.fromkeys(["txn.versions.open_view", "txn.versions.advance_view"], VIEWS),
    **dict.fromkeys(["rows.ticks.begin_large", "rows.ticks.finish_large"], VIEWS),
    "queries.program_scan.rows_of_fragments": (
        "tests.snapshot.test_views:test_rows_that_a_large_commit_adds_appear_at_once_and_nothing_waits_for_them"
    ),
    "txn.versions.cut_versions": SNAPSHOT_LIFE,
    "txn.versions.setup_versions": "tests.snapshot.test_life:test_snapshot_memory_is_checked_and_named",
    **dict.fromkeys(
        [
            "tidemark.replication.binlog.rows.encode_images",
            *(
                f"tidemark.replication.binlog.bodies.{name}"
                for name in ("find_cells", "read_numbers", "measure_strings", "copy_strings")
            ),
        ],
        f"{BODIES}:test_any_rows_of_any_table_equal_twin_and_come_back",
    ),
    "tidemark.replication.binlog.rows.changed_columns": f"{BODIES}:test_changed_columns_of_any_pairs_equal_twin",
    "tidemark.replication.binlog.rows.find_runs": f"{BODIES}:test_runs_of_rows_alike_equal_twin",
    **dict.fromkeys(
        ["rows.check.check_rows", "rows.check.check_index"], "tests.check.test_live:test_damage_in_memory_is_found"
    ),
    "sealed.checksums.xxh3_lanes": XXH3,
    "sealed.checksums.xxh3_lanes_of_units": (
        "tests.engine.test_checksums:test_xxh3_of_several_ranges_equals_that_of_each"
    ),
    "sealed.checksums.xxh3_lanes_of_page": INTACT,
    "sealed.checksums.xxh3_merge": XXH3,
    **dict.fromkeys([f"sealed.range_digests.{name}" for name in ("fill_lanes_of_bytes", "merge_to_128")], XXH3_128),
    "disk.frames.loaded_intact_page": INTACT,
    **dict.fromkeys(
        ["sealed.keyed_hash.keyed_hash_of", "sealed.keyed_hash.headed_hash_of"],
        "tests.engine.test_keyed_hash:test_hash_of_any_words_equals_twin",
    ),
    "sealed.checksums.xxh64_words": (
        "tests.engine.test_checksums:test_xxh64_equals_the_reference_for_every_short_length"
    ),
    **dict.fromkeys([f"rows.columns.{way}_{width}" for way in ("scatter", "gather") for width in (1, 2, 4, 8)], COPIES),
    **dict.fromkeys(["rows.columns.stamp_nulls", "rows.columns.gather_nulls"], NULLS),
    **dict.fromkeys([f"rows.columns.{name}_padded" for name in ("scatter", "measure", "copy")], PADDED),
    **dict.fromkeys(
        [
            f"rows.var_columns.{name}"
            for name in (
                "add_key_words append_key_bytes append_key_words measure_key_bytes sum_offsets walk_key_bytes"
                " walk_key_words"
            ).split()
        ],
        KEYS,
    ),
    **dict.fromkeys(
        [
            f"rows.var_columns.{name}"
            for name in (
                "add_lengths append_var_column collect_fixed copy_keys copy_var_column lay_out_rows measure_keys"
                " measure_var_column place_rows"
            ).split()
        ],
        VAR,
    ),
    **dict.fromkeys(
        [
            f"{DISK_ROWS}.check_disk_page",
            f"{DISK_ROWS}.rows_not_marked",
        ],
        "tests.check.test_disk_twins:test_pages_and_rows_of_any_state_are_judged_as_by_the_twin",
    ),
    f"{DISK_ROWS}.check_disk_row": "tests.check.test_disk:test_damage_of_disk_columns_is_found_and_placed",
    **dict.fromkeys(["txn.disk_changes.unplan_step"], WALK),
    **dict.fromkeys(["txn.commit.commit_disk", "txn.commit_pages.commit_pages"], WALK),
    **dict.fromkeys(
        [f"access.disk_reads.{name}" for name in ("read_chunks", "read_disk_row")],
        WALK,
    ),
    "txn.spool.has_updates": "tests.spool.test_blocks:test_blocks_with_updates_of_some_tables_are_found_as_by_a_loop",
    "files.synced_write.write_and_sync": "tests.files.test_synced_writes:test_bytes_reach_the_real_disk",
    "log.group.prepare_group": SEALED,
    "log.group.prepare_large_group": SEALED,
    "log.records.list_frames": "tests.log.test_records:test_frames_of_any_records_are_listed_as_by_the_twin",
    "txn.spool.block_end": "tests.spool.test_blocks:test_block_ends_equal_twin_for_any_records",
    "log.load.pack_rows_of_file": LOADED,
    **dict.fromkeys(["log.load.survey_block", "log.load.add_pages"], SURVEYED),
    **dict.fromkeys(["txn.load_rows.place_rows", "txn.load_rows.reserve_pages", "txn.load_rows.close_page"], ADOPTED),
    "txn.load_rows.release_pages": LOADS_REFUSED,
    **dict.fromkeys([f"txn.spool.{name}" for name in ("begin_spool", "commit_spooled", "slice_copy_words")], SPOOLED),
    **dict.fromkeys(["store.disk_replay.replay_disk_group", "store.disk_replay.undo_records"], WALK),
    **dict.fromkeys(["txn.begin.begin_transaction", "txn.begin.reserve_redo"], WALK),
    "txn.begin.next_txid": f"{WITHDRAWN}:test_transaction_ids_of_threads_are_never_past_what_is_said_to_be_given",
    **dict.fromkeys(
        [f"memory.handles.{name}" for name in "descriptor_word descriptor_words set_descriptor_word sum_words".split()],
        f"{WITHDRAWN}:test_words_of_descriptors_equal_those_in_the_arena",
    ),
    "memory.handles.withdraw": f"{WITHDRAWN}:test_only_the_next_handle_gives_memory_back",
    **dict.fromkeys(
        ["table.setup.fragment_handles", "table.setup.withdraw_table"],
        f"{WITHDRAWN}:test_withdrawn_handle_is_refused_for_good",
    ),
    **dict.fromkeys(
        ["index.unique_check.unique_counters", "access.disk_reads.chunk_words_of", "disk.space.tablespace_of"],
        f"{WITHDRAWN}:test_words_of_descriptors_equal_those_in_the_arena",
    ),
    **dict.fromkeys(["txn.begin.tag_transaction", "txn.before_images.note_rows"], TAGGED),
    "txn.before_images.set_capture": FOLLOWED,
    "applied.absent.lock_absent": (
        "tests.store.test_absent_keys:test_keys_reported_absent_among_all_other_work_leave_nothing"
    ),
    "tidemark.replication.ingest.result_rows.find_result_cells": (
        "tests.ingest.test_text_rows:test_rows_of_any_result_equal_twin"
    ),
    **dict.fromkeys(
        [f"log.row_changes.{name}" for name in "copy_records join_rows list_records list_rows place_rows".split()],
        FOLLOWED,
    ),
    "rows.disk_columns.join_parts": JOINED,
    "rows.disk_columns.find_disk_parts": JOINED,
    **dict.fromkeys(
        [
            *(f"txn.commit.{name}" for name in ("commit_begin", "commit_plain", "slice_plain")),
            *(f"txn.abort.{name}" for name in ("abort_step", "abort_to_savepoint_step", "end_run")),
        ],
        WALK,
    ),
    **dict.fromkeys(["txn.operations.put_rows", "txn.operations.touch_rows"], WALK),
    "access.reads.read_rows": WALK,
    f"{BACKUP}.entries.records_of_entries": BACKED_UP,
    "tidemark.recovery.node_restart.disk_entries.append_entries": BACKED_UP,
    **dict.fromkeys(
        [f"{DIGEST}.{name}" for name in "begin_digests fold_words fold_bytes finish_digests".split()], DIGESTS
    ),
    f"{DIGEST}.sum_digests": "tests.digest.test_rows:test_sums_of_ranges_and_what_differs_equal_twin",
    f"{DIGEST}.copy_entries": "tests.digest.test_rows:test_entries_copied_equal_twin",
    f"{DIGEST}.copy_of_fragment": "tests.digest.test_rows:test_entries_of_one_fragment_among_others_equal_twin",
    **dict.fromkeys(
        [f"{BACKUP}.restore.{name}" for name in "list_changes fold_changes merge_rows put_new_rows".split()], MERGED
    ),
    **dict.fromkeys([f"{BACKUP}.restore.{name}_changes" for name in ("collect", "gather")], COLLECTED),
    f"{BACKUP}.restore.take_epoch": EPOCHS_TAKEN,
    **dict.fromkeys(["store.load_entries.load_entries", "store.load_entries.stamp_rows"], CHAINS),
    **dict.fromkeys(["store.replay.replay_group", "rows.lcp.finish_entries", "rows.lcp.finish_load"], WALK),
    "rows.growth.reserve_index": GROWN,
    **dict.fromkeys(["rows.lcp.start_lcp", "rows.lcp.scan_lcp", "rows.lcp.load_copies"], SCAN),
    "rows.lcp.abandon_lcp": BITS,
    "txn.operations.exchange_lock": f"{HERE}:test_exchange_and_mark_of_any_lock_word_equal_twin",
    "txn.operations.mark_waited": f"{HERE}:test_exchange_and_mark_of_any_lock_word_equal_twin",
    "txn.operations.upgrade_lock": f"{LOCKS}:test_upgrade_of_a_lone_shared_lock_is_granted_at_once_and_held",
    "rows.key_hashes.hash_images": f"{HERE}:test_hashes_and_order_of_any_batch_equal_twin",
    "rows.key_hashes.sort_by_fragment": f"{HERE}:test_hashes_and_order_of_any_batch_equal_twin",
    **dict.fromkeys(
        [f"disk.undo.{name}" for name in "append_undo append_undo_mark release_undo reserve_undo".split()], UNDO
    ),
    **dict.fromkeys(["disk.undo.filter_records", "disk.undo.parse_records"], UNDO_WORDS),
    **dict.fromkeys(["disk.matrix.check_space", "disk.matrix.matrix_of"], SPACE),
    **dict.fromkeys(["disk.extents.join_tablespace", "disk.extents.add_extents"], SPACE),
    **dict.fromkeys(["disk.extents.copy_extents", "disk.extents.restore_extent"], SPACE_COPIES),
    **dict.fromkeys(["disk.extents.drop_fragment_extents", "disk.extents.free_dropped_extents"], SPACE_DROPPED),
    **dict.fromkeys(
        [f"disk.extents.{name}" for name in ("setup_tablespace", "add_data_file", "drop_data_file", "drop_tablespace")],
        SPACE_FREED,
    ),
    "disk.matrix.fill_of_extents": "tests.disk.test_space:test_fill_of_extents_lists_used_words_of_each_page",
    "memory.pool.setup_memory": f"{HERE}:test_blocks_of_any_small_pool_equal_twin",
    "memory.pool.take_transaction_block": f"{HERE}:test_blocks_of_any_small_pool_equal_twin",
    "schema.partitions.fragments_of_keys": PARTITIONS,
    "tidemark.replication.calls.packed_values.measure_value": "tests.remote.test_hostile:"
    "test_altered_messages_are_measured_as_a_naive_twin_does_and_refused_or_built",
    "rows.side_pages.change_format": SCHEMA_CHANGES,
    **dict.fromkeys(
        [
            "schema.partitions.put_partition_words",
            "schema.partitions.drop_partition_words",
            "table.setup.change_partitions",
            "table.setup.add_fragment",
            "table.setup.drop_fragment_rest",
            "disk.extents.join_new_fragment",
        ],
        "tests.partition.test_changes:test_partitions_that_come_and_go_leave_every_word_owned_once",
    ),
    **dict.fromkeys(
        ["table.setup.make_table", "table.setup.drop_fragment_pages", "table.setup.drop_table_rest"], DROPPED
    ),
    **dict.fromkeys(
        [
            f"disk.frames.{name}"
            for name in (
                "setup_cache claim_pages loaded_page drop_page unpin_pages forget_page copy_dirty_pages finish_copies"
            ).split()
        ],
        TRACES,
    ),
    "index.key_words.encode_images": KEY_WORDS,
    "index.tree_scans.tree_estimate": TREE_RANGES,
    **dict.fromkeys(["index.tree_reservation.tree_reserve", "index.tree_reservation.tree_release"], TREE_RESERVATIONS),
    **dict.fromkeys(
        [
            f"index.tree_build.{name}"
            for name in "collect_keys order_ties merge_runs tree_load tree_load_finish".split()
        ],
        TREE_BUILT,
    ),
    "index.tree_build.tree_add_rows": TREE_ONLINE,
    **dict.fromkeys([f"index.tree_check.tree_check{what}" for what in ("", "_free", "_rows")], TREE_DAMAGE),
    **dict.fromkeys(["index.tree_setup.make_tree", "index.tree_setup.drop_tree"], TREE_DROPPED),
    **dict.fromkeys(
        [
            "txn.commit.slice_any",
            "access.index_reads.may_have_changed",
            "access.index_reads.own_rows",
            "index.lists.announce_index",
            "index.lists.publish_index",
        ],
        STORED,
    ),
    **dict.fromkeys(
        ["queries.index_only.index_keys", "queries.index_only.images_of_keys"],
        f"{INDEX_ONLY}:test_entries_of_random_columns_are_what_their_rows_are",
    ),
    "rows.values_check.check_values": (
        "tests.rows.test_values_check:test_any_bytes_of_a_row_are_judged_as_the_twin_does"
    ),
    "queries.index_only.count_entries": f"{INDEX_ONLY}:test_counts_of_ranges_are_what_scans_of_them_find",
    "index.lists.withdraw_index": f"{STORED_ONLINE}:test_scan_of_a_dropped_index_ends_and_its_memory_comes_back",
    "index.lists.remove_rows": f"{STORED_ONLINE}:test_partitions_that_come_and_go_take_their_entries_with_them",
    **dict.fromkeys(
        ["index.unique_setup.make_unique", "access.unique_reads.find_by_unique"],
        UNIQUE,
    ),
    "index.unique_keys.encode_lookups": (
        f"{UNIQUE_KEYS}:test_keys_looked_for_have_the_words_of_the_encoder_for_single_ones"
    ),
    **dict.fromkeys(
        [f"index.unique_setup.{name}_unique" for name in "begin enforce walk".split()],
        f"{UNIQUE_LIFE}:test_writers_between_the_slices_of_a_build_are_not_refused_and_the_outcome_is_what_rows_say",
    ),
    "index.unique_setup.drop_unique": f"{UNIQUE_ORDERED}:test_rows_with_one_key_refuse_the_index_and_leave_nothing",
    **dict.fromkeys(
        [f"index.unique_setup.{name}_unique" for name in "collect reserve load".split()],
        UNIQUE,
    ),
    **dict.fromkeys(
        ["index.unique_check.check_unique_rows", "index.unique_check.check_unique_entries"],
        f"{UNIQUE_LIFE}:test_damage_of_a_unique_index_is_found",
    ),
    **dict.fromkeys(["memory.pool.split_pool", "memory.pool.join_pools"], RESTARTED),
    "queries.column_scan.scan_columns": (
        "tests.access.test_column_scans:test_columns_copied_by_kernels_are_those_of_the_entries"
    ),
    "queries.key_columns.read_columns": (
        "tests.access.test_column_scans:test_rows_by_key_copied_by_kernels_are_those_of_the_entries"
    ),
    "queries.filter_scan.scan_filter": "tests.access.test_filters:test_filters_find_and_add_up_what_the_machine_does",
    "queries.program_scan.scan_program": (
        "tests.access.test_conditions:test_scan_in_place_and_over_copies_find_what_the_rows_say_own_changes_included"
    ),
    **dict.fromkeys(
        [f"tidemark.replication.applier.key_sets.{name}" for name in ("add_keys", "find_keys")],
        "tests.applier.test_key_set:test_any_batches_of_any_tables_equal_twin",
    ),
    "tidemark.replication.applier.key_sets.rehash_keys": (
        "tests.applier.test_key_set:test_many_keys_grow_the_set_and_are_found_again"
    ),
    **dict.fromkeys(
        [
            f"tidemark.replication.conflict.dependencies.{name}"
            for name in ("mark_transactions", "read_marks", "track_keys")
        ],
        "tests.replication.test_tracker:test_any_stream_of_writes_and_marks_equals_twin",
    ),
    "tidemark.replication.conflict.dependencies.rehash_dependencies": (
        "tests.replication.test_tracker:test_many_keys_in_many_batches_keep_their_owners_through_growth"
    ),
    "programs.vm_batch.run_batch": MACHINE,
    # Their twin is the general path.
    **dict.fromkeys(
        ["point.get.get_row", "point.get.get_seen"],
        "tests.point.test_get:test_both_paths_answer_alike",
    ),
    "point.select.select_keys": "tests.point.test_select:test_rows_of_several_keys_come_in_the_order_of_a_full_scan",
    "point.select.select_rows": "tests.point.test_select:test_both_paths_find_the_same_rows",
    "point.trees.bound_words": "tests.point.test_trees:test_each_tree_is_bound_as_the_compiler_does_and_no_other_one",
    "point.trees.known_tree": "tests.point.test_trees:test_selects_are_known_by_their_trees",
    **dict.fromkeys(
        [f"point.change.{name}" for name in "change_row change_seen get_locked".split()],
        "tests.point.test_changes:test_both_paths_change_alike",
    ),
    "point.values.rows_of_images": "tests.point.test_get:test_both_paths_answer_alike",
    "programs.vm_groups.grow_groups": (
        "tests.interpreter.test_groups:test_many_groups_grow_the_memory_and_are_all_there"
    ),
}


def kernels() -> list[str]:
    registry.import_all()
    # Tests declare some of their own, around helpers.
    found = [name.rpartition(".") for name in registry.REGISTRY]
    own = [(module, name) for module, _, name in found if registry.is_kernels(module)]
    return sorted(
        f"{module.removesuffix(registry.KERNELS).removeprefix('tidemark.engine.')}.{name}" for module, name in own
    )


def test_every_kernel_names_its_test_and_no_other_is_named() -> None:
    assert sorted(TWINS) == kernels()


@pytest.mark.parametrize("place", sorted(set(TWINS.values())))
def test_test_that_a_kernel_names_exists(place: str) -> None:
    module, _, name = place.partition(":")
    assert inspect.isfunction(getattr(importlib.import_module(module), name, None))


@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(1, 7), st.integers(1, 4), st.integers(-(2**62), 2**62))
def test_hashes_and_order_of_any_batch_equal_twin(
    seed: int, count: int, fragments: int, fixed: int, index_seed: int
) -> None:
    random = np.random.default_rng(seed)
    images = random.integers(-(2**63), 2**63 - 1, count * fixed, dtype=np.int64)
    nothing = np.zeros(0, dtype=np.int64)
    hashes = np.zeros(count, dtype=np.int64)
    header = np.array([fragments, fixed, index_seed, 0, 0, 0, 0, 0], dtype=np.int64)
    words = int(random.integers(1, fixed + 1))
    assert hash_images(header, words, images, nothing, count, hashes) == count
    keys = [images[row * fixed : row * fixed + words].tobytes() for row in range(count)]
    assert hashes.tolist() == [naive.hashed(key, fragments, index_seed) for key in keys]
    order, starts = np.zeros(count, dtype=np.int64), np.zeros(fragments + 1, dtype=np.int64)
    assert sort_by_fragment(hashes, count, fragments, order, starts) == count
    assert order.tolist() == naive.sorted_by_fragment(hashes.tolist())
    assert starts[:fragments].tolist() == naive.starts_of(hashes.tolist(), fragments)


@given(st.integers(0, 2), st.integers(0, 3))
def test_blocks_of_any_small_pool_equal_twin(cells: int, pages: int) -> None:
    """Blocks are taken from the end of the cells, then carved from pages in order, each once, zeroed; then there are
    none.
    """
    first = 2 + cells
    mem = np.full((first + pages + 2) * a.PAGE_WORDS, -1, dtype=np.int64)
    mem[: 2 * a.PAGE_WORDS] = 0  # store header and counts of free blocks, as the arena begins
    twin = naive.Pool(first, first + pages)
    scratch = twin.take()
    assert setup_memory(mem, 2, first, first + pages) == (a.OK if scratch else a.ST_MEMORY)
    if not scratch:
        return
    assert mem[a.S_POOL + a.P_SCRATCH] == scratch << a.PAGE_SHIFT
    expected: list[int] = [*range((first << a.PAGE_SHIFT) - a.BLOCK_WORDS, (2 << a.PAGE_SHIFT) - 1, -a.BLOCK_WORDS)]
    while page := twin.take():
        begin = page << a.PAGE_SHIFT
        expected += [begin, *range(begin + a.PAGE_WORDS - a.BLOCK_WORDS, begin, -a.BLOCK_WORDS)]
    found = []
    while block := int(take_transaction_block(mem)):
        found.append(block)
        assert not mem[block : block + a.BLOCK_WORDS].any()
    assert found == expected
    assert (mem[(first + pages) << a.PAGE_SHIFT :] == -1).all(), "beyond the pool nothing is touched"


LOCK_WORDS = st.sampled_from([0, 1, 5, a.LOCK_OP_MASK, a.LOCK_SHARED]) | st.integers(0, a.LOCK_OP_MASK)


@given(LOCK_WORDS, LOCK_WORDS, LOCK_WORDS, st.booleans(), st.booleans())
def test_exchange_and_mark_of_any_lock_word_equal_twin(
    lock: int, expected: int, wanted: int, is_waited: bool, was_waited: bool
) -> None:
    mem, fragment, row = one_row()
    lock |= a.LOCK_WAITED if is_waited else 0
    expected |= a.LOCK_WAITED if was_waited else 0
    rest = a.LIVE << a.STATE_SHIFT | 7 << a.AUTHOR_SHIFT | a.LCP_BIT
    mem[row] = rest | lock
    done, after = naive.exchanged(lock, expected, wanted)
    assert k.exchange_lock(mem, fragment, 0, expected, wanted) == done
    assert mem[row] == rest | after
    mem[row] = rest | lock
    is_same = lock & ~a.LOCK_WAITED == expected & ~a.LOCK_WAITED
    assert k.mark_waited(mem, fragment, 0, expected) == is_same
    assert mem[row] == rest | (lock | a.LOCK_WAITED if is_same else lock)
    mem[row] = lock  # a slot that is free
    assert k.exchange_lock(mem, fragment, 0, lock, wanted) == 0
    assert k.exchange_lock(mem, fragment, 1 << 16, lock, wanted) == 0, "a page that was never made"
    assert k.mark_waited(mem, fragment, 9, lock) == 0, "a slot that was never used"
    assert mem[row] == lock


def one_row() -> tuple[np.ndarray, int, int]:
    """An arena laid out by hand: one fragment, one page, one row; (memory, its handle, address of the row)."""
    mem = np.zeros(4 * a.PAGE_WORDS, dtype=np.int64)
    fragment, middle, leaf = (a.PAGE_WORDS + number * a.BLOCK_WORDS for number in range(3))
    mem[fragment + a.D_GENERATION] = 1
    mem[fragment + a.F_ROW_WORDS] = 4
    mem[fragment + a.F_PAGES] = 1
    mem[fragment + a.F_MAP] = middle
    mem[middle] = leaf
    mem[leaf] = 2
    mem[2 * a.PAGE_WORDS + a.PG_FRESH] = 1
    handle = 1 << a.HANDLE_BLOCK_BITS | fragment >> a.BLOCK_SHIFT
    return mem, handle, 2 * a.PAGE_WORDS + a.PAGE_HEADER_WORDS
