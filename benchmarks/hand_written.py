"""The hand-written `ternary_gemm_s8` behind the published figures, rebuilt from what is published about it.

Published: 128x128x32 tiles, one stage, 48-byte rows in shared memory, 8 warps of 64x32, decoding to shared
memory, 12,288 bytes shared, 105 registers. From its description: a thread takes one word of 16 codes, which
lie along n, and stores each decoded byte to the row of its column, so that eight lanes of a warp meet in one
bank. The rest is the plain way to write it: nothing is prefetched, codes are decoded one by one, fragments
come by ldmatrix. Whole tiles only.
"""

from emitters.gemm import TERNARY_GEMM_S8
from emitters.kernel import EmittedKernel
from results.plan import KernelStep, LaunchPlan

TILE = 128
TILE_K = 32
STRIDE = 48
THREADS = 256
WARP_M, WARP_N = 64, 32
ENTRY = "hand_written"
SHARED_BYTES = 2 * TILE * STRIDE

_HEAD = """\
.version 7.8
.target sm_89
.address_size 64

.extern .shared .align 128 .b8 tiles[];

.visible .entry hand_written(
    .param .u64 A, .param .u64 codes, .param .u64 C, .param .u32 m, .param .u32 n, .param .u32 k)
.maxntid 256, 1, 1
{
    .reg .pred %p;
    .reg .b32 %r<64>, %a<16>, %b<8>, %c<64>;
    .reg .b64 %rd<16>;
    ld.param.u64 %rd1, [A];
    ld.param.u64 %rd2, [codes];
    ld.param.u64 %rd3, [C];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [k];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    cvta.to.global.u64 %rd3, %rd3;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ctaid.y;
    mov.u32 %r6, tiles;
    // A: thread t copies 16 bytes, half t % 2 of row t / 2.
    shr.u32 %r7, %r3, 1;
    and.b32 %r8, %r3, 1;
    shl.b32 %r8, %r8, 4;
    mad.lo.u32 %r9, %r7, 48, %r8;
    add.u32 %r10, %r6, %r9;
    mad.lo.u32 %r11, %r5, 128, %r7;
    mul.wide.u32 %rd4, %r11, %r2;
    add.u64 %rd4, %rd4, %rd1;
    cvt.u64.u32 %rd5, %r8;
    add.u64 %rd4, %rd4, %rd5;
    // Codes: thread t takes the 16 codes of columns 16 * (t % 8) .. + 15 in row t / 8 of the k-tile.
    shr.u32 %r12, %r3, 3;
    and.b32 %r13, %r3, 7;
    shl.b32 %r13, %r13, 4;
    mad.lo.u32 %r14, %r13, 48, %r12;
    add.u32 %r15, %r6, %r14;
    mad.lo.u32 %r16, %r4, 128, %r13;
    mad.lo.u32 %r17, %r12, %r1, %r16;
    shr.u32 %r17, %r17, 2;
    cvt.u64.u32 %rd6, %r17;
    add.u64 %rd6, %rd6, %rd2;
    shl.b32 %r18, %r1, 3;
    cvt.u64.u32 %rd7, %r18;
    // Fragments: lane l of ldmatrix.x4 gives the address of row l % 16, half l / 16 (A), or of row
    // l % 8 + 8 * (l / 16), half l / 8 % 2 (B).
    and.b32 %r19, %r3, 31;
    shr.u32 %r20, %r3, 5;
    shr.u32 %r21, %r20, 2;
    and.b32 %r22, %r20, 3;
    and.b32 %r23, %r19, 15;
    mad.lo.u32 %r24, %r21, 64, %r23;
    shr.u32 %r25, %r19, 4;
    shl.b32 %r26, %r25, 4;
    mad.lo.u32 %r27, %r24, 48, %r26;
    add.u32 %r28, %r6, %r27;
    and.b32 %r29, %r19, 7;
    mad.lo.u32 %r30, %r25, 8, %r29;
    mad.lo.u32 %r30, %r22, 32, %r30;
    shr.u32 %r31, %r19, 3;
    and.b32 %r31, %r31, 1;
    shl.b32 %r31, %r31, 4;
    mad.lo.u32 %r32, %r30, 48, %r31;
    add.u32 %r33, %r6, %r32;
    add.u32 %r33, %r33, 6144;
"""


def emit() -> EmittedKernel:
    """Text and plan of the kernel."""
    lines = [_HEAD]
    lines += [f"    mov.b32 %c{i}, 0;" for i in range(64)]
    lines += [
        "    shr.u32 %r34, %r2, 5;",
        "step:",
        '    .pragma "nounroll";',
        "    ld.global.v4.u32 {%r36, %r37, %r38, %r39}, [%rd4];",
        "    ld.global.u32 %r40, [%rd6];",
        "    st.shared.v4.u32 [%r10], {%r36, %r37, %r38, %r39};",
    ]
    for i in range(16):
        lines += [
            f"    bfe.u32 %r41, %r40, {2 * i}, 1;",
            f"    bfe.u32 %r42, %r40, {2 * i + 1}, 1;",
            "    sub.u32 %r43, %r41, %r42;",
            f"    st.shared.u8 [%r15 + {6144 + STRIDE * i}], %r43;",
        ]
    lines += [
        "    add.u64 %rd4, %rd4, 32;",
        "    add.u64 %rd6, %rd6, %rd7;",
        "    bar.sync 0;",
    ]
    for row in range(4):
        registers = ", ".join(f"%a{4 * row + i}" for i in range(4))
        lines.append(f"    {_LDMATRIX} {{{registers}}}, [%r28 + {16 * STRIDE * row}];")
    for column in range(0, 4, 2):
        registers = ", ".join(f"%b{2 * column + i}" for i in range(4))
        lines.append(f"    {_LDMATRIX} {{{registers}}}, [%r33 + {8 * STRIDE * column}];")
    for row in range(4):
        a = ", ".join(f"%a{4 * row + i}" for i in range(4))
        for column in range(4):
            b = ", ".join(f"%b{2 * column + i}" for i in range(2))
            c = ", ".join(f"%c{16 * row + 4 * column + i}" for i in range(4))
            lines.append(f"    {_MMA} {{{c}}}, {{{a}}}, {{{b}}}, {{{c}}};")
    lines += [
        "    bar.sync 0;",
        "    sub.u32 %r34, %r34, 1;",
        "    setp.ne.u32 %p, %r34, 0;",
        "    @%p bra step;",
        "    // C: lane 4g + t holds columns 2t, 2t + 1 of rows g and g + 8 of each fragment.",
        "    shr.u32 %r44, %r19, 2;",
        "    mad.lo.u32 %r44, %r21, 64, %r44;",
        "    mad.lo.u32 %r44, %r5, 128, %r44;",
        "    and.b32 %r45, %r19, 3;",
        "    shl.b32 %r45, %r45, 1;",
        "    mad.lo.u32 %r45, %r22, 32, %r45;",
        "    mad.lo.u32 %r45, %r4, 128, %r45;",
        "    mul.wide.u32 %rd8, %r44, %r1;",
        "    cvt.u64.u32 %rd9, %r45;",
        "    add.u64 %rd8, %rd8, %rd9;",
        "    shl.b64 %rd8, %rd8, 2;",
        "    add.u64 %rd8, %rd8, %rd3;",
        "    shl.b32 %r46, %r1, 5;",
        "    cvt.u64.u32 %rd10, %r46;",
    ]
    for row in range(4):
        for half in range(2):
            for column in range(4):
                first = 16 * row + 4 * column + 2 * half
                lines.append(f"    st.global.v2.u32 [%rd8 + {32 * column}], {{%c{first}, %c{first + 1}}};")
            lines.append("    add.u64 %rd8, %rd8, %rd10;")
    lines += ["    ret;", "}", ""]
    plan = LaunchPlan(
        steps=(
            KernelStep(
                entry=ENTRY,
                grid=(f"n // {TILE}", f"m // {TILE}", "1"),
                block=(THREADS, 1, 1),
                shared_bytes=SHARED_BYTES,
                arguments=("A", "codes", "C", "m", "n", "k"),
            ),
        ),
        valid=f"m % {TILE} == 0 and n % {TILE} == 0 and k % {TILE_K} == 0",
    )
    return EmittedKernel(TERNARY_GEMM_S8.id, "sm_89", {}, "\n".join(lines), plan)


_LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
_MMA = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
