"""Defects planted in changes by kernels: one changed line each, which `test_changes.py` must see."""

from __future__ import annotations

from tests.crash.defects import Defect

_IMAGES = "tidemark.engine.point.images_kernels"
_KEYS = "tidemark.engine.point.keys_kernels"
_DECIMALS = "tidemark.engine.point.decimals_kernels"
_CHANGE = "tidemark.engine.point.change_kernels"
_JUDGE = "tidemark.engine.point.judge_kernels"
_TREES = "tidemark.engine.point.trees_kernels"
_PLAN = "tidemark.engine.point.plan"
_CHANGED = "tidemark.engine.point.changed_images_kernels"
_CALLS = "tidemark.engine.point.changes"


def _defect(name: str, module: str, old: str, new: str, part: str = "") -> Defect:
    """part: how the types begin whose values it is about; all types without it."""
    return Defect(name, module, old, new, part)


POINT_DEFECTS: tuple[Defect, ...] = (
    # --- values ------------------------------------------------------------------------------------
    _defect("int-above-its-column", _KEYS, " and word <= plan[at + U.KC_GREATEST]", "", "Int"),
    _defect("int-below-its-column", _KEYS, "plan[at + U.KC_LEAST] <= word and ", "", "Int"),
    _defect("large-int-without-sign", _KEYS, "kind == U.KEY_UNSIGNED and overflow > 0", "overflow > 0", "Int64"),
    _defect("bool-takes-anything", _KEYS, "        is_read = is_bool(value)\n", "        is_read = 1\n", "Bool"),
    _defect(
        "single-that-is-too-large", _KEYS, "word & MAGNITUDE_32 == INFINITY_32 and not is_infinite", "False", "Float32"
    ),
    _defect("single-key-below-zero", _KEYS, "word == LOWEST_32 and kind == U.KEY_SINGLE", "False", "Float32"),
    _defect("nan-in-a-key", _KEYS, "if word & MAGNITUDE > INFINITY:", "if False:", "Float64"),
    _defect(
        "float-without-minus-zero", _KEYS, "    if kind == U.VALUE_FLOAT:\n        return 1, word\n", "", "Float64"
    ),
    _defect(
        "member-that-is-none",
        _KEYS,
        "    if is_int(found) == 0:\n        return 0, 0\n",
        "    if is_int(found) == 0:\n        return 1, 0\n",
        "Enum",
    ),
    _defect("year-begins-in-february", _KEYS, "    if month <= 2:\n", "    if month <= 1:\n", "Date"),
    _defect("every-fourth-year-is-a-leap-year", _KEYS, " - year // 100 + day", " + day", "Date"),
    _defect("time-without-its-zone", _KEYS, "        if zoned:\n", "        if False:\n", "Time"),
    _defect("datetime-without-its-zone", _KEYS, "if kind == U.KEY_DATETIME and zoned:", "if False:", "DateTime"),
    _defect("timestamp-of-any-zone", _KEYS, "zone_of(value) != plan[at + U.KC_LEAST]", "False", "Timestamp"),
    _defect(
        "class-derived-from-date", _KEYS, "if is_of_class(value, plan[at + U.KC_CLASS]) == 0:", "if False:", "Date"
    ),
    _defect("decimal-cut", _DECIMALS, "(1 if rest == 0 else 0)", "1", "Decimal"),
    _defect("decimal-of-any-precision", _DECIMALS, " > precision:", " > 38:", "Decimal"),
    _defect("decimal-too-long", _DECIMALS, "if high != 0 or digits >= 2 * WORD_DIGITS:", "if high != 0:", "Decimal"),
    _defect(
        "decimal-without-sign",
        _DECIMALS,
        "    if negative:\n        low, high = negated(low, high)\n    return",
        "    return",
        "Decimal",
    ),
    _defect("int-without-scale", _DECIMALS, "        digits = scale\n", "        digits = 0\n", "Decimal"),
    _defect("decimal-of-three-words", _DECIMALS, "if words > 2:", "if words > 3:", "Decimal"),
    _defect(
        "high-word-of-a-decimal",
        _IMAGES,
        "store_64(words, byte + 8, high)",
        "store_64(words, byte + 8, 0)",
        "Decimal(38",
    ),
    _defect(
        "decimal-made-without-sign",
        _DECIMALS,
        "new_decimal(kind, 1 if word < 0 else 0, -scale",
        "new_decimal(kind, 0, -scale",
        "Decimal(9",
    ),
    _defect(
        "decimal-made-with-its-low-digits",
        _DECIMALS,
        "new_decimal(kind, negative, -scale, digits, low, high)",
        "new_decimal(kind, negative, -scale, digits_of(low), low, 0)",
        "Decimal(38",
    ),
    _defect("scale-of-what-is-made", _PLAN, "kind.members or kind.scale", "kind.members or kind.scale + 1", "Decimal"),
    _defect(
        "scale-of-a-column",
        "tidemark.engine.types.decimals",
        "object_limits=(self.scale, self.precision),",
        "object_limits=(self.scale, self.precision + 1),",
        "Decimal",
    ),
    _defect("null-in-any-column", _IMAGES, "return 1 if plan[column + U.V_NULL] != 0 else 0", "return 1"),
    _defect(
        "text-ends-with-nul",
        _IMAGES,
        "return 0 if is_padded and size > 0 and text_byte(value, size - 1) == 0 else 1",
        "return 1",
        "Char",
    ),
    _defect(
        "bytes-of-any-length",
        _IMAGES,
        "return 1 if is_bytes(value) and bytes_size(value) <= plan[column + U.V_READ + U.KC_LEAST] else 0",
        "return 1 if is_bytes(value) and bytes_size(value) < 40 else 0",
        "VarBinary",
    ),
    _defect("null-stays-null", _IMAGES, "load_8(words, bits) & ~(null & LOW_8)", "load_8(words, bits)"),
    _defect(
        "bytes-under-a-null",
        _IMAGES,
        "            store_zeros(words, byte, width)\n            return\n",
        "            return\n",
    ),
    _defect(
        "padding-is-kept", _IMAGES, "        store_zeros(words, byte + size, width - size)\n", "        pass\n", "Char"
    ),
    # --- rows --------------------------------------------------------------------------------------
    _defect(
        "zeros-of-an-added-column",
        _IMAGES,
        "        while size > 0 and load_8(words, byte + size - 1) == 0:\n            size -= 1\n",
        "        pass\n",
        "Binary",
    ),
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
        "what-was-begun-stays",
        _CHANGE,
        "return LEFT if abort_some(mem, txn, buf, WHOLE) == A.OK else BROKEN",
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
    # --- programs ----------------------------------------------------------------------------------
    _defect("refused-row-is-changed", _CHANGE, "if verdict == P.VERDICT_REFUSED:", "if verdict == P.VERDICT_ERROR:"),
    _defect(
        "refused-row-stays-free",
        _CHANGE,
        "return touch_row(mem, txn, buf, fragment, rowid, A.MODE_LOCK, None), True",
        "return A.OK, True",
    ),
    _defect(
        "computed-values-are-lost", _CHANGE, "            put_outputs(program, work, buf, at)\n", "            pass\n"
    ),
    _defect("refusal-is-a-change", _CHANGE, "return REFUSED if is_refused else DONE", "return DONE"),
    _defect(
        "own-refusal-is-a-change", _CHANGE, "return REFUSED if done == DONE and is_refused else done", "return done"
    ),
    _defect(
        "row-as-committed",
        _JUDGE,
        "        move_words(buf, at, image, 0, fixed)\n",
        "        move_words(mem, row + A.ROW_HEADER_WORDS, image, 0, fixed)\n",
    ),
    _defect("texts-are-cut", _JUDGE, "image, fixed, more)", "image, fixed, more - 1)"),
    _defect("computed-null-is-a-value", _JUDGE, "        if null:\n", "        if False:\n"),
    _defect("computed-value-stays-null", _JUDGE, "load_8(words, bits) & ~mask & LOW_8", "load_8(words, bits)", "Int"),
    _defect(
        "halves-are-swapped",
        _JUDGE,
        "    store_number(words, byte, width, low, high)\n",
        "    store_number(words, byte, width, high, low)\n",
        "Decimal(38",
    ),
    _defect(
        "error-in-a-row-is-no-error",
        _JUDGE,
        "    if run_rows(image, rows, 1, program, work) != P.RUN_OK:\n        return P.VERDICT_ERROR\n",
        "    if run_rows(image, rows, 1, program, work) != P.RUN_OK:\n        return P.VERDICT_OK\n",
    ),
    _defect(
        "narrow-columns-are-wide",
        _IMAGES,
        "        store_16(words, byte, low)\n",
        "        store_32(words, byte, low)\n",
        "Int16",
    ),
    # --- trees of expressions ----------------------------------------------------------------------
    _defect(
        "all-names-are-alike", _TREES, "    if text != 0 and not is_text_at(", "    if text < 0 and not is_text_at("
    ),
    _defect(
        "first-constant-is-all", _TREES, "found[trees[entry + U.C_NUMBER]])\n        place", "found[0])\n        place"
    ),
    _defect("constants-stay", _TREES, "        words[place] = low\n", ""),
    _defect("wide-constants-are-narrow", _TREES, "if kind == U.SIZE_WIDE:", "if False:", "Decimal(38"),
    _defect(
        "unread-constant-is-0",
        _TREES,
        "        if is_read == 0:\n            return 0\n        words[place]",
        "        words[place]",
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
    _defect(
        "key-in-the-making-is-none", _CHANGE, "octets, keys, txn, buf, True)", "octets, keys, txn, buf, False)", "Time"
    ),
    _defect("own-key-is-the-committed-one", _CHANGE, "octets, keys, txn, buf, True)", "octets, keys, 0, mem, True)"),
    _defect("row-of-another-place", _CHANGE, "rowid_of_place(mem, place)", "max(0, rowid_of_place(mem, place) - 1)"),
    _defect("any-index-is-known", _PLAN, "self.uniques.get(index)", "next(iter(self.uniques.values()), None)"),
    # --- plans and calls ---------------------------------------------------------------------------
    _defect("unique-column-in-place", _PLAN, "elif column.name in table.unique_columns:", "elif False:"),
    _defect(
        "epoch-without-commits",
        _CALLS,
        "                    if status == DONE:\n                        epochs.has_commits = True\n",
        "                    if status == DONE:\n                        pass\n",
    ),
)
