"""Device functions are inlined where they are called, so that one set of masks describes all control flow.

A parameter of the callee is the variable that the caller stores it in, under another name. Recursion has no
such form and is refused.
"""

from __future__ import annotations

from dataclasses import replace

from tuner.simulator.operands import renamed_operand
from tuner.simulator.syntax import (
    SINK,
    Arguments,
    Function,
    Instruction,
    Module,
    Name,
    Operand,
    PtxError,
    Variable,
)

DEEPEST = 32


def inlined(module: Module, entry: Function) -> Function:
    """Return `entry` with the bodies of the functions it calls in the place of the calls."""
    if not any(item.opcode.startswith("call") for item in entry.body):
        return entry
    return _Inliner(module, entry).result


class _Inliner:
    def __init__(self, module: Module, entry: Function) -> None:
        self.module = module
        self.scopes = 1 + max((number for item in entry.body for number in item.scope), default=0)
        self.count = 0
        self.result = replace(
            entry, registers=dict(entry.registers), variables=dict(entry.variables), body=[], labels={}
        )
        self.copy(entry, {}, {}, (), 0, None)

    def copy(
        self,
        function: Function,
        names: dict[str, str],
        scopes: dict[int, int],
        outer: tuple[int, ...],
        depth: int,
        end: str | None,
    ) -> None:
        """Append a function's body under other names; `end` is the label its returns go to."""
        positions: dict[int, list[tuple[int, str]]] = {}
        for key, position in function.labels.items():
            positions.setdefault(position, []).append(key)
        body = self.result.body
        for position, item in enumerate((*function.body, None)):
            for scope, label in positions.get(position, ()):
                self.result.labels[self.scope(scopes, scope, depth), label] = len(body)
            if item is None:
                return
            path = (*(self.scope(scopes, number, depth) for number in item.scope), *outer)
            moved = item._replace(
                operands=tuple(renamed_operand(operand, names) for operand in item.operands)
                if names
                else item.operands,
                guard=names.get(item.guard, item.guard) if item.guard else None,
                scope=path,
            )
            if item.opcode.split(".")[0] == "call":
                self.call(moved, depth)
            elif end is not None and item.opcode.split(".")[0] == "ret":
                body.append(moved._replace(opcode="bra", operands=(Name(end),)))
            else:
                body.append(moved)

    def scope(self, scopes: dict[int, int], number: int, depth: int) -> int:
        if depth == 0:
            return number
        if number not in scopes:
            scopes[number] = self.scopes
            self.scopes += 1
        return scopes[number]

    def call(self, item: Instruction, depth: int) -> None:
        """Replace a call: `call (results), name, (arguments)`, either list optional."""
        operands = list(item.operands)
        results: tuple[Operand, ...] = ()
        if operands and isinstance(operands[0], Arguments):
            results = operands.pop(0).items  # type: ignore[union-attr]
        if not operands or not isinstance(operands[0], Name):
            raise PtxError("a call names a function", item.line, item.text)
        name = operands[0].text
        given = operands[1] if len(operands) > 1 else Arguments(())
        arguments = given.items if isinstance(given, Arguments) else (given,)
        callee = self.module.functions.get(name)
        if callee is None:
            raise PtxError(f"function {name} has no body in this module", item.line, item.text)
        if depth >= DEEPEST:
            raise PtxError(
                f"calls are nested deeper than {DEEPEST}; recursion is not simulated", item.line, item.text
            )
        if len(arguments) != len(callee.parameters) or len(results) > len(callee.results):
            raise PtxError(f"{name} takes {len(callee.parameters)} arguments", item.line, item.text)
        self.expand(item, callee, arguments, results, depth)

    def expand(
        self,
        item: Instruction,
        callee: Function,
        arguments: tuple[Operand, ...],
        results: tuple[Operand, ...],
        depth: int,
    ) -> None:
        self.count += 1
        mark = f"#{self.count}"
        names = {register: register + mark for register in callee.registers}
        self.result.registers.update({register + mark: kind for register, kind in callee.registers.items()})
        for variable in callee.variables.values():
            names[variable.name] = variable.name + mark
            self.result.variables[variable.name + mark] = replace(variable, name=variable.name + mark)
        end = f"{callee.name}{mark}.end"
        body, here = self.result.body, item._replace(guard=None, negated=False)
        if item.guard is not None:
            body.append(item._replace(opcode="bra", operands=(Name(end),), negated=not item.negated))
        for parameter, argument in zip(callee.parameters, arguments, strict=True):
            if parameter.space == "reg":
                body.append(
                    here._replace(
                        opcode=f"mov.{_bits(parameter)}", operands=(Name(names[parameter.name]), argument)
                    )
                )
            elif isinstance(argument, Name):
                names[parameter.name] = argument.text
        for parameter, result in zip(callee.results, results, strict=False):
            if parameter.space != "reg" and isinstance(result, Name):
                names[parameter.name] = result.text
        self.copy(callee, names, {}, item.scope, depth + 1, end)
        for parameter, result in zip(callee.results, results, strict=False):
            if parameter.space == "reg" and result != SINK:
                body.append(
                    here._replace(
                        opcode=f"mov.{_bits(parameter)}", operands=(result, Name(names[parameter.name]))
                    )
                )
        self.result.labels[item.scope[0], end] = len(body)


def _bits(variable: Variable) -> str:
    return variable.type if variable.type == "pred" else f"b{variable.nbytes * 8}"
