"""UUIDs and JSON documents in kernels: made and read by functions of Python's C API, without a call of Python code.

parts: a tuple that the column's type keeps, as its codec says.
"""

# mypy: ignore-errors

from __future__ import annotations

from llvmlite import ir
from numba import types

from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import (
    _INT,
    _POINTER,
    _WORD,
    OBJECT,
    Held,
    _function,
    _object_at,
    address,
    c_function,
    clear_error,
    drop,
    emitted,
    is_null,
    is_of_class,
    member,
    new_unsigned,
    no_object,
    start_collector,
    stop_collector,
    tuple_item,
)

# What the parts of a UUID are: its class, the names of its slots, what the second one holds, and the bits of a word.
CLASS, NUMBER, SAFETY, UNKNOWN, WORD_BITS = range(5)
# What the parts of JSON are: a function of a text and a place to (document, where it ends), and the place 0.
SCAN, START = range(2)


@c_function("PyObject_GenericGetAttr", OBJECT, OBJECT, OBJECT)
def slot_of(held, name):
    """Return what a slot of an object holds; no object if it holds nothing."""
    try:
        return Held(object.__getattribute__(held.value, name.value))
    except AttributeError:
        return None


def _set_slot(context, builder, signature, values):
    kinds = [_POINTER] * 3
    found = builder.call(_function(builder, "PyObject_GenericSetAttr", _INT, *kinds), values)
    return builder.zext(builder.icmp_signed("==", found, _INT(0)), _WORD)


@emitted(_set_slot, types.int64, OBJECT, OBJECT, OBJECT)
def set_slot(held, name, value):
    """Set a slot of an object; return whether it has the slot."""
    try:
        object.__setattr__(held.value, name.value, value.value)
    except AttributeError:
        return 0
    return 1


def _new_object(context, builder, signature, values):
    make = _function(builder, "PyType_GenericAlloc", _POINTER, _POINTER, _WORD)
    made = builder.call(make, [builder.inttoptr(values[0], _POINTER), _WORD(0)])
    with builder.if_then(builder.icmp_unsigned("!=", made, ir.Constant(_POINTER, None)), likely=True):
        # What it holds refers to nothing, so it is in no cycle.
        builder.call(_function(builder, "PyObject_GC_UnTrack", ir.VoidType(), _POINTER), [made])
    return made


@emitted(_new_object, OBJECT, types.int64)
def new_object(kind):
    """Return an object whose slots hold nothing yet, untracked. kind: address of its class."""
    return Held(object.__new__(_object_at(kind)))


@c_function("PyNumber_Rshift", OBJECT, OBJECT, OBJECT)
def shifted_right(number, bits):
    """Return an int shifted to the right."""
    return Held(number.value >> bits.value)


@c_function("PyNumber_Lshift", OBJECT, OBJECT, OBJECT)
def shifted_left(number, bits):
    """Return an int shifted to the left."""
    return Held(number.value << bits.value)


@c_function("PyNumber_Or", OBJECT, OBJECT, OBJECT)
def united(number, other):
    """Return the bits of both ints."""
    return Held(number.value | other.value)


@c_function("PyLong_AsUnsignedLongLongMask", types.int64, OBJECT)
def lowest_word(number):
    """Return the low 64 bits of an int."""
    word = number.value % (1 << 64)
    return word - (1 << 64) if word >= 1 << 63 else word


def _called(context, builder, signature, values):
    kind = ir.FunctionType(_POINTER, [_POINTER] * 3, var_arg=True)
    name = "PyObject_CallFunctionObjArgs"
    found = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(found, [*values, ir.Constant(_POINTER, None)])


@emitted(_called, OBJECT, OBJECT, OBJECT, OBJECT)
def called(function, first, second):
    """Return what a function in C returns for two arguments; no object if it raises."""
    try:
        return Held(function.value(first.value, second.value))
    except ValueError:
        return None


@helper
def words_of_uuid(parts, value):
    """Return (whether a value is a UUID, the high half of its number, the low one)."""
    if is_of_class(value, address(tuple_item(parts, CLASS))) == 0:
        return 0, 0, 0
    number = slot_of(value, tuple_item(parts, NUMBER))
    if is_null(number):
        clear_error()
        return 0, 0, 0
    rest = shifted_right(number, tuple_item(parts, WORD_BITS))
    if is_null(rest):
        clear_error()
        drop(number)
        return 0, 0, 0
    low = lowest_word(number)
    high = lowest_word(rest)
    drop(rest)
    drop(number)
    return 1, high, low


@helper
def number_of_words(parts, high, low):
    """Return the int of two words, or no object."""
    rest = new_unsigned(high)
    if is_null(rest):
        return rest
    shifted = shifted_left(rest, tuple_item(parts, WORD_BITS))
    drop(rest)
    if is_null(shifted):
        return shifted
    lowest = new_unsigned(low)
    if is_null(lowest):
        drop(shifted)
        return lowest
    number = united(shifted, lowest)
    drop(shifted)
    drop(lowest)
    return number


@helper
def new_uuid(parts, high, low):
    """Return the UUID of two words, or no object."""
    number = number_of_words(parts, high, low)
    if is_null(number):
        return number
    was_on = stop_collector()
    made = new_object(address(tuple_item(parts, CLASS)))
    if was_on:
        start_collector()
    if is_null(made):
        drop(number)
        return made
    is_set = set_slot(made, tuple_item(parts, NUMBER), number)
    drop(number)
    if is_set == 0 or set_slot(made, tuple_item(parts, SAFETY), tuple_item(parts, UNKNOWN)) == 0:
        drop(made)
        return no_object()
    return made


@helper
def document_of_text(parts, text):
    """Return the document of a JSON text, whose reference is given back here; or no object."""
    if is_null(text):
        return text
    was_on = stop_collector()
    found = called(tuple_item(parts, SCAN), text, tuple_item(parts, START))
    if was_on:
        start_collector()
    drop(text)
    if is_null(found):
        return found
    document = member(found, 0)
    drop(found)
    return document
