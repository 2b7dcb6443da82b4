"""Python objects in kernels: intrinsics over Python's C API, for kernels that hold the GIL (ADR 0031).

A kernel declared by `object_kernel` takes and returns objects, `object_` in its signature. Each intrinsic is declared
by its twin in Python: what a kernel calls when it runs as plain Python. There an object is `Held`, so that no number of
a kernel is taken for one.

*References.* Kernels count none. An intrinsic returns a new reference, or a borrowed one where it says so; `set_value`
and `set_row` take over the one they are given. A kernel that ends without an object that it has made calls `drop`.

*The collector* may run in `new_row` and `new_rows`, before Python 3.12, and with it finalizers that change rows. No
other intrinsic runs Python code.
"""

# mypy: ignore-errors

from __future__ import annotations

import ctypes
import functools
import inspect
import sysconfig

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, sigutils
from numba.extending import NativeValue, box, intrinsic, models, register_model, unbox

from tidemark.engine.jit.kernel import HAS_DOOR, REGISTRY, _through_door, kernel

_BYTE = ir.IntType(8)
_POINTER = _BYTE.as_pointer()
_INT = ir.IntType(32)
_WORD = ir.IntType(64)
_DOUBLE = ir.DoubleType()
_WORDS = types.Array(types.int64, 1, "C")
TYPE_OFFSET = 8  # of the address of an object's type

# Whether this Python has what is read here without a function. If not, every call takes the general path.
IS_USABLE = (
    not sysconfig.get_config_var("Py_GIL_DISABLED")
    and ctypes.sizeof(ctypes.c_void_p) == 8
    and all(ctypes.c_void_p.from_address(id(each) + TYPE_OFFSET).value == id(type(each)) for each in (7, "a", (1, 2)))
)


# --- the type of objects ---------------------------------------------------------------------------
class ObjectType(types.Type):
    """A reference to a Python object."""

    def __init__(self):
        super().__init__("object_")


OBJECT = ObjectType()
types.object_ = OBJECT  # numba looks up the names of a signature here


@register_model(ObjectType)
class _ObjectModel(models.PrimitiveModel):
    """A pointer."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, _POINTER)


@box(ObjectType)
def _box_object(kind, value, context):
    return value


@unbox(ObjectType)
def _unbox_object(kind, value, context):
    return NativeValue(value)


class Held:
    """An object in a kernel that runs as plain Python. A row in the making is the list of its class and its values."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


# --- kernels ---------------------------------------------------------------------------------------
class ObjectKernel:
    """A kernel that takes or returns objects, compiled at its first call. `entry`, for frequent callers, is the
    compiled function: it does not check the types of its arguments. With the kernel door they are checked.
    """

    def __init__(self, name, dispatcher, kinds):
        self.__name__ = name
        self._dispatcher = dispatcher
        self._kinds = kinds

    @functools.cached_property
    def entry(self):
        """What to call."""
        compiled = self._dispatcher._compile_for_args()
        return _through_door(self._checked(compiled), self.__name__) if HAS_DOOR else compiled

    def _checked(self, compiled):
        def call(*args):
            for kind, each in zip(self._kinds, args, strict=True):
                if kind != OBJECT and numba.typeof(each) != kind:
                    raise TypeError(f"{self.__name__} takes {kind}, got {each!r:.80}")
            return compiled(*args)

        return call

    def __call__(self, *args):
        return self.entry(*args)


def _holding(function, kinds):
    """Return a kernel that runs as plain Python, to be called with objects."""

    def call(*args):
        given = [Held(each) if kind == OBJECT else each for kind, each in zip(kinds, args, strict=True)]
        found = function(*given)
        return found.value if isinstance(found, Held) else found

    call.entry = call
    return call


def object_kernel(signature):
    """Declare a kernel that takes or returns objects. numba cannot choose compiled code by such arguments, so the
    kernel is called by its entry point.
    """
    kinds, _ = sigutils.normalize_signature(signature)

    def declare(function):
        declared = kernel(signature)(function)
        if numba.config.DISABLE_JIT:
            return _holding(declared, kinds)
        dispatcher, _ = REGISTRY[f"{function.__module__}.{function.__name__}"]
        return ObjectKernel(function.__name__, dispatcher, kinds)

    return declare


# --- intrinsics ------------------------------------------------------------------------------------
def _llvm(kind):
    if kind == OBJECT:
        return _POINTER
    return {types.int64: _WORD, types.int32: _INT, types.float64: _DOUBLE, types.void: ir.VoidType()}[kind]


def emitted(code, result, *arguments):
    """Declare an intrinsic by its twin. code: (context, builder, signature, values) to the value of the call.
    arguments: their types, None for an array.
    """

    def declare(twin):
        if numba.config.DISABLE_JIT:
            return twin
        names = list(inspect.signature(twin).parameters.values())

        def typed(context, *given):
            return result(*(kind or each for kind, each in zip(arguments, given, strict=True))), code

        first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        typed.__signature__ = inspect.Signature([first, *names])
        typed.__name__ = twin.__name__
        typed.__doc__ = twin.__doc__
        return intrinsic(typed)

    return declare


def _function(builder, name, result, *arguments):
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def c_function(name, result, *arguments):
    """Declare an intrinsic that is one function of Python's C API."""

    def code(context, builder, signature, values):
        return builder.call(_function(builder, name, _llvm(result), *map(_llvm, arguments)), values)

    return emitted(code, result, *arguments)


def _symbol(builder, name):
    if name in builder.module.globals:
        return builder.module.globals[name]
    found = ir.GlobalVariable(builder.module, _BYTE, name)
    found.linkage = "external"
    return found


def _place(context, builder, kind, array, byte):
    """The address of a byte of an array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, _POINTER), [byte])


def _octets(words):
    return words.view(np.uint8)


# --- memory ----------------------------------------------------------------------------------------
def _load(bits):
    kind = ir.IntType(bits)

    def code(context, builder, signature, values):
        at = builder.bitcast(_place(context, builder, signature.args[0], *values), kind.as_pointer())
        found = builder.load(at, align=1)
        return found if bits == 64 else builder.sext(found, _WORD)

    return emitted(code, types.int64, None, types.int64)


def _read(words, byte, size):
    at = int(byte)
    return int.from_bytes(_octets(words)[at : at + size].tobytes(), "little", signed=True)


@_load(64)
def load_64(words, byte):
    """Return the 8 bytes from a byte of an array on."""
    return _read(words, byte, 8)


@_load(32)
def load_32(words, byte):
    """Return 4 bytes, with their sign."""
    return _read(words, byte, 4)


@_load(16)
def load_16(words, byte):
    """Return 2 bytes, with their sign."""
    return _read(words, byte, 2)


@_load(8)
def load_8(words, byte):
    """Return a byte, with its sign."""
    return _read(words, byte, 1)


def _store(bits):
    kind = ir.IntType(bits)

    def code(context, builder, signature, values):
        at = builder.bitcast(_place(context, builder, signature.args[0], *values[:2]), kind.as_pointer())
        builder.store(values[2] if bits == 64 else builder.trunc(values[2], kind), at, align=1)
        return context.get_dummy_value()

    return emitted(code, types.void, None, types.int64, types.int64)


def _write(words, byte, size, word):
    octets = (int(word) % (1 << 64)).to_bytes(8, "little")[:size]
    _octets(words)[int(byte) : int(byte) + size] = np.frombuffer(octets, np.uint8)


@_store(64)
def store_64(words, byte, word):
    """Write 8 bytes from a byte of an array on."""
    _write(words, byte, 8, word)


@_store(32)
def store_32(words, byte, word):
    """Write the low 4 bytes of a word."""
    _write(words, byte, 4, word)


@_store(16)
def store_16(words, byte, word):
    """Write the low 2 bytes."""
    _write(words, byte, 2, word)


@_store(8)
def store_8(words, byte, word):
    """Write the lowest byte."""
    _write(words, byte, 1, word)


def _store_zeros(context, builder, signature, values):
    at = _place(context, builder, signature.args[0], *values[:2])
    cgutils.memset(builder, at, values[2], 0)
    return context.get_dummy_value()


@emitted(_store_zeros, types.void, None, types.int64, types.int64)
def store_zeros(words, byte, count):
    """Write `count` zeros, 0 or more, from a byte of an array on."""
    _octets(words)[int(byte) : int(byte) + int(count)] = 0


def _copy_elements(context, builder, signature, values):
    target, source = (
        builder.gep(context.make_array(signature.args[each])(context, builder, values[each]).data, [values[each + 1]])
        for each in (0, 2)
    )
    is_some = builder.icmp_signed(">", values[4], _WORD(0))
    size = context.get_abi_sizeof(context.get_value_type(signature.args[0].dtype))
    cgutils.raw_memcpy(builder, target, source, builder.select(is_some, values[4], _WORD(0)), size)
    return context.get_dummy_value()


@emitted(_copy_elements, types.void, None, types.int64, None, types.int64, types.int64)
def copy_elements(target, at, source, begin, count):
    """Copy `count` elements of source[begin:] to target[at:], nothing if it is not positive. Both arrays have elements
    of one type.
    """
    if count > 0:
        target[int(at) : int(at) + int(count)] = source[int(begin) : int(begin) + int(count)]


def stack_words(count):
    """Return an intrinsic that returns words of the stack, with any content. They last until the kernel or helper that
    calls it returns.
    """

    def code(context, builder, signature, values):
        room = cgutils.alloca_once(builder, ir.ArrayType(_WORD, count))
        array = context.make_array(_WORDS)(context, builder)
        data = builder.bitcast(room, _WORD.as_pointer())
        size, step = (context.get_constant(types.intp, each) for each in (count, 8))
        context.populate_array(array, data=data, shape=[size], strides=[step], itemsize=step, meminfo=None)
        return array._getvalue()

    @emitted(code, _WORDS)
    def words():
        return np.full(count, -0x5A5A5A5A, dtype=np.int64)

    return words


# --- what an object is -----------------------------------------------------------------------------
def _is_of(kind, name):
    def code(context, builder, signature, values):
        at = builder.bitcast(builder.gep(values[0], [_WORD(TYPE_OFFSET)]), _POINTER.as_pointer())
        return builder.zext(builder.icmp_unsigned("==", builder.load(at), _symbol(builder, name)), _WORD)

    @emitted(code, types.int64, OBJECT)
    def is_of(held):
        return int(type(held.value) is kind)

    return is_of


is_int = _is_of(int, "PyLong_Type")
is_bool = _is_of(bool, "PyBool_Type")
is_float = _is_of(float, "PyFloat_Type")
is_bytes = _is_of(bytes, "PyBytes_Type")
is_text = _is_of(str, "PyUnicode_Type")
is_tuple = _is_of(tuple, "PyTuple_Type")
is_dict = _is_of(dict, "PyDict_Type")


def _is_of_class(context, builder, signature, values):
    at = builder.bitcast(builder.gep(values[0], [_WORD(TYPE_OFFSET)]), _WORD.as_pointer())
    return builder.zext(builder.icmp_unsigned("==", builder.load(at), values[1]), _WORD)


@emitted(_is_of_class, types.int64, OBJECT, types.int64)
def is_of_class(held, address):
    """Whether an object is of the class at an address, and of no subclass."""
    return int(type(held.value) is _object_at(address))


def _is_none(context, builder, signature, values):
    return builder.zext(builder.icmp_unsigned("==", values[0], _symbol(builder, "_Py_NoneStruct")), _WORD)


@emitted(_is_none, types.int64, OBJECT)
def is_none(held):
    """Whether an object is None."""
    return int(held.value is None)


def _is_null(context, builder, signature, values):
    return builder.zext(builder.icmp_unsigned("==", values[0], ir.Constant(_POINTER, None)), _WORD)


@emitted(_is_null, types.int64, OBJECT)
def is_null(held):
    """Whether there is no object, because an intrinsic has failed; it has then set an error."""
    return int(held is None)


def _no_object(context, builder, signature, values):
    return ir.Constant(_POINTER, None)


@emitted(_no_object, OBJECT)
def no_object():
    """Return no object."""


@c_function("PyErr_Clear", types.void)
def clear_error():
    """Forget the error that an intrinsic has set."""


# --- reading objects -------------------------------------------------------------------------------
def _address(context, builder, signature, values):
    return builder.ptrtoint(values[0], _WORD)


@emitted(_address, types.int64, OBJECT)
def address(held):
    """Return the address of an object."""
    return id(held.value)


def _object_of(context, builder, signature, values):
    return builder.inttoptr(values[0], _POINTER)


@emitted(_object_of, OBJECT, types.int64)
def object_of(address):
    """Return the object at an address, borrowed: something else keeps it alive."""
    return Held(_object_at(address))


def _word_at(context, builder, signature, values):
    return builder.load(builder.inttoptr(values[0], _WORD.as_pointer()))


@emitted(_word_at, types.int64, types.int64)
def word_at(address):
    """Return the word at an address inside of an object, which something else keeps alive."""
    return ctypes.c_int64.from_address(int(address)).value


def _dict_next(context, builder, signature, values):
    place, name, value = (cgutils.alloca_once(builder, kind) for kind in (_WORD, _POINTER, _POINTER))
    builder.store(values[1], place)
    kinds = [_POINTER, *(each.type for each in (place, name, value))]
    found = builder.call(_function(builder, "PyDict_Next", _INT, *kinds), [values[0], place, name, value])
    is_there = builder.icmp_signed("!=", found, _INT(0))
    after = builder.select(is_there, builder.load(place), _WORD(-1))
    # At the end, an object that is there instead of a pointer to nowhere.
    pair = (builder.select(is_there, builder.load(each), values[0]) for each in (name, value))
    return context.make_tuple(builder, signature.return_type, [after, *pair])


@emitted(_dict_next, types.Tuple((types.int64, OBJECT, OBJECT)), OBJECT, types.int64)
def dict_next(held, place):
    """Return (the next place, the name and the value there) of a dict, from place 0 on; place -1 at the end. Both are
    borrowed.
    """
    if int(place) >= len(held.value):
        return -1, held, held
    name, value = list(held.value.items())[int(place)]
    return int(place) + 1, Held(name), Held(value)


def _int_of(context, builder, signature, values):
    overflow = cgutils.alloca_once(builder, _INT)
    function = _function(builder, "PyLong_AsLongLongAndOverflow", _WORD, _POINTER, _INT.as_pointer())
    found = builder.call(function, [values[0], overflow])
    return context.make_tuple(builder, signature.return_type, [found, builder.sext(builder.load(overflow), _WORD)])


@emitted(_int_of, types.UniTuple(types.int64, 2), OBJECT)
def int_of(held):
    """Return the word of an int or a bool, and whether it does not fit (then not 0)."""
    value = int(held.value)
    fits = -(1 << 63) <= value < 1 << 63
    return (value if fits else -1), int(not fits)


def _unsigned_of(context, builder, signature, values):
    found = builder.call(_function(builder, "PyLong_AsUnsignedLongLong", _WORD, _POINTER), values)
    error = builder.call(_function(builder, "PyErr_Occurred", _POINTER), [])
    is_there = builder.icmp_unsigned("==", error, ir.Constant(_POINTER, None))
    with builder.if_then(builder.not_(is_there), likely=False):
        builder.call(_function(builder, "PyErr_Clear", ir.VoidType()), [])
    return context.make_tuple(builder, signature.return_type, [builder.zext(is_there, _WORD), found])


@emitted(_unsigned_of, types.UniTuple(types.int64, 2), OBJECT)
def unsigned_of(held):
    """Return (whether an int fits a word without sign, its word)."""
    value = int(held.value)
    if not 0 <= value < 1 << 64:
        return 0, -1
    return 1, value - (1 << 64) if value >= 1 << 63 else value


def _float_bits(context, builder, signature, values):
    return builder.bitcast(builder.call(_function(builder, "PyFloat_AsDouble", _DOUBLE, _POINTER), values), _WORD)


@emitted(_float_bits, types.int64, OBJECT)
def float_bits(held):
    """Return the bits of a float, or of an int that is one."""
    return int(np.float64(held.value).view(np.int64))


def _single_bits(context, builder, signature, values):
    value = builder.call(_function(builder, "PyFloat_AsDouble", _DOUBLE, _POINTER), values)
    return builder.zext(builder.bitcast(builder.fptrunc(value, ir.FloatType()), _INT), _WORD)


@emitted(_single_bits, types.int64, OBJECT)
def single_bits(held):
    """Return the bits of the nearest float of 32 bits of a float, or of an int that is one; an infinity for one that
    is too large.
    """
    with np.errstate(over="ignore", under="ignore"):
        return int(np.float32(held.value).view(np.uint32))


@c_function("PyBytes_Size", types.int64, OBJECT)
def bytes_size(held):
    """Return the size of bytes."""
    return len(held.value)


@c_function("PyUnicode_GetLength", types.int64, OBJECT)
def text_length(held):
    """Return the number of code points of a text."""
    return len(held.value)


def _utf8(builder, text):
    size = cgutils.alloca_once(builder, _WORD)
    builder.store(_WORD(-1), size)
    function = _function(builder, "PyUnicode_AsUTF8AndSize", _POINTER, _POINTER, _WORD.as_pointer())
    return builder.call(function, [text, size]), size


def _text_size(context, builder, signature, values):
    octets, size = _utf8(builder, values[0])
    missing = builder.icmp_unsigned("==", octets, ir.Constant(_POINTER, None))
    return builder.select(missing, _WORD(-1), builder.load(size))


@emitted(_text_size, types.int64, OBJECT)
def text_size(held):
    """Return the bytes of a text in UTF-8; -1 with an error set for a lone surrogate."""
    try:
        return len(held.value.encode())
    except UnicodeEncodeError:
        return -1


def _is_same_text(context, builder, signature, values):
    found = builder.call(_function(builder, "PyUnicode_Compare", _INT, _POINTER, _POINTER), values)
    return builder.zext(builder.icmp_signed("==", found, _INT(0)), _WORD)


@emitted(_is_same_text, types.int64, OBJECT, OBJECT)
def is_same_text(held, other):
    """Whether two texts are equal."""
    return int(held.value == other.value)


def _text_byte(context, builder, signature, values):
    octets, _ = _utf8(builder, values[0])
    return builder.zext(builder.load(builder.gep(octets, [values[1]])), _WORD)


@emitted(_text_byte, types.int64, OBJECT, types.int64)
def text_byte(held, number):
    """Return a byte of the UTF-8 of a text. `text_size` has succeeded, and is larger."""
    return held.value.encode()[int(number)]


def _copy(builder, context, signature, source, values):
    cgutils.raw_memcpy(builder, _place(context, builder, signature.args[2], values[2], values[3]), source, values[1], 1)
    return context.get_dummy_value()


def _copy_bytes(context, builder, signature, values):
    source = builder.call(_function(builder, "PyBytes_AsString", _POINTER, _POINTER), [values[0]])
    return _copy(builder, context, signature, source, values)


@emitted(_copy_bytes, types.void, OBJECT, types.int64, None, types.int64)
def copy_bytes(held, count, words, byte):
    """Copy the first `count` bytes of bytes to a byte of an array."""
    _octets(words)[int(byte) : int(byte) + int(count)] = np.frombuffer(held.value, np.uint8)[: int(count)]


def _copy_text(context, builder, signature, values):
    return _copy(builder, context, signature, _utf8(builder, values[0])[0], values)


@emitted(_copy_text, types.void, OBJECT, types.int64, None, types.int64)
def copy_text(held, count, words, byte):
    """Copy the first `count` bytes of the UTF-8 of a text to a byte of an array. `text_size` has succeeded."""
    _octets(words)[int(byte) : int(byte) + int(count)] = np.frombuffer(held.value.encode(), np.uint8)[: int(count)]


@c_function("PyTuple_Size", types.int64, OBJECT)
def tuple_size(held):
    """Return the size of a tuple."""
    return len(held.value)


@c_function("PyTuple_GetItem", OBJECT, OBJECT, types.int64)
def tuple_item(held, number):
    """Return an item of a tuple, borrowed."""
    return Held(held.value[int(number)])


def _member(context, builder, signature, values):
    found = builder.call(_function(builder, "PyTuple_GetItem", _POINTER, _POINTER, _WORD), values)
    builder.call(_function(builder, "Py_IncRef", ir.VoidType(), _POINTER), [found])
    return found


@emitted(_member, OBJECT, OBJECT, types.int64)
def member(held, number):
    """Return an item of a tuple; no object if it has no such item."""
    return Held(held.value[int(number)]) if 0 <= number < len(held.value) else None


def _dict_item(context, builder, signature, values):
    found = builder.call(_function(builder, "PyDict_GetItemWithError", _POINTER, _POINTER, _POINTER), values)
    return builder.select(builder.icmp_unsigned("==", found, ir.Constant(_POINTER, None)), values[0], found)


@emitted(_dict_item, OBJECT, OBJECT, OBJECT)
def dict_item(held, key):
    """Return what a dict has for a key, borrowed; the dict itself if it has nothing. All keys are texts."""
    return Held(held.value[key.value]) if key.value in held.value else held


# --- making objects --------------------------------------------------------------------------------
def _single(value, name):
    def code(context, builder, signature, values):
        found = _symbol(builder, name)
        builder.call(_function(builder, "Py_IncRef", ir.VoidType(), _POINTER), [found])
        return found

    @emitted(code, OBJECT)
    def single():
        return Held(value)

    return single


none = _single(None, "_Py_NoneStruct")
# What a kernel returns that leaves its call to the general path.
left = _single(..., "_Py_EllipsisObject")


def _shared(context, builder, signature, values):
    found = builder.inttoptr(values[0], _POINTER)
    builder.call(_function(builder, "Py_IncRef", ir.VoidType(), _POINTER), [found])
    return found


def _object_at(address):
    return ctypes.cast(int(address), ctypes.py_object).value


@emitted(_shared, OBJECT, types.int64)
def shared(address):
    """Return the object at an address, which something else keeps alive."""
    return Held(_object_at(address))


@c_function("Py_DecRef", types.void, OBJECT)
def drop(held):
    """Give a reference back."""


@c_function("PyLong_FromLongLong", OBJECT, types.int64)
def new_int(word):
    """Return the int of a word."""
    return Held(int(word))


@c_function("PyLong_FromUnsignedLongLong", OBJECT, types.int64)
def new_unsigned(word):
    """Return the int of a word without sign."""
    return Held(int(word) % (1 << 64))


@c_function("PyBool_FromLong", OBJECT, types.int64)
def new_bool(word):
    """Return whether a word is not 0."""
    return Held(bool(word))


def _new_float(context, builder, signature, values):
    return builder.call(
        _function(builder, "PyFloat_FromDouble", _POINTER, _DOUBLE), [builder.bitcast(values[0], _DOUBLE)]
    )


@emitted(_new_float, OBJECT, types.int64)
def new_float(bits):
    """Return the float with these bits."""
    return Held(float(np.int64(bits).view(np.float64)))


def _new_single(context, builder, signature, values):
    single = builder.bitcast(builder.trunc(values[0], _INT), ir.FloatType())
    return builder.call(_function(builder, "PyFloat_FromDouble", _POINTER, _DOUBLE), [builder.fpext(single, _DOUBLE)])


@emitted(_new_single, OBJECT, types.int64)
def new_single(bits):
    """Return the float with the low 32 bits."""
    return Held(float(np.int64(bits).astype(np.int32).view(np.float32)))


def _of_octets(name):
    def code(context, builder, signature, values):
        at = _place(context, builder, signature.args[0], values[0], values[1])
        return builder.call(_function(builder, name, _POINTER, _POINTER, _WORD), [at, values[2]])

    return emitted(code, OBJECT, None, types.int64, types.int64)


@_of_octets("PyBytes_FromStringAndSize")
def new_bytes(words, byte, size):
    """Return `size` bytes from a byte of an array on."""
    return Held(_octets(words)[int(byte) : int(byte) + int(size)].tobytes())


@_of_octets("PyUnicode_FromStringAndSize")
def new_text(words, byte, size):
    """Return the text of `size` bytes of UTF-8 from a byte of an array on; no object if they are no UTF-8."""
    try:
        return Held(_octets(words)[int(byte) : int(byte) + int(size)].tobytes().decode())
    except UnicodeDecodeError:
        return None


def _new_padded(context, builder, signature, values):
    make = _function(builder, "PyBytes_FromStringAndSize", _POINTER, _POINTER, _WORD)
    made = builder.call(make, [ir.Constant(_POINTER, None), values[3]])
    with builder.if_then(builder.icmp_unsigned("!=", made, ir.Constant(_POINTER, None))):
        at = builder.call(_function(builder, "PyBytes_AsString", _POINTER, _POINTER), [made])
        source = _place(context, builder, signature.args[0], values[0], values[1])
        cgutils.raw_memcpy(builder, at, source, values[2], 1)
        cgutils.memset(builder, builder.gep(at, [values[2]]), builder.sub(values[3], values[2]), 0)
    return made


@emitted(_new_padded, OBJECT, None, types.int64, types.int64, types.int64)
def new_padded(words, byte, size, width):
    """Return `size` bytes from a byte of an array on, followed by zeros: `width` bytes in all."""
    return Held(_octets(words)[int(byte) : int(byte) + int(size)].tobytes().ljust(int(width), b"\0"))


# --- rows ------------------------------------------------------------------------------------------
def _new_row(context, builder, signature, values):
    make = _function(builder, "PyType_GenericAlloc", _POINTER, _POINTER, _WORD)
    made = builder.call(make, [builder.inttoptr(values[0], _POINTER), values[1]])
    with builder.if_then(builder.icmp_unsigned("!=", made, ir.Constant(_POINTER, None)), likely=True):
        # No value of a row refers to it, so it is in no cycle, and the collector need not visit it.
        builder.call(_function(builder, "PyObject_GC_UnTrack", ir.VoidType(), _POINTER), [made])
    return made


@emitted(_new_row, OBJECT, types.int64, types.int64)
def new_row(kind, count):
    """Return a row of `count` values that are not set yet, untracked. kind: address of a class of rows."""
    return Held([_object_at(kind), *[None] * int(count)])


def _set_value(context, builder, signature, values):
    builder.call(_function(builder, "PyTuple_SetItem", _INT, _POINTER, _WORD, _POINTER), values)
    return context.get_dummy_value()


@emitted(_set_value, types.void, OBJECT, types.int64, OBJECT)
def set_value(row, number, value):
    """Set a value of a new row; the reference is the row's from now on."""
    row.value[1 + int(number)] = value.value


def _same(context, builder, signature, values):
    return values[0]


@emitted(_same, OBJECT, OBJECT)
def finished(row):
    """Return a new row whose values are set."""
    kind, *values = row.value
    return Held(tuple.__new__(kind, values))


@c_function("PyList_New", OBJECT, types.int64)
def new_rows(count):
    """Return a list for `count` rows."""
    return Held([None] * int(count))


def _set_row(context, builder, signature, values):
    builder.call(_function(builder, "PyList_SetItem", _INT, _POINTER, _WORD, _POINTER), values)
    return context.get_dummy_value()


@emitted(_set_row, types.void, OBJECT, types.int64, OBJECT)
def set_row(rows, number, row):
    """Set a row of a new list; the reference is the list's from now on."""
    rows.value[int(number)] = row.value


def _switch(name):
    def code(context, builder, signature, values):
        return builder.sext(builder.call(_function(builder, name, _INT), []), _WORD)

    return emitted(code, types.int64)


@_switch("PyGC_Disable")
def stop_collector():
    """Turn the collector off; return whether it was on. A list in the making must not be seen."""
    return 0


@_switch("PyGC_Enable")
def start_collector():
    """Turn the collector on."""
    return 0
