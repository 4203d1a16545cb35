"""Text that is no PTX, or PTX with a slip in it, runs or raises `PtxError`, and nothing else."""

from __future__ import annotations

import random
import re

import pytest
from ptx_harness import HEAD, entry

from tuner.simulator import PtxError, parse
from tuner.simulator.program import program_of

BODY = """
  .shared .align 16 .b8 tile[1024];
  .local .b32 kept[4];
  ld.param.u64 %rd1, [a];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, tile;
  mad.wide.u32 %rd2, %r1, 16, %rd1;
  cp.async.ca.shared.global [%r2+0], [%rd2], 16;
  cp.async.commit_group;
  cp.async.wait_group 0;
  bar.sync 0;
  setp.lt.u32 %p1|%p2, %r1, 7;
  ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r4, %r5}, [%r2];
  mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r8,%r9,%r10,%r11}, {%r4,%r5}, {%r6}, {%r8,%r9,%r10,%r11};
  shfl.sync.bfly.b32 %r12|%p3, %r9, 1, 31, -1;
  { .reg .b32 t; mov.b32 t, 0f3F800000; st.local.b32 [kept+4], t; }
  @!%p1 bra $END;
  atom.global.add.u32 %r13, [%rd1], %r9;
$END:
  ret;
"""
TABLE = ".const .align 4 .f32 table[3] = {0f3F800000, 2.5, 0};\n.global .u32 count = 7;\n"
SLIPS = ("", "0", "-1", "%r1", "%rd1", "%p1", "{", "}", "(", ")", "[", "]", ";", ",", ".", "!", "|", ".u32",
         "0x", "0f12", "9" * 20, "%tid.x", "missing", "add.u32", ".align")  # fmt: skip


def lowered(text: str) -> None:
    program_of(parse(text), "k")


def test_the_whole_text_is_well_formed() -> None:
    lowered(entry(BODY, before=TABLE))


def test_text_that_breaks_off_raises_nothing_else() -> None:
    text = entry(BODY, before=TABLE)
    for end in range(len(text.rstrip()) - 1):
        with pytest.raises(PtxError):
            lowered(text[:end])


def test_a_slip_anywhere_raises_nothing_else() -> None:
    text, chance = entry(BODY, before=TABLE), random.Random(0)
    tokens = list(re.finditer(r"[\w.$%]+|[^\s\w]", text))
    refused = 0
    for _ in range(1500):
        token = chance.choice(tokens)
        slip = chance.choice((*SLIPS, chance.choice(tokens)[0]))
        try:
            lowered(text[: token.start()] + slip + text[token.end() :])
        except PtxError:
            refused += 1
    assert refused > 750


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", r"^a PTX module begins with \.version and \.target"),
        ("int main() { return 0; }", r"^PTX line 1: .*a module-level directive was expected$"),
        (HEAD + ".visible .entry k", r"^PTX line 4: .*neither body nor semicolon$"),
        (HEAD + ".visible .entry k() { ret;", r"^PTX line 4: .*the body of k has no closing brace$"),
        (HEAD + ".visible .entry k() { .reg .b32 %r<99999999>; ret; }",
         r"^PTX line 4: .*a declaration has at most 1048576 registers, got 99999999$"),
        (HEAD + ".global .align 3 .u32 x;", r"^PTX line 4: .*an alignment must be a power of two, got 3$"),
        (HEAD + ".global .u32 x[-4];", r"^PTX line 4: .*array size '-4' is no whole number$"),
        (HEAD + ".global .u32 x = 0f3F800000;", r"^PTX line 4: .*\.u32 cannot be initialised with a float$"),
        (HEAD + ".global .u32 x = 1 2;", r"^PTX line 4: .*number '1 2' is not understood$"),
        (entry("add.u32 %r1, %r2, ;"), r"^PTX line 17: .*add\.u32 takes 3 operands, got 2$"),
        (entry("mov.u32 %r1, !;"), r"^PTX line 17: .*an operand is missing$"),
        (entry("cp.async.wait_group;"), r"^PTX line 17: .*cp\.async\.wait_group takes 1 operands, got 0$"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, line: str) -> None:
    with pytest.raises(PtxError, match=line):
        lowered(text)
