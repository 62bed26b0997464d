"""Arithmetic over axes, as workload files write it: `12*T*H*I`, `1/sqrt(H)`.

Values stay exact fractions as long as no root is taken, so a shape of `T/2` at odd T is found to be
no whole number instead of being rounded.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from fractions import Fraction

Number = Fraction | float

MAX_LENGTH = 300
MAX_EXPONENT = 16
# Far above any count of bytes or operations, and far below what makes Python slow.
MAX_VALUE = 10**30


class ExpressionError(ValueError):
    """What is wrong with an expression, as a clause that follows its text."""


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"is longer than {MAX_LENGTH} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError("is not an arithmetic expression") from None


def names(text: str) -> set[str]:
    """The axes that an expression mentions. Raises `ExpressionError` where it is not one."""
    tree = _parse(text)
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in functions}


def evaluate(text: str, axes: Mapping[str, int]) -> Number:
    """The value of `text` with `axes` filled in.

    Knows numbers, axes, `+ - * / // **`, parentheses, `sqrt`, `min` and `max`; nothing else.
    Raises `ExpressionError` for anything else, an unknown axis, or a value without a sane size.
    """
    return _value(_parse(text), axes)


def whole(text: str, axes: Mapping[str, int]) -> int:
    """As `evaluate`, for what must come out as a whole number above zero."""
    value = evaluate(text, axes)
    if isinstance(value, float) or value.denominator != 1:
        raise ExpressionError(f"comes to {float(value):g}, which is not a whole number")
    if value <= 0:
        raise ExpressionError(f"comes to {int(value)}, which is not above zero")
    return int(value)


def _checked(value: Number) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise ExpressionError("has no finite value")
    if not -MAX_VALUE <= value <= MAX_VALUE:
        raise ExpressionError("is too large")
    return value


def _value(node: ast.expr, axes: Mapping[str, int]) -> Number:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return _checked(Fraction(number))
        case ast.Constant(value=float() as number):
            _checked(number)
            return Fraction(repr(number))
        case ast.Name(id=name):
            if name not in axes:
                known = ", ".join(sorted(axes)) or "none"
                raise ExpressionError(f'names the axis "{name}", which is not defined (axes: {known})')
            return Fraction(axes[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, axes)
        case ast.BinOp(left=left, op=op, right=right):
            return _checked(_binary(op, _value(left, axes), _value(right, axes)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _checked(_call(name, [_value(arg, axes) for arg in args]))
    raise ExpressionError("uses more than numbers, axes, + - * / // **, sqrt, min and max")


def _binary(op: ast.operator, left: Number, right: Number) -> Number:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div() | ast.FloorDiv():
            if right == 0:
                raise ExpressionError("divides by zero")
            return left / right if isinstance(op, ast.Div) else Fraction(left // right)
        case ast.Pow():
            if isinstance(right, float) or right.denominator != 1 or not 0 <= right <= MAX_EXPONENT:
                raise ExpressionError(f"has an exponent that is not a whole number from 0 to {MAX_EXPONENT}")
            return _checked(left) ** int(right)
    raise ExpressionError("uses an operator other than + - * / // **")


def _call(name: str, values: list[Number]) -> Number:
    match name, values:
        case "sqrt", [value] if float(value) >= 0:
            return math.sqrt(float(value))
        case (("min" | "max"), [_, *_]):
            return min(values, key=float) if name == "min" else max(values, key=float)
    raise ExpressionError(f'calls "{name}" in a way that is not known (sqrt(a), min(a, b), max(a, b))')
