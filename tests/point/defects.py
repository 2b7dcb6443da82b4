"""Defects planted in changes by kernels: one changed line each, which `test_changes.py` must see."""

from __future__ import annotations

from tests.crash.defects import Defect

_IMAGES = "tidemark.engine.point.images_kernels"
_CHANGE = "tidemark.engine.point.change_kernels"
_PLAN = "tidemark.engine.point.plan"
_CHANGED = "tidemark.engine.point.changed_images_kernels"
_CALLS = "tidemark.engine.point.changes"


def _defect(name: str, module: str, old: str, new: str) -> Defect:
    return Defect(name, module, old, new, "both-paths")


POINT_DEFECTS: tuple[Defect, ...] = (
    # --- values ------------------------------------------------------------------------------------
    _defect("int-above-its-column", _IMAGES, "least <= word and word <= greatest", "least <= word"),
    _defect("int-below-its-column", _IMAGES, "least <= word and word <= greatest", "word <= greatest"),
    _defect("bool-takes-anything", _IMAGES, "        return is_bool(value)\n", "        return 1\n"),
    _defect("null-in-any-column", _IMAGES, "return 1 if plan[column + U.V_NULL] != 0 else 0", "return 1"),
    _defect(
        "text-ends-with-nul",
        _IMAGES,
        "return 0 if is_padded and size > 0 and text_byte(value, size - 1) == 0 else 1",
        "return 1",
    ),
    _defect(
        "bytes-of-any-length",
        _IMAGES,
        "return 1 if is_bytes(value) and bytes_size(value) <= plan[column + U.V_READ + U.KC_LEAST] else 0",
        "return 1 if is_bytes(value) and bytes_size(value) < 40 else 0",
    ),
    _defect("null-stays-null", _IMAGES, "load_8(words, bits) & ~(null & LOW_8)", "load_8(words, bits)"),
    _defect(
        "bytes-under-a-null",
        _IMAGES,
        "            store_zeros(words, byte, width)\n            return\n",
        "            return\n",
    ),
    _defect("padding-is-kept", _IMAGES, "        store_zeros(words, byte + size, width - size)\n", "        pass\n"),
    # --- rows --------------------------------------------------------------------------------------
    _defect("null-of-the-var-part", _IMAGES, "end | R.VAR_NULL_BIT", "end"),
    _defect("tail-of-the-var-part", _IMAGES, "    store_zeros(image, (start << 3) + end, -end & 7)\n", ""),
    _defect("image-of-the-row-before", _IMAGES, "    for i in range(fixed):\n        image[i] = 0\n", ""),
    _defect("key-in-order-of-columns", _IMAGES, "values[plan[plan[U.U_KEY_COLUMNS] + i]]", "values[i]"),
    _defect("var-columns-in-order", _IMAGES, "number = plan[plan[U.U_VAR_LIST] + i]", "number = i"),
    _defect(
        "row-of-a-key-is-another",
        _IMAGES,
        "        count += more\n    return count\n",
        "        count += 1\n    return count\n",
    ),
    # --- transactions ------------------------------------------------------------------------------
    _defect(
        "all-indexes-are-known", _CHANGE, "return plan[U.U_GENERATION] == mem[A.S_INDEX_GENERATION]", "return True"
    ),
    _defect(
        "what-was-begun-stays",
        _CHANGE,
        "return LEFT if abort_at_once(mem, txn, buf) == A.OK else BROKEN",
        "return LEFT",
    ),
    _defect("change-is-not-seen", _CHANGE, "    shown[0] = U.EPOCH_LAST\n", ""),
    _defect(
        "insert-replaces", _CHANGE, "0, 1, mode | plan[U.U_STAMP], None)", "0, 1, A.MODE_WRITE | plan[U.U_STAMP], None)"
    ),
    _defect(
        "lock-is-not-taken",
        _CHANGE,
        "touch(mem, plan, txn, buf, key, keys, A.MODE_LOCK)",
        "touch(mem, plan, txn, buf, key, keys, A.MODE_FIND)",
    ),
    # --- replaced images ---------------------------------------------------------------------------
    _defect("value-of-another-column", _CHANGED, "old_start + begin, image", "old_start, image"),
    _defect("null-becomes-empty", _CHANGED, "end | null)", "end)"),
    _defect("tail-of-the-new-var-part", _CHANGED, "    store_zeros(image, start + end, -end & 7)\n", ""),
    _defect("key-of-the-var-part-is-lost", _CHANGED, "image, at + 1, ends - 1)", "image, at + 1, 0)"),
    _defect(
        "own-changes-are-lost",
        _CHANGED,
        "mem, plan, txn, buf, fragment, row)\n    if",
        "mem, plan, 0, mem, fragment, row)\n    if",
    ),
    _defect("older-rows-stay-short", _CHANGED, "if columns != plan[U.U_VAR_COLUMNS]:", "if columns < 0:"),
    # --- rows by a unique index --------------------------------------------------------------------
    _defect("key-in-the-making-is-none", _CHANGE, "octets, keys, txn, buf, True)", "octets, keys, txn, buf, False)"),
    _defect("own-key-is-the-committed-one", _CHANGE, "octets, keys, txn, buf, True)", "octets, keys, 0, mem, True)"),
    _defect("row-of-another-place", _CHANGE, "rowid_of_place(mem, place)", "max(0, rowid_of_place(mem, place) - 1)"),
    _defect("any-index-is-known", _PLAN, "self.uniques.get(index)", "next(iter(self.uniques.values()), None)"),
    # --- plans and calls ---------------------------------------------------------------------------
    _defect("unique-column-in-place", _PLAN, "elif column.name in table.unique_columns:", "elif False:"),
    _defect("converted-columns-in-the-var-part", _PLAN, "place.part == VAR and not is_plain(column.type)", "False"),
    _defect(
        "epoch-without-commits",
        _CALLS,
        "                        epochs.has_commits = True\n                        if",
        "                        if",
    ),
)
